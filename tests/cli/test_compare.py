"""`surefoot compare` and `surefoot fork`: what they print, what they write and how they exit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from command_line import surefoot
from surefoot.lab import Results
from surefoot.lab.store import MetricsLog, read_runs
from surefoot.lab.store.files import explain

BROKEN = """
import torch
class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise ArithmeticError("one over zero")
"""


def test_compare_prints_verdicts_and_writes_runs_and_report(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    arguments = ("compare", mine, "-o", "adam", "-o", "adams:eta=1e-4", "--seeds", 3, "--epochs", 2, "--out", out)
    done = surefoot(*arguments, "--first-seed", 5)
    assert done.exit_code == 0, done.output
    assert "AdamS eta=0.0001" in done.stdout
    assert f"report: {out / 'report.html'}" in done.stdout
    assert (out / "report.html").exists()
    runs = read_runs(out)
    assert [(run.label, run.seed) for run in runs] == [
        (label, seed) for label in ("Adam", "AdamS eta=0.0001") for seed in (5, 6, 7)
    ]
    assert all(len((run.folder / "metrics.jsonl").read_text().splitlines()) == 2 for run in runs)
    assert "6 of 6 runs were there already" in surefoot(*arguments, "--first-seed", 5).output


def test_options_reach_the_task_and_the_optimizers(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot(
        *("compare", "digits-mlp", "-o", "sgd", "--seeds", 1, "--epochs", 1, "--out", out, "--batch-size", 64),
        *("--lr", 0.25, "--weight-decay", 0.125, "--dropout", "--subset", 100, "--quiet"),
        *("--report", tmp_path / "elsewhere.html"),
    )
    assert done.exit_code == 0, done.output
    [run] = read_runs(out)
    kwargs, task = run.config.optimizer.options, run.config.task
    assert (kwargs["lr"], kwargs["weight_decay"]) == (0.25, 0.125)
    assert (task.batch_size, task.settings) == (64, {"dropout": True, "subset": 100})
    assert run.epochs[0]["step"] == 2
    assert (tmp_path / "elsewhere.html").exists()


def test_failing_code_is_exit_code_1_and_the_others_are_there(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    out = tmp_path / "runs"
    done = surefoot(
        *("compare", mine, "-o", "sgd", "-o", f"{tmp_path / 'broken.py'}:Broken"),
        *("--seeds", 1, "--epochs", 1, "--out", out),
    )
    assert done.exit_code == 1
    assert "one over zero" in done.stderr
    assert "error.txt" in done.stderr
    assert [run.finished for run in read_runs(out)] == [True, False]
    assert "failed" in surefoot("runs", out).stdout


def test_a_diverged_run_is_exit_code_0(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot("compare", mine, "-o", "sgd:lr=1e38", "--seeds", 1, "--epochs", 2, "--out", out)
    assert done.exit_code == 0, done.output
    assert surefoot("runs", out).stdout.startswith("diverged ")


def test_a_folder_that_cannot_be_written_is_exit_code_1(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    done = surefoot("compare", mine, "-o", "sgd", "--seeds", 2, "--epochs", 1, "--out", tmp_path / "out", "-q")
    assert done.exit_code == 1
    assert done.stderr.count("failed: ") == 1
    assert "choose an --out folder that is not a file" in done.stderr


def test_a_report_in_the_place_of_a_folder_is_refused_before_training(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot("compare", mine, "-o", "adam", "--seeds", 1, "--epochs", 1, "--out", out, "--report", tmp_path)
    assert done.exit_code == 2
    assert f"{tmp_path} is a folder" in " ".join(done.output.split())
    assert not out.exists()


def test_fork_is_a_command(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot(
        *("fork", mine, "--at", 2, "-o", "adam", "-o", "adams", "--epochs", 1, "--seeds", 1, "--out", out, "-q")
    )
    assert done.exit_code == 0, done.output
    assert [run.epochs[0]["epoch"] for run in read_runs(out)] == [3, 3]


def test_plan_until_decided_and_margin_from_the_command_line(tmp_path: Path) -> None:
    command = ["compare", "digits-lr", "-o", "adam", "-o", "sgd", "--epochs", "1", "--out", str(tmp_path), "-q"]
    early = surefoot(*command, "--plan", "--detect", "0.01")
    assert early.exit_code == 2
    assert "error: a plan needs a pilot" in early.stderr
    alone = surefoot(*command, "--detect", "0.01")
    assert "--plan and --detect belong together" in alone.stderr
    done = surefoot(*command, "--until-decided", "--max-seeds", "8", "--margin", "500%")
    assert done.exit_code == 0, done.output
    assert "equal within" in done.stdout
    planned = surefoot(*command, "--plan", "--detect", "0.01")
    assert planned.exit_code == 0, planned.output
    assert "To detect a difference from Adam in valid_loss:" in planned.stdout
    again = surefoot("report", str(tmp_path), "--format", "md", "--margin", "500%")
    assert "equal within" in again.stdout


def test_on_a_full_disk_it_says_why_runs_failed_before_it_says_that_there_is_no_report(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = MetricsLog.append

    def full(log: MetricsLog, row: dict[str, object]) -> None:
        if row["epoch"] == 2:
            raise explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), log.path)
        append(log, row)

    def no_report(*_: object) -> None:
        raise OSError("the report cannot be written (No space left on device)")

    monkeypatch.setattr(MetricsLog, "append", full)
    monkeypatch.setattr(Results, "report", no_report)
    done = surefoot("compare", mine, "-o", "sgd", "--seeds", 1, "--epochs", 3, "--out", tmp_path / "runs", "-q")
    assert done.exit_code == 2
    failed, no_space = done.stderr.splitlines()
    assert failed.startswith("failed: cannot write ")
    assert "metrics.jsonl: No space left on device; free some space" in failed
    assert no_space == "error: the report cannot be written (No space left on device)"
    assert "SGD" in done.stdout  # the tables need no disk


def test_a_folder_in_the_place_of_an_error_fails_its_run_alone(mine: Path, tmp_path: Path) -> None:
    options = (mine, "-o", "adam", "-o", "sgd", "--seeds", 1, "--out", tmp_path / "runs", "-q")
    assert surefoot("compare", *options, "--epochs", 1).exit_code == 0
    [folder] = (tmp_path / "runs" / "mine").glob("adam-*")
    (folder / "error.txt").mkdir()
    done = surefoot("compare", *options, "--epochs", 2)
    assert done.exit_code == 1
    assert "error.txt: Is a directory" in done.stderr
    assert "SGD" in done.stdout
    assert "report:" in done.stdout


def test_several_optimizers_after_one_flag(tmp_path: Path) -> None:
    extra = surefoot("compare", "digits-lr", "-o", "adam", "adams", "--out", tmp_path)
    assert extra.exit_code == 2
    assert "repeat -o: -o adam -o adams" in " ".join(extra.output.replace("│", " ").split())
    without = surefoot("compare", "digits-lr", "adam", "adams", "--out", tmp_path)
    assert without.exit_code == 2
    assert "repeat -o: -o adam -o adams" in " ".join(without.output.replace("│", " ").split())
    for spec in ("adams", "adams:eta=1e-4"):  # without a task it is taken for one
        done = surefoot("compare", "-o", "adam", spec, "--out", tmp_path)
        assert done.exit_code == 2
        assert f"{spec} is an optimizer and no task; repeat -o before each one: -o adam -o {spec}" in done.stderr
    assert not any(tmp_path.iterdir())


def test_the_baseline_can_be_named(mine: Path, tmp_path: Path) -> None:
    command = (
        "compare",
        mine,
        "-o",
        "sgd",
        "-o",
        "adam:lr=0.01",
        "--seeds",
        2,
        "--epochs",
        1,
        "--out",
        tmp_path / "runs",
    )
    done = surefoot(*command, "--baseline", "Adam lr=0.01")
    assert done.exit_code == 0, done.output
    assert "baseline" in next(line for line in done.stdout.splitlines() if line.startswith(" Adam lr=0.01"))
    assert "No winner yet on validation loss" in done.stdout
    done = surefoot(*command, "--baseline", "lion")
    assert done.exit_code == 2
    assert "--baseline names 'lion', which is none of the optimizers: sgd, adam:lr=0.01" in done.stderr
