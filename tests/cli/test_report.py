"""`surefoot report` and `surefoot runs`: what they print, what they write and how they exit."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import surefoot


def test_report_writes_prints_and_checks(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    surefoot("compare", mine, "-o", "adam", "-o", "sgd", "--seeds", 2, "--epochs", 1, "--out", out)
    done = surefoot("report", out, "-o", tmp_path / "page.html")
    assert done.exit_code == 0
    assert "<html" in (tmp_path / "page.html").read_text()
    assert json.loads(surefoot("report", out, "--format", "json").stdout)
    assert "| Adam " in surefoot("report", out, "--format", "md").stdout
    assert r"\begin{" in surefoot("report", out, "--format", "latex").stdout
    assert "SGD" in surefoot("report", out, "--format", "csv").stdout
    weak = surefoot("report", out, "--check")
    assert weak.exit_code == 1
    assert "few-seeds" in weak.stdout
    assert surefoot("report", out, "--check", "--allow", "few-seeds").exit_code == 0
    misspelt = surefoot("report", out, "--check", "--allow", "few-seed")
    assert misspelt.exit_code == 2
    assert "there is no finding 'few-seed' to allow; take some of no-runs, " in misspelt.stderr
    surefoot("compare", mine, "-o", "adam", "--seeds", 2, "--epochs", 3, "--out", out)  # a larger budget for one
    unfair = surefoot("report", out, "--check", "--allow", "few-seeds")
    assert unfair.exit_code == 1
    assert "error: " in unfair.stdout


def test_report_and_compare_write_to_the_same_place(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    compared = surefoot("compare", mine, "-o", "adam", "-o", "sgd", "--seeds", 2, "--epochs", 1, "--out", out)
    (out / "report.html").unlink()
    reported = surefoot("report", out)
    assert f"report: {out / 'report.html'}" in compared.stdout.splitlines()
    assert f"report: {out / 'report.html'}" in reported.stdout.splitlines()
    assert (out / "report.html").exists()
    findings = [line for line in reported.stdout.splitlines() if line.endswith("]")]
    assert any("[few-seeds]" in line for line in findings)
    assert [line for line in compared.stdout.splitlines() if line.endswith("]")] == findings
    assert surefoot("report", out, "--check").stdout.splitlines() == findings


def test_a_check_without_findings_says_so(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    surefoot("compare", mine, "-o", "sgd", "--seeds", 6, "--epochs", 1, "--out", out)  # nothing is compared
    checked = surefoot("report", out, "--check")
    assert (checked.exit_code, checked.stdout) == (0, "no findings\n")


def test_several_gradients_per_step_are_recorded_and_flagged(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    surefoot("compare", mine, "-o", "sgd:lr=1", "-o", "lbfgs:lr=1", "--seeds", 6, "--epochs", 1, "--out", out)
    rows = [json.loads(path.read_text()) for path in sorted(out.rglob("metrics.jsonl"))]
    assert ["gradients_per_step" in row for row in rows] == [True] * 6 + [False] * 6
    assert "[unequal-gradients]" in surefoot("report", out, "--check").stdout


def test_an_empty_folder_has_no_report(tmp_path: Path) -> None:
    done = surefoot("report", tmp_path)
    assert done.exit_code == 2
    assert "there are no runs" in done.stderr


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    done = surefoot("runs", tmp_path)
    assert done.exit_code == 2
    assert "there are no runs under" in done.output


def test_checkpoints_of_ended_runs_can_be_dropped(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    arguments = ("compare", mine, "-o", "sgd", "--seeds", 1, "--out", out, "-q")
    surefoot(*arguments, "--epochs", 2)
    assert len(list(out.rglob("checkpoint.pt"))) == 1
    before = next(out.rglob("metrics.jsonl")).read_text()
    assert surefoot("runs", out, "--drop-checkpoints").stdout.startswith("done ")
    assert not list(out.rglob("checkpoint.pt"))
    assert surefoot(*arguments, "--epochs", 3).exit_code == 0
    assert next(out.rglob("metrics.jsonl")).read_text().startswith(before)
