"""What a whole run says beside its end: its best epoch, the area under its curve, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, higher_is_better
from surefoot.lab.analyse.stats import MeanStd, mean_std, median
from surefoot.lab.store import column

if TYPE_CHECKING:
    from surefoot.lab.store import Run

#: A setting within this share of the best value of a sweep is in the basin.
BASIN = 0.1


@dataclass(frozen=True)
class Course:
    """The runs of one contestant that ended well, from their first epoch to the last one.

    Args:
        label: the contestant.
        last: the metric after the last epoch.
        best: the metric after each run's best epoch; chosen on the validation data, so it is flattered.
        best_epoch: the median of these epochs.
        area: the mean of the metric over all epochs, which is the area under the curve per epoch.
        seconds: seconds of training per epoch.
        memory: the highest peak memory of a run in bytes; None if it was not recorded.
    """

    label: str
    last: MeanStd
    best: MeanStd
    best_epoch: float | None
    area: MeanStd
    seconds: MeanStd
    memory: float | None


def courses(group: TaskGroup, metric: str) -> list[Course]:
    """The course of every contestant of a task."""
    return [_course(contestant, metric, higher_is_better(metric, group.task)) for contestant in group.contestants]


def _course(contestant: ContestantRuns, metric: str, higher: bool) -> Course:
    curves = [curve for run in contestant.runs if run.state == "done" and (curve := _curve(run, metric))]
    best = [(max if higher else min)(curve.items(), key=lambda point: point[1]) for curve in curves]
    ended = [run for run in contestant.runs if run.state == "done"]
    seconds = [value for run in ended for value in column(run.epochs, "seconds") if value]
    memory = [value for run in contestant.runs for value in column(run.epochs, "peak_memory") if value]
    return Course(
        contestant.label,
        mean_std([list(curve.values())[-1] for curve in curves]),
        mean_std([value for _, value in best]),
        median([float(epoch) for epoch, _ in best]) if best else None,
        mean_std([sum(curve.values()) / len(curve) for curve in curves]),
        mean_std(seconds),
        max(memory, default=None),
    )


def _curve(run: Run, metric: str) -> dict[int, float]:
    """The metric by epoch, as far as it is finite."""
    values = zip(column(run.epochs, "epoch"), column(run.epochs, metric))
    return {epoch: float(value) for epoch, value in values if value is not None and math.isfinite(value)}


@dataclass(frozen=True)
class Basin:
    """Between which values of an option the metric stays near its best, on a line through the values that were tried.

    Args:
        low: the smallest such value.
        high: the largest one.
        level: the metric at the edge of the basin.
        is_open: whether it goes on beyond the values that were tried.
    """

    low: float
    high: float
    level: float
    is_open: bool

    @property
    def decades(self) -> float:
        """The width in powers of ten."""
        return math.log10(self.high / self.low)


def basin(points: Sequence[tuple[float, float]], higher: bool = False, share: float = BASIN) -> Basin | None:
    """The basin of a sweep over positive values; None without two of them.

    The edge is where the metric is worse than the best value by `share` of it, interpolated on a logarithmic scale.

    >>> found = basin([(1e-4, 2.0), (1e-3, 1.0), (1e-2, 1.2)])
    >>> round(found.low, 6), round(found.high, 5), round(found.decades, 2), found.is_open
    (0.000794, 0.00316, 0.6, False)
    """
    known = sorted((value, metric) for value, metric in points if value > 0 and math.isfinite(metric))
    if len(known) < 2:
        return None
    sign = -1.0 if higher else 1.0
    place = min(range(len(known)), key=lambda k: sign * known[k][1])
    level = known[place][1] + sign * share * abs(known[place][1])
    down, up = _edge(known[place::-1], level, sign), _edge(known[place:], level, sign)
    return Basin(down or known[0][0], up or known[-1][0], level, down is None or up is None)


def _edge(points: Sequence[tuple[float, float]], level: float, sign: float) -> float | None:
    """Where a line from the best point crosses the level first; None if it never does."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if sign * y1 > sign * level:
            way = (level - y0) / (y1 - y0)
            return float(math.exp(math.log(x0) + way * (math.log(x1) - math.log(x0))))
    return None
