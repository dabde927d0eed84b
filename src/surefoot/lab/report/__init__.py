"""The report: one HTML file with verdicts, tables, curves and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.lab.analyse.audit import Finding, audit
from surefoot.lab.analyse.comparison import MarginOption, summarise
from surefoot.lab.report.context import ReportContext, Section
from surefoot.lab.report.figures import BUDGET
from surefoot.lab.report.page import render, write_html, write_page
from surefoot.lab.report.sections import Story, default_title, report_sections, story_sections, subtitle
from surefoot.lab.report.tables import to_csv

if TYPE_CHECKING:
    from surefoot.lab.store import Run

__all__ = ["ReportContext", "Section", "Story", "write_page", "write_report", "write_stories"]

#: Bytes of a report at most, as long as thinner curves can do it.
LIMIT = 5_900_000
SMALLEST_BUDGET = 100_000


def write_report(
    runs: Sequence[Run],
    path: Path | str,
    title: str | None = None,
    sections: Sequence[Section] = (),
    *,
    baseline: str | None = None,
    target: float | Mapping[str, float] | None = None,
    metrics: Sequence[str] | None = None,
    margin: MarginOption = None,
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
        margin: smaller differences count as equal; see `summarise`.
        findings: honesty findings to show instead of those of `audit(runs)`.
        command: the command that made the runs; by default what was recorded with them.
    """
    summary = summarise(runs, metrics=metrics, baseline=baseline, target=target, margin=margin)
    shown = list(audit(runs, baseline) if findings is None else findings)
    files = {"results.csv": to_csv(summary)}
    budget = BUDGET
    while True:
        parts = report_sections(summary, shown, sections, command, budget)
        text = render(ReportContext(title or default_title(summary), subtitle(summary), parts, files))
        excess = len(text.encode()) - LIMIT
        if excess <= 0 or budget <= SMALLEST_BUDGET:
            return write_html(path, text)
        budget = max(SMALLEST_BUDGET, min(budget // 2, budget - excess))


def write_stories(path: Path | str, title: str, stories: Sequence[Story], command: str | None = None) -> Path:
    """Write several comparisons, each with a question of its own, as one HTML file.

    Args:
        path: the file to write.
        title: the heading.
        stories: the comparisons.
        command: the command that made the runs; by default what was recorded with them.
    """
    runs = sum(len(group.runs) for story in stories for group in story.summary.groups)
    return write_page(
        path, ReportContext(title, f"{len(stories)} comparisons · {runs} runs", story_sections(stories, command))
    )
