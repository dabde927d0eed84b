"""From runs to what is committed: one command writes every table, figure and page of the replication."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from surefoot.lab.report import Section, write_report
from surefoot.lab.report.context import Details, Table, TableRow, Text
from surefoot.lab.report.draw import save
from surefoot.lab.report.figures import Figure
from surefoot.lab.store import write_atomic
from surefoot.paper import archive, steps
from surefoot.paper.cells import Replication, TableCell, by_row, table_cells
from surefoot.paper.claims import judge_all
from surefoot.paper.contrasts import ClaimVerdict
from surefoot.paper.figures import Figures, paper_figures
from surefoot.paper.plan import planned_comparison, spec_of
from surefoot.paper.published import METRICS, OPTIMIZERS, Configuration, configurations, eta_of
from surefoot.paper.tables import (
    EVIDENCE,
    HEADS,
    VERDICTS,
    ablation_page,
    ablation_tables,
    cell_texts,
    cells_csv,
    claims_table,
    curves_csv,
    scorecard,
    tally_table,
)

REPORT = "replication.html"


def export(to: Path, *, runs: Path | None = None, page: Path | None = None) -> list[Path]:
    """Write the replication into a folder, from what it holds already and from a folder of runs; returns the files.

    Args:
        to: the folder; its `runs.jsonl` and `steps.csv` are added to, everything else is written anew.
        runs: a folder of run folders.
        page: a Markdown page whose generated parts are to be refreshed.
    """
    all_runs = archive.gather(runs, to / archive.NAME)
    if not all_runs:
        where = f"in {to / archive.NAME}" if runs is None else f"in {runs} or {to / archive.NAME}"
        raise ValueError(f"there is no run {where}; make some with: surefoot paper lr")
    archive.write_archive(to / archive.NAME, all_runs)
    written = [to / archive.NAME]
    step_sizes = steps.read_steps(to / steps.NAME)
    if runs is not None:
        step_sizes |= steps.read_steps(runs / steps.NAME)
    if step_sizes:
        steps.write_steps(to / steps.NAME, step_sizes)
        written.append(to / steps.NAME)
    replication = Replication(all_runs)
    figures = paper_figures(replication, step_sizes)
    for name, text in texts(replication, figures).items():
        write_atomic(to / name, text.encode())
        written.append(to / name)
    for figure in figures.drawn:
        written += save(figure, to / "figures")
    shown = replication.of_the_tables() or all_runs
    sections = paper_sections(replication, figures)
    title, command = "The paper, replicated", _commands(replication)
    written.append(write_report(shown, to / REPORT, title, sections, command=command))
    if page is not None:
        parts = page_parts(replication, figures, to / "figures", page)
        write_atomic(page, filled(page.read_text(encoding="utf-8"), parts).encode())
        written.append(page)
    return written


def _commands(replication: Replication) -> str:
    """The commands that compute the runs of the tables, one per configuration."""
    lines = []
    for configuration in configurations():
        runs = {optimizer: replication.of(configuration, optimizer) for optimizer in OPTIMIZERS}
        specs = [spec_of(optimizer, eta_of(configuration, optimizer)) for optimizer, seeds in runs.items() if seeds]
        if specs:
            seeds = {seed for by_seed in runs.values() for seed in by_seed}
            epochs = max(run.config.epochs for by_seed in runs.values() for run in by_seed.values())
            lines.append(planned_comparison(configuration.name, configuration, specs, len(seeds), epochs).command)
    return "\n".join(lines)


def texts(replication: Replication, figures: Figures) -> dict[str, str]:
    """The tables by their files' names."""
    return {
        "cells.csv": cells_csv(replication),
        "curves.csv": curves_csv(replication.runs),
        "scorecard.md": scorecard(replication, [f"figure `{name}`: no runs yet" for name in figures.missing]),
        "ablation.md": ablation_page(replication.runs),
    }


def page_parts(replication: Replication, figures: Figures, folder: Path, page: Path) -> dict[str, str]:
    """The parts that a Markdown page may ask for, by name.

    Args:
        replication: our runs.
        figures: the figures there are.
        folder: where their files are.
        page: where the page is, for the links to them.
    """
    ablation = [f"### {title}\n\n{body}" for title, body in ablation_tables(replication.runs).items()]
    parts = {
        "tally": tally_table(table_cells(replication)),
        "claims": claims_table(judge_all(replication)),
        "ablation": "\n".join(ablation) or "Not run yet.\n",
    }
    link = Path(os.path.relpath(folder, page.parent)).as_posix()
    for figure in figures.drawn:
        image = f"![{figure.title}]({link}/{figure.name}.png)"
        parts[f"figure-{figure.name}"] = f"{image}\n\n*{figure.title}. {figure.caption}*\n"
    for name in figures.missing:
        parts[f"figure-{name}"] = f"*(The figure `{name}` awaits its runs.)*\n"
    return parts


def filled(text: str, parts: Mapping[str, str]) -> str:
    """A page with every part between its markers, `<!-- begin: name -->` and `<!-- end: name -->`.

    >>> filled("a <!-- begin: x -->old<!-- end: x --> b", {"x": "new"})
    'a <!-- begin: x -->\\nnew<!-- end: x --> b'
    """

    def write(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in parts:
            raise ValueError(f"the page asks for {name!r}; the parts are {', '.join(parts)}")
        return f"<!-- begin: {name} -->\n{parts[name]}<!-- end: {name} -->"

    return re.sub(r"<!-- begin: (?P<name>[\w-]+) -->.*?<!-- end: (?P=name) -->", write, text, flags=re.DOTALL)


def paper_sections(replication: Replication, figures: Figures) -> list[Section]:
    """The paper's part of the HTML report: the claims, every cell, and the figures."""
    cells = table_cells(replication)
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
            [_configuration(configuration, cells) for configuration in configurations()],
        ),
        Section("The paper's figures", missing, sections=[_figure(figure) for figure in figures.drawn]),
    ]


def _claim(verdict: ClaimVerdict) -> Details:
    notes = [Text(verdict.claim.note)] if verdict.claim.note else []
    evidence = Table(EVIDENCE, [TableRow(result.texts) for result in verdict.results])
    return Details(verdict.claim.title, [Text(verdict.sentence), *notes, evidence], verdict.word)


def _configuration(configuration: Configuration, cells: Sequence[TableCell]) -> Details:
    here = [cell for cell in cells if cell.row.configuration == configuration]
    counts = {verdict: sum(cell.verdict == verdict for cell in here) for verdict in VERDICTS}
    tally = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    head = ["optimizer", "epoch", "variant"]
    for metric in METRICS:
        head += [HEADS[metric], "theirs", "difference"]
    rows = []
    for row in by_row(here):
        names = [row[0].row.optimizer, str(row[0].row.epoch), row[0].recipe]
        rows.append(TableRow([*names, *(text for cell in row for text in cell_texts(cell))]))
    return Details(f"{configuration.name}: {tally}", [Table(head, rows)])


def _figure(figure: Figure) -> Section:
    panels = [panel if panel.title else replace(panel, title="Loss surface") for row in figure.rows for panel in row]
    return Section(figure.title, figure.caption, panels=panels)
