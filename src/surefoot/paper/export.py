"""From runs to what is committed: one command writes every table, figure and page of the replication."""

from __future__ import annotations

import html
import io
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot._extras import require
from surefoot.lab.report.draw import draw, save
from surefoot.lab.report.figures import Figure
from surefoot.lab.store import write_atomic
from surefoot.paper import archive, steps
from surefoot.paper.cells import VERDICTS, Replication, TableCell, by_row, table_cells
from surefoot.paper.claims import judge_all
from surefoot.paper.figures import Figures, paper_figures
from surefoot.paper.plan import planned_comparison, spec_of
from surefoot.paper.published import METRICS, OPTIMIZERS, Configuration, configurations, eta_of
from surefoot.paper.tables import (
    CELL_VERDICTS,
    EVIDENCE,
    HEADS,
    ablation_page,
    cell_texts,
    cells_csv,
    claims_tally,
    counts_sentence,
    curves_csv,
    scorecard,
    tally_table,
    why_page,
)
from surefoot.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup

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
    write_atomic(to / REPORT, html_page(replication, figures).encode())
    written.append(to / REPORT)
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
        "why.md": why_page(replication.runs),
    }


def page_parts(replication: Replication, figures: Figures, folder: Path, page: Path) -> dict[str, str]:
    """The parts that a Markdown page may ask for, by name.

    Args:
        replication: our runs.
        figures: the figures there are.
        folder: where their files are.
        page: where the page is, for the links to them.
    """
    parts = {
        "counts": "\n".join(textwrap.wrap(counts_sentence(table_cells(replication)), 98)) + "\n",
        "tally": tally_table(table_cells(replication)),
        "cell-verdicts": "\n".join(textwrap.wrap(CELL_VERDICTS, 98)) + "\n",
        "claims": claims_tally(judge_all(replication)),
    }
    link = Path(os.path.relpath(folder, page.parent)).as_posix()
    for figure in figures.drawn:
        image = f"![{figure.title}]({link}/{figure.name}.png)"
        caption = "\n".join(textwrap.wrap(f"*{figure.title}. {figure.caption}*", 98))
        parts[f"figure-{figure.name}"] = f"{image}\n\n{caption}\n"
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


def html_page(replication: Replication, figures: Figures) -> str:
    """The replication as one HTML file without a script: the claims first, then everything else, folded."""
    jinja = require("jinja2", extra="lab")
    template = resources.files(__package__).joinpath("replication.html").read_text(encoding="utf-8")
    cells = table_cells(replication)
    leading = [figure for figure in figures.drawn if figure.name in ("gains", "claims")]
    return str(
        jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        .from_string(template)
        .render(
            counts=counts_sentence(cells),
            cell_verdicts=CELL_VERDICTS.replace("*", ""),
            claims=judge_all(replication),
            evidence=EVIDENCE,
            cells=[_configuration(configuration, cells) for configuration in configurations()],
            leading=[(figure, svg(figure)) for figure in leading],
            figures=[(figure, svg(figure)) for figure in figures.drawn if figure not in leading],
            missing=figures.missing,
            commands=_commands(replication),
            version=__version__,
        )
    )


def svg(figure: Figure) -> Markup:
    """A figure as an SVG element of a page; the same figure gives the same text, whose letters are the page's."""
    matplotlib, markup = require("matplotlib", extra="lab"), require("markupsafe", extra="lab").Markup
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        draw(figure).savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", file.getvalue(), flags=re.DOTALL)
    label = html.escape(figure.title)
    drawing: Markup = markup(text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1))
    return drawing


def _configuration(configuration: Configuration, cells: Sequence[TableCell]) -> tuple[str, list[str], list[list[str]]]:
    """The cells of a configuration: a line that counts them, the head of their table, and its rows."""
    here = [cell for cell in cells if cell.row.configuration == configuration]
    counts = {verdict: sum(cell.verdict == verdict for cell in here) for verdict in VERDICTS}
    tally = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    head = ["optimizer", "epoch", "variant"]
    for metric in METRICS:
        head += [HEADS[metric], "theirs", "difference"]
    rows = []
    for row in by_row(here):
        names = [row[0].row.optimizer, str(row[0].row.epoch), row[0].recipe]
        rows.append([*names, *(text for cell in row for text in cell_texts(cell))])
    return f"{configuration.name}: {tally}", head, rows
