"""LossWeighted: any torch optimizer, on gradients weighted by how unusual the current loss is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _use_grad_for_differentiable

from surefoot.losses import TakesLoss, maximizes
from surefoot.meter import Meter, decide
from surefoot.optim import checkpoint
from surefoot.optim.engines.base import Group
from surefoot.optim.options import check_eta, check_weighing_options
from surefoot.optim.wrapper import Wrapper, check_is_optimizer
from surefoot.rules import Rule, Weighting, find_rule
from surefoot.statistics import Number, pack, stats_for_new_group, unpack, widest_float


class LossWeighted(Wrapper):
    """Wrap any torch optimizer: it is given ``weight * gradient``, with ``weight = scale * (1 + tilt * z)``.

    The parameter groups and the state are those of the base, so learning-rate schedulers, GradScaler and clipping work
    on either. Weight decay inside the base is not weighted.

    Args:
        base: the optimizer that updates the parameters.
        rule: the rule by name, or a Rule of your own.
        eta: the rule's strength (None: the rule's default); a parameter group may have another ``"eta"``.
        weighting: "unit" keeps the weight near 1, "paper" multiplies by the std of the loss.
        loss_beta: decay rate of the loss statistics.
        seed: of the noise (rule S); the same seed gives the same noise on every rank and after a resume.
        nonfinite: what to do if the loss is not finite, or it or its weight exceeds 1e19. "skip" skips the step and
            counts it (on an accelerator that costs one read per step, unless the base can skip by itself as torch's
            fused ones can), "raise" stops with an error, "coast" never reads: the base gets zero gradients for that
            step.
        process_group: where to average the loss (None: the default group when there is one, False: nowhere).

    >>> model = torch.nn.Linear(3, 1)
    >>> opt = LossWeighted(torch.optim.SGD(model.parameters(), lr=0.1), rule="ucb", eta=0.1)
    >>> loss = model(torch.ones(4, 3)).pow(2).mean()
    >>> loss.backward()
    >>> opt.step(loss=loss)
    >>> opt.confidence()[0]["mean"].item() == loss.item()
    True
    """

    settings = ("rule", "eta", "weighting", "loss_beta", "seed", "nonfinite")

    def __init__(
        self,
        base: Optimizer,
        rule: str | Rule = "ucb",
        eta: float | None = None,
        *,
        weighting: Weighting = "unit",
        loss_beta: float = 0.9,
        seed: int = 0,
        nonfinite: str = "skip",
        process_group: Any = None,
    ) -> None:
        check_base(base)
        self.rule = find_rule(rule)
        check_weighing_options(weighting=weighting, loss_beta=loss_beta, seed=seed, nonfinite=nonfinite, coast=True)
        self.eta = self.rule.eta if eta is None else eta
        self.weighting, self.loss_beta, self.seed, self.nonfinite = weighting, float(loss_beta), seed, nonfinite
        self.process_group = process_group
        for group in base.param_groups:
            check_eta(group.get("eta", self.eta), self.rule)
        self._adopt(base)

    def _adopt(self, base: Optimizer) -> None:
        self._etas: dict[int, Any] = {}
        super()._adopt(base)

    def _complete(self, group: Group) -> None:
        """Give a group an eta and statistics; one that is added later starts from the statistics of the first."""
        group.setdefault("eta", self.eta)
        if "seen" not in group:
            first = self.base.param_groups[0]
            negated = maximizes(self.base, first) != maximizes(self.base, group)
            group["seen"] = stats_for_new_group(first.get("seen"), negated)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the base."""
        check_eta(param_group.get("eta", self.eta), self.rule)
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None, *, loss: Any = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Any], *, loss: Any = None) -> Any: ...

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Let the base take one step on gradients weighted by the loss; ``p.grad`` is afterwards what it was.

        Args:
            closure: computes the loss and the gradients again, and returns the loss. It is called once.
            loss: the loss whose gradients these are; it is preferred to recorded losses, and these to the closure's.
        """
        returned = self._evaluate(closure)
        loss = self._read_loss(loss, returned)
        if loss is None:
            self._check_that_no_loss_is_needed(closure)
            self._step_base()
            return returned

        groups = self.param_groups
        meters = [self._make_meter(index, group) for index, group in enumerate(groups)]
        device = self._place_statistics(loss)
        all_stats = [unpack(group["seen"], on_device=device is not None) for group in groups]
        assessments = [meter.assess(stats, loss) for meter, stats in zip(meters, all_stats)]
        proceed = decide(assessments)[0]
        self._step_if([assessment.weight for assessment in assessments], proceed)
        for group, meter, assessment in zip(groups, meters, assessments):
            group["seen"] = pack(meter.remember(assessment, proceed), group["seen"].device)
        return returned

    def _make_meter(self, index: int, group: Group) -> Meter:
        """The judgement of a group; an eta that was replaced since the last step is checked first."""
        self._complete(group)
        if group["eta"] is not self._etas.get(index):
            check_eta(group["eta"], self.rule)
            self._etas[index] = group["eta"]
        return Meter(
            self.rule,
            group["eta"],
            self.weighting,
            self.loss_beta,
            self.seed,
            index,
            maximizes(self.base, group),
            self.nonfinite,
            type(self).__name__,
        )

    def _place_statistics(self, loss: Number) -> torch.device | None:
        """Move the statistics to the device of the loss, or of the first group's; None if all are on the host."""
        groups = self.param_groups
        if not isinstance(loss, Tensor) and all(group["seen"].is_cpu for group in groups):
            return None
        device = loss.device if isinstance(loss, Tensor) else groups[0]["seen"].device
        for group in groups:
            group["seen"] = group["seen"].to(device, widest_float(device))
        return device

    def _step_if(self, weights: list[Number], proceed: bool | Tensor) -> None:
        """Let the base step, or not; on a device only the device may know."""
        if self.nonfinite == "coast":
            coasting = ~proceed if isinstance(proceed, Tensor) else not proceed
            self._step_weighted(weights, coasting)
        elif isinstance(proceed, Tensor) and self._base_skips_by_itself():
            # The flags that GradScaler gives to an optimizer that unscales and skips by itself.
            self.base.grad_scale, self.base.found_inf = None, (~proceed).to(torch.float32)  # type: ignore[attr-defined]
            try:
                self._step_weighted(weights)
            finally:
                del self.base.grad_scale, self.base.found_inf  # type: ignore[attr-defined]
        elif self.nonfinite == "raise" or proceed:  # with "raise" an unusable loss has raised already
            self._step_weighted(weights)

    def _base_skips_by_itself(self) -> bool:
        return self.nonfinite == "skip" and getattr(self.base, "_step_supports_amp_scaling", False)

    def _step_weighted(self, weights: list[Number], coasting: bool | Tensor = False) -> None:
        """Let the base see weighted copies in ``p.grad``, and put the gradients back whatever happens."""
        saved_gradients: list[tuple[Tensor, Tensor | None]] = []
        try:
            for group, weight in zip(self.param_groups, weights):
                params = [p for p in group["params"] if p.grad is not None]
                for p, copy in zip(params, weighted([p.grad for p in params], weight, coasting)):  # type: ignore[misc]
                    saved_gradients.append((p, p.grad))
                    p.grad = copy
            self._step_base()
        finally:
            for p, grad in saved_gradients:
                p.grad = grad

    def _step_base(self, closure: Callable[[], Any] | None = None, **arguments: Any) -> Any:
        try:
            return super()._step_base(closure, **arguments)
        except Exception as error:
            if "closure" in f"{type(error).__name__} {error}".lower() or "'NoneType' object is not callable" in str(
                error
            ):
                raise TypeError(_NEEDS_CLOSURE.format(name=type(self.base).__name__)) from error
            raise

    def _completed_checkpoint(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return checkpoint.completed(state_dict, self, self.rule)


def weighted(grads: list[Tensor], weight: Number, coasting: bool | Tensor) -> list[Tensor]:
    """Weighted copies of gradients; zeros if the step coasts.

    >>> weighted([torch.ones(2), torch.ones(1)], 0.5, coasting=False)
    [tensor([0.5000, 0.5000]), tensor([0.5000])]
    """
    if coasting is True:
        return [torch.zeros_like(grad) for grad in grads]
    are_plain = all(grad.layout is torch.strided and not hasattr(grad, "to_local") for grad in grads)
    if are_plain and len({grad.device for grad in grads}) == 1:
        copies = list(torch._foreach_mul(grads, weight.to(grads[0].device) if isinstance(weight, Tensor) else weight))
    else:
        copies = [grad * (weight.to(grad.device) if isinstance(weight, Tensor) else weight) for grad in grads]
    # A float64 weight makes the product float64 only for gradients without dimensions.
    copies = [copy.to(grad.dtype) for copy, grad in zip(copies, grads)]
    if isinstance(coasting, Tensor):
        copies = [torch.where(coasting.to(copy.device), torch.zeros_like(copy), copy) for copy in copies]
    return copies


_NEEDS_CLOSURE = (
    "{name} evaluates the closure by itself, so its gradients cannot be weighted from outside; weigh the loss inside "
    "the closure with surefoot.weigh instead"
)


def check_base(base: Any) -> None:
    """Refuse what cannot be wrapped."""
    check_is_optimizer(base, "LossWeighted")
    name = type(base).__name__
    if isinstance(base, TakesLoss):
        if not base.weighs_gradients:
            raise TypeError(f"LossWeighted belongs inside {name}: write {name}(LossWeighted(base))")
        raise TypeError(f"{name} weighs its gradients by the loss already; use it as it is")
    closure = inspect.signature(type(base).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(_NEEDS_CLOSURE.format(name=name))
    if "eta" in base.defaults:
        raise ValueError(
            f"{name} has an 'eta' of its own, which LossWeighted would overwrite; weigh the loss with surefoot.weigh "
            "instead"
        )
