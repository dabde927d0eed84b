"""Generated parts of a Markdown page: what stands between two markers is written from the runs, never by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from surefoot.lab.store import write_atomic
from surefoot.paper.cells import Replication, cells
from surefoot.paper.claims import judge_all
from surefoot.paper.figures import Figures
from surefoot.paper.scorecard import claims_table, tally_table
from surefoot.paper.tables import ablation_text


def page_parts(replication: Replication, figures: Figures, folder: Path, page: Path) -> dict[str, str]:
    """The parts that a page may ask for, by name.

    Args:
        replication: our runs.
        figures: the figures there are.
        folder: where their files are.
        page: where the page is, for the links to them.
    """
    _, _, ablation = ablation_text(replication.runs).partition("\n## ")
    parts = {
        "tally": tally_table(cells(replication)),
        "claims": claims_table(judge_all(replication)),
        "ablation": f"## {ablation}".replace("## ", "### ") if ablation else "Not run yet.\n",
    }
    link = Path(os.path.relpath(folder, page.parent)).as_posix()
    for figure in figures.drawn:
        image = f"![{figure.title}]({link}/{figure.name}.png)"
        parts[f"figure-{figure.name}"] = f"{image}\n\n*{figure.title}. {figure.caption}*\n"
    for name in figures.missing:
        parts[f"figure-{name}"] = f"*(The figure `{name}` awaits its runs.)*\n"
    return parts


def fill(page: Path, parts: Mapping[str, str]) -> None:
    """Write every part between its markers, `<!-- begin: name -->` and `<!-- end: name -->`."""
    write_atomic(page, filled(page.read_text(encoding="utf-8"), parts).encode())


def filled(text: str, parts: Mapping[str, str]) -> str:
    """A page with its generated parts.

    >>> filled("a <!-- begin: x -->old<!-- end: x --> b", {"x": "new"})
    'a <!-- begin: x -->\\nnew<!-- end: x --> b'
    """

    def write(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in parts:
            raise ValueError(f"the page asks for {name!r}; the parts are {', '.join(parts)}")
        return f"<!-- begin: {name} -->\n{parts[name]}<!-- end: {name} -->"

    return re.sub(r"<!-- begin: (?P<name>[\w-]+) -->.*?<!-- end: (?P=name) -->", write, text, flags=re.DOTALL)
