"""What a user's task computes with is in its runs' key, and is told alike by every process."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.spec.code import described
from surefoot.lab.spec.task import NAMED, Task, TaskError, named_task
from surefoot.lab.spec.task_code import task_code

X, Y = torch.linspace(-1, 1, 40).reshape(10, 4), torch.arange(10) % 3
SMOOTHING = 0.0


def toy(**fields: Any) -> Task:
    return Task(**{"name": "toy", "model": lambda: nn.Linear(4, 3), "train": (X, Y), "valid": (X, Y), **fields})


def scaled(factor: float) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return factor * F.cross_entropy(outputs, targets)

    return loss


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, label_smoothing=SMOOTHING)


@dataclasses.dataclass
class Scaled:
    factor: float

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.factor * F.cross_entropy(outputs, targets)

    def method(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self(outputs, targets)


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.factor * F.cross_entropy(outputs, targets)


def started_at(value: float) -> Any:
    def model() -> nn.Module:
        layer = nn.Linear(4, 3)
        nn.init.constant_(layer.weight, value)
        return layer

    return model


def sized(width: int) -> Any:
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))


PAIRS = {
    "closure": lambda value: {"loss": scaled(value)},
    "object": lambda value: {"loss": Scaled(value)},
    "method": lambda value: {"loss": Scaled(value).method},
    "slots": lambda value: {"loss": Slotted(value)},
    "torch object": lambda value: {"loss": nn.CrossEntropyLoss(label_smoothing=value / 8)},
    "torch object with tensors": lambda value: {"loss": nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, value]))},
    "torch class": lambda value: {"loss": (nn.CrossEntropyLoss if value == 1 else nn.MultiMarginLoss)()},
    "torch function": lambda value: {"loss": F.cross_entropy if value == 1 else F.multi_margin_loss},
    "partial": lambda value: {"loss": functools.partial(F.cross_entropy, label_smoothing=value / 8)},
    "default": lambda value: {"prepare": lambda inputs, generator, by=value: inputs + by},
    "keyword default": lambda value: {"prepare": lambda inputs, generator, *, by=value: inputs + by},
    "tensor": lambda value: {"prepare": functools.partial(torch.add, alpha=value)},
    "model": lambda value: {"model": started_at(value)},
    "model, partial": lambda value: {"model": functools.partial(sized, int(value))},
    "dropout": lambda value: {"model": lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(value / 8))},
    "metric": lambda value: {"metrics": {"loss10": scaled(value)}},
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_a_task_binds_is_told(what: str) -> None:
    one, same, other = (task_code(toy(**PAIRS[what](value))) for value in (1.0, 1.0, 2.0))
    assert one == same != other


def test_a_global_that_the_loss_reads_is_told_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy(loss=smoothed)
    one = task_code(task)
    monkeypatch.setitem(globals(), "UNREAD", 3)
    assert task_code(task) == one
    monkeypatch.setitem(globals(), "SMOOTHING", 0.5)
    assert task_code(task) != one


def test_a_helper_in_another_module_is_told_by_what_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_helper.py").write_text("class Scale:\n    factor = 2.0\nscale = Scale()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_helper  # type: ignore[import-not-found]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) * sys.modules["my_helper"].scale.factor

    one = task_code(toy(loss=loss))
    assert one == task_code(toy(loss=loss))
    my_helper.scale.factor = 3.0
    assert one != task_code(toy(loss=loss))


def test_a_named_task_is_told_by_its_name_unless_it_was_changed() -> None:
    for name in ("digits-lr", "digits-mlp", "digits-cnn"):
        assert task_code(named_task(name)) == ""
    assert task_code(named_task("digits-mlp", dropout=True).subset(50)) == ""
    assert set(NAMED) >= {"digits-mlp"}
    task = named_task("digits-mlp")
    changed = [
        dataclasses.replace(task, loss=nn.CrossEntropyLoss(label_smoothing=0.5)),
        dataclasses.replace(task, model=functools.partial(NAMED["digits-mlp"].model, dropout=True)),
        dataclasses.replace(task, prepare=lambda inputs, generator: inputs),
        dataclasses.replace(task, name="mine"),
    ]
    assert len({"", *map(task_code, changed)}) == 5


def test_the_probe_leaves_all_random_numbers_as_they_were() -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), np.random.rand()

    def model() -> nn.Module:
        draw()
        return nn.Linear(4, 3)

    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    expected = draw()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    task_code(toy(model=model))
    assert draw() == expected


def test_what_does_not_repeat_itself_or_fails_is_left_to_the_run() -> None:
    generator = np.random.default_rng()

    def model() -> nn.Module:
        return started_at(float(generator.random()))()

    def broken() -> nn.Module:
        raise ArithmeticError("the user's own mistake")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ArithmeticError("the user's own mistake")

    for task in (toy(model=model), toy(model=broken), toy(loss=loss)):
        assert task_code(task) == task_code(task)


def test_a_model_function_that_returns_no_model_is_told() -> None:
    with pytest.raises(TaskError, match=r"'toy': model must return a torch.nn.Module, not NoneType"):
        toy(model=lambda: None).fresh_model()


SCRIPT = """
import functools, torch
from torch import nn
from surefoot.lab.spec.task import Task
from surefoot.lab.spec.task_code import task_code

NAMES, WORDS = {"b", "a", "c", "longer"}, {"x": {"q", "w"}, ("y", 1): object()}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.names, self.act = nn.Linear(4, 3), set(NAMES), torch.relu
    def forward(self, x):
        return self.act(self.layer(x))

class Loss:
    def __init__(self):
        self.me, self.names, self.rng = self, frozenset(NAMES), torch.Generator()
    def __call__(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) * (1 if "a" in {"a", "b"} else len(WORDS))

x, y = torch.ones(8, 4), torch.zeros(8, dtype=torch.long)
task = Task("toy", Net, train=(x, y), valid=(x, y), loss=Loss(), prepare=functools.partial(lambda a, g, k=1: a))
print(task_code(task))
"""


@pytest.mark.parametrize("way", ["file", "-c"])
def test_another_process_tells_the_same(tmp_path: Path, way: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-c", SCRIPT] if way == "-c" else [sys.executable, str(script)]
    codes = {
        subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(codes) == 1
    assert len(codes.pop().strip()) == 16


def test_circles_and_arrays_are_described() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    assert described(circle) == "[1,#0]"
    long = np.zeros(5000)
    other = long.copy()
    other[2500] = 1
    assert described(long) == described(long.copy()) != described(other)
    words = [np.array(["a", None], dtype=object) for _ in range(2)]
    assert described(words[0]) == described(words[1]) == "object(2,)['a',None]"
    assert described(print) == "builtins:print"
