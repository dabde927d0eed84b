"""What `surefoot paper --export` writes from the archive alone is what is committed.

After a deliberate change export everything again: surefoot paper --export results/paper --page docs/replication.md.
"""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

from snapshots import visible_text
from surefoot.cli import app

ROOT = Path(__file__).parents[2]
COMMITTED, PAGE = ROOT / "results" / "paper", ROOT / "docs" / "replication.md"
FIGURES, REPORT = "results/paper/figures", "results/paper/replication.html"
NAMES = sorted(path.name for path in (ROOT / FIGURES).glob("*.png"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an export that was done once, of the same layout as the repository."""
    root = tmp_path_factory.mktemp("export")
    results, page = root / COMMITTED.relative_to(ROOT), root / PAGE.relative_to(ROOT)
    for path in (results, page.parent):
        path.mkdir(parents=True)
    for name in ("runs.jsonl", "steps.csv"):
        shutil.copy(COMMITTED / name, results)
    text = PAGE.read_text(encoding="utf-8")
    page.write_text(
        re.sub(r"(<!-- begin: [\w-]+ -->).*?(<!-- end: )", r"\1\2", text, flags=re.DOTALL), encoding="utf-8"
    )
    assert "| together |" not in page.read_text(encoding="utf-8"), "the generated parts were not emptied"
    arguments = ["paper", "--export", results, "--page", page, "--out", root / "no-runs"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return root


@pytest.mark.parametrize(
    "name",
    [
        *(f"results/paper/{name}" for name in ("runs.jsonl", "steps.csv", "cells.csv", "curves.csv")),
        *("results/paper/scorecard.md", "results/paper/ablation.md", "results/paper/why.md"),
        "docs/replication.md",
    ],
)
def test_text_is_the_committed_one(exported: Path, name: str) -> None:
    written, committed = (exported / name).read_bytes(), (ROOT / name).read_bytes()
    if written != committed:  # pytest would explain a difference of a megabyte for minutes
        lines = zip(written.splitlines(), committed.splitlines())
        number, (now, then) = next(
            ((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1]), (0, (b"", b"another length"))
        )
        pytest.fail(f"{name}, line {number}:\nnow:       {now[:300]!r}\ncommitted: {then[:300]!r}", pytrace=False)


def test_the_same_figures_are_drawn(exported: Path) -> None:
    kinds = ("*.png", "*.pdf")
    written = {path.name for kind in kinds for path in (exported / FIGURES).glob(kind)}
    assert written == {path.name for kind in kinds for path in (ROOT / FIGURES).glob(kind)}
    assert len(NAMES) > 10


@pytest.mark.parametrize("name", NAMES)
def test_figure_has_the_pixels_of_the_committed_one(exported: Path, name: str) -> None:
    drawn_with, here = pinned_matplotlib(), version("matplotlib")
    if here != drawn_with:
        pytest.skip(f"the committed figures were drawn with matplotlib {drawn_with}, this is {here}")
    written = matplotlib.image.imread(exported / FIGURES / name)
    committed = matplotlib.image.imread(ROOT / FIGURES / name)
    assert written.shape == committed.shape
    differing = int(np.any(written != committed, axis=-1).sum())
    assert differing == 0, f"{differing} of {written.shape[0] * written.shape[1]} pixels differ"


def pinned_matplotlib() -> str:
    """The version of matplotlib that constraints.txt pins: the one that draws what is committed."""
    pins = (ROOT / "constraints.txt").read_text()
    match = re.search(r"^matplotlib==(.+)$", pins, re.MULTILINE)
    assert match
    return match[1]


def test_report_reads_as_the_committed_one(exported: Path) -> None:
    texts = [visible_text((root / REPORT).read_text(encoding="utf-8")) for root in (exported, ROOT)]
    written, committed = (re.sub(r"Written by surefoot \S+\. One", "Written by surefoot. One", text) for text in texts)
    assert written == committed


def test_report_is_small_and_has_every_figure_and_no_script(exported: Path) -> None:
    page = (exported / REPORT).read_text(encoding="utf-8")
    assert len(page.encode()) < 2_000_000
    assert "<script" not in page
    assert page.count("<svg ") == len(NAMES)
    assert page.count("<details>") == page.count("</details>") > len(NAMES)


def test_page_is_short_and_so_are_its_lines() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []
