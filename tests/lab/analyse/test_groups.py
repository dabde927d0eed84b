"""Which runs are compared, and which belong to one contestant: as their keys say, whatever their labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from surefoot.lab import Results, compare, fork
from surefoot.lab.analyse.audit import audit
from surefoot.lab.analyse.groups import TaskGroup, group_runs, preferred
from surefoot.lab.spec.task import Task
from surefoot.lab.store import Run, read_runs

MakeTask = Callable[..., Task]
MakeRun = Callable[..., Run]


def labels(group: TaskGroup) -> dict[str, list[int]]:
    return {contestant.label: [run.seed for run in contestant.runs] for contestant in group.contestants}


def test_forks_that_keep_and_forks_that_start_fresh_are_two_contestants(tiny_task: MakeTask, tmp_path: Path) -> None:
    options: dict[str, Any] = {"at": 1, "seeds": 3, "epochs": 1, "out": tmp_path, "progress": False}
    for state in ("fresh", "keep"):
        fork(tiny_task(), ["adam", "adamw", "sgd"], state=state, **options)
    [group] = group_runs(read_runs(tmp_path))
    names = ["Adam state=fresh", "Adam state=kept", "AdamW state=fresh", "AdamW state=kept", "SGD"]
    assert labels(group) == {name: [0, 1, 2] for name in names}


def test_forks_of_two_baselines_are_two_groups(tiny_task: MakeTask, tmp_path: Path) -> None:
    options: dict[str, Any] = {"at": 1, "seeds": 2, "epochs": 1, "out": tmp_path, "progress": False}
    for lr in (0.001, 0.01):  # the label of both is Adam
        fork(tiny_task(), ["adam", "sgd:lr=0.1"], lr=lr, **options)
    groups = group_runs(read_runs(tmp_path))
    assert [labels(group) for group in groups] == [{"Adam": [0, 1], "SGD lr=0.1": [0, 1]}] * 2
    assert len({group.name for group in groups}) == 2


def test_a_schedule_of_another_length_is_another_contestant(tiny_task: MakeTask, tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path, "progress": False}
    compare(tiny_task(), ["adam:schedule=cosine"], seeds=3, epochs=1, **options)
    compare(tiny_task(), ["adam:schedule=cosine"], seeds=1, epochs=2, **options)
    [group] = group_runs(read_runs(tmp_path))
    assert sorted(labels(group).items()) == [
        ("Adam schedule=cosine epochs=1", [0, 1, 2]), ("Adam schedule=cosine epochs=2", [0]),
    ]  # fmt: skip


def test_another_label_is_the_same_contestant(tiny_task: MakeTask, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "out": tmp_path, "progress": False}
    compare(tiny_task(), ["adam", "adams"], seeds=2, **options)
    compare(tiny_task(), ["adam:lr=0.001", "adams"], seeds=4, **options)
    [group] = group_runs(read_runs(tmp_path))
    assert sorted(labels(group).values()) == [[0, 1, 2, 3]] * 2
    assert "dropped-runs" not in {finding.code for finding in audit(read_runs(tmp_path))}


def test_which_run_of_a_seed_is_shown(run: MakeRun) -> None:
    early, late = ({"time": f"2026-01-0{day}T00:00:00Z"} for day in (1, 2))
    candidates = [  # from the least preferred to the most
        run("Adam", 3, numerics=1, epochs=9, done=2, provenance=late),
        run("Adam", 3, numerics=1, epochs=5, provenance=early),
        run("Adam", 3, numerics=1, epochs=7, provenance=early),
        run("Adam", 3, numerics=1, epochs=7, provenance=late),
        run("Adam", 3, numerics=2, epochs=7, done=1, provenance=early),
    ]
    other = run("Adam", 1)
    for number in range(1, len(candidates) + 1):
        for runs in (candidates[:number], candidates[number - 1 :: -1]):
            shown = preferred([*runs, other])
            assert list(shown) == [1, 3]
            assert shown[3] is candidates[number - 1]


def test_whole_numbers_are_numbers(run: MakeRun) -> None:
    runs = [run("Adam", 0, kwargs={"lr": 1}), run("Adam", 1, kwargs={"lr": 1.0})]
    [group] = group_runs(runs)
    assert labels(group) == {"Adam": [0, 1]}


def test_corrected_directions_hold_for_every_run_of_the_task(tiny_task: MakeTask, tmp_path: Path) -> None:
    def f1(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(1) == targets).float().mean()

    options: dict[str, Any] = {"seeds": 2, "epochs": 1, "out": tmp_path, "progress": False}
    task = tiny_task(metrics={"f1": f1})
    compare(task, ["adam", "sgd", "adams"], **options)
    compare(dataclasses.replace(task, higher_is_better={"f1": True}), ["adam", "adams"], **options)
    rows = Results.read(tmp_path).table(metrics=["valid_f1"]).comparisons
    assert [(row.label, row.is_baseline, row.higher_is_better) for row in rows] == [
        ("Adam", True, True), ("SGD", False, True), ("AdamS", False, True),
    ]  # fmt: skip


def test_runs_of_two_devices_are_a_finding(run: MakeRun) -> None:
    runs = [run("Adam", seed, device=device) for seed, device in enumerate(("cpu", "cuda"))]
    assert "mixed-device" in {finding.code for finding in audit(runs)}
    assert "mixed-device" not in {finding.code for finding in audit(runs[:1])}


def without_code(run: Run) -> Run:
    """The same run, distinct from others by its options alone."""
    optimizer = dataclasses.replace(run.config.optimizer, code="")
    return dataclasses.replace(run, config=dataclasses.replace(run.config, optimizer=optimizer))


def test_no_two_contestants_have_one_label(run: MakeRun) -> None:
    options = [("Adam", 0.001, 1e-4), ("Adam", 0.1, 1e-4), ("Adam lr=0.1", 0.1, 0.0)]
    runs = [run(label, 0, kwargs={"lr": lr, "weight_decay": decay}) for label, lr, decay in options]
    [group] = group_runs(map(without_code, runs))
    assert list(labels(group)) == ["Adam lr=0.001", "Adam lr=0.1 weight_decay=0.0001", "Adam lr=0.1 weight_decay=0.0"]
    same = [run("Adam", 0, kwargs={"lr": 0.1}, optimizer=f"mine.{name}") for name in ("A", "B")]
    [group] = group_runs(same)
    assert list(labels(group)) == ["Adam #1", "Adam #2"]
