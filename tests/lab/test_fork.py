"""The fork test: same weights, same batches, another optimizer from here on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot.lab import compare, fork, read_runs
from surefoot.lab.experiments import inherits
from surefoot.lab.run.runner import load_checkpoint, without_timing
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.store import Run, StoreError

MakeTask = Callable[..., Task]


def numbers(run: Run) -> list[dict[str, Any]]:
    return [without_timing(row) for row in run.epochs]


@pytest.mark.parametrize("spec", ["adam", "adamucb:eta=0.1", "sgd:momentum=0.9"])
def test_the_baseline_with_its_state_goes_on_as_if_there_were_no_fork(
    tiny_task: MakeTask, tmp_path: Path, spec: str
) -> None:
    task = tiny_task()
    whole = compare(task, [spec], seeds=2, epochs=6, out=tmp_path / "whole", progress=False)
    forked = fork(task, [spec], at=4, seeds=2, epochs=2, out=tmp_path / "fork", state="keep", progress=False)
    assert [run.config.fork.state for run in forked.runs] == ["kept", "kept"]
    assert [numbers(run) for run in forked.runs] == [numbers(run)[4:] for run in whole.runs]


def test_every_optimizer_starts_from_the_same_weights_over_the_same_batches(
    tiny_task: MakeTask, tmp_path: Path
) -> None:
    batches: list[Tensor] = []

    def prepare(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        if generator is not None and len(inputs) > 4:  # the key tries it on four examples
            batches.append(inputs.clone())
        return inputs

    # With lr 0 nobody moves: the validation loss is that of the weights at the fork.
    specs = ["adam:lr=0.01", "adams:lr=0.0", "sgd:lr=0.0"]
    forked = fork(tiny_task(prepare=prepare), specs, at=3, seeds=1, epochs=2, out=tmp_path, progress=False)
    _, adams, sgd = forked.runs
    assert adams.epochs[0]["valid_loss"] == sgd.epochs[0]["valid_loss"] == sgd.epochs[1]["valid_loss"]
    per_run = 2 * 5
    after = batches[3 * 5 :]
    assert len(after) == 3 * per_run
    for first, second, third in zip(after[:per_run], after[per_run : 2 * per_run], after[2 * per_run :]):
        assert torch.equal(first, second)
        assert torch.equal(first, third)
    assert [row["epoch"] for row in sgd.epochs] == [4, 5]
    assert [row["step"] for row in sgd.epochs] == [20, 25]
    assert all(run.finished for run in forked.runs)
    assert {run.config.task.settings["fork_at"] for run in forked.runs} == {3}


def test_fresh_is_the_default_and_kept_state_is_adams_moments_with_ones_own_options(
    tiny_task: MakeTask, tmp_path: Path
) -> None:
    task = tiny_task()
    specs = ["adam", "adams:eta=0.5,lr=0.05", "sgd"]
    fresh = fork(task, specs, at=2, seeds=1, epochs=1, out=tmp_path, progress=False)
    assert [run.config.fork.state for run in fresh.runs] == ["fresh"] * 3
    kept = fork(task, specs, at=2, seeds=1, epochs=1, out=tmp_path, state="keep", progress=False)
    assert [run.config.fork.state for run in kept.runs] == ["kept", "kept", "fresh"]
    assert numbers(kept.runs[2]) != numbers(fresh.runs[0])
    for label in (0, 1):
        assert numbers(kept.runs[label]) != numbers(fresh.runs[label])
    saved = load_checkpoint(kept.runs[1].folder / "checkpoint.pt", kept.runs[1].config.key)
    assert saved is not None
    [group] = saved["optimizer"]["param_groups"]
    assert (group["eta"], group["lr"]) == (0.5, 0.05)
    assert float(saved["optimizer"]["state"][0]["step"]) == 15  # ten steps of the baseline and five of its own


def test_the_baseline_is_trained_once_and_stays_out_of_reports(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    fork(task, ["adam", "sgd"], at=2, seeds=1, epochs=1, out=tmp_path, progress=False)
    [base] = (tmp_path / ".base").rglob("checkpoint.pt")
    before = base.stat().st_mtime_ns
    forked = fork(task, ["adam", "adamw"], at=2, seeds=1, epochs=3, out=tmp_path, progress=False)
    assert base.stat().st_mtime_ns == before
    assert len(forked.runs[0].epochs) == 3  # extended, not done again
    assert sorted(run.label for run in read_runs(tmp_path)) == ["Adam", "AdamW", "SGD"]


def test_a_fork_at_the_start_is_a_comparison(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    forked = fork(task, ["adam", "sgd"], at=0, seeds=1, epochs=2, out=tmp_path / "fork", progress=False)
    plain = compare(task, ["adam", "sgd"], seeds=1, epochs=2, out=tmp_path / "plain", progress=False)
    assert [numbers(run) for run in forked.runs] == [numbers(run) for run in plain.runs]


@pytest.mark.parametrize(
    ("base", "heir", "expected"),
    [
        ("adam", "adamcb", True),
        ("adamw", "adams", True),
        ("adamucb", "adams", True),
        ("momentum", "momentumucb", True),
        ("adam", "adamw", True),
        ("adam", "momentums", False),
        ("adamucb", "momentumucb", False),
        ("adams", "adam", False),
        ("sgd", "adam", False),
    ],
)
def test_who_can_inherit_from_whom(base: str, heir: str, expected: bool) -> None:
    assert inherits(Contestant.parse(base), Contestant.parse(heir)) is expected


def test_what_a_function_makes_inherits_nothing() -> None:
    made = Contestant.create("mine", lambda params, **options: torch.optim.Adam(params, **options))  # type: ignore[arg-type]
    assert not inherits(Contestant.parse("adam"), made)


def test_impossible_forks_are_refused(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    with pytest.raises(ValueError, match="epoch 0 or later, got -1"):
        fork(task, ["adam"], at=-1, out=tmp_path)
    with pytest.raises(ValueError, match="epoch 0 or later, got 'x'"):
        fork(task, ["adam"], at="x", out=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'keep' or 'fresh', got 'warm'"):
        fork(task, ["adam"], at=1, out=tmp_path, state="warm")
    with pytest.raises(ValueError, match="has a schedule"):
        fork(task, ["adam:schedule=cosine"], at=1, out=tmp_path)
    with pytest.raises(ValueError, match="out must be the folder for the runs, such as 'runs', got None"):
        fork(task, ["adam"], at=1, out=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the baseline diverged before epoch 2 with seed 0"):
        fork(task, ["sgd:lr=1e38"], at=2, seeds=1, out=tmp_path, progress=False)
    with pytest.raises(StoreError, match="the baseline failed before the fork"):
        fork(task, ["sparseadam"], at=1, seeds=1, out=tmp_path, progress=False)


def test_a_damaged_start_is_reported(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    fork(task, ["adam"], at=1, seeds=1, epochs=1, out=tmp_path, progress=False)
    [base] = (tmp_path / ".base").rglob("checkpoint.pt")
    base.write_bytes(b"rubbish")
    results = fork(task, ["adam", "sgd"], at=1, seeds=1, epochs=1, out=tmp_path, progress=False)
    assert "checkpoint.pt is damaged" in next(iter(results.failures.values()))


def test_forks_record_the_command_that_computes_them(tiny_task: MakeTask, tmp_path: Path) -> None:
    options = {"seeds": [3], "epochs": 1, "out": tmp_path, "progress": False}
    kept = fork(tiny_task(), ["adam", "sgd"], at=2, state="keep", **options)
    fresh = fork(tiny_task(), ["adam"], at=0, **options)
    end = f"--seeds 1 --first-seed 3 --epochs 1 --out {tmp_path}"
    assert {run.config.provenance.command for run in kept.runs} == {
        f"surefoot fork tiny --at 2 --state keep -o adam -o sgd {end}"
    }
    assert fresh.runs[0].config.provenance.command == f"surefoot fork tiny --at 0 -o adam {end}"
    assert read_runs(tmp_path / ".base")[0].config.provenance.command == ""
