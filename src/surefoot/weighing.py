"""weigh(loss): the rule as a transform of the loss, for any optimizer, at the granularity of one backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from surefoot.losses import TakesLoss, as_scalar, check_share, maximizes
from surefoot.meter import Meter
from surefoot.optim.checkpoint import as_plain, checked
from surefoot.optim.options import check_eta, check_weighing_options
from surefoot.rules import Rule, Weighting, find_rule, where
from surefoot.statistics import (
    LossSample,
    Number,
    by_name,
    choose,
    no_statistics,
    pack,
    scalar_on,
    unpack,
    widest_float,
)
from surefoot.unwrap import unwrapped


class Weigher:
    """Call it with a loss: the same value comes back, its gradient multiplied by ``scale * (1 + tilt * z)``.

    Every micro-batch and every rank gets the weight of its own loss. All losses of one optimizer step are weighted by
    the statistics before that step. After the step they enter the statistics together: their mean moves the mean, and
    their spread about it is part of the std.

    Args:
        optimizer: any torch optimizer, whose ``step`` ends the step; without one call ``weigh.update()`` at its end.
        rule: the rule by name, or a Rule of your own.
        eta: the rule's strength (None: the rule's default); ``weigh.eta`` may be changed between steps.
        weighting: "unit" keeps the weight near 1, "paper" multiplies by the std of the loss.
        loss_beta: decay rate of the loss statistics, per step.
        seed: of the noise (rule S): one draw per step, the same for all micro-batches and ranks.
        nonfinite: what to do with a loss that is not finite, or whose weight or size exceeds 1e19. "skip" gives it the
            weight 1 and counts it; a loss that is not finite does not enter the statistics (guard its gradients
            yourself). "raise" stops with an error.
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
        check_weighing_options(weighting=weighting, loss_beta=loss_beta, seed=seed, nonfinite=nonfinite)
        self.rule = find_rule(rule)
        self.eta = self.rule.eta if eta is None else eta
        check_eta(self.eta, self.rule)
        self.weighting, self.loss_beta, self.seed, self.nonfinite = weighting, float(loss_beta), seed, nonfinite
        self.process_group = process_group
        self.optimizer = optimizer
        self.seen = no_statistics()
        self._sample = LossSample()
        self._follow()

    def _follow(self) -> None:
        """End the step when the optimizer does."""
        if self.optimizer is not None:
            self.optimizer.register_step_post_hook(lambda *_: self.update())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._follow()  # torch drops hooks when it copies an optimizer

    def _meter(self) -> Meter:
        return Meter(
            self.rule,
            self.eta,
            self.weighting,
            self.loss_beta,
            seed=self.seed,
            maximize=self.optimizer is not None and maximizes(self.optimizer, self.optimizer.param_groups[0]),
            nonfinite=self.nonfinite,
            owner="weigh",
            skipping="leaves such a loss out of the statistics",
        )

    def __call__(self, loss: Tensor, share: float = 1) -> Tensor:
        """Return the loss with its gradient weighted; a loss without a graph (of an evaluation) is returned as it is.

        Args:
            loss: a tensor with one element. Weigh it before it is divided by the number of micro-batches or scaled.
            share: how much it counts in the statistics, such as its number of samples.
        """
        if not isinstance(loss, Tensor):
            raise TypeError(f"weigh needs the loss as a tensor with a graph, but got {type(loss).__name__}: {loss!r}")
        value = as_scalar(loss, owner="weigh")
        share = check_share(share, owner="weigh", name="share")
        if not loss.requires_grad:
            return loss
        device = value.device
        on_device = not (value.is_cpu and self.seen.is_cpu)
        if on_device:
            self.seen = self.seen.to(device, widest_float(device))
        stats = unpack(self.seen, on_device=on_device)
        assessment = self._meter().assess(stats, value if on_device else value.item())
        self._add_to_sample(assessment.loss, share, assessment.accepted, assessment.usable)
        given = stats._replace(z=assessment.z, tilt=assessment.tilt, weight=assessment.weight)
        self.seen = pack(choose(assessment.usable, given, stats), device)
        return _Weighted.apply(loss, where(assessment.usable, assessment.weight, 1.0))

    def _add_to_sample(self, loss: Number, share: float, accepted: bool | Tensor, usable: bool | Tensor) -> None:
        """Add an accepted loss to those of this step, and count one whose weight cannot be used."""
        sample = self._sample
        if isinstance(accepted, Tensor):
            sample = sample.with_loss(loss, share * scalar_on(accepted.device, accepted))
            self._sample = sample._replace(left_out=sample.left_out + scalar_on(accepted.device, ~usable))
        else:
            sample = sample.with_loss(loss, share) if accepted else sample
            self._sample = sample._replace(left_out=sample.left_out + (not usable))

    def update(self) -> None:
        """End the step: add its losses, of every rank, to the statistics. The optimizer's step calls this."""
        sample = self._sample.over_ranks(self.process_group, self.seen.device)
        self._sample = LossSample()
        on_device = isinstance(sample.weight, Tensor)
        if not on_device and not sample.weight and not sample.left_out:
            return  # a step without a loss
        stats = unpack(self.seen, on_device=on_device)
        stats = stats._replace(skipped=stats.skipped + sample.left_out)
        self.seen = pack(stats.with_sample(sample, self.loss_beta), self.seen.device)

    def confidence(self) -> list[dict[str, Tensor]]:
        """The statistics of the loss and the last z, tilt and weight: a list of one dict, like that of optimizers."""
        return [by_name(self.seen)]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, taken between two steps."""
        return {"seen": self.seen.clone(), "eta": as_plain(self.eta)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        if not isinstance(state_dict, dict) or not {"seen", "eta"} <= state_dict.keys():
            raise ValueError(
                "a checkpoint of weigh has seen and eta, this has not; pass what its state_dict() returned"
            )
        check_eta(state_dict["eta"], self.rule)
        self.seen, self.eta = checked(state_dict["seen"]).detach().clone(), state_dict["eta"]
        self._sample = LossSample()


#: ``weigh = surefoot.weigh(optimizer, "ucb", eta=0.1)``, then ``weigh(loss).backward()``.
weigh = Weigher


class _Weighted(torch.autograd.Function):
    """The identity, whose gradient is multiplied by the weight."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, weight: Number) -> Tensor:
        ctx.weight = weight
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return (grad * ctx.weight).to(grad.dtype), None


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, Tensor):
        raise TypeError(
            "surefoot.weigh keeps statistics of one loss, so make one first: weigh = surefoot.weigh(optimizer, 'ucb', "
            "eta=0.1), then weigh(loss).backward()"
        )
    if isinstance(optimizer, TakesLoss) and optimizer.weighs_gradients:
        raise TypeError(f"{type(optimizer).__name__} weighs its gradients by the loss already; pass it step(loss=loss)")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"weigh needs a torch optimizer, or None, but got {type(optimizer).__name__}: {optimizer!r}")
