"""What the user's code is goes by what was loaded: edited code is other code, and a key never lies about it."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.lab.experiments import compare
from surefoot.lab.run.pool import OnEvent, Pool, Processes
from surefoot.lab.run.runner import run
from surefoot.lab.spec.code import code_digest
from surefoot.lab.spec.config import RunConfig, folder_of
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task, find_task, is_named
from surefoot.lab.spec.task_code import task_code

MakeTask = Callable[..., Task]
CELL = """
import torch
FACTOR = 1.0
def helper(x):
    return x * 1.0
class Parent(torch.optim.Optimizer):
    def change(self, p):
        return -helper(p.grad) * FACTOR
class Mine(Parent):
    twist = 1
    table = {"shares": [0.1, 0.9]}
    def __init__(self, params, lr=0.1, power=0.5):
        super().__init__(params, {"lr": lr, "power": power})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(self.change(p), alpha=1 * group["lr"])
"""


def defined(text: str = CELL) -> Any:
    """The class of a notebook's cell, which has no file."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "<a cell>", "exec"), names)
    return names["Mine"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alpha=1 *", "alpha=2 *"),  # inside a decorated function
        ("power=0.5", "power=0.6"),
        ("twist = 1", "twist = 2"),
        ("[0.1, 0.9]", "[0.2, 0.8]"),
        ("return -helper", "return helper"),  # in a parent
        ("x * 1.0", "x * 3.0"),
        ("FACTOR = 1.0", "FACTOR = 2.0"),
    ],
)
def test_an_edited_cell_is_another_optimizer(old: str, new: str) -> None:
    assert code_digest(defined()) == code_digest(defined()) != code_digest(defined(CELL.replace(old, new)))


def test_the_first_use_of_a_class_does_not_make_it_another() -> None:
    class Bare(torch.optim.SGD):
        pass

    for cls in (defined(), Bare):
        before = code_digest(cls)
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        cls([p], lr=0.1).step()  # torch has wrapped step() by now
        assert code_digest(cls) == before


def test_an_edited_cell_is_trained_again(tiny_task: MakeTask, tmp_path: Path) -> None:
    def last(text: str) -> float:
        found = compare(tiny_task(), ["adam", defined(text)], seeds=1, epochs=1, out=tmp_path, progress=False)
        return next(float(one.epochs[-1]["train_loss"]) for one in found.runs if one.label == "Mine")

    first = last(CELL)
    assert last(CELL.replace("alpha=1 *", "alpha=5 *")) != first
    assert last(CELL) == first
    assert len(list((tmp_path / "tiny").glob("mine-*"))) == 2


def test_a_module_goes_by_what_is_loaded_and_not_by_what_its_file_says_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my_rule_of_thumb.py"
    file.write_text("import torch\nclass Mine(torch.optim.SGD):\n    twist = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = "my_rule_of_thumb:Mine"
    before = Contestant.parse(spec).code()
    file.write_text(file.read_text().replace("1", "25"))
    assert Contestant.parse(spec).code() == before
    module = importlib.reload(sys.modules["my_rule_of_thumb"])
    assert Contestant.parse(spec).code() != before
    assert code_digest(module)


def test_code_that_changed_after_the_plan_is_not_trained(tiny_task: MakeTask, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\nclass Mine(torch.optim.SGD):\n    twist = 1\n")
    task, one = tiny_task(), Contestant.parse(f"{file}:Mine")
    config = RunConfig.plan(task, one, seed=0, epochs=1)
    file.write_text(file.read_text().replace("1", "2"))
    other = Contestant.parse(f"{file}:Mine")  # as a worker that starts now would load it
    with pytest.raises(ValueError, match="changed after the comparison began; start the command again"):
        run(config, task, folder_of(tmp_path, config), contestant=other)


def test_a_task_that_changed_after_the_plan_is_not_trained(tmp_path: Path) -> None:
    file = tmp_path / "my_task.py"
    file.write_text(
        "import torch\nfrom surefoot.lab import Task\nx, y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)\n"
        "mine = Task('mine', lambda: torch.nn.Linear(3, 2), (x, y), (x, y), batch_size=4)\n"
    )

    def late(on_event: OnEvent) -> Pool:
        """A pool whose workers load the task's file after it was edited."""
        file.write_text(file.read_text().replace("Linear(3, 2)", "Linear(3, 2, bias=False)"))
        return Processes(on_event)

    options = {"seeds": 1, "epochs": 1, "progress": False, "out": tmp_path}
    found = compare(str(file), ["sgd"], executor=late, **options)
    [message] = found.failures.values()
    assert "my_task.py' changed after the command began; start the command again" in message
    assert not found.runs
    assert compare(str(file), ["sgd"], jobs=2, **options).ok


def test_a_run_without_its_contestant_has_the_recorded_options(tiny_task: MakeTask, tmp_path: Path) -> None:
    task, one = tiny_task(), Contestant.parse("adams:eta=0.5,betas=(0.5,0.9)")
    config = RunConfig.plan(task, one, seed=0, epochs=1)
    given = run(config, task, tmp_path / "given", contestant=one)
    alone = run(config, task, tmp_path / "alone")
    assert given.epochs[-1]["train_loss"] == alone.epochs[-1]["train_loss"]


def test_functions_as_options_are_told_apart(tiny_task: MakeTask) -> None:
    class Shaped(torch.optim.SGD):
        def __init__(self, params: Any, lr: float = 0.1, shape: Any = None) -> None:
            super().__init__(params, lr)

    task = tiny_task()
    one, same, other = (
        RunConfig.plan(task, Contestant.create("a", Shaped, {"shape": shape}), seed=0, epochs=1).key
        for shape in (lambda t: t, lambda t: t, lambda t: t * t)
    )
    assert one == same != other


def test_a_named_task_with_other_data_is_another() -> None:
    task = find_task("digits-mlp")
    x, y = task.train
    assert is_named(task)
    other = dataclasses.replace(task, train=(x, y.flip(0)))
    assert not is_named(other)
    assert len({task.digest, other.digest, dataclasses.replace(task, train=(x, y.roll(1))).digest}) == 3
    travelled = pickle.loads(pickle.dumps(task.subset(50)))
    assert (travelled.digest, task_code(travelled)) == (task.digest, "")
    before = task.digest
    task.train[1][:20] = 0
    assert task.digest != before
    assert not is_named(task)
    assert not is_named(pickle.loads(pickle.dumps(task)))


def test_data_changed_in_place_are_others(tiny_task: MakeTask) -> None:
    task = tiny_task()
    before = task.digest
    assert task.digest == before
    task.valid[0].add_(1)
    assert task.digest != before
