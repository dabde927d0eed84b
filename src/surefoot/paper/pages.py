"""Generated parts of a Markdown page: what stands between two markers is written from the runs, never by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from surefoot.lab.store import write_atomic
from surefoot.paper.cells import Replication, cells
from surefoot.paper.claims import judge_all
from surefoot.paper.pictures import Gallery
from surefoot.paper.scorecard import claims_table, tally_table
from surefoot.paper.tables import ablation_text


def page_parts(replication: Replication, drawn: Gallery, figures: Path, page: Path) -> dict[str, str]:
    """The parts that a page may ask for, by name.

    Args:
        replication: our runs.
        drawn: the figures there are.
        figures: the folder they are in.
        page: where the page is, for the links to them.
    """
    _, _, ablation = ablation_text(replication.runs).partition("\n## ")
    parts = {
        "tally": tally_table(cells(replication)),
        "claims": claims_table(judge_all(replication)),
        "ablation": f"## {ablation}".replace("## ", "### ") if ablation else "Not run yet.\n",
    }
    folder = Path(os.path.relpath(figures, page.parent)).as_posix()
    for one in drawn.pictures:
        parts[f"figure-{one.name}"] = f"![{one.title}]({folder}/{one.name}.png)\n\n*{one.title}. {one.caption}*\n"
    for name in drawn.missing:
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
