"""Schedules for eta, the way torch's schedulers treat the learning rate."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from surefoot.optim.checkpoint import as_plain
from surefoot.unwrap import loss_aware


class EtaSchedule:
    """Multiply each group's initial eta by ``factor(step)``.

    Args:
        optimizer: any Surefoot optimizer (its groups have an ``eta``), prepared by Accelerate or not.
        factor: a function from the number of ``step()`` calls so far to a factor, or one per group.

    >>> import torch, surefoot
    >>> opt = surefoot.AdamUCB([torch.zeros(1, requires_grad=True)], eta=0.1)
    >>> schedule = EtaSchedule(opt, lambda step: 0.5**step)
    >>> schedule.step(); opt.param_groups[0]["eta"]
    0.05
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float] | Sequence[Callable[[int], float]]) -> None:
        optimizer = loss_aware(optimizer) or optimizer
        groups = getattr(optimizer, "param_groups", [{}])
        if not hasattr(optimizer, "rule") or not all("eta" in group for group in groups):
            raise TypeError(
                f"{type(optimizer).__name__} has no eta to schedule in its groups; use a Surefoot optimizer"
            )
        if not callable(factor) and not (isinstance(factor, Sequence) and all(map(callable, factor))):
            raise TypeError(f"EtaSchedule takes a function from the step to a factor, or one per group, not {factor!r}")
        self.optimizer: Any = optimizer
        self.factor = factor
        self.initial = [group["eta"] for group in groups]
        self.last_step = 0
        self._apply()

    def _factors(self) -> list[Callable[[int], float]]:
        groups = self.optimizer.param_groups
        factors = [self.factor] * len(groups) if callable(self.factor) else list(self.factor)
        if len(factors) != len(groups):
            raise ValueError(f"{len(factors)} factors for {len(groups)} parameter groups; give one, or one per group")
        return factors

    def _apply(self) -> None:
        # A group that was added later starts from its own eta.
        self.initial += [group["eta"] for group in self.optimizer.param_groups[len(self.initial) :]]
        etas = [eta * factor(self.last_step) for eta, factor in zip(self.initial, self._factors())]
        for eta in etas:
            self.optimizer.rule.check(eta)
        for group, eta in zip(self.optimizer.param_groups, etas):
            group["eta"] = as_plain(eta)

    def step(self) -> None:
        """Move on by one step and set every group's eta."""
        self.last_step += 1
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs; the functions stay in the code."""
        return {"last_step": self.last_step, "initial": as_plain(self.initial)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; one that is damaged changes nothing."""
        before = self.last_step, self.initial
        self._factors()  # a wrong number of them is no fault of the checkpoint
        try:
            self.last_step, self.initial = operator.index(state["last_step"]), list(state["initial"])
            self._apply()
        except Exception as error:
            self.last_step, self.initial = before
            raise ValueError(
                f"EtaSchedule cannot continue from {state!r:.100} ({type(error).__name__}: {error}); load what its "
                "state_dict() gave"
            ) from error
