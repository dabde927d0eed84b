"""`surefoot report` and `surefoot runs`: what they print, what they write and how they exit."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_the_report_of_anytime_is_written_again(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    words = ("-o", "adam:average=anytime", "-o", "adam:schedule=cosine", "--seeds", 1, "--subset", 100)
    made = surefoot("anytime", "digits-lr", *words, "--horizons", "1,2", "--out", out, "-q")
    page = out / "anytime.html"
    before = page.read_text()
    page.unlink()
    done = surefoot("report", out)
    assert (done.exit_code, page.read_text()) == (0, before)
    assert f"report: {page}" in done.stdout.splitlines()
    assert "undecided: Adam average=anytime is not shown to be within 1%" in done.stdout
    assert not (out / "report.html").exists()
    findings = [line for line in done.stdout.splitlines() if line.endswith("]")]
    assert findings == [line for line in made.stdout.splitlines() if line.endswith("]")]
    assert surefoot("report", out, "--check").stdout.splitlines() == findings
    assert "worst regret" in surefoot("report", out, "--format", "md").stdout
    assert "can be printed as md, not as csv" in surefoot("report", out, "--format", "csv").stderr
    assert "leave --baseline out" in surefoot("report", out, "--baseline", "adam").stderr
    assert "within 30% of the best peer" in surefoot("report", out, "--margin", "30%", "--format", "md").stdout
    surefoot("compare", "digits-lr", "-o", "sgd", "--seeds", 1, "--epochs", 1, "--subset", 100, "--out", out, "-q")
    mixed = surefoot("report", out)  # a comparison of all runs, in a file of its own
    assert f"report: {out / 'report.html'}" in mixed.stdout.splitlines()
    assert "runs of 'surefoot anytime', whose report is written by: surefoot anytime digits-lr" in mixed.stdout
    assert page.read_text() == before


def test_horizons_that_were_not_recorded_are_not_taken_for_a_comparison(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    words = ("-o", "adam", "-o", "sgd", "--seeds", 1, "--subset", 100, "--horizons", "1,2")
    surefoot("anytime", "digits-lr", *words, "--out", out, "-q")
    (out / "anytime.json").unlink()  # as in a folder of an earlier version
    (out / "report.html").write_text("<html>of an earlier version")
    done = surefoot("report", out)
    assert done.exit_code == 2
    assert "run it again, nothing is computed twice: surefoot anytime digits-lr --horizons 1,2" in done.stderr
    assert (out / "report.html").read_text() == "<html>of an earlier version"
    assert surefoot("report", out, "-o", tmp_path / "compared.html").exit_code == 0


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


FIXTURE = Path(__file__).parents[1] / "fixtures" / "report_runs"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURE, tmp_path / "recorded")


def make_link(path: Path) -> None:
    (path.parent / "target.html").write_text("<html>mine")
    path.symlink_to(path.parent / "target.html")


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a fifo"), (make_link, "a symbolic link")])
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_special_file_is_not_replaced_by_a_report(
    recorded: Path, tmp_path: Path, make: Callable[[Path], None], what: str, command: str
) -> None:
    place = tmp_path / "special.html"
    make(place)
    before = os.lstat(place)
    arguments = (recorded, "-o", place) if command == "report" else ("digits-lr", "--report", place, "--out", recorded)
    done = surefoot(command, *arguments)
    assert done.exit_code == 2
    assert f"error: the report {place} cannot be written (it is {what}, not a file); write" in done.stderr
    after = os.lstat(place)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def test_a_report_is_never_written_over_files_of_runs(recorded: Path) -> None:
    run = next(recorded.rglob("config.json")).parent
    (run.parent / "task.json").write_text('{"format": 1, "higher_is_better": {}}')
    before = {path: path.read_bytes() for path in recorded.rglob("*") if path.is_file()}
    for place in (run / "config.json", run / "new.html", run / "deep" / "new.html", run.parent / "task.json"):
        done = surefoot("report", recorded, "-o", place)
        assert done.exit_code == 2
        assert len(done.stderr.splitlines()) == 1
        assert f"the report {place} cannot be written" in done.stderr
    assert {path: path.read_bytes() for path in recorded.rglob("*") if path.is_file()} == before
    page = recorded / "report.html"
    assert surefoot("report", recorded, "-o", page).exit_code == 0
    assert surefoot("report", recorded, "-o", page).exit_code == 0  # a report replaces a report


def test_orders_to_a_terminal_are_shown_and_not_sent(recorded: Path, tmp_path: Path) -> None:
    for path in recorded.rglob("config.json"):
        data = json.loads(path.read_text())
        data["optimizer"]["label"] += "\x1b[2J\x9b31m"
        data["task"]["name"] += "\x1b]0;owned\x07"
        path.write_text(json.dumps(data))
    failed = next(recorded.rglob("metrics.jsonl"))
    failed.write_text("".join(failed.read_text().splitlines(keepends=True)[:1]))
    (failed.parent / "error.txt").write_text("\x1b[2J")
    commands: list[tuple[object, ...]] = [("runs", recorded), ("report", recorded, "--check")]
    commands += [("report", recorded, "--format", name) for name in ("csv", "json", "md", "latex")]
    commands += [("report", recorded, "-o", tmp_path / "r.html")]
    for command in commands:
        done = surefoot(*command)
        assert done.exit_code in (0, 1)
        assert all(line.isprintable() for line in done.output.split("\n")), command


def test_a_run_that_may_not_be_read_is_not_left_out(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = next(recorded.rglob("config.json")).parent
    scandir = os.scandir

    def refuse(path: str) -> object:  # root may read everything, so permissions alone do not show it
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    done = surefoot("report", recorded)
    assert done.exit_code == 2
    assert f"{closed} cannot be read (Permission denied); make it readable" in done.stderr


def test_the_baseline_can_be_named(recorded: Path) -> None:
    done = surefoot("report", recorded, "--baseline", "adamucb", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["label"] for row in rows if row["is_baseline"] == "True"} == {"AdamUCB"}
    done = surefoot("report", recorded, "--baseline", "lion")
    assert done.exit_code == 2
    assert "no contestant is called 'lion'; choose among: " in done.stderr
