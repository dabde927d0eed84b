"""Recorded runs, computed again: the same to the bit, or where they differ."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from command_line import TASK, surefoot
from surefoot.lab import Run, compare, fork, read_runs
from surefoot.lab.run.verify import Verification, verify
from surefoot.lab.store import MetricsLog

SAME = "the same in every epoch, bit for bit"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    optimizers = ["adam", "adams:eta=1e-4,schedule=cosine"]
    compare("digits-lr", optimizers, seeds=2, epochs=3, subset=100, out=tmp_path / "runs", progress=False)
    return tmp_path / "runs"


def verified(runs: list[Run], number: int = 9) -> list[Verification]:
    return list(verify(runs, number, choose=random.Random(0)))


def test_runs_are_the_same_when_computed_again(out: Path) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    checks = verified(read_runs(out))
    assert [(check.same, check.sentence) for check in checks] == [(True, SAME)] * 4
    assert len({check.run.folder for check in checks}) == 4
    assert len(verified(read_runs(out), 2)) == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_number_that_was_made_up_is_noticed_even_with_the_right_hashes(out: Path) -> None:
    run = read_runs(out)[0]
    path = run.folder / "metrics.jsonl"
    path.unlink()
    log = MetricsLog(path, run.config.key)
    for row in run.epochs:
        log.append({**row, "valid_loss": row["valid_loss"] * (1 - 1e-15)} if row["epoch"] == 2 else row)
    log.close()
    [edited] = [run for run in read_runs(out) if run.folder == path.parent]
    assert edited.edited == ""
    [check] = verified([edited])
    assert not check.same
    assert check.sentence.startswith("valid_loss of epoch 2 differs, ")
    done = surefoot("report", out, "--verify", 4)
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 4
    assert f"verify: Adam, seed 0: {check.sentence}" in done.stdout.splitlines()


def test_forks_are_computed_from_their_start(tmp_path: Path) -> None:
    fork("digits-lr", ["adam", "sgd"], at=2, seeds=1, epochs=1, subset=100, out=tmp_path, progress=False)
    assert [check.sentence for check in verified(read_runs(tmp_path))] == [SAME] * 2


def test_a_task_in_a_file_that_was_edited_cannot_be_verified(tmp_path: Path) -> None:
    mine = tmp_path / "my_task.py"
    mine.write_text(TASK)
    surefoot("compare", mine, "-o", "sgd", "--seeds", 1, "--epochs", 1, "--out", tmp_path / "runs", "-q")
    done = surefoot("report", tmp_path / "runs", "--verify", 1)
    assert (done.exit_code, done.stdout) == (0, f"verify: SGD, seed 0: {SAME}\n")
    mine.write_text(TASK.replace("batch_size=10", "batch_size=20"))
    changed = surefoot("report", tmp_path / "runs", "--verify", 1)
    assert changed.exit_code == 1
    assert "the code, the data or the settings of its task changed" in changed.stdout


def test_a_run_that_is_not_of_the_lab_cannot_be_computed(run) -> None:
    [check] = verified([run()])
    assert not check.same
    assert check.sentence == "cannot be computed again: the code, the data or the settings of its task changed"
