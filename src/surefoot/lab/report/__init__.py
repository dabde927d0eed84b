"""The report: one HTML file with verdicts, tables, curves and where they come from."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.lab.analyse.audit import Finding, check
from surefoot.lab.analyse.comparison import Summary, summarise
from surefoot.lab.analyse.groups import TaskGroup, higher_is_better
from surefoot.lab.analyse.verdicts import count
from surefoot.lab.report import origin, panels, parts
from surefoot.lab.report.figures import BUDGET, CurveData, CurvePanel, curve_data
from surefoot.lab.report.forks import continued, fork_sentence, forked_at
from surefoot.lab.report.page import Section, escape, render_page, write_html, write_page
from surefoot.lab.report.tables import metric_name
from surefoot.version import __version__

if TYPE_CHECKING:
    from surefoot.lab.store import Run

__all__ = ["Section", "escape", "render_page", "write_page", "write_report"]

#: Bytes of a report at most, as long as thinner curves can do it.
LIMIT = 5_900_000
SMALLEST_BUDGET = 100_000
#: What an optimizer tells of itself: the record's key, the title, a caption, and whether a log scale makes sense.
_INSIDE = [
    ("tilt", "Tilt", "Above zero: pushes harder on batches worse than usual; below: on better ones.", False),
    ("weight", "Weight of the gradient", "What the last gradient of the epoch was multiplied by.", False),
    ("mean", "Loss seen: mean", "The optimizer's running mean of the mini-batch loss.", True),
    ("std", "Loss seen: standard deviation", "Its running spread: how uncertain the loss is.", True),
]


def write_report(
    runs: Sequence[Run],
    path: Path | str,
    title: str | None = None,
    sections: Sequence[Section] = (),
    *,
    baseline: str | None = None,
    target: float | Mapping[str, float] | None = None,
    metrics: Sequence[str] | None = None,
    findings: Sequence[Finding] | None = None,
    command: str | None = None,
) -> Path:
    """Write the report of these runs as one HTML file that needs no network.

    Args:
        runs: what `read_runs` gives.
        path: the file to write.
        title: the heading; by default the tasks' names.
        sections: more sections, shown between the results and the honesty findings.
        baseline: the label to compare with; the first contestant when not given.
        target: the value whose time is taken; see `summarise`.
        metrics: which metrics to show, the leading one first; all when not given.
        findings: honesty findings to show instead of those of `check(runs)`.
        command: the command that made the runs; by default one that makes the same.
    """
    summary = summarise(runs, metrics=metrics, baseline=baseline, target=target)
    found = list(check(runs, baseline) if findings is None else findings)
    names = ", ".join(", ".join(filter(None, [each.name, continued(each)])) for each in summary.groups)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    footer = f"Written by surefoot {__version__} on {today}. One file, no network: keep it, mail it, print it."
    budget = BUDGET
    while True:
        text = render_page(
            title or f"Optimizers on {names or 'nothing yet'}",
            report_sections(summary, found, sections, command, budget),
            subtitle=_subtitle(summary),
            footer=footer,
        )
        excess = len(text.encode()) - LIMIT
        if excess <= 0 or budget <= SMALLEST_BUDGET:
            return write_html(path, text)
        budget = max(SMALLEST_BUDGET, min(budget // 2, budget - excess))


def report_sections(
    summary: Summary,
    findings: Sequence[Finding],
    extra: Sequence[Section] = (),
    command: str | None = None,
    budget: int = BUDGET,
) -> list[Section]:
    """The sections of a report, in order; the curves take about `budget` bytes at most."""
    fields = summary.groups
    series: dict[str, int] = {}
    for each in fields:
        for entry in each.contestants:
            series.setdefault(entry.label, len(series))
    if not fields:
        return [*extra, Section("Honesty checks", html=parts.findings_list(findings))]
    inside = [name for name, *_ in _INSIDE]
    data = curve_data(fields, [*summary.metrics, *inside], series, budget)
    built = [
        Section(
            "In short",
            html=parts.flags(findings),
            sections=[_per_task(each, fields, _in_short(each, summary, series)) for each in fields],
        ),
        Section("Results", _results_lead(summary), sections=_results(summary, series)),
        Section(
            "Learning curves",
            _curves_lead(data),
            controls="curves",
            sections=[
                _curves(each, summary, block, series, fields) for each, block in zip(fields, data) if block.epochs
            ],
        ),
        _inside_section(fields, data, series),
        _sensitivity(summary, series),
        _targets(summary, series),
        *extra,
        Section(
            "Honesty checks",
            "What would make this comparison unfair, incomplete or weaker than it looks.",
            parts.findings_list(findings),
        ),
        Section("Divergences", html=parts.divergence_table(fields)),
        Section("Provenance", html=origin.origin_tables(fields)),
        Section("How to get it again", html=origin.again(fields, command)),
    ]
    return [section for section in built if section.html or section.panels or section.sections]


def _per_task(each: TaskGroup, fields: Sequence[TaskGroup], html: str = "", panels: Sequence = ()) -> Section:
    return Section(each.name, html=html, panels=panels, plain=len(fields) == 1)


def _in_short(each: TaskGroup, summary: Summary, series: dict[str, int]) -> str:
    sentence = fork_sentence(each)
    lead = f'<p class="lead">{escape(sentence)}</p>' if sentence else ""
    return lead + parts.verdicts(each, summary, series)


def _subtitle(summary: Summary) -> str:
    runs = [run for each in summary.groups for run in each.runs]
    if not runs:
        return "No runs."
    labels = {entry.label for each in summary.groups for entry in each.contestants}
    epochs = sorted({run.config.epochs - forked_at(run) for run in runs})
    length = f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    return " · ".join(
        [
            count(len(summary.groups), "task"),
            count(len(labels), "optimizer"),
            count(len({run.seed for run in runs}), "seed"),
            f"{length} {'epoch' if length == '1' else 'epochs'}",
            count(len(runs), "run"),
        ]
    )


def _results_lead(summary: Summary) -> str:
    family = max((row.family for row in summary.comparisons), default=0)
    return (
        "Mean ± standard deviation over seeds, and the difference from the baseline on the same seeds with its "
        f"95% interval. p-values of the paired t-test are adjusted by Holm's method for {count(family, 'comparison')} "
        "per metric; the exact one flips signs and assumes nothing of normality. A claim needs both below 0.05."
    )


def _results(summary: Summary, series: dict[str, int]) -> list[Section]:
    sections = []
    for each in summary.groups:
        tables = [
            parts.results_table(rows, series)
            for metric in summary.metrics
            if (rows := summary.select(metric=metric, task=each.name))
        ]
        if tables:
            sections.append(_per_task(each, summary.groups, "".join(tables)))
    return sections


def _curves_lead(data: Sequence[CurveData]) -> str:
    thinned = max(block.every for block in data)
    note = f" To keep this file small, curves show every {thinned}th epoch." if thinned > 1 else ""
    return (
        "The mean over seeds; a run that diverged leaves the mean at its ✕. Where curves lie on each other, "
        f"look at them minus the baseline, seed by seed.{note}"
    )


def _curves(
    each: TaskGroup, summary: Summary, block: CurveData, series: dict[str, int], fields: Sequence[TaskGroup]
) -> Section:
    order = sorted(summary.metrics, key=lambda metric: not metric.startswith("train"))
    shown = [
        CurvePanel(
            metric_name(metric).capitalize(),
            block,
            metric,
            "Higher is better." if higher_is_better(metric, each.task) else "Lower is better.",
            log=not higher_is_better(metric, each.task),
        )
        for metric in order
        if block.has(metric)
    ]
    return _per_task(each, fields, parts.legend(each, block, summary.metrics, series), shown)


def _inside_section(fields: Sequence[TaskGroup], data: Sequence[CurveData], series: dict[str, int]) -> Section:
    within = []
    for each, block in zip(fields, data):
        shown = [
            CurvePanel(name, block, key, caption, log=log, inside=True, height=260)
            for key, name, caption, log in _INSIDE
            if block.has(key)
        ]
        if shown:
            within.append(
                _per_task(each, fields, parts.legend(each, block, [key for key, *_ in _INSIDE], series), shown)
            )
    return (
        Section(
            "What the optimizers saw",
            "The loss as a noisy reading: its running mean and spread, the tilt that the rule made of them, and the "
            "weight given to the gradient. Plain optimizers have none.",
            controls="inside",
            sections=within,
        )
        if within
        else Section("What the optimizers saw")
    )


def _sensitivity(summary: Summary, series: dict[str, int]) -> Section:
    within = []
    for each in summary.groups:
        metrics = [metric for metric in summary.metrics if not metric.startswith("train")] or summary.metrics
        shown = [panel for metric in metrics for panel in panels.sensitivity(each, metric, series)]
        if shown:
            within.append(_per_task(each, summary.groups, panels=shown))
    return Section("Sensitivity", "Contestants that differ in one option alone.", sections=within)


def _targets(summary: Summary, series: dict[str, int]) -> Section:
    within = []
    for each in summary.groups:
        rows = summary.select(metric=summary.metrics[0], task=each.name) if summary.metrics else []
        if not rows or rows[0].target is None:
            continue
        parallel = any((record.get("jobs") or 1) > 1 for run in each.runs for record in run.epochs)
        race = panels.time_to_target_panel(each, rows, series)
        table = parts.target_table(rows, series, parallel)
        within.append(_per_task(each, summary.groups, table, [race] if race else []))
    return Section(
        "Time to target",
        "How much training until the target was first reached; a run that never got there counts as infinite. "
        "Unless given, the target is what every run of the baseline had reached at its end.",
        sections=within,
    )
