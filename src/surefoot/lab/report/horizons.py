"""A contestant against the best of its peers at every horizon: tables for the terminal and sections of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surefoot.lab.analyse.audit import Finding
from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, metric_name, value_at
from surefoot.lab.analyse.horizons import HEAD, OVERALL_HEAD, HorizonComparison, OverAll, over_all_horizons
from surefoot.lab.analyse.ranking import percent
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.analyse.verdicts import count, plus_minus
from surefoot.lab.report.context import Section, Table, TableRow, Text, Winner
from surefoot.lab.report.figures import Axis, Line, Markers, Panel, band, series_of
from surefoot.lab.report.sections import (
    findings_flag,
    honesty_section,
    how_to_repeat,
    notes_below_verdicts,
    provenance,
)
from surefoot.lab.report.tables import MARKS, terminal_table, verdict_list

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions


@dataclass(frozen=True)
class HorizonTables:
    """The comparison at every horizon, for terminals (with Rich) and as sections of a page.

    Args:
        table: the contestant against the best of its peers.
        groups: for each horizon the contestants with their runs.
        rates: how the learning rates were chosen, if they were.
        findings: what the checks found.
    """

    table: HorizonComparison
    groups: Mapping[int, TaskGroup]
    rates: str = ""
    findings: Sequence[Finding] = ()

    @property
    def _contestants(self) -> Sequence[ContestantRuns]:
        return next(iter(self.groups.values())).contestants

    @property
    def caption(self) -> str:
        """What is compared, and which direction is better."""
        better = "higher" if self.table.worst.comparison.higher_is_better else "lower"
        return f"{metric_name(self.table.metric)}, {better} is better; {self.table.label} against its best peer"

    @property
    def worst(self) -> str:
        """The largest regret as a sentence: how much worse than the best peer, in the metric and in percent."""
        worst, name = self.table.worst, metric_name(self.table.metric)
        share = percent(worst.regret, worst.best)
        part = f", {'-' if worst.regret < 0 else ''}{share} of the best peer's value" if share else ""
        return f"Worst regret in {name}: {self.table.worst_regret}{part}, after {count(worst.epochs, 'epoch')}."

    def over_all(self) -> list[OverAll]:
        """The rows of the table over all horizons together."""
        return over_all_horizons(self.groups, self.table.metric, self.table.label)

    def means_head(self) -> list[str]:
        """The names of the columns of `means`."""
        return [f"mean {metric_name(self.table.metric)} after epochs", *map(str, self.groups)]

    def means(self) -> list[list[str]]:
        """For each contestant its mean and standard deviation at every horizon."""
        return [
            [
                contestant.label,
                *(_plus_minus(self._values(contestant.label, epochs)) for epochs in self.groups),
            ]
            for contestant in self._contestants
        ]

    def _values(self, label: str, epochs: int) -> list[float]:
        contestant = next(entry for entry in self.groups[epochs].contestants if entry.label == label)
        values = [value_at(run, self.table.metric, epochs) for run in contestant.runs]
        return [value for value in values if value is not None]

    def _after(self) -> list[str]:
        """The horizons in words."""
        return [count(epochs, "epoch") for epochs in self.groups]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text as RichText

        width = options.max_width
        yield RichText(f"{self.table.task}: {self.table.verdict}. {self.worst}\n", style="bold")
        yield RichText(f"{self.table.task}: {self.caption}")
        head, rows = HEAD[:-1], [row[:-1] for row in self.table.rows()]
        yield from terminal_table(head, rows, width, spare=("n", "its mean", "mean", "best peer"))
        at = [(row.comparison.verdict, f"after {count(row.epochs, 'epoch')}") for row in self.table.horizons]
        yield verdict_list((MARKS[verdict.outcome], f"{when}: {verdict.sentence}") for verdict, when in at)
        yield RichText(f"\n{self.table.label} over all horizons together, each of which counts the same", style="bold")
        overall = self.over_all()
        yield from terminal_table(OVERALL_HEAD[:-1], [row[:-1] for row in overall], width, spare=("n",))
        yield verdict_list(
            (mark, f"against {row.peer}: {mark.word}") for row in overall if (mark := MARKS[row.outcome])
        )
        yield RichText("\nMean±std of every contestant", style="bold")
        yield from terminal_table(["optimizer", *self._after()], self.means(), width, spare=self._after()[:-1])
        if self.rates:
            yield RichText(f"{self.rates}\n")

    def sections(self, command: str) -> list[Section]:
        """The sections of a page, in order."""
        groups = list(self.groups.values())
        series = series_of(groups)
        rows = [
            TableRow([after, *cells[1:-1]], outcome=row.comparison.verdict.outcome)
            for after, cells, row in zip(self._after(), self.table.rows(), self.table.horizons)
        ]
        overall = [TableRow(row[:-1], series[row.peer], outcome=row.outcome) for row in self.over_all()]
        means = [TableRow(row, series[row[0]]) for row in self.means()]
        name = metric_name(self.table.metric).capitalize()
        return [
            Section(
                "In short",
                content=[
                    *findings_flag(self.findings),
                    Winner(f"{_capital(self.table.verdict)}.", self.worst),
                    *notes_below_verdicts(self.findings, self.table.task),
                    *([Text(self.rates)] if self.rates else []),
                ],
                panels=[differences(self.table)],
            ),
            Section(
                "At every horizon",
                "The best peer is chosen at each horizon on the same seeds, which makes the comparison hard on "
                f"{self.table.label}. Intervals hold whenever one looks; verdicts are adjusted by Holm's method for "
                f"{count(len(rows), 'horizon')}. Not inferior: the seeds show that it is worse by less than "
                f"{self.table.margin}, if at all.",
                [
                    Table(["after", *HEAD[1:]], rows, name, f"margin {self.table.margin}", whole=True),
                    Table(OVERALL_HEAD, overall, "Over all horizons together", "geometric means of ratios", whole=True),
                    Table(["optimizer", *self._after()], means, f"{name} of every contestant", whole=True),
                ],
                [self._means_panel(series)],
            ),
            honesty_section(self.findings),
            Section("Provenance", content=[provenance(groups)]),
            Section("How to get it again", content=[how_to_repeat(groups, command)]),
        ]

    def _means_panel(self, series: Mapping[str, int]) -> Panel:
        """The mean of every contestant against the horizon, with a band of one standard deviation."""
        lines = []
        for contestant in self._contestants:
            values = {epochs: self._values(contestant.label, epochs) for epochs in self.groups}
            known = {epochs: row for epochs, row in values.items() if row}
            means = [mean_std(row).mean for row in known.values()]
            bands = [band(row) for row in known.values()]
            lines.append(
                Line(contestant.label, list(known), means, series[contestant.label], bands, markers=Markers(size=6))
            )
        name = metric_name(self.table.metric)
        return Panel(
            f"{name.capitalize()} at every horizon", lines, horizon_axis(self.table), Axis(name), height=360, wide=True
        )


def differences(table: HorizonComparison) -> Panel:
    """The paired difference to the best peer over the horizons, with its intervals, and the margin as a band."""
    known = [row for row in table.horizons if row.comparison.difference is not None]
    margins = [(row.epochs, row.comparison.evidence.margin or 0.0) for row in known if row.comparison.evidence]
    lines = [
        Line(
            "", [epochs for epochs, _ in margins], [0.0] * len(margins), 0,
            [(-margin, margin) for _, margin in margins], dash=0, width=1.5,
        )
    ]  # fmt: skip
    for row in known:
        if row.comparison.interval:
            lines.append(Line("", [row.epochs] * 2, row.comparison.interval, 0, dash=0, width=4))
    text = [f"after {count(row.epochs, 'epoch')}, against {row.comparison.baseline}" for row in known]
    values = [row.comparison.difference or 0.0 for row in known]
    x, marks = [row.epochs for row in known], Markers("diamond", 12)
    lines.append(Line("", x, values, 0, text=text, markers=marks, connected=False))
    name = metric_name(table.metric)
    good = "above" if table.worst.comparison.higher_is_better else "below"
    return Panel(
        f"{table.label} minus the best peer, {name}",
        lines,
        horizon_axis(table),
        Axis("difference"),
        f"The line at 0 is the best peer of each horizon, the band the margin ({table.margin}); {good} zero is better. "
        "The diamond is the mean over the seeds, the bar its 95% interval (six seeds or more).",
        height=340,
        wide=True,
    )


def horizon_axis(table: HorizonComparison) -> Axis:
    """Epochs on a logarithmic scale, with a tick at every horizon."""
    return Axis("epochs", "log", ticks=[row.epochs for row in table.horizons])


def _plus_minus(values: Sequence[float]) -> str:
    sample = mean_std(values)
    return plus_minus(sample.mean, sample.std)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
