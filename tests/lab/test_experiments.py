"""Comparisons: every optimizer with every seed, in this process or in workers, and the results. Forks of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

from surefoot import lab
from surefoot.cli import app
from surefoot.lab import Results, compare, fork, read_runs
from surefoot.lab.experiments import inherits, prepare
from surefoot.lab.run.pool import Event, Processes
from surefoot.lab.run.progress import Progress
from surefoot.lab.run.runner import load_checkpoint, without_timing
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.store import Run, StoreError

MakeTask = Callable[..., Task]


def numbers(results: Results) -> dict[tuple[str, int], list[dict[str, Any]]]:
    return {(run.label, run.seed): [without_timing(row) for row in run.epochs] for run in results.runs}


def test_all_contestants_with_all_seeds(tiny_task: MakeTask, tmp_path: Path) -> None:
    results = compare(tiny_task(), ["sgd", "adams"], seeds=[4, 2], epochs=2, out=tmp_path, progress=False)
    assert [(run.label, run.seed) for run in results.runs] == [("SGD", 4), ("SGD", 2), ("AdamS", 4), ("AdamS", 2)]
    assert results.ok
    assert [run.config.optimizer.position for run in results.runs] == [0, 0, 1, 1]
    assert numbers(Results.read(tmp_path)) == numbers(results)


def test_no_module_has_the_name_of_a_function() -> None:
    assert [name for name in lab.__all__ if importlib.util.find_spec(f"surefoot.lab.{name}")] == []


def test_runs_record_the_command_that_computes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    specs = ["sgd:lr=0.1", "adam:betas=(0.9, 0.99)"]
    compare("digits-lr", specs, seeds=[7, 0, 1], epochs=1, out="my runs", lr=0.01, subset=50, progress=False)
    runs = lab.read_runs(tmp_path / "my runs")
    commands = {run.seed: run.config.provenance.command for run in runs}
    begin = "surefoot compare digits-lr -o sgd:lr=0.1 -o 'adam:betas=(0.9, 0.99)'"
    end = "--epochs 1 --out 'my runs' --lr 0.01 --subset 50"
    assert commands[0] == commands[1] == f"{begin} --seeds 2 {end}"
    assert commands[7] == f"{begin} --seeds 1 --first-seed 7 {end}"
    for command in commands.values():
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        assert "runs were there already" in done.stderr
    assert len(lab.read_runs(tmp_path / "my runs")) == len(runs)


def test_the_command_is_that_of_the_last_experiment(tiny_task: MakeTask, tmp_path: Path) -> None:
    def commands(results: Results) -> list[str]:
        return [run.config.provenance.command.split(" --out")[0] for run in results.runs]

    compare(tiny_task(), ["sgd"], seeds=1, epochs=1, out=tmp_path, progress=False)
    longer = compare(tiny_task(), ["sgd"], seeds=1, epochs=2, out=tmp_path, progress=False)
    last = "surefoot compare tiny -o sgd --seeds 1 --epochs 2"
    assert commands(longer) == commands(Results.read(tmp_path)) == [last]
    shorter = compare(tiny_task(), ["sgd"], seeds=1, epochs=1, out=tmp_path, progress=False)
    assert commands(shorter) == ["surefoot compare tiny -o sgd --seeds 1 --epochs 1"]
    assert commands(Results.read(tmp_path)) == [last]  # nothing was computed
    tuned = compare(tiny_task(), ["sgd"], seeds=[9], epochs=1, purpose="tune", out=tmp_path, progress=False)
    assert commands(tuned) == [""]


def test_nothing_is_done_twice(tiny_task: MakeTask, tmp_path: Path) -> None:
    events: list[Event] = []

    class Noted(Progress):
        def show(self, event: Event) -> None:
            events.append(event)

    first = compare(tiny_task(), ["sgd"], seeds=2, epochs=3, out=tmp_path, progress=Noted)
    assert sum(event.kind == "epoch" for event in events) == 6
    events.clear()
    again = compare(tiny_task(), ["sgd", "adam"], seeds=2, epochs=3, out=tmp_path, progress=Noted)
    assert sum(event.kind == "epoch" for event in events) == 6  # of the new contestant
    assert numbers(first).items() <= numbers(again).items()


def test_results_stop_at_the_epochs_asked_for(tiny_task: MakeTask, tmp_path: Path) -> None:
    long = compare(tiny_task(), ["sgd"], seeds=1, epochs=4, out=tmp_path, progress=False)
    short = compare(tiny_task(), ["sgd"], seeds=1, epochs=2, out=tmp_path, progress=False)
    assert short.runs[0].epochs == long.runs[0].epochs[:2]
    assert short.runs[0].finished
    assert short.runs[0].config.epochs == 2


def test_workers_compute_the_same_bits(tiny_task: MakeTask, tmp_path: Path) -> None:
    class Mine(torch.optim.SGD):  # lives in this file: it has to travel by value
        pass

    task = tiny_task(loss=lambda outputs, targets: F.cross_entropy(outputs, targets))
    here = compare(task, ["adams", Mine], seeds=2, epochs=3, out=tmp_path / "here", progress=False)
    there = compare(task, ["adams", Mine], seeds=2, epochs=3, out=tmp_path / "there", jobs=2, progress=False)
    assert there.ok, there.failures
    assert numbers(here) == numbers(there)
    assert {row["jobs"] for run in there.runs for row in run.epochs} == {2}


def test_a_worker_that_dies_fails_its_run_only(tiny_task: MakeTask, tmp_path: Path) -> None:
    class Deadly(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            os.kill(os.getpid(), signal.SIGKILL)

    results = compare(tiny_task(), [Deadly, "sgd"], seeds=1, epochs=2, out=tmp_path, executor=Processes, progress=False)
    assert not results.ok
    [message] = results.failures.values()
    assert "ended by signal SIGKILL" in message
    assert [run.finished for run in results.runs] == [False, True]  # another worker took over
    assert "SIGKILL" in str(results.runs[0].error)


def test_failing_code_fails_its_run_and_the_others_go_on(tiny_task: MakeTask, tmp_path: Path) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise ArithmeticError("one over zero")

    results = compare(tiny_task(), [Broken, "sgd"], seeds=2, epochs=1, out=tmp_path, progress=False)
    assert list(results.failures.values()) == ["ArithmeticError: one over zero"] * 2
    assert not results.ok
    assert [run.finished for run in results.runs] == [False, False, True, True]
    assert "one over zero" in str(results.runs[0].error)


def test_a_diverged_run_is_a_result_and_the_others_go_on(tiny_task: MakeTask, tmp_path: Path) -> None:
    def explode(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) * outputs.abs().mean().exp()

    results = compare(
        tiny_task(loss=explode), ["sgd:lr=1e5", "sgd:lr=1e-6"], seeds=1, epochs=2, out=tmp_path, progress=False
    )
    assert [run.diverged for run in results.runs] == [True, False]
    assert results.ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": [1, 1]}, "seeds must be"),
        ({"seeds": [-1]}, "seeds must be"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"epochs": "3"}, "epochs must be a whole number from 1 up, got '3'"),
        ({"epochs": 1.5}, "epochs must be a whole number from 1 up, got 1.5"),
        ({"seeds": 1.5}, "seeds must be .*, got 1.5"),
        ({"seeds": [0.5]}, r"seeds must be .*, got \[0.5\]"),
        ({"seeds": "three"}, "seeds must be .*, got 'three'"),
        ({"seeds": None}, "seeds must be .*, got None"),
        ({"lr": "x"}, "lr must be a finite number, got 'x'"),
        ({"lr": float("nan")}, "lr must be a finite number, got nan"),
        ({"lr": torch.ones(2)}, r"lr must be a finite number, got a tensor of shape \(2,\)"),
        ({"lr": 10**400}, "lr must be a finite number, got 1000"),
        ({"device": None}, "device must be a name such as 'cpu' or 'cuda', got None"),
        ({"device": "abacus"}, "the device 'abacus' cannot be used here; take cpu"),
        ({"device": "abacus", "executor": Processes}, "the device 'abacus' cannot be used here; take cpu"),
        ({"device": torch.device("meta")}, "the device 'meta' cannot be used here; take cpu"),
        ({"progress": "yes"}, "progress must be True, False or a function that makes the display, got 'yes'"),
        ({"out": ""}, "out must be the folder for the runs, such as 'runs', got ''"),
        ({"out": None}, "out must be the folder for the runs, such as 'runs', got None"),
        ({"task": 5}, "a task is a name such as .* or a surefoot.lab.Task, not 5"),
        ({"task": None}, "a task is a name such as .* or a surefoot.lab.Task, not None"),
        ({"task": torch.nn.Linear(2, 2)}, "not a model alone; put it into a Task"),
        ({"batch_size": 3}, "options are for named tasks"),
    ],
)
def test_impossible_options_are_refused_before_any_work(
    tiny_task: MakeTask, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    arguments = {"task": tiny_task(), "seeds": 1, "epochs": 1, "out": tmp_path, "progress": False, **options}
    with pytest.raises(ValueError, match=message):
        compare(optimizers=["sgd"], **arguments)
    assert not list(tmp_path.iterdir())


def test_a_device_is_recorded_by_its_name() -> None:
    setups = [
        prepare("digits-lr", ["adam"], seeds=1, epochs=1, device=device) for device in ("cpu", torch.device("cpu"))
    ]
    first, second = (setup.config(setup.contestants[0], 0, 1) for setup in setups)
    assert first.device == second.device == "cpu"
    assert first.key == second.key


FACTORIES = """
import torch

def slow(params, lr=0.1):
    return torch.optim.SGD(params, lr=lr)

def forgetful(params):
    torch.optim.SGD(params)

def picky(params):
    raise KeyError("no such layer")
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("forgetful", "forgetful' made no optimizer but a NoneType; give an optimizer class, or a function"),
        ("picky", r"picky' made no optimizer \(KeyError: 'no such layer'\); give an optimizer class, or a function"),
    ],
)
def test_a_function_may_make_the_optimizer_but_must(
    tiny_task: MakeTask, tmp_path: Path, name: str, message: str
) -> None:
    path, out = tmp_path / "factories.py", tmp_path / "out"
    path.write_text(FACTORIES)
    with pytest.raises(ValueError, match=message):
        compare(tiny_task(), ["sgd", f"{path}:{name}"], seeds=1, epochs=1, out=out, progress=False)
    assert not out.exists()
    results = compare(tiny_task(), ["sgd", f"{path}:slow"], seeds=1, epochs=1, lr=0.5, out=out, progress=False)
    assert results.ok
    assert [row["valid_loss"] for row in results.runs[0].epochs] == [
        row["valid_loss"] for row in results.runs[1].epochs
    ]
    before = torch.random.get_rng_state()
    prepare(tiny_task(), [f"{path}:slow"], seeds=1, epochs=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_weight_decay_is_the_papers_on_its_tasks_only(tiny_task: MakeTask) -> None:
    def kwargs(task: str | Task, **options: Any) -> dict[str, Any]:
        setup = prepare(task, ["adam"], seeds=1, epochs=1, **options)
        return setup.config(setup.contestants[0], 0, 1).optimizer.options

    assert kwargs("digits-lr")["weight_decay"] == 1e-4
    assert kwargs("digits-lr", weight_decay=0.0)["weight_decay"] == 0.0
    assert "weight_decay" not in kwargs(tiny_task())


def test_a_direction_given_later_holds_for_the_runs_that_are_there(tiny_task: MakeTask, tmp_path: Path) -> None:
    def f1(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1) == targets).float().mean()

    options: dict[str, Any] = {"seeds": 2, "epochs": 1, "out": tmp_path, "progress": False}
    first = compare(tiny_task(metrics={"f1": f1}), ["sgd"], **options)
    assert not first.table(metrics=["valid_f1"]).comparisons[0].higher_is_better
    later = compare(tiny_task(metrics={"f1": f1}, higher_is_better={"f1": True}), ["sgd"], **options)
    assert [run.folder for run in later.runs] == [run.folder for run in first.runs]
    for results in (later, Results.read(tmp_path)):
        [row] = results.table(metrics=["valid_f1"]).comparisons
        assert row.higher_is_better


def test_a_model_that_exits_fails_its_task_and_not_the_command(tiny_task: MakeTask, tmp_path: Path) -> None:
    def leave() -> torch.nn.Module:
        sys.exit(3)

    results = compare(dataclasses.replace(tiny_task(), model=leave), ["sgd"], epochs=1, out=tmp_path, progress=False)
    [said] = results.failures.values()
    assert said.startswith("the task 'tiny' fails: its model raises SystemExit: 3 (test_experiments.py, line ")


def test_code_that_the_key_cannot_try_fails_its_runs(tiny_task: MakeTask, tmp_path: Path) -> None:
    def many(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs

    tasks = {
        "the metric 'many' must give one number for a batch, its mean, not a tensor of shape (20, 3)": tiny_task(
            metrics={"many": many}
        ),
        "the metric 'word' must give one number for a batch, its mean, not 'good'": tiny_task(
            metrics={"word": lambda outputs, targets: "good"}
        ),
        "the loss must give one number for a batch, its mean, not a tensor of shape (16,)": dataclasses.replace(
            tiny_task(), loss=torch.nn.CrossEntropyLoss(reduction="none")
        ),
        "model must return a torch.nn.Module, not NoneType": dataclasses.replace(tiny_task(), model=lambda: None),
    }
    for message, task in tasks.items():
        results = compare(task, ["sgd"], seeds=1, epochs=1, out=tmp_path, progress=False)
        assert message in next(iter(results.failures.values()))


@pytest.mark.parametrize("name", ["long " * 200, "数字", "../../outside"])
def test_any_name_of_a_task_makes_a_folder(tiny_task: MakeTask, tmp_path: Path, name: str) -> None:
    results = compare(tiny_task(name), ["sgd"], seeds=1, epochs=1, out=tmp_path / "out", progress=False)
    assert results.ok
    [folder] = (tmp_path / "out").iterdir()
    assert len(folder.name) < 80
    other = compare(tiny_task(name + "字"), ["sgd"], seeds=1, epochs=1, out=tmp_path / "out", progress=False)
    assert other.runs[0].folder != results.runs[0].folder


# -- forks ---------------------------------------------------------------------------------------------------------


def rows_of(run: Run) -> list[dict[str, Any]]:
    return [without_timing(row) for row in run.epochs]


@pytest.mark.parametrize("spec", ["adam", "adamucb:eta=0.1", "sgd:momentum=0.9"])
def test_the_baseline_with_its_state_goes_on_as_if_there_were_no_fork(
    tiny_task: MakeTask, tmp_path: Path, spec: str
) -> None:
    task = tiny_task()
    whole = compare(task, [spec], seeds=2, epochs=6, out=tmp_path / "whole", progress=False)
    forked = fork(task, [spec], at=4, seeds=2, epochs=2, out=tmp_path / "fork", state="keep", progress=False)
    assert [run.config.fork.state for run in forked.runs] == ["kept", "kept"]
    assert [rows_of(run) for run in forked.runs] == [rows_of(run)[4:] for run in whole.runs]


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
    assert rows_of(kept.runs[2]) != rows_of(fresh.runs[0])
    for label in (0, 1):
        assert rows_of(kept.runs[label]) != rows_of(fresh.runs[label])
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
    assert [rows_of(run) for run in forked.runs] == [rows_of(run) for run in plain.runs]


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


class Jitter(torch.optim.SGD):
    """SGD that is pushed about at random, so that it is neither better nor worse."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param.add_(torch.randn_like(param), alpha=0.02)


def seeds_of(results: Results) -> dict[str, int]:
    return {label: sum(run.label == label for run in results.runs) for label in {run.label for run in results.runs}}


def test_seeds_are_added_until_decided_and_end_for_those_that_are(tiny_task: MakeTask, tmp_path: Path) -> None:
    asked = ["sgd", "sgd:lr=1e-5", Jitter]
    options: dict[str, Any] = {"epochs": 2, "lr": 0.1, "out": tmp_path, "progress": False}
    options |= {"until_decided": True, "max_seeds": 10}
    results = compare(tiny_task(), asked, **options)
    assert seeds_of(results) == {"SGD": 10, "SGD lr=1e-05": 7, "Jitter": 10}
    leading = {row.label: row.verdict.outcome for row in results.table(metrics=["valid_loss"]).comparisons}
    assert leading == {"SGD": "baseline", "SGD lr=1e-05": "worse", "Jitter": "undecided"}
    codes = {finding.code for finding in results.check()}
    assert "decided-early" in codes
    assert "dropped-runs" not in codes
    [command] = {run.config.provenance.command for run in results.runs}
    assert "--until-decided --max-seeds 10" in command
    again = compare(tiny_task(), asked, **options, jobs=2)  # the same decisions from the recorded runs
    assert numbers(again) == numbers(results)
    displays: list[Progress] = []
    compare(
        tiny_task(), asked, **(options | {"progress": lambda jobs: displays.append(Progress(jobs)) or displays[-1]})
    )
    assert len(displays) == 1  # not one for every seed that is there already
    wide = compare(tiny_task(), asked, **options, margin={"valid_loss": 5.0})
    outcomes = {row.label: row.verdict.outcome for row in wide.table(metrics=["valid_loss"]).comparisons}
    assert outcomes["Jitter"] == "equal"
    assert wide.margin == {"valid_loss": 5.0}
    assert "equal within 5" in wide.to_markdown()


def test_runs_that_fail_or_diverge_get_no_more_seeds(tiny_task: MakeTask, tmp_path: Path) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise ArithmeticError("one over zero")

    options: dict[str, Any] = {"epochs": 1, "progress": False, "until_decided": True, "max_seeds": 30}
    results = compare(tiny_task(), ["sgd", Broken], out=tmp_path / "broken", **options)
    assert seeds_of(results) == {"SGD": 6, "Broken": 6}
    assert len(results.failures) == 6

    def explode(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) * outputs.abs().mean().exp()

    wild = compare(tiny_task(loss=explode), ["sgd:lr=1e-6", "sgd:lr=1e5"], out=tmp_path / "wild", **options)
    assert seeds_of(wild) == {"SGD lr=1e-06": 6, "SGD lr=100000": 6}


def test_limits_and_margins_are_checked_before_training(tiny_task: MakeTask, tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path, "progress": False}
    with pytest.raises(ValueError, match="max_seeds is 4, but 6 seeds were asked for; give more"):
        compare(tiny_task(), ["sgd"], until_decided=True, max_seeds=4, **options)
    for wrong in ("much", -1, 0.0, "0%", True, float("nan")):
        with pytest.raises(ValueError, match="the margin must be a number above zero"):
            compare(tiny_task(), ["sgd"], margin=wrong, **options)
    assert not any(tmp_path.iterdir())


def test_a_plan_comes_from_the_runs_in_the_folder(tiny_task: MakeTask, tmp_path: Path) -> None:
    asked = ["sgd", Jitter]
    options: dict[str, Any] = {"epochs": 2, "lr": 0.1, "out": tmp_path, "progress": False}
    with pytest.raises(ValueError, match=r"a plan needs a pilot, and there are 0 paired seeds .* --seeds 3 "):
        lab.plan(tiny_task(), asked, detect=0.1, **options)
    compare(tiny_task(), asked, seeds=[3, 5, 8, 9], **options)
    compare(tiny_task(), ["sgd:lr=0.2"], seeds=3, **options)  # another setting is no pilot
    plan = lab.plan(tiny_task(), asked, detect=0.1, **options)
    [row] = plan.rows
    differences = [r for r in Results.read(tmp_path).table(metrics=["valid_loss"]).comparisons if r.label == "Jitter"]
    assert (row.label, row.pairs) == ("Jitter", 4)
    assert row.std == pytest.approx(differences[0].paired.std if differences[0].paired else 0)
    assert plan.time == pytest.approx((plan.seeds - 4) * (row.seconds + plan.seconds))
    assert f"--until-decided --max-seeds {plan.seeds}" in str(plan)
    assert lab.plan(tiny_task(), asked, detect=0.01, **options).seeds > plan.seeds
    share = lab.plan(tiny_task(), asked, detect="10%", **options).rows[0].detect
    baseline = [run.epochs[-1]["valid_loss"] for run in Results.read(tmp_path).runs if run.label == "SGD"]
    assert share == pytest.approx(0.1 * sum(baseline) / 4)


def broken_metric(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.no_such_thing()


def metric_of_a_library(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return json.loads("no JSON")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"metrics": {"f1": metric_of_a_library}},
            "its metric 'f1' raises JSONDecodeError: .*test_experiments.py, line",
        ),
        ({"metrics": {"top1": broken_metric}}, "its metric 'top1' raises AttributeError: .*test_experiments.py, line"),
        (
            {"loss": lambda outputs, targets: outputs.sum(1)},
            "its loss raises ValueError: the loss must give one number",
        ),
        ({"model": lambda: 5}, "its model raises TaskError: .* must return a torch.nn.Module, not int"),
        ({"loss": lambda outputs, targets: torch.tensor(1.0)}, "its loss raises RuntimeError: .*does not require grad"),
    ],
)
def test_a_task_that_fails_is_named_once(
    tiny_task: MakeTask, tmp_path: Path, fields: dict[str, Any], message: str, jobs: int
) -> None:
    task = dataclasses.replace(tiny_task(), **fields)
    results = compare(task, ["adam", "sgd"], seeds=3, epochs=2, out=tmp_path, progress=False, jobs=jobs)
    [said] = results.failures.values()
    assert re.match(f"the task 'tiny' fails: {message}", said), said
    assert jobs > 1 or len(results.runs) == 1  # workers may have begun others before this one was seen


def test_the_default_metric_is_named_where_targets_are_no_classes(tiny_task: MakeTask, tmp_path: Path) -> None:
    x = torch.randn(20, 5)
    task = dataclasses.replace(tiny_task(), train=(x, x[:, :3]), valid=(x, x[:, :3]), loss=torch.nn.functional.mse_loss)
    task = dataclasses.replace(task, valid=(x, x[:, :2].repeat(1, 2)[:, :3]))
    results = compare(task, ["adam", "sgd"], seeds=2, epochs=1, out=tmp_path, progress=False)
    [said] = results.failures.values()
    assert said.startswith("the task 'tiny' fails: its metric 'accuracy', the default one for class labels, raises ")


def test_an_optimizer_that_fails_does_not_stop_the_others(tiny_task: MakeTask, tmp_path: Path) -> None:
    def sensitive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.abs().max() > 1e3:
            raise ArithmeticError("too large")
        return outputs.mean()

    task = tiny_task(metrics={"m": sensitive})
    results = compare(task, ["sgd:lr=1e6", "sgd:lr=0.01"], seeds=2, epochs=2, out=tmp_path, progress=False)
    states = {(run.label, run.seed): run.state for run in results.runs}
    assert [states["SGD lr=0.01", seed] for seed in (0, 1)] == ["done", "done"]
    assert all("the task" not in message for message in results.failures.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 10**12}, "seeds must be at most 100000"),
        ({"seeds": range(7, 10**23)}, "seeds must be at most 100000"),
        ({"seeds": [2**70]}, r"a seed must be at most 9223372036854775807, 2\*\*63 - 1"),
        ({"threads": 10**9}, "threads must be at most 1024, got 1000000000"),
        ({"jobs": 10**40}, "jobs must be at most 1024, got a number of 41 digits"),
        ({"epochs": 10**30}, "epochs must be at most 10000000"),
        ({"epoch": 3}, r"did you mean epochs=3\?"),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_huge_numbers_and_nearly_right_options_are_refused(
    tiny_task: MakeTask, tmp_path: Path, options: dict[str, Any], message: str, named: bool
) -> None:
    task = "digits-lr" if named else tiny_task()
    with pytest.raises(ValueError, match=message):
        compare(task, ["sgd"], **{"seeds": 1, "epochs": 1, "out": tmp_path, "progress": False, **options})
    assert not any(tmp_path.iterdir())
