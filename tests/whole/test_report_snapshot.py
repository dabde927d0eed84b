"""What the commands print and write for recorded runs is what was recorded with them.

tests/fixtures/report_runs holds three optimizers with three seeds on digits-lr, one run of which diverged. After a
deliberate change: SUREFOOT_REFRESH_SNAPSHOTS=1 python -m pytest <this file>.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from snapshots import FIXTURES, assert_unchanged, embedded_data, rounded, visible_text
from surefoot.cli import app

RECORDED = FIXTURES / "report"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recorded runs, with its folder as the working directory, so that no output shows where it is."""
    shutil.copytree(FIXTURES / "report_runs", tmp_path / "recorded")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("FORCE_COLOR", "TERMINAL_WIDTH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "recorded"


def surefoot(*arguments: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == exit_code, done.output
    return "\n".join(line.rstrip() for line in done.output.splitlines())


def test_report(runs: Path) -> None:
    assert_unchanged(RECORDED / "report_stdout.txt", surefoot("report", "recorded"))
    page = Path("recorded/report.html").read_text(encoding="utf-8")
    text = re.sub(r"Written by surefoot \S+ on [\d-]+\.", "Written by surefoot.", visible_text(page))
    assert_unchanged(RECORDED / "report_text.txt", text)
    blocks = [f"{name}:\n{_lines(value)}" for name, value in embedded_data(page).items()]
    assert_unchanged(RECORDED / "report_data.txt", "\n".join(blocks))


def _lines(value: object) -> str:
    """A line per element, keys in order: a difference stays short and the page's own layout does not matter."""
    elements = value if isinstance(value, list) else [value]
    return "\n".join(json.dumps(element, sort_keys=True, ensure_ascii=False) for element in elements)


@pytest.mark.parametrize("kind", ["md", "latex", "csv", "json"])
def test_table(runs: Path, kind: str) -> None:
    assert_unchanged(RECORDED / f"table_{kind}.txt", rounded(surefoot("report", "recorded", "--format", kind)))


def test_findings(runs: Path) -> None:
    assert_unchanged(RECORDED / "check_stdout.txt", surefoot("report", "recorded", "--check", exit_code=1))


def test_list_of_runs(runs: Path) -> None:
    unfinished, failed, _ = sorted((runs / "digits-lr").glob("adamucb-*"))
    for folder in (unfinished, failed):
        metrics = folder / "metrics.jsonl"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    (failed / "error.txt").write_text("ArithmeticError: one over zero\n")
    assert_unchanged(RECORDED / "runs_stdout.txt", surefoot("runs", "recorded"))


def test_comparison_of_runs_that_all_ended(runs: Path) -> None:
    """`surefoot compare` finds all nine runs by their keys, computes nothing, and prints the tables."""
    before = {path: path.read_bytes() for path in runs.rglob("*.*")}
    optimizers = [part for name in ("adam", "adamucb:gain=None", "adams:gain=None") for part in ("-o", name)]
    printed = surefoot("compare", "digits-lr", *optimizers, "--seeds=3", "--epochs=3", "--out=recorded", "--quiet")
    assert_unchanged(RECORDED / "compare_stdout.txt", printed)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(runs.rglob("config.json"))) == 9
    assert not list(runs.rglob("checkpoint.pt"))
