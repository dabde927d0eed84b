"""The command `surefoot anytime`."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from surefoot.cli import app

WORDS = ["anytime", "digits-lr", "-o", "adam:average=anytime", "-o", "adam", "--seeds", "1", "--subset", "100", "-q"]


def test_it_prints_and_writes_the_table(tmp_path: Path) -> None:
    table = tmp_path / "new" / "table.md"
    words = [*WORDS, "--horizons", "1,2", "--out", str(tmp_path / "runs"), "--table", str(table)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "worst regret" in table.read_text()
    assert "| --- |" not in result.output  # a table like that of `compare`; Markdown is for --table
    page = tmp_path / "runs" / "anytime.html"
    assert not (tmp_path / "runs" / "report.html").exists()  # which is the one of `compare`
    assert "minus the best peer" in page.read_text()
    assert f"report: {page}" in result.output
    assert "surefoot anytime digits-lr --horizons 1,2 --margin 1%" in result.output
    assert "[few-seeds]" in result.output  # what a reader should know, as in a comparison


def test_horizons_that_are_no_numbers(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*WORDS, "--horizons", "1;2", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--horizons must be numbers of epochs such as 1,2,4,8, not '1;2'" in result.output


def test_rates_are_chosen_before(tmp_path: Path) -> None:
    words = [*WORDS, "--horizons", "1", "--rates", "1e-6,0.01,1e3", "--tune-seeds", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "Adam lr=0.01 average=anytime" in result.output
    result = CliRunner().invoke(app, [*WORDS, "--rates", "fast", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--rates must be learning rates such as 1e-3,3e-3,1e-2, not 'fast'" in result.output
