"""What a figure is made of: panels of curves, bands and points; who draws them is another matter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from surefoot.lab.analyse.groups import value_at
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.store import Run
from surefoot.paper.cells import RECORDED

#: The largest value that a metric can have, in the paper's units.
MOST = {"val_acc": 100.0}


@dataclass(frozen=True)
class Line:
    """A curve with its band, or, with `marks`, single points with error bars.

    Args:
        band: the lower and the upper edge at every point of a curve.
        spread: half the length of the error bars of points.
        series: the colour and dash of the i-th contestant, as `surefoot.lab.report.page.style_of` gives them.
        dash: another dash than that of the series, by its number.
        shift: how far to the side points are drawn, so that those of one epoch do not lie on each other.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    series: int = 0
    band: Sequence[tuple[float, float]] = ()
    spread: Sequence[float] = ()
    dash: int | None = None
    marks: bool = False
    faint: bool = False
    shift: float = 0.0


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `most` is the largest value that there can be."""

    title: str
    lines: Sequence[Line]
    x: str = "epoch"
    y: str = ""
    log_x: bool = False
    log_y: bool = False
    most: float = math.inf


@dataclass(frozen=True)
class Picture:
    """A figure: rows of panels, with a caption."""

    name: str
    title: str
    rows: Sequence[Sequence[Panel]]
    caption: str = ""


def band(values: Sequence[float]) -> tuple[float, float]:
    """One standard deviation around the mean of the seeds, no further than the seeds reached.

    Where one seed of three jumps, mean - std is below all of them, and for a loss below zero.

    >>> band([1.0, 1.0, 10.0]), band([2.0])
    ((1.0, 9.196152422706632), (2.0, 2.0))
    """
    seen = mean_std(values)
    std = 0.0 if math.isnan(seen.std) else seen.std
    return max(seen.mean - std, min(values)), min(seen.mean + std, max(values))


def in_units(values: Iterable[float | None], unit: float) -> list[float]:
    """The values that there are, in the paper's units."""
    return [unit * value for value in values if value is not None]


def metric_panel(
    metric: str, title: str, lines: Sequence[Line | None], x: str = "epoch", *, log_x: bool = False
) -> Panel:
    """The panel of one of the paper's metrics: losses on a log scale."""
    drawn = [line for line in lines if line]
    return Panel(title, drawn, x, log_x=log_x, log_y=metric != "val_acc", most=MOST.get(metric, math.inf))


def curve(
    runs: Sequence[Run], metric: str, label: str, series: int, *, dash: int | None = None, until: float = math.inf
) -> Line | None:
    """The mean over seeds after every epoch (at most `until`) that all of them have, with its band.

    Runs that are still on their way would cut the curve short, and are left out when others have ended.
    """
    runs = [run for run in runs if run.finished] or runs
    length = max((len(run.epochs) for run in runs if run.diverged), default=0)
    length = min((len(run.epochs) for run in runs if not run.diverged), default=length)
    name, unit = RECORDED[metric]
    every = {e: in_units([value_at(run, name, e) for run in runs], unit) for e in range(1, length + 1) if e <= until}
    seen = {epoch: values for epoch, values in every.items() if values}
    if not seen:
        return None
    x, y = [float(epoch) for epoch in seen], [mean_std(values).mean for values in seen.values()]
    seeds = len(next(iter(seen.values())))
    return Line(f"{label} (n={seeds})", x, y, series, [band(values) for values in seen.values()], dash=dash)
