"""The paper's part of the HTML report: claims, cells and figures, as sections of the report's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from surefoot.lab.report import Section, escape
from surefoot.lab.report.figures import Figure
from surefoot.paper.cells import Cell, Replication, cells
from surefoot.paper.claims import judge_all
from surefoot.paper.contrasts import Verdict
from surefoot.paper.figures import Figures
from surefoot.paper.published import METRICS, configurations
from surefoot.paper.scorecard import EVIDENCE, HEADS, cell_texts


def paper_sections(replication: Replication, figures: Figures) -> list[Section]:
    """The sections: the claims, every cell, and the figures of the paper."""
    every = cells(replication)
    missing = f"Not drawn, for want of runs: {', '.join(figures.missing)}." if figures.missing else ""
    return [
        Section(
            "The paper's claims",
            "Each claim as contrasts that are taken seed by seed; fewer than six seeds can lean, but not decide.",
            "".join(_claim(one) for one in judge_all(replication)),
        ),
        Section(
            "The paper, cell by cell",
            "Ours beside the published mean ± std of three seeds; differences in pooled standard errors.",
            "".join(
                _configuration(one.name, [cell for cell in every if cell.row.configuration == one])
                for one in configurations()
            ),
        ),
        Section("The paper's figures", missing, sections=[figure_section(figure) for figure in figures.drawn]),
    ]


def _claim(verdict: Verdict) -> str:
    rows = [[one.line.statement, one.line.wish, one.ours, one.theirs, one.verdict] for one in verdict.lines]
    note = f"<p>{escape(verdict.claim.note)}</p>" if verdict.claim.note else ""
    return (
        f"<details><summary><strong>{escape(verdict.word)}</strong>: {escape(verdict.claim.title)}</summary>"
        f"<p>{escape(verdict.sentence)}</p>{note}{_table(EVIDENCE, rows)}</details>"
    )


def _configuration(name: str, own: Sequence[Cell]) -> str:
    words = {word: sum(cell.verdict == word for cell in own) for word in ("matches", "differs", "not run")}
    tally = ", ".join(f"{number} {word}" for word, number in words.items() if number)
    head = ["optimizer", "epoch", "variant"]
    for metric in METRICS:
        head += [HEADS[metric], "theirs", "difference"]
    rows = []
    for first in range(0, len(own), len(METRICS)):
        group = own[first : first + len(METRICS)]
        line = [group[0].row.optimizer, str(group[0].row.epoch), group[0].variant]
        for cell in group:
            line += cell_texts(cell)
        rows.append(line)
    return f"<details><summary>{escape(name)}: {escape(tally)}</summary>{_table(head, rows)}</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td data-label="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head[1:], row[1:]))
        + "</tr>"
        for row in rows
    )
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="stack">{inner}</table></div>'


def figure_section(figure: Figure) -> Section:
    """A figure as a section, with all its panels in a row."""
    panels = [panel if panel.title else replace(panel, title="Loss surface") for row in figure.rows for panel in row]
    return Section(figure.title, figure.caption, panels=panels)
