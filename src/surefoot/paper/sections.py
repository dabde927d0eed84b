"""The paper's part of the HTML report: claims, cells and figures, as sections of the report's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from surefoot.lab.report import Section
from surefoot.lab.report.context import Details, Table, TableRow, Text
from surefoot.lab.report.figures import Figure
from surefoot.paper.cells import Cell, Replication, cells
from surefoot.paper.claims import judge_all
from surefoot.paper.contrasts import Verdict
from surefoot.paper.figures import Figures
from surefoot.paper.published import METRICS, Configuration, configurations
from surefoot.paper.scorecard import EVIDENCE, HEADS, cell_texts


def paper_sections(replication: Replication, figures: Figures) -> list[Section]:
    """The sections: the claims, every cell, and the figures of the paper."""
    every = cells(replication)
    missing = f"Not drawn, for want of runs: {', '.join(figures.missing)}." if figures.missing else ""
    return [
        Section(
            "The paper's claims",
            "Each claim as contrasts that are taken seed by seed; fewer than six seeds can lean, but not decide.",
            [_claim(verdict) for verdict in judge_all(replication)],
        ),
        Section(
            "The paper, cell by cell",
            "Ours beside the published mean ± std of three seeds; differences in pooled standard errors.",
            [_setting(setting, every) for setting in configurations()],
        ),
        Section("The paper's figures", missing, sections=[figure_section(figure) for figure in figures.drawn]),
    ]


def _claim(verdict: Verdict) -> Details:
    rows = [
        TableRow([result.line.statement, result.line.wish, result.ours, result.theirs, result.verdict])
        for result in verdict.lines
    ]
    notes = [Text(verdict.claim.note)] if verdict.claim.note else []
    content = [Text(verdict.sentence), *notes, Table(EVIDENCE, rows)]
    return Details(verdict.claim.title, content, verdict.word)


def _setting(setting: Configuration, every: Sequence[Cell]) -> Details:
    here = [cell for cell in every if cell.row.configuration == setting]
    counts = {word: sum(cell.verdict == word for cell in here) for word in ("matches", "differs", "not run")}
    tally = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    head = ["optimizer", "epoch", "variant"]
    for metric in METRICS:
        head += [HEADS[metric], "theirs", "difference"]
    rows = []
    for first in range(0, len(here), len(METRICS)):
        group = here[first : first + len(METRICS)]
        texts = [text for cell in group for text in cell_texts(cell)]
        rows.append(TableRow([group[0].row.optimizer, str(group[0].row.epoch), group[0].variant, *texts]))
    return Details(f"{setting.name}: {tally}", [Table(head, rows)])


def figure_section(figure: Figure) -> Section:
    """A figure as a section, with all its panels in a row."""
    panels = [panel if panel.title else replace(panel, title="Loss surface") for row in figure.rows for panel in row]
    return Section(figure.title, figure.caption, panels=panels)
