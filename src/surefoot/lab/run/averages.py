"""Averages of the weights beside a run: they observe its weights and never touch its trajectory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from surefoot.averaging.weights import WeightAverage
from surefoot.lab.spec.contestant import TWO_TAILED

#: What validates the weights that are in the model now.
Validate = Callable[[], dict[str, float | None]]


class FixedRule:
    """An average whose memory depends on the steps and their losses: "anytime", "poly:8", "ema:0.999", "uniform"."""

    def __init__(self, tensors: Sequence[Tensor], memory: str) -> None:
        self.average = WeightAverage(tensors, memory)

    def update(self, loss: Any) -> None:
        self.average.update(loss)

    def validate(self, validate: Validate) -> dict[str, float | None]:
        """The validation of the average."""
        with self.average.averaged():
            return validate()

    def state_dict(self) -> dict[str, Any]:
        return self.average.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average.load_state_dict(state)


class TwoTailed:
    """Two-Tailed Averaging (Melis, arXiv 2209.12581): a short and a long average, and the validation loss chooses.

    Both take in every step. Whenever the short one validates no worse than the long one, here at the end of an epoch,
    it becomes the long one and a new short one begins. The long one is the result.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.long, self.short = self._new(), self._new()

    def _new(self) -> WeightAverage:
        return WeightAverage(self.tensors, "uniform", every=1)

    def update(self, loss: Any) -> None:
        self.long.update(loss)
        self.short.update(loss)

    def validate(self, validate: Validate) -> dict[str, float | None]:
        """The validation of the long average, after the choice."""
        with self.long.averaged():
            long = validate()
        with self.short.averaged():
            short = validate()
        if not _loss(short) <= _loss(long):
            return long
        self.long, self.short = self.short, self._new()
        return short

    def state_dict(self) -> dict[str, Any]:
        return {"long": self.long.state_dict(), "short": self.short.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.long.load_state_dict(state["long"])
        self.short.load_state_dict(state["short"])


def _loss(row: dict[str, float | None]) -> float:
    loss = row["valid_loss"]
    return math.inf if loss is None else loss


class Averages:
    """The averages of one run, by name.

    Args:
        tensors: the weights and floating buffers of the model.
        own: the average that is validated in place of the trained weights, if any.
        riders: averages that are validated beside them.
    """

    def __init__(self, tensors: Sequence[Tensor], own: str, riders: Sequence[str]) -> None:
        names = dict.fromkeys([*([own] if own else []), *riders])
        self.own, self.riders = own, riders
        self._by_name = {name: TwoTailed(tensors) if name == TWO_TAILED else FixedRule(tensors, name) for name in names}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def update(self, loss: Any) -> None:
        """Take notice of a step."""
        for average in self._by_name.values():
            average.update(loss)

    def validate(self, validate: Validate) -> dict[str, float | None]:
        """The validation of the run's own weights, and as `valid_loss@NAME` that of each rider."""
        rows = {name: average.validate(validate) for name, average in self._by_name.items()}
        row = rows[self.own] if self.own else validate()
        return row | {f"{column}@{name}": value for name in self.riders for column, value in rows[name].items()}

    def state_dict(self) -> dict[str, Any]:
        return {name: average.state_dict() for name, average in self._by_name.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, average in self._by_name.items():
            average.load_state_dict(state[name])
