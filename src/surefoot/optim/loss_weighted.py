"""LossWeighted: any torch optimizer, on gradients weighted by how unusual the current loss is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _use_grad_for_differentiable

from surefoot import readings
from surefoot.losses import TakesLoss
from surefoot.noise import standard_normal, standard_normal_tensor
from surefoot.optim import checkpoint
from surefoot.optim import options as checks
from surefoot.optim.engines.base import wide
from surefoot.rules import Rule, Weighting, find_rule, weigh_on_host
from surefoot.rules import weigh as apply_rule
from surefoot.statistics import Number, Seen, blank, inherited, observe, on_host
from surefoot.unwrap import unwrapped


class LossWeighted(TakesLoss):
    """Wrap any torch optimizer: it is given ``weight * gradient``, with ``weight = scale * (1 + tilt * z)``.

    The parameter groups and the state are the base's own, so learning-rate schedulers, GradScaler and clipping work on
    either; its settings stay where they are. Weight decay inside the base is not weighted.

    Args:
        base: the optimizer that moves the parameters.
        rule: the rule by name, or a Rule of your own.
        eta: the rule's strength (None: the rule's default); a parameter group may bring its own ``"eta"``.
        weighting: "unit" keeps the weight near 1, "paper" multiplies by the std of the loss.
        loss_beta: decay rate of the loss statistics.
        seed: of the noise (rule S); the same seed gives the same noise on every rank and after a resume.
        nonfinite: what to do when the loss is not finite, or so large that no gradient can bear its weight. "skip"
            leaves the step out and counts it (on an accelerator that costs one read per step, unless the base can skip
            by itself as torch's fused ones can), "raise" stops with an error, "coast" never reads: the base gets zero
            gradients for that step.
        process_group: where to average the loss (None: the default group when there is one, False: nowhere).

    >>> model = torch.nn.Linear(3, 1)
    >>> opt = LossWeighted(torch.optim.SGD(model.parameters(), lr=0.1), rule="ucb", eta=0.1)
    >>> loss = model(torch.ones(4, 3)).pow(2).mean()
    >>> loss.backward()
    >>> opt.step(loss=loss)
    >>> opt.confidence()[0]["mean"].item() == loss.item()
    True
    """

    #: GradScaler then unscales and skips for us, also when the base would do it itself.
    _step_supports_amp_scaling = False

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
        check_settings(weighting=weighting, loss_beta=loss_beta, seed=seed, nonfinite=nonfinite, coast=True)
        self.eta = self.rule.eta if eta is None else eta
        self.weighting, self.loss_beta, self.seed, self.nonfinite = weighting, float(loss_beta), seed, nonfinite
        self.process_group = process_group
        for group in base.param_groups:
            self._check_eta(group.get("eta", self.eta))
        self._adopt(base)

    def _check_eta(self, eta: Any) -> None:
        checks.check_number("eta", eta)
        self.rule.check(float(eta))

    def _adopt(self, base: Optimizer) -> None:
        """Take the base's place: one set of step hooks for both, since only the outer step may run them."""
        self.base = base
        self._gathered = readings.Gathered()
        self._etas: dict[int, Any] = {}
        shared = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        Optimizer.__setstate__(self, {name: getattr(base, name) for name in shared} | {"defaults": base.defaults})
        for group in base.param_groups:
            self._complete(group)

    def _complete(self, group: dict[str, Any]) -> None:
        """Give a group what this optimizer keeps in it; one that comes later starts from what was already seen."""
        group.setdefault("eta", self.eta)
        if "seen" not in group:
            first = self.base.param_groups[0]
            turned = self._maximizes(first) != self._maximizes(group)
            group["seen"] = inherited(first["seen"], turned) if "seen" in first else blank()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base's own."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base's own."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    def __getattr__(self, name: str) -> Any:
        # What only the base has: train() and eval() of schedule-free optimizers, for one.
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the base."""
        self._check_eta(param_group.get("eta", self.eta))
        self.base.add_param_group(param_group)
        self._complete(self.param_groups[-1])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and let go of losses whose step was skipped."""
        self._gathered.open_window()
        self.base.zero_grad(set_to_none)

    @overload
    def step(self, closure: None = None, *, loss: Any = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Any], *, loss: Any = None) -> Any: ...

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Let the base take one step on gradients weighted by the loss; ``p.grad`` is afterwards what it was.

        Args:
            closure: computes the loss and the gradients again, and returns the loss. It is called once.
            loss: the loss whose gradients these are; wins over recorded losses, which win over the closure's value.
        """
        returned = self._evaluate(closure)
        reading = self._reading(loss, returned)
        if reading is None:
            checks.only_creates_state(self, closure)
            self._step_base()
            return returned
        for index, group in enumerate(self.param_groups):
            self._complete(group)
            if group["eta"] is not self._etas.get(index):
                self._check_eta(group["eta"])
                self._etas[index] = group["eta"]
        vectors = [group["seen"] for group in self.param_groups]
        if isinstance(reading, Tensor) or any(vector.device.type != "cpu" for vector in vectors):
            self._step_on_device(reading)
        else:
            self._step_on_host(reading)
        return returned

    def _step_on_host(self, reading: float) -> None:
        groups = self.param_groups
        seen = [Seen(*group["seen"].tolist()) for group in groups]
        losses = [-reading if self._maximizes(group) else reading for group in groups]
        weighed, trouble, heard = seen, f"the loss is {reading}", checks.is_sane(reading)
        if heard:
            weighed = [self._weigh(i, group, *x) for i, (group, x) in enumerate(zip(groups, zip(seen, losses)))]
            absurd = [x.weight for x in weighed if not abs(x.weight) <= checks.LARGEST]
            trouble = f"the rule weights the gradient by {absurd[0]}" if absurd else ""
        if trouble and self.nonfinite == "raise":
            raise FloatingPointError(_refusal(type(self).__name__, trouble))
        if not trouble:
            self._step_weighted([x.weight for x in weighed])
        elif self.nonfinite == "coast":
            self._step_weighted([0.0] * len(groups), coasting=True)
        for group, before, x, loss in zip(groups, seen, weighed, losses):
            after = observe(x, loss, self.loss_beta) if heard else before
            after = after._replace(skipped=before.skipped + bool(trouble))
            group["seen"] = on_host(after)
        if trouble and after.skipped == checks.MANY:
            checks.warn_of_skipping(self, after, reading)

    def _step_on_device(self, reading: Number) -> None:
        groups = self.param_groups
        home = reading.device if isinstance(reading, Tensor) else groups[0]["seen"].device
        dtype = wide(home)
        reading = torch.as_tensor(reading, dtype=dtype, device=home)
        fine = heard = checks.is_sane(reading)
        vectors = [group["seen"].to(home, dtype) for group in groups]
        seen = [Seen(*vector.unbind()) for vector in vectors]
        losses = [torch.where(fine, -reading if self._maximizes(g) else reading, x.mean) for g, x in zip(groups, seen)]
        weighed = [self._weigh(i, group, *x) for i, (group, x) in enumerate(zip(groups, zip(seen, losses)))]
        weights = [torch.as_tensor(x.weight, dtype=dtype, device=home) for x in weighed]
        for weight in weights:
            fine = fine & (weight.abs() <= checks.LARGEST)
        self._step_masked(weights, fine)
        for group, vector, x, loss in zip(groups, vectors, weighed, losses):
            after = observe(x, loss, self.loss_beta)
            stacked = torch.stack([torch.as_tensor(n, dtype=dtype, device=home) for n in after])
            group["seen"] = torch.where(heard, stacked, vector)
            group["seen"][Seen._fields.index("skipped")] += ~fine

    def _weigh(self, index: int, group: dict[str, Any], seen: Seen, loss: Number) -> Seen:
        if isinstance(seen.count, Tensor):
            drawn = standard_normal_tensor(self.seed, seen.count, index) if self.rule.uses_noise else 0.0
            return apply_rule(self.rule, seen, loss, group["eta"], drawn, self.weighting)
        noise = standard_normal(self.seed, int(seen.count), index) if self.rule.uses_noise else 0.0
        return weigh_on_host(self.rule, seen, loss, group["eta"], noise, self.weighting)

    def _maximizes(self, group: dict[str, Any]) -> bool:
        # What is maximized is a loss turned around, so that pessimism stays pessimism.
        return bool(group.get("maximize", getattr(self.base, "maximize", False)))

    def _step_masked(self, weights: list[Tensor], fine: Tensor) -> None:
        """A step that must not happen when the loss is not finite, which only the device knows."""
        if self.nonfinite == "coast":
            self._step_weighted(weights, coasting=~fine)
        elif self.nonfinite == "skip" and getattr(self.base, "_step_supports_amp_scaling", False):
            # What GradScaler tells an optimizer that unscales and skips by itself.
            self.base.grad_scale, self.base.found_inf = None, (~fine).to(torch.float32)  # type: ignore[attr-defined]
            try:
                self._step_weighted(weights)
            finally:
                del self.base.grad_scale, self.base.found_inf  # type: ignore[attr-defined]
        elif bool(fine):
            self._step_weighted(weights)
        elif self.nonfinite == "raise":
            raise FloatingPointError(
                _refusal(type(self).__name__, "the loss is not finite, or no gradient can bear its weight")
            )

    def _step_weighted(self, weights: list[Number], coasting: Any = False) -> None:
        """Let the base see weighted copies in ``p.grad``, and put the gradients back whatever happens."""
        lent: list[tuple[Tensor, Tensor | None]] = []
        try:
            for group, weight in zip(self.param_groups, weights):
                params = [p for p in group["params"] if p.grad is not None]
                for p, copy in zip(params, weighted([p.grad for p in params], weight, coasting)):  # type: ignore[misc]
                    lent.append((p, p.grad))
                    p.grad = copy
            self._step_base()
        finally:
            for p, grad in lent:
                p.grad = grad

    def _step_base(self) -> None:
        """The base's own step, below the layer that runs the hooks: they belong to the outer step."""
        step = type(self.base).step
        unhooked = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
        unhooked(self.base)  # type: ignore[call-arg]
        self.base._opt_called = True  # type: ignore[attr-defined]  # a scheduler that was built on the base looks there

    def state_dict(self) -> dict[str, Any]:
        """The base's state; the statistics are in its parameter groups."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        state_dict = self.base.state_dict()
        state_dict = {**state_dict, "param_groups": checkpoint.portable_groups(self, state_dict)}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this optimizer, or one of the base alone, which knows nothing of the loss."""
        state_dict = dict(state_dict)
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        self.base.load_state_dict(checkpoint.completed(state_dict, self))
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def __getstate__(self) -> dict[str, Any]:
        names = ("base", "rule", "eta", "weighting", "loss_beta", "seed", "nonfinite")
        # A process group cannot be pickled; the copy averages over the default group until told otherwise.
        opted_out = False if self.process_group is False else None
        return {name: self.__dict__[name] for name in names} | {"process_group": opted_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._adopt(state["base"])


def weighted(grads: list[Tensor], weight: Number, coasting: Any) -> list[Tensor]:
    """Weighted copies of gradients; zeros where the step is to coast.

    >>> weighted([torch.ones(2), torch.ones(1)], 0.5, coasting=False)
    [tensor([0.5000, 0.5000]), tensor([0.5000])]
    """
    if coasting is True:
        return [torch.zeros_like(grad) for grad in grads]
    plain = all(grad.layout is torch.strided and not hasattr(grad, "to_local") for grad in grads)
    if plain and len({grad.device for grad in grads}) == 1:
        copies = list(torch._foreach_mul(grads, weight.to(grads[0].device) if isinstance(weight, Tensor) else weight))
    else:
        copies = [grad * (weight.to(grad.device) if isinstance(weight, Tensor) else weight) for grad in grads]
    # Only among gradients without dimensions does the weight's float64 spread to the product.
    copies = [copy.to(grad.dtype) for copy, grad in zip(copies, grads)]
    if isinstance(coasting, Tensor):
        copies = [torch.where(coasting.to(copy.device), torch.zeros_like(copy), copy) for copy in copies]
    return copies


def check_base(base: Any) -> None:
    """Refuse what cannot be wrapped."""
    if not isinstance(base, Optimizer):
        raise TypeError(f"LossWeighted wraps a torch optimizer, but got {type(base).__name__}: {base!r}")
    name = type(base).__name__
    if unwrapped(base) is not base:
        raise TypeError(
            f"{name} is a wrapper around {type(unwrapped(base)).__name__}; give that to LossWeighted, then prepare() "
            "the result"
        )
    if isinstance(base, TakesLoss):
        raise TypeError(f"{name} weighs its gradients by the loss already; use it as it is")
    closure = inspect.signature(type(base).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{name} evaluates the closure by itself, so its gradients cannot be weighted from outside; "
            "weigh the loss inside the closure with surefoot.weigh instead"
        )
    if "eta" in base.defaults:
        raise ValueError(
            f"{name} has an 'eta' of its own, which LossWeighted would overwrite; weigh the loss with surefoot.weigh "
            "instead"
        )


def check_settings(*, weighting: str, loss_beta: float, seed: int, nonfinite: str, coast: bool) -> None:
    """Refuse settings that have no meaning."""
    ways = ("skip", "raise", "coast") if coast else ("skip", "raise")
    for name, value, choices in (("weighting", weighting, ("paper", "unit")), ("nonfinite", nonfinite, ways)):
        if value not in choices:
            raise ValueError(f"Invalid {name} value: {value!r}; take one of {', '.join(map(repr, choices))}")
    checks.check_number("loss_beta", loss_beta)
    if not 0.0 <= loss_beta < 1.0:
        raise ValueError(f"Invalid loss_beta value: {loss_beta}; it must be at least 0 and below 1")
    checks.check_seed(seed)


def _refusal(who: str, what: str) -> str:
    return (
        f"{who}: {what}, and nonfinite='raise' was asked for; nothing was changed (nonfinite='skip' skips such steps)"
    )
