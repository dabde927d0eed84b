"""weigh(loss): the rule as a transform of the loss, for any optimizer, at the granularity of one backward pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from surefoot import readings
from surefoot.losses import TakesLoss, described
from surefoot.noise import standard_normal, standard_normal_tensor
from surefoot.optim.checkpoint import as_plain, checked
from surefoot.optim.engines.base import wide
from surefoot.optim.loss_weighted import check_settings
from surefoot.optim.options import LARGEST, check_number, is_sane
from surefoot.rules import Rule, Weighting, find_rule, weigh_on_host
from surefoot.rules import weigh as apply_rule
from surefoot.statistics import Number, Seen, blank, observe, on_host
from surefoot.tally import Tally, merged
from surefoot.unwrap import unwrapped


class Weigher:
    """Call it with a loss: the same value comes back, and its gradient is ``weight`` times the loss's.

    Every micro-batch and every rank gets the weight of its own loss. All losses of one optimizer step are weighed by
    what was seen before that step; when the optimizer has stepped they enter the statistics together, as so many
    readings of the loss: their mean moves the mean, and their spread about it is part of the std. :func:`weigh` makes
    one.
    """

    def __init__(
        self,
        optimizer: Optimizer | None = None,
        rule: str | Rule = "ucb",
        eta: float | None = None,
        *,
        weighting: Weighting = "unit",
        loss_beta: float = 0.9,
        seed: int = 0,
        nonfinite: str = "skip",
        process_group: Any = None,
    ) -> None:
        optimizer = unwrapped(optimizer)
        _check_optimizer(optimizer)
        check_settings(weighting=weighting, loss_beta=loss_beta, seed=seed, nonfinite=nonfinite, coast=False)
        self.rule = find_rule(rule)
        self.eta = self.rule.eta if eta is None else eta
        check_number("eta", self.eta)
        self.rule.check(float(self.eta))
        self.weighting, self.loss_beta, self.seed, self.nonfinite = weighting, float(loss_beta), seed, nonfinite
        self.process_group = process_group
        self.optimizer = optimizer
        self.seen = blank()
        self._tally = Tally()
        self._follow()

    def _follow(self) -> None:
        """End the step when the optimizer does."""
        if self.optimizer is not None:
            self.optimizer.register_step_post_hook(lambda *_: self.update())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._follow()  # torch leaves hooks behind when it copies an optimizer

    def __call__(self, loss: Tensor, share: float = 1) -> Tensor:
        """Return the loss with its gradient weighted; one without a graph (an evaluation's) passes through unseen.

        Args:
            loss: a tensor with one element. Weigh it before it is divided by the number of micro-batches or scaled.
            share: how much it counts in the statistics, such as its number of samples.
        """
        if not isinstance(loss, Tensor):
            raise TypeError(f"weigh needs the loss as a tensor with a graph, but got {type(loss).__name__}: {loss!r}")
        reading = readings.as_scalar(loss, who="weigh")
        share = readings.check_mass(share, who="weigh", name="share")
        if not loss.requires_grad:
            return loss
        value = -reading if self._maximizes() else reading
        on_host = reading.device.type == "cpu" and self.seen.device.type == "cpu"
        return _Weighted.apply(
            loss, self._weigh_on_host(value.item(), share) if on_host else self._weigh_on_device(value, share)
        )

    def _weigh_on_host(self, value: float, share: float) -> float:
        seen, trouble = Seen(*self.seen.tolist()), f"the loss is {value}"
        heard = is_sane(value)
        if heard:
            noise = standard_normal(self.seed, int(seen.count)) if self.rule.uses_noise else 0.0
            seen = weigh_on_host(self.rule, seen, value, self.eta, noise, self.weighting)
            bearable = abs(seen.weight) <= LARGEST
            trouble = "" if bearable else f"the rule weights the gradient by {seen.weight}"
        if trouble:
            self._refuse_if_asked(trouble)
            self._tally = self._tally.left_out(1.0)
            if heard:
                self._tally = self._tally.with_reading(value, share)
            return 1.0
        self.seen = on_host(seen)
        self._tally = self._tally.with_reading(value, share)
        return seen.weight

    def _weigh_on_device(self, value: Tensor, share: float) -> Tensor:
        home = value.device
        self.seen = self.seen.to(home, wide(home))
        value = value.to(self.seen.dtype)
        fine = heard = is_sane(value)
        before = Seen(*self.seen.unbind())
        safe = torch.where(fine, value, before.mean)
        noise = standard_normal_tensor(self.seed, before.count) if self.rule.uses_noise else 0.0
        seen = apply_rule(self.rule, before, safe, self.eta, noise, self.weighting)
        weight = torch.as_tensor(seen.weight, dtype=self.seen.dtype, device=home)
        fine = fine & (weight.abs() <= LARGEST)
        if self.nonfinite == "raise" and not bool(fine):
            self._refuse_if_asked("the loss is not finite, or no gradient can bear its weight")
        self.seen = torch.where(fine, _stacked(seen, self.seen), self.seen)
        counts = heard.to(value.dtype)
        self._tally = self._tally.with_reading(safe, counts * share).left_out((~fine).to(value.dtype))
        return torch.where(fine, weight, 1.0)

    def update(self) -> None:
        """End the step: take its losses, of every rank, into the statistics. The optimizer's step calls this."""
        total = merged(self._tally, self.process_group, self.seen)
        self._tally = Tally()
        if not isinstance(total.mass, Tensor) and not total.mass and not total.bad:
            return  # a step without a loss
        seen = Seen(*(self.seen.unbind() if isinstance(total.mass, Tensor) else self.seen.tolist()))
        seen = seen._replace(skipped=seen.skipped + total.bad)
        after = observe(seen, total.mean, self.loss_beta)
        # The readings are a mixture: what was seen, and this step's own spread with the share that its mean gets.
        within = (1 - self.loss_beta) / (1 - self.loss_beta**after.count) * total.power / total.some_mass()
        if isinstance(total.mass, Tensor):
            after = after._replace(std=torch.hypot(after.std, within.sqrt()))
            self.seen = torch.where(total.mass > 0, _stacked(after, self.seen), _stacked(seen, self.seen))
        else:
            after = after._replace(std=math.hypot(after.std, math.sqrt(within))) if total.mass else seen
            self.seen = on_host(after)

    def confidence(self) -> list[dict[str, Tensor]]:
        """What was seen of the loss and made of the last one: a list of one dict, as optimizers give one per group."""
        return [described(self.seen)]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, taken between two steps."""
        return {"seen": self.seen.clone(), "eta": as_plain(self.eta)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if not isinstance(state_dict, dict) or not {"seen", "eta"} <= state_dict.keys():
            raise ValueError(
                "a checkpoint of weigh has seen and eta, this has not; pass what its state_dict() returned"
            )
        check_number("eta", state_dict["eta"])
        self.rule.check(float(state_dict["eta"]))
        self.seen, self.eta = checked(state_dict["seen"]).detach().clone(), state_dict["eta"]
        self._tally = Tally()

    def _maximizes(self) -> bool:
        # What is maximized is a loss turned around, so that pessimism stays pessimism.
        groups = self.optimizer.param_groups if self.optimizer is not None else [{}]
        return bool(groups[0].get("maximize", getattr(self.optimizer, "maximize", False)))

    def _refuse_if_asked(self, what: str) -> None:
        if self.nonfinite == "raise":
            raise FloatingPointError(
                f"weigh: {what}, and nonfinite='raise' was asked for; nothing was changed (nonfinite='skip' leaves "
                "such a loss out of the statistics)"
            )


def weigh(
    optimizer: Optimizer | None = None,
    rule: str | Rule = "ucb",
    eta: float | None = None,
    *,
    weighting: Weighting = "unit",
    loss_beta: float = 0.9,
    seed: int = 0,
    nonfinite: str = "skip",
    process_group: Any = None,
) -> Weigher:
    """Make ``weigh(loss)`` for a training loop: the gradient of each loss is multiplied by ``scale * (1 + tilt * z)``.

    Args:
        optimizer: any torch optimizer, whose ``step`` ends the step; without one call ``weigh.update()`` at its end.
        rule: the rule by name, or a Rule of your own.
        eta: the rule's strength (None: the rule's default); ``weigh.eta`` may be changed between steps.
        weighting: "unit" keeps the weight near 1, "paper" multiplies by the std of the loss.
        loss_beta: decay rate of the loss statistics, per step.
        seed: of the noise (rule S): one draw per step, the same for all micro-batches and ranks.
        nonfinite: "skip" gives a loss that is not finite, or whose weight no gradient can bear, the weight 1 and counts
            it; one that is not finite is left out of the statistics (its gradients are yours to guard). "raise" stops
            with an error.
        process_group: whose losses make up the statistics (None: the default group when there is one, False: its own).

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> weigh = weigh(optimizer, "ucb", eta=0.1)
    >>> for x in torch.eye(3):
    ...     optimizer.zero_grad()
    ...     loss = model(x).pow(2).sum()
    ...     weigh(loss).backward()
    ...     optimizer.step()
    >>> weigh.confidence()[0]["std"] > 0
    tensor(True)
    """
    return Weigher(
        optimizer,
        rule,
        eta,
        weighting=weighting,
        loss_beta=loss_beta,
        seed=seed,
        nonfinite=nonfinite,
        process_group=process_group,
    )


class _Weighted(torch.autograd.Function):
    """The identity, whose gradient is multiplied by the weight."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, weight: Number) -> Tensor:
        ctx.weight = weight
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return (grad * ctx.weight).to(grad.dtype), None


def _stacked(seen: Seen, like: Tensor) -> Tensor:
    return torch.stack([torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in seen])


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, Tensor):
        raise TypeError(
            "surefoot.weigh keeps statistics of one loss, so make one first: weigh = surefoot.weigh(optimizer, 'ucb', "
            "eta=0.1), then weigh(loss).backward()"
        )
    if isinstance(optimizer, TakesLoss):
        raise TypeError(f"{type(optimizer).__name__} weighs its gradients by the loss already; pass it step(loss=loss)")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"weigh needs a torch optimizer, or None, but got {type(optimizer).__name__}: {optimizer!r}")
