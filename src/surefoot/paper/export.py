"""From runs to what is committed: one command writes every table, figure and page of the replication."""

from __future__ import annotations

from pathlib import Path

from surefoot.lab.report import write_report
from surefoot.lab.report.draw import save
from surefoot.lab.store import write_atomic
from surefoot.paper import archive, steps
from surefoot.paper.cells import Replication, cells_csv, curves_csv
from surefoot.paper.figures import Figures, paper_figures
from surefoot.paper.pages import fill, page_parts
from surefoot.paper.scorecard import scorecard
from surefoot.paper.sections import paper_sections
from surefoot.paper.tables import ablation_text

REPORT = "replication.html"


def export(to: Path, *, runs: Path | None = None, page: Path | None = None) -> list[Path]:
    """Write the replication into a folder, from what it holds already and from a folder of runs; returns the files.

    Args:
        to: the folder; its `runs.jsonl` and `steps.csv` are added to, everything else is written anew.
        runs: a folder of run folders.
        page: a Markdown page whose generated parts are to be refreshed.
    """
    found = archive.gather(runs, to / archive.NAME)
    if not found:
        where = f"in {to / archive.NAME}" if runs is None else f"in {runs} or {to / archive.NAME}"
        raise ValueError(f"there is no run {where}; make some with: surefoot paper lr")
    archive.write_archive(to / archive.NAME, found)
    known = steps.read_steps(to / steps.NAME)
    if runs is not None:
        known |= steps.read_steps(runs / steps.NAME)
    written = [to / archive.NAME]
    if known:
        steps.write_steps(to / steps.NAME, known)
        written.append(to / steps.NAME)
    replication = Replication(found)
    figures = paper_figures(replication, known)
    for name, text in texts(replication, figures).items():
        write_atomic(to / name, text.encode())
        written.append(to / name)
    for figure in figures.drawn:
        written += save(figure, to / "figures")
    sections = paper_sections(replication, figures)
    written.append(write_report(replication.of_the_tables() or found, to / REPORT, "The paper, replicated", sections))
    if page is not None:
        fill(page, page_parts(replication, figures, to / "figures", page))
        written.append(page)
    return written


def texts(replication: Replication, figures: Figures) -> dict[str, str]:
    """The tables by their files' names."""
    return {
        "cells.csv": cells_csv(replication),
        "curves.csv": curves_csv(replication.runs),
        "scorecard.md": scorecard(replication, [f"figure `{name}`: no runs yet" for name in figures.missing]),
        "ablation.md": ablation_text(replication.runs),
    }
