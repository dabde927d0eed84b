"""What a figure is made of: panels of lines, and the data of learning curves. `surefoot.lab.report.draw` draws them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, higher_is_better, sweeps, value_at
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.store import column, last_epoch

if TYPE_CHECKING:
    from surefoot.lab.store import Run

#: Bytes of curves in one page; beyond, curves keep every k-th epoch (the tables use all of them).
BUDGET = 950_000
#: Curves drawn at first; the others wait for a click.
MOST_SHOWN = 8
#: Bytes of a number in the file, on average.
_NUMBER = 7.5


@dataclass(frozen=True)
class Markers:
    """How points are marked: Plotly's names of symbols, sizes in pixels; a list has one value per point.

    With `values` the colour of a point shows its value on a sequential scale, named by `scale`; light is worse if
    `dark_is_low`.
    """

    symbol: str | Sequence[str] = "circle"
    size: float | Sequence[float] = 7
    opacity: float | None = None
    line_width: float | None = None
    values: Sequence[float] = ()
    scale: str = ""
    dark_is_low: bool = True


@dataclass(frozen=True)
class Line:
    """A curve, or with `connected=False` single points.

    Args:
        label: its name in the legend; a line without one is not listed there.
        series: the colour and dash of a contestant, as `series_of` numbers them and `draw.style_of` reads the number.
        band: the lower and the upper edge at every point.
        error: half the length of the error bar of every point.
        text: what the page shows for a point under the mouse, plain text with line breaks.
        markers: how the points are marked; a curve has no marks by default.
        dash: another dash than that of the series, by its number.
        steps: stay at a value until the next one, instead of a straight line between them.
        shift: how far to the side points are drawn, so that those of one epoch do not overlap.
        width: another width than that of a curve, in pixels.
        listed: whether the page's legend lists it.
    """

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    series: int = 0
    band: Sequence[tuple[float, float]] = ()
    error: Sequence[float] = ()
    text: Sequence[str] = ()
    markers: Markers | None = None
    connected: bool = True
    dash: int | None = None
    steps: bool = False
    faint: bool = False
    shift: float = 0.0
    width: float | None = None
    listed: bool = True


@dataclass(frozen=True)
class Axis:
    """One axis of a panel.

    Args:
        whole: it counts something, and has ticks at whole numbers only.
        ticks: the only values that have a tick.
        powers: ticks are powers of ten, written as such.
        span: where it begins and ends.
        from_zero: it begins at zero.
        sides: what it means to be left and right of zero, "better" or "worse"; zero is then marked by a line.
        largest: the largest value that there can be.
    """

    title: str = ""
    scale: Literal["linear", "log", "category"] = "linear"
    whole: bool = False
    ticks: Sequence[float] = ()
    powers: bool = False
    span: tuple[float, float] | None = None
    from_zero: bool = False
    sides: tuple[str, str] | None = None
    largest: float = math.inf


@dataclass(frozen=True)
class Panel:
    """Lines on one pair of axes.

    With `rows`, pairs of a name and a note, y is the number of a row, 0 at the top; the page puts the names beside the
    rows or, on a narrow screen, above them.
    """

    title: str
    lines: Sequence[Line]
    x: Axis = Axis("epoch", whole=True)
    y: Axis = Axis()
    caption: str = ""
    height: int = 320
    wide: bool = False
    rows: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Figure:
    """Rows of panels with a title, a caption and the name of its file."""

    name: str
    title: str
    rows: Sequence[Sequence[Panel]]
    caption: str = ""


@dataclass(frozen=True)
class CurvePanel:
    """Learning curves with a band, drawn by the page itself from `data`, so that its switches can redraw them.

    `inside` marks what an optimizer says of itself, where a difference from the baseline means nothing.
    """

    title: str
    data: CurveData
    metric: str
    caption: str = ""
    log: bool = False
    inside: bool = False
    height: int = 300
    wide: bool = False


#: A series is the number of a colour, plus this for each percent that the colour is lighter.
LIGHTER = 1000
#: How much lighter the smallest value of a sweep is drawn than the largest one, in percent.
_LIGHTEST = 65


def series_of(groups: Sequence[TaskGroup]) -> dict[str, int]:
    """The series of every contestant, by label: one colour for each, and for a sweep shades of one colour.

    The first baseline is 0, the ink. Contestants that differ in eta alone, or in lr alone, are a sweep.
    """
    shades: dict[str, tuple[str, int]] = {}
    for group in groups:
        for number, sweep in enumerate(sweeps(group)):
            for place, (_, contestant) in enumerate(sweep.points):
                lighter = round(_LIGHTEST * (1 - place / (len(sweep.points) - 1)))
                shades.setdefault(contestant.label, (f"{group.name} {number}", lighter))
    series: dict[str, int] = {}
    colours: dict[str, int] = {}
    for label in dict.fromkeys(contestant.label for group in groups for contestant in group.contestants):
        sweep_name, lighter = shades.get(label, (label, 0)) if series else ("", 0)
        colour = colours.setdefault(sweep_name, len(colours))
        series[label] = colour + LIGHTER * lighter
    return series


def band(values: Sequence[float]) -> tuple[float, float]:
    """One standard deviation around the mean of the seeds, no further than the seeds reached.

    Where one seed of three jumps, mean - std is below all of them, and for a loss below zero.

    >>> band([1.0, 1.0, 10.0]), band([2.0])
    ((1.0, 9.196152422706632), (2.0, 2.0))
    """
    spread = mean_std(values)
    std = 0.0 if math.isnan(spread.std) else spread.std
    return max(spread.mean - std, min(values)), min(spread.mean + std, max(values))


def mean_curve(
    runs: Sequence[Run],
    metric: str,
    label: str,
    series: int,
    *,
    unit: float = 1.0,
    dash: int | None = None,
    until: float = math.inf,
) -> Line | None:
    """The mean over seeds after every epoch (at most `until`) that all of them have, with its band.

    Unfinished runs would cut the curve short: they are left out when others have finished. Runs that diverged count
    as far as they came.
    """
    runs = [run for run in runs if run.finished] or runs
    longest = max((last_epoch(run.epochs) for run in runs if run.diverged), default=0)
    length = min((last_epoch(run.epochs) for run in runs if not run.diverged), default=longest)
    epochs = sorted({row["epoch"] for run in runs for row in run.epochs if row["epoch"] <= min(length, until)})
    recorded = {epoch: [value_at(run, metric, epoch) for run in runs] for epoch in epochs}
    values = {epoch: [unit * value for value in row if value is not None] for epoch, row in recorded.items()}
    values = {epoch: row for epoch, row in values.items() if row}
    if not values:
        return None
    x, y = [float(epoch) for epoch in values], [mean_std(row).mean for row in values.values()]
    seeds = len(next(iter(values.values())))
    return Line(f"{label} (n={seeds})", x, y, series, [band(row) for row in values.values()], dash=dash)


@dataclass
class CurveData:
    """The learning curves of one task.

    Args:
        entries: one per contestant: label, series (its colour and dash), seeds, and for each metric one list of
            values per seed; also steps and seconds.
        epochs: the epochs that the lists hold, the same for all; what a run did not record is None.
        stride: 1 if all epochs are there, k if only every k-th is.
        hidden: labels that are not drawn until asked for.
        task: the name of the task.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    stride: int = 1
    hidden: list[str] = field(default_factory=list)
    task: str = ""

    def to_json(self) -> dict[str, Any]:
        """What report.js draws from."""
        return {"entries": self.entries, "epochs": self.epochs, "hidden": self.hidden, "task": self.task}

    def has(self, metric: str) -> bool:
        """Whether any contestant recorded this metric."""
        return any(metric in entry["values"] for entry in self.entries)


def curve_data(
    groups: Sequence[TaskGroup], metrics: Sequence[str], series: dict[str, int], budget: int = BUDGET
) -> list[CurveData]:
    """The curves of every task, thinned alike so that together they keep to the budget."""
    numbers = sum(len(run.epochs) * (len(metrics) + 1) for group in groups for run in group.runs)
    stride = max(1, math.ceil(numbers * _NUMBER / budget))
    return [_group_curves(group, metrics, series, stride) for group in groups]


def _group_curves(group: TaskGroup, metrics: Sequence[str], series: dict[str, int], stride: int) -> CurveData:
    recorded = sorted({epoch for run in group.runs for epoch in column(run.epochs, "epoch")})
    # every k-th epoch, counted back from the last, and the first; a fork does not begin at 1
    epochs = sorted({*recorded[:1], *recorded[::-stride]})
    data = CurveData(epochs=epochs, stride=stride, hidden=_hidden(group, metrics), task=group.name)

    def at_epochs(recorded: Mapping[int, float | None]) -> list[float | None]:
        return [_short(recorded.get(epoch)) for epoch in epochs]

    shown = set(epochs)

    for contestant in group.contestants:
        # A run that diverged has fewer steps in its last epoch; where all did, theirs are all there is.
        rows = [_rows_at(run, shown) for run in contestant.runs]
        steps = {
            record["epoch"]: record.get("step")
            for diverged in (True, False)
            for records in rows
            for record in records
            if bool(record.get("diverged")) is diverged
        }
        values = {}
        for metric in metrics:
            by_run = [{record["epoch"]: record.get(metric) for record in records} for records in rows]
            curves = [at_epochs(recorded) for recorded in by_run]
            if any(value is not None for curve in curves for value in curve):
                values[metric] = curves
        data.entries.append(
            {
                "label": contestant.label,
                "series": series[contestant.label],
                "seeds": [run.seed for run in contestant.runs],
                "diverged": {str(i): run.epochs[-1]["epoch"] for i, run in enumerate(contestant.runs) if run.diverged},
                "step": at_epochs(steps),
                "seconds": [at_epochs(_seconds(run)) for run in contestant.runs],
                "values": values,
            }
        )
    return data


def _hidden(group: TaskGroup, metrics: Sequence[str]) -> list[str]:
    """With many contestants, all but the baseline and the best: thirty curves at once show nothing."""
    if len(group.contestants) <= MOST_SHOWN or not metrics:
        return []

    def rank(contestant: ContestantRuns) -> float:
        values = [value for run in contestant.runs if (value := value_at(run, metrics[0])) is not None]
        mean = sum(values) / len(values) if values else math.inf
        return -mean if values and higher_is_better(metrics[0], group.task) else mean

    return [contestant.label for contestant in sorted(group.contestants[1:], key=rank)[MOST_SHOWN - 1 :]]


def _seconds(run: Run) -> dict[int, float]:
    """The seconds of training until the end of each epoch."""
    totals = accumulate(seconds or 0.0 for seconds in column(run.epochs, "seconds"))
    return dict(zip(column(run.epochs, "epoch"), totals))


def _rows_at(run: Run, epochs: Collection[int]) -> list[dict[str, Any]]:
    return [run.epochs[place] for place, epoch in enumerate(column(run.epochs, "epoch")) if epoch in epochs]


def _short(value: float | None) -> float | None:
    """Four digits: more than a screen can show. JSON has no infinity, and a curve no place for it."""
    if value is None or not math.isfinite(value):
        return None
    if isinstance(value, int) or value == int(value):
        return int(value)
    return float(f"{value:.4g}")
