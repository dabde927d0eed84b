"""`surefoot tune`: what it prints, what it writes, and the comparison that follows it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from command_line import surefoot
from surefoot.lab.store import read_runs

pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'surefoot[tune]'")

BROKEN = """
import torch
class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise ArithmeticError("one over zero")
"""


def test_command_table_report_and_the_comparison_that_follows(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    words = ("tune", "digits-lr", "-o", "adam", "-o", "adams", "--subset", 200, "--eta", "1e-4,1e-2", "--epochs", 2)
    done = surefoot(*words, "--lr", "1e-4,1e-3", "--seeds", 1, "--out", out)
    assert done.exit_code == 0, done.output
    assert "4 of 4" in done.output
    assert "lr=0.001 (edge)" in done.output.replace("\n", " ")
    assert "AdamS: the best" in done.output
    assert "(tried 0.0001 to 0.001) is on the edge; a better one may lie beyond it." in done.output.replace("\n", " ")
    html = (out / "tune.html").read_text()
    for part in ("Best so far against budget", "Sensitivity", "Validation loss against eta", "surefoot compare"):
        assert part in html
    # the folder of a search alone can be reported, too
    alone = surefoot("report", out, "-o", tmp_path / "alone.html")
    assert alone.exit_code == 0, alone.output
    # the command it prints is ready to run, on fresh seeds, and is an honest comparison
    [line] = [line for line in done.output.splitlines() if line.startswith("surefoot compare")]
    command = shlex.split(line)[1:]
    assert command[command.index("--subset") + 1] == "200"
    command[command.index("--seeds") + 1] = "2"
    followed = surefoot(*command, "-q")
    assert followed.exit_code == 0, followed.output
    runs = read_runs(out, tuning=True)
    reported = [run for run in runs if run.config.purpose == "report"]
    assert {run.config.optimizer.options["lr"] for run in reported} == {1e-3}
    checked = surefoot("report", out, "--check")
    assert "unequal-tuning" not in checked.output
    assert "tuned-on-reported-seeds" not in checked.output
    assert "edge-of-grid" in checked.output
    # tuning on after having looked at the results is refused
    refused = surefoot(*words, "--lr", "1e-4,1e-3", "--seeds", 1, "--out", out, "--first-seed", 1)
    assert refused.exit_code == 2
    assert "would flatter the winner" in refused.output


def test_failed_trials_are_named_and_exit_code_1(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    words = ("tune", mine, "-o", f"{tmp_path / 'broken.py'}:Broken", "--lr", "0.1", "--seeds", 1, "--epochs", 1)
    done = surefoot(*words, "--out", tmp_path / "runs", "-q")
    assert done.exit_code == 1
    assert "failed: Broken: ArithmeticError: one over zero" in done.stderr


def test_the_address_of_a_storage_is_not_repeated_in_the_report(mine: Path, tmp_path: Path) -> None:
    words = ("tune", mine, "-o", "sgd", "--lr", "0.1", "--seeds", 1, "--epochs", 1, "--out", tmp_path / "runs", "-q")
    done = surefoot(*words, "--storage", f"journal:{tmp_path / 'secret-place'}")
    assert done.exit_code == 0, done.output
    assert "secret-place" not in (tmp_path / "runs" / "tune.html").read_text()
