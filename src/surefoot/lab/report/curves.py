"""Learning curves as compact data: what the page needs to draw means, bands and single seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, higher_is_better, value_at

if TYPE_CHECKING:
    from surefoot.lab.store import Run

#: Bytes of curves in one page; beyond, curves keep every k-th epoch (the tables use all of them).
BUDGET = 950_000
#: Curves drawn at first; the others wait for a click.
MOST_SHOWN = 8
#: What one number takes in the file, on average.
_NUMBER = 7.5


@dataclass
class CurveData:
    """The curves of one field.

    Args:
        entries: one per contestant: label, series (its colour and dash), seeds, and for each metric one list of
            values per seed; steps and seconds stand beside them.
        epochs: the epochs that the lists hold, the same for all; what a run did not record is None.
        every: 1 when all epochs are there, k when only every k-th is.
        hidden: labels that are not drawn until asked for.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    every: int = 1
    hidden: list[str] = field(default_factory=list)

    def json(self) -> str:
        parts = {"entries": self.entries, "epochs": self.epochs, "hidden": self.hidden}
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)

    def has(self, metric: str) -> bool:
        """Whether any contestant recorded this metric."""
        return any(metric in entry["values"] for entry in self.entries)


def curve_data(
    fields: Sequence[TaskGroup], metrics: Sequence[str], series: dict[str, int], budget: int = BUDGET
) -> list[CurveData]:
    """The curves of every field, thinned alike so that together they keep to the budget."""
    numbers = sum(len(run.epochs) * (len(metrics) + 1) for each in fields for run in each.runs)
    every = max(1, math.ceil(numbers * _NUMBER / budget))
    return [_field_curves(each, metrics, series, every) for each in fields]


def _field_curves(each: TaskGroup, metrics: Sequence[str], series: dict[str, int], every: int) -> CurveData:
    recorded = sorted({record["epoch"] for run in each.runs for record in run.epochs})
    # every k-th epoch, counted back from the last, and the first; a fork does not begin at 1
    epochs = sorted({*recorded[:1], *recorded[::-every]})
    data = CurveData(epochs=epochs, every=every, hidden=_hidden(each, metrics))
    for entry in each.contestants:
        # A run that diverged has fewer steps in its last epoch; where all did, theirs are all there is.
        steps = {
            record["epoch"]: record.get("step")
            for diverged in (True, False)
            for run in entry.runs
            for record in run.epochs
            if bool(record.get("diverged")) is diverged
        }
        values = {}
        for metric in metrics:
            curves = [_curve(run, metric, epochs) for run in entry.runs]
            if any(value is not None for curve in curves for value in curve):
                values[metric] = curves
        data.entries.append(
            {
                "label": entry.label,
                "series": series[entry.label],
                "seeds": [run.seed for run in entry.runs],
                "diverged": {str(i): run.epochs[-1]["epoch"] for i, run in enumerate(entry.runs) if run.diverged},
                "step": [_short(steps.get(epoch)) for epoch in epochs],
                "seconds": [_seconds(run, epochs) for run in entry.runs],
                "values": values,
            }
        )
    return data


def _hidden(each: TaskGroup, metrics: Sequence[str]) -> list[str]:
    """With many contestants, all but the baseline and the best: thirty curves at once show nothing."""
    if len(each.contestants) <= MOST_SHOWN or not metrics:
        return []

    def rank(entry: ContestantRuns) -> float:
        values = [value for run in entry.runs if (value := value_at(run, metrics[0])) is not None]
        mean = sum(values) / len(values) if values else math.inf
        return -mean if values and higher_is_better(metrics[0], each.task) else mean

    return [entry.label for entry in sorted(each.contestants[1:], key=rank)[MOST_SHOWN - 1 :]]


def _curve(run: Run, metric: str, epochs: list[int]) -> list[float | None]:
    recorded = {record["epoch"]: record.get(metric) for record in run.epochs}
    return [_short(recorded.get(epoch)) for epoch in epochs]


def _seconds(run: Run, epochs: list[int]) -> list[float | None]:
    total, sums = 0.0, dict[int, float]()
    for record in run.epochs:
        total += record.get("seconds") or 0.0
        sums[record["epoch"]] = total
    return [_short(sums.get(epoch)) for epoch in epochs]


def _short(value: float | None) -> float | None:
    """Four digits: more than a screen can show. JSON has no infinity, and a curve no place for it."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, int) or value == int(value):
        return int(value)
    return float(f"{value:.4g}")
