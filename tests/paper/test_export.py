"""The export: one command writes tables, figures, report and page, from runs or from the archive alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from surefoot.lab.store import Run
from surefoot.paper.archive import read_archive
from surefoot.paper.cells import Replication
from surefoot.paper.export import export, filled, page_parts, texts
from surefoot.paper.figures import paper_figures
from surefoot.paper.published import configurations
from surefoot.paper.steps import NAME, read_steps, write_steps

LR, MLP, _, _, CNN, CNN_DROPOUT, _ = configurations()
MakeRun = Callable[..., Run]
Stored = Callable[[Path, list[Run]], Path]


def test_the_same_from_the_archive_alone(lr_runs: list[Run], stored: Stored, tmp_path: Path) -> None:
    to = tmp_path / "results"
    folder = stored(tmp_path / "runs", lr_runs)
    write_steps(folder / NAME, {"LR 128: AdamS": [(0.5, 1.0), (1.0, 0.25)]})
    written = export(to, runs=folder)
    assert {path.relative_to(to).as_posix() for path in written} == {
        "runs.jsonl", "steps.csv", "cells.csv", "curves.csv", "scorecard.md", "ablation.md", "why.md",
        "replication.html",
        *(f"figures/{name}.{kind}" for name in ("gains", "claims", "surface", "lr-128", "step-size-lr")
          for kind in ("png", "pdf")),
    }  # fmt: skip
    texts = {path: path.read_bytes() for path in written}
    page = (to / "replication.html").read_text()
    places = [page.index(f"<h2>{title}</h2>") for title in ("The claims", "The cells", "The figures")]
    assert places == sorted(places)
    assert "Not drawn, for want of runs" in page
    assert "<script" not in page
    assert page.count("<svg") == 5
    export(to)
    assert {path: path.read_bytes() for path in texts} == texts


def test_later_runs_are_added(lr_runs: list[Run], stored: Stored, paper_run: MakeRun, tmp_path: Path) -> None:
    to, page = tmp_path / "results", tmp_path / "page.md"
    page.write_text(
        "# Story\n<!-- begin: tally -->\n<!-- end: tally -->\nand on <!-- begin: claims --><!-- end: claims -->\n"
    )
    export(to, runs=stored(tmp_path / "first", lr_runs), page=page)
    assert "| LR 128 | 36 | " in page.read_text()
    assert "| The gains are smaller with dropout | not run | 4 | " in page.read_text()
    export(to, runs=stored(tmp_path / "second", [paper_run(LR, "Adam", 9)]), page=page)
    assert len((to / "runs.jsonl").read_text().splitlines()) == len(lr_runs) + 1
    assert "| 2 to 3 |" in page.read_text()
    assert page.read_text().startswith("# Story\n")


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run in .*runs or .*runs\.jsonl; make some with: surefoot paper lr"):
        export(tmp_path, runs=tmp_path / "runs")


def test_page_that_asks_for_something_unknown() -> None:
    with pytest.raises(ValueError, match="asks for 'moon'; the parts are tally"):
        filled("<!-- begin: moon --><!-- end: moon -->", {"tally": ""})


def test_the_page_says_what_the_committed_runs_say() -> None:
    """docs/replication.md is what an export would write from results/paper today."""
    root = Path(__file__).parents[2]
    page, results = root / "docs" / "replication.md", root / "results" / "paper"
    replication = Replication(read_archive(results / "runs.jsonl"))
    drawn = paper_figures(replication, read_steps(results / NAME))
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- begin: ") == text.count("<!-- end: ") > 5
    assert filled(text, page_parts(replication, drawn, results / "figures", page)) == text
    written = texts(replication, drawn)
    assert {name: (results / name).read_text(encoding="utf-8") for name in written} == written
