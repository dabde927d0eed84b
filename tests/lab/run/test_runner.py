"""One run: paired, deterministic, resumable, and honest about divergence."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.lab.run import runner
from surefoot.lab.run.memory import peak
from surefoot.lab.run.runner import run
from surefoot.lab.run.trainer import flushes_subnormals
from surefoot.lab.spec.config import RunConfig, folder_of
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.store import Run, StoreError, read_metrics

MakeTask = Callable[..., Task]


class Interrupted(BaseException):
    """A kill, as far as the running code can tell."""


def start(
    task: Task, out: Path, spec: str = "adams", *, seed: int = 0, epochs: int = 6, **more: Any
) -> tuple[RunConfig, Path]:
    config = RunConfig.plan(task, Contestant.parse(spec), seed=seed, epochs=epochs, defaults={"lr": 0.01}, **more)
    return config, folder_of(out, config)


def go(task: Task, out: Path, spec: str = "adams", **more: Any) -> Run:
    config, folder = start(task, out, spec, **more)
    return run(config, task, folder)


def numbers(recorded: Run) -> list[dict[str, Any]]:
    return [runner.without_timing(row) for row in recorded.epochs]


class Twisted(torch.optim.SGD):
    """Keeps a function among its options, as torch allows."""

    def __init__(self, params: Any, lr: float = 0.1, twist: Any = None) -> None:
        super().__init__(params, lr)
        self.param_groups[0]["twist"] = twist


def test_an_option_that_no_file_can_hold_costs_the_checkpoint_only(tiny_task: MakeTask, tmp_path: Path) -> None:
    task, contestant = tiny_task(), Contestant.create("twisted", Twisted, {"twist": lambda t: 1.0})
    config = RunConfig.plan(task, contestant, seed=0, epochs=2)
    recorded = run(config, task, tmp_path, contestant=contestant)
    assert recorded.finished
    assert not (tmp_path / "checkpoint.pt").exists()


def test_rows_hold_what_the_report_needs(tiny_task: MakeTask, tmp_path: Path) -> None:
    recorded = go(tiny_task(), tmp_path, epochs=2)
    assert recorded.finished
    row = recorded.epochs[-1]
    assert list(row) == [
        *("epoch", "step", "train_loss", "valid_loss", "valid_accuracy", "seconds"),
        *("mean", "std", "tilt", "weight", "skipped", "diverged", "jobs", *(["peak_memory"] if peak() else [])),
    ]
    assert (row["epoch"], row["step"], row["diverged"], row["jobs"]) == (2, 10, False, 1)
    assert 0 <= row["valid_accuracy"] <= 1
    assert min(row["mean"], row["std"], row["seconds"]) > 0
    plain = go(tiny_task(), tmp_path, "sgd", epochs=1).epochs[0]
    assert [plain[name] for name in ("mean", "std", "tilt", "weight", "skipped")] == [None, None, None, None, 0]


@pytest.mark.parametrize("spec", ["adams", "adam", "adam:schedule=cosine", "schedulefree.AdamWScheduleFree"])
@pytest.mark.parametrize("pause", [0.0, 1e9])
def test_interrupted_anywhere_it_goes_on_bit_for_bit(
    tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, pause: float
) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", pause)
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", math.inf)
    task = tiny_task()
    whole = numbers(go(task, tmp_path / "whole", spec))
    config, folder = start(task, tmp_path / "torn", spec)
    for stop in (1, 3, 4):

        def kill(row: dict[str, Any], stop: int = stop) -> None:
            if row["epoch"] == stop:
                raise Interrupted

        with pytest.raises(Interrupted):
            run(config, task, folder, kill)
        assert (folder / "checkpoint.pt").exists() == (pause == 0)
        recorded, _ = read_metrics(folder / "metrics.jsonl")
        assert [runner.without_timing(row) for row in recorded] == whole[: len(recorded)]
    seconds = [json.loads(line)["seconds"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    finished = run(config, task, folder)
    assert numbers(finished) == whole
    assert [row["seconds"] for row in finished.epochs[:4]] == seconds  # recorded lines stay as they were


def test_a_longer_run_extends_a_shorter_one(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    short = go(task, tmp_path, epochs=3)
    before = (short.folder / "metrics.jsonl").read_text()
    trained: list[int] = []
    config, folder = start(task, tmp_path, epochs=6)
    assert folder == short.folder
    longer = run(config, task, folder, lambda row: trained.append(row["epoch"]))
    assert trained == [4, 5, 6]
    assert (folder / "metrics.jsonl").read_text().startswith(before)
    assert longer.config.epochs == 6
    assert numbers(longer) == numbers(go(task, tmp_path / "whole", epochs=6))
    again = run(start(task, tmp_path, epochs=3)[0], task, folder, lambda row: trained.append(row["epoch"]))
    assert trained == [4, 5, 6]
    assert len(again.epochs) == 6


def test_a_lost_checkpoint_costs_time_but_no_epoch(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    recorded = go(task, tmp_path, epochs=3)
    (recorded.folder / "checkpoint.pt").unlink()
    before = (recorded.folder / "metrics.jsonl").read_text()
    longer = go(task, tmp_path, epochs=5)
    assert (recorded.folder / "metrics.jsonl").read_text().startswith(before)
    assert numbers(longer) == numbers(go(task, tmp_path / "whole", epochs=5))


@pytest.mark.parametrize("left", [0, 2, 3])
def test_metrics_behind_the_checkpoint_are_filled_again(tiny_task: MakeTask, tmp_path: Path, left: int) -> None:
    task = tiny_task()
    recorded = go(task, tmp_path, epochs=4)
    lines = (recorded.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (recorded.folder / "metrics.jsonl").write_text("".join(lines[:left]))
    trained: list[int] = []
    config, folder = start(task, tmp_path, epochs=4)
    assert numbers(run(config, task, folder, lambda row: trained.append(row["epoch"]))) == numbers(recorded)
    # A kill between checkpoint and line: the line comes from the checkpoint. Deleted lines: all is trained again.
    assert trained == ([] if left == 3 else [1, 2, 3, 4])


def test_lines_of_a_machine_that_computes_otherwise_are_replaced(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    recorded = go(task, tmp_path, epochs=3)
    (recorded.folder / "checkpoint.pt").unlink()
    rows = [dict(row) for row in recorded.epochs]
    rows[1]["train_loss"] += 1e-7
    (recorded.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert numbers(go(task, tmp_path, epochs=4))[:3] == numbers(recorded)


def test_subnormal_weights_are_zero_in_a_run_and_only_there(tiny_task: MakeTask, tmp_path: Path) -> None:
    seen: list[bool] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(flushes_subnormals())
            super().step(closure)

    task, contestant = tiny_task(), Contestant.create("watched", Watched, {})
    config = RunConfig.plan(task, contestant, seed=0, epochs=1, defaults={"lr": 0.5})
    run(config, task, tmp_path / "run", contestant=contestant)
    assert seen
    assert all(seen)
    assert not flushes_subnormals()


def test_the_process_keeps_its_random_state_and_threads(tiny_task: MakeTask, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected, threads = torch.rand(2), torch.get_num_threads()
    torch.manual_seed(3)
    go(tiny_task(), tmp_path, epochs=1, threads=2)
    assert torch.equal(torch.rand(2), expected)
    assert torch.get_num_threads() == threads


def test_divergence_is_a_result(tiny_task: MakeTask, tmp_path: Path) -> None:
    def explode(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) * outputs.sum().abs().exp()

    recorded = go(tiny_task(loss=explode), tmp_path, "sgd:lr=50")
    assert recorded.diverged
    assert recorded.finished
    last = recorded.epochs[-1]
    assert (last["train_loss"], last["valid_loss"], last["valid_accuracy"]) == (None, None, None)
    text = (recorded.folder / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    go(tiny_task(loss=explode), tmp_path, "sgd:lr=50", epochs=9)  # asked for more, it stays as it ended
    assert (recorded.folder / "metrics.jsonl").read_text() == text


def test_broken_weights_behind_a_finite_loss_are_divergence(tiny_task: MakeTask, tmp_path: Path) -> None:
    class Breaks(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)
            if self.state.setdefault("taken", 0) == 4:  # type: ignore[arg-type]
                self.param_groups[0]["params"][0].data[0, 0] = math.inf
            self.state["taken"] += 1  # type: ignore[index]

    task = tiny_task()
    contestant = Contestant.create("breaks", Breaks)
    recorded = run(RunConfig.plan(task, contestant, seed=0, epochs=3), task, tmp_path / "run", contestant=contestant)
    assert recorded.diverged
    assert len(recorded.epochs) == 1
    assert recorded.epochs[0]["train_loss"] is not None


def test_failing_code_is_recorded_and_can_be_tried_again(tiny_task: MakeTask, tmp_path: Path) -> None:
    broken = True

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if broken:
            raise ArithmeticError("the user's own mistake")
        return F.cross_entropy(outputs, targets)

    task = tiny_task(loss=loss)
    config, folder = start(task, tmp_path)
    with pytest.raises(ArithmeticError):
        run(config, task, folder)
    assert "the user's own mistake" in (folder / "error.txt").read_text()
    broken = False
    assert run(config, task, folder).error is None


def test_a_state_that_is_not_plain_data_is_never_saved_as_pickle(tiny_task: MakeTask, tmp_path: Path) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)
            self.param_groups[0]["odd"] = Path("not data")

    task = tiny_task()
    contestant = Contestant.create("odd", Odd)
    recorded = run(RunConfig.plan(task, contestant, seed=0, epochs=3), task, tmp_path / "run", contestant=contestant)
    assert recorded.finished
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_keys_say_what_decides_the_numbers_and_nothing_else(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    base = start(task, tmp_path)[0].key
    same = [
        start(task, tmp_path, epochs=50)[0],
        start(task, tmp_path, position=3)[0],
        start(tiny_task(), tmp_path)[0],
        start(task, tmp_path, "surefoot.AdamS")[0],
        start(task, tmp_path, "adams:lr=1e-2")[0],
    ]
    other = [
        start(task, tmp_path, seed=1)[0],
        start(task, tmp_path, "adams:eta=0.5")[0],
        start(task, tmp_path, threads=2)[0],
        start(task, tmp_path, purpose="tune")[0],
        start(dataclasses.replace(task, batch_size=8), tmp_path)[0],
        start(dataclasses.replace(task, settings={"dropout": True}), tmp_path)[0],
        start(tiny_task(samples=71), tmp_path)[0],
        start(tiny_task(dropout=0.25), tmp_path)[0],
        start(tiny_task(loss=lambda a, b: F.cross_entropy(a, b)), tmp_path)[0],
    ]
    assert {config.key for config in same} == {base}
    keys = [config.key for config in other]
    assert len({base, *keys}) == len(keys) + 1
    assert start(task, tmp_path, "adam:lr=1")[0].key == start(task, tmp_path, "adam:lr=1.0")[0].key
    cosine = [start(task, tmp_path, "adam:schedule=cosine", epochs=n)[0].key for n in (5, 6)]
    assert cosine[0] != cosine[1]  # the schedule ends elsewhere
    assert RunConfig.from_json(json.loads(json.dumps(same[0].to_json()))).with_changes().key == base


def test_a_folder_of_another_run_is_not_touched(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    recorded = go(task, tmp_path, epochs=1)
    config, _ = start(task, tmp_path, seed=1)
    before = {path.name: path.read_bytes() for path in recorded.folder.iterdir()}
    with pytest.raises(StoreError, match="holds another run"):
        run(config, task, recorded.folder)
    assert {path.name: path.read_bytes() for path in recorded.folder.iterdir()} == before


def test_going_on_with_another_torch_is_recorded(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    config, folder = start(task, tmp_path, epochs=1)
    run(config, task, folder)
    there = dataclasses.replace(config.provenance, torch="9.9", time="later")
    resumed = run(dataclasses.replace(config, epochs=2, provenance=there), task, folder).config.provenance.resumed
    assert [entry.torch for entry in resumed] == ["9.9"]
