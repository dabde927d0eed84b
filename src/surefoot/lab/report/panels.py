"""Panels made from runs: differences from the baseline, mean curves, sensitivity to an option, time to target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from surefoot.lab.analyse.across_tasks import AcrossTasks
from surefoot.lab.analyse.comparison import Comparison, time_to_target
from surefoot.lab.analyse.course import BASIN, Basin, basin
from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, higher_is_better, metric_name, sweeps
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.analyse.verdicts import number, plus_minus
from surefoot.lab.report.figures import LIGHTER, Axis, Line, Markers, Panel, mean_curve
from surefoot.lab.report.tables import MARKS, difference, share


def curves_panel(group: TaskGroup, metric: str, *, band: bool = True, log: bool = False) -> Panel:
    """The mean of a metric over seeds, one curve per contestant, for `Results.plot`."""
    lines = [
        mean_curve(contestant.runs, metric, contestant.label, series)
        for series, contestant in enumerate(group.contestants)
    ]
    drawn = [line if band else replace(line, band=()) for line in lines if line]
    return Panel(group.name, drawn, y=Axis(metric_name(metric), "log" if log else "linear"))


#: Rows of the picture of differences at most; the tables have all.
MOST_ROWS = 10


def differences_panel(rows: Sequence[Comparison], series: dict[str, int]) -> Panel | None:
    """The difference of every seed from the baseline, with mean and interval, the best contestant on top.

    Args:
        rows: comparisons of one task and metric in the order of their ranking.
        series: the series of each contestant.
    """
    pairs = [(row, row.evidence.differences) for row in rows if row.evidence and row.evidence.n]
    shown = pairs[:MOST_ROWS]
    if not shown:
        return None
    lines: list[Line] = []
    for place, (row, values) in enumerate(shown):
        colour = series[row.label]
        # seeds one below the other, so that equal differences stay visible
        offsets = [0.26 * (2 * k / max(1, len(values) - 1) - 1) for k in range(len(values))]
        text = [f"{row.label}, pair {k + 1}\n{value:+.4g}" for k, value in enumerate(values)]
        dots = Markers(size=8, opacity=0.5)
        y = [place + offset for offset in offsets]
        lines.append(Line("", values, y, colour, text=text, markers=dots, connected=False))
        if row.interval:
            lines.append(Line("", row.interval, [place, place], colour, dash=0, width=4))
        mean = [f"{row.label}, mean\n{difference(row)}"]
        diamond = Markers("diamond", 14)
        lines.append(Line("", [row.difference], [place], colour, text=mean, markers=diamond, connected=False))
    first = shown[0][0]
    ends = [end for row, values in shown for end in (*values, *(row.interval or ()), 0.0)]
    room = 0.05 * (max(ends) - min(ends)) or 1.0
    left_out = f" The best {len(shown)} of {len(pairs)} are shown." if len(pairs) > len(shown) else ""
    return Panel(
        f"{metric_name(first.metric).capitalize()} minus {first.baseline}'s on the same seed",
        lines,
        Axis(
            f"difference in {metric_name(first.metric)}, 0 is {first.baseline}",
            span=(min(ends) - room, max(ends) + room),
            sides=("worse", "better") if first.higher_is_better else ("better", "worse"),
        ),
        caption="A dot is a seed, the diamond their mean, the bar its 95% interval, which holds whenever one looks "
        f"(six seeds or more).{left_out}",
        height=104 + 46 * len(shown),
        wide=True,
        rows=[(name, _note(row)) for name, (row, _) in zip(shortened([row.label for row, _ in shown]), shown)],
    )


def _note(row: Comparison) -> str:
    mark = MARKS[row.verdict.outcome]
    return f"{share(row)} {mark.sign} {mark.word}".strip()


def sensitivity(group: TaskGroup, metric: str, series: dict[str, int]) -> list[Panel]:
    """Final metric against eta or lr, one line per optimizer, when contestants differ in that option alone."""
    panels = []
    all_sweeps = sweeps(group)
    for option in dict.fromkeys(name for name, _ in all_sweeps):
        groups = [contestants for name, contestants in all_sweeps if name == option]
        swept = {id(contestant) for contestants in groups for _, contestant in contestants}
        values = sorted({value for contestants in groups for value, _ in contestants})
        lines = [_sweep(contestants, metric, series) for contestants in groups]
        is_log = values[0] > 0
        basins = [(line, span) for line in lines if is_log and (span := _basin(line, group, metric))]
        if id(group.baseline) not in swept:
            lines = [*_level(group.baseline, metric, values, series), *lines]
        lines += [_width_of(line, span) for line, span in basins]
        panels.append(
            Panel(
                f"{metric_name(metric).capitalize()} against {option}",
                lines,
                Axis(option, "log" if is_log else "linear", ticks=values if is_log else ()),
                Axis(f"final {metric_name(metric)}", _scale_of([value for line in lines for value in line.y])),
                "Mean ± std over the runs that ended. "
                + ("Higher is better. " if higher_is_better(metric, group.task) else "Lower is better. ")
                + "An empty marker: some runs diverged at this value."
                + (f" {basin_sentence(option, [(line.label, span) for line, span in basins])}" if basins else ""),
                height=380,
                wide=True,
            )
        )
    return panels


def _scale_of(values: Sequence[float]) -> Literal["linear", "log"]:
    """Logarithmic where a linear axis would show the best values as one."""
    return "log" if values and min(values) > 0 and max(values) > 10 * min(values) else "linear"


def _basin(line: Line, group: TaskGroup, metric: str) -> Basin | None:
    return basin(list(zip(line.x, line.y)), higher_is_better(metric, group.task))


def _width_of(line: Line, span: Basin) -> Line:
    """The basin as a bar at its level."""
    text = [f"{line.label}: within {BASIN:.0%} of its best\nfrom {number(span.low, 2)} to {number(span.high, 2)}"] * 2
    return Line("", [span.low, span.high], [span.level] * 2, line.series, text=text, dash=0, width=7, faint=True)


def basin_sentence(option: str, basins: Sequence[tuple[str, Basin]]) -> str:
    """How wide the basins are, in powers of ten.

    >>> basin_sentence("lr", [("Adam", Basin(1e-3, 1e-2, 0.1, False))])
    'Width of the basin in lr, where the mean is within 10% of the best: Adam 1.0 decades (0.001 to 0.01).'
    """
    widths = [
        f"{label} {'at least ' if span.is_open else ''}{span.decades:.1f} decades "
        f"({number(span.low, 2)} to {number(span.high, 2)})"
        for label, span in basins
    ]
    return f"Width of the basin in {option}, where the mean is within {BASIN:.0%} of the best: {', '.join(widths)}."


def _sweep(contestants: list[tuple[float, ContestantRuns]], metric: str, series: dict[str, int]) -> Line:
    finals = [(value, contestant, mean_std(contestant.final_values(metric))) for value, contestant in contestants]
    points = [(value, contestant, final) for value, contestant, final in finals if final.n]
    text = []
    for _, contestant, final in points:
        lost = f", {len(contestant.diverged)} diverged" if contestant.diverged else ""
        text.append(f"{contestant.label}\n{plus_minus(final.mean, final.std)} (n={final.n}{lost})")
    first = contestants[0][1]
    return Line(
        first.class_name,
        [value for value, _, _ in points],
        [final.mean for _, _, final in points],
        # the colour of the sweep, not its lightest shade and not the ink of a baseline in it
        max(series[contestant.label] % LIGHTER for _, contestant in contestants),
        error=[final.std if final.n > 1 else 0.0 for _, _, final in points],
        text=text,
        markers=Markers(["circle-open" if contestant.diverged else "circle" for _, contestant, _ in points], 8),
    )


def _level(contestant: ContestantRuns, metric: str, values: list[float], series: dict[str, int]) -> list[Line]:
    final = mean_std(contestant.final_values(metric))
    if final.n == 0:
        return []
    text = f"{contestant.label}\n{plus_minus(final.mean, final.std)} (n={final.n})"
    ends = [values[0], values[-1]]
    return [Line(f"{contestant.label} (baseline)", ends, [final.mean] * 2, series[contestant.label], text=[text] * 2)]


def profiles_panel(together: AcrossTasks, series: dict[str, int]) -> Panel:
    """Performance profiles: the share of runs above each score."""
    lines = [
        Line(profile.label, profile.thresholds, profile.shares, series[profile.label], profile.band)
        for profile in together.profiles
    ]
    return Panel(
        "Performance profiles",
        lines,
        Axis("score", span=(0.0, 1.0)),
        Axis("share of runs above it", from_zero=True, largest=1.0),
        "0 is the worst run of a task and 1 the best; a run that diverged is above no score. Higher is better.",
        height=360,
        wide=True,
    )


def time_to_target_panel(group: TaskGroup, rows: list[Comparison], series: dict[str, int]) -> Panel | None:
    """Epochs to target, run by run: a dot for a run that reached it, a tick at the median; None without a target."""
    if not rows or rows[0].target is None:
        return None
    target = rows[0].target.value
    lines, notes = [], []
    first = min((run.epochs[0]["epoch"] for run in group.runs if run.epochs), default=1)
    last = max((run.epochs[-1]["epoch"] for run in group.runs if run.epochs), default=1)
    for place, (contestant, row) in enumerate(zip(group.contestants, rows)):
        ended = [run for run in contestant.runs if run.finished or run.diverged]
        times = [(run.seed, time_to_target(run, row.metric, target, row.higher_is_better).epochs) for run in ended]
        reached = [(seed, time) for seed, time in times if math.isfinite(time)]
        lines.append(
            Line(
                "",
                [time for _, time in reached],
                [place] * len(reached),
                series[contestant.label],
                text=[f"{contestant.label}, seed {seed}\nepoch {number(time)}" for seed, time in reached],
                markers=Markers(size=9, opacity=0.55),
                connected=False,
            )
        )
        missed = row.counts.ended - (row.target.reached if row.target else 0)
        notes.append(f"{missed} of {row.counts.ended} missed" if missed else "")
        median = row.target.median.epochs if row.target and row.target.median else math.inf
        if math.isfinite(median):
            text = [f"{contestant.label}\nmedian: epoch {number(median)}"]
            tick = Markers("line-ns-open", 20, line_width=3)
            lines.append(
                Line("", [median], [place], series[contestant.label], text=text, markers=tick, connected=False)
            )
    return Panel(
        f"Epochs to {metric_name(rows[0].metric)} {number(target)}",
        lines,
        Axis("epoch", whole=True, span=(first - 1, last + 0.03 * (last - first + 1))),
        caption="A dot is a run, the tick its optimizer's median (none when half of the runs missed).",
        height=90 + 26 * len(rows),
        wide=True,
        rows=list(zip(shortened([row.label for row in rows]), notes)),
    )


def shortened(labels: Sequence[str], most: int = 36) -> list[str]:
    """Labels cut to `most` letters, in the middle or, if two would look the same, around the place where they differ.

    >>> shortened(["Adam", "AdamS eta=0.1 weighting=unit"], 12)
    ['Adam', 'AdamS …=unit']
    >>> shortened(["AdamS lr=0.001 eta=0.1 weighting=unit", "AdamS lr=0.001 eta=0.2 weighting=unit"], 20)
    ['AdamS …eta=0.1 weig…', 'AdamS …eta=0.2 weig…']
    """
    cut = [_cut(label, most) for label in labels]
    groups = [sorted({other for other, short in zip(labels, cut) if short == mine}) for mine in cut]
    cut = [
        short if len(group) == 1 else _around(label, _difference(group), most)
        for label, short, group in zip(labels, cut, groups)
    ]
    # labels that differ in several far places may still look alike: then they begin with the number of their row
    return [
        f"{row}: {short}" if len({other for other, its in zip(labels, cut) if its == short}) > 1 else short
        for row, short in enumerate(cut, start=1)
    ]


def _cut(label: str, letters: int) -> str:
    tail = (letters - 1) // 2
    return label if len(label) <= letters else f"{label[: letters - 1 - tail]}…{label[len(label) - tail :]}"


def _difference(labels: Sequence[str]) -> int:
    """Where labels begin to differ."""
    return next((k for k, column in enumerate(zip(*labels)) if len(set(column)) > 1), min(map(len, labels)))


def _around(label: str, place: int, letters: int) -> str:
    head = letters // 3
    start = max(head, label.rfind(" ", 0, place) + 1)
    rest, room = label[start:], letters - head - 1
    return f"{label[:head]}…{rest if len(rest) <= room else rest[: room - 1] + '…'}"
