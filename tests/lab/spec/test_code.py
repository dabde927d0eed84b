"""Fingerprints of users' code: edited code is other code, and every process takes the same fingerprint."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import linecache
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.experiments import compare
from surefoot.lab.run.pool import OnEvent, Pool, Processes
from surefoot.lab.run.runner import run
from surefoot.lab.spec.builtin import NAMED, named_task
from surefoot.lab.spec.code import CodeError, fingerprint, task_fingerprint
from surefoot.lab.spec.config import RunConfig, folder_of
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import Task, TaskError

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
    """The class that a notebook's cell defines; as in IPython, Python knows the text under a made-up file name."""
    file = f"/tmp/a_notebook/{hashlib.sha256(text.encode()).hexdigest()}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), names)
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
    assert fingerprint(defined()) == fingerprint(defined()) != fingerprint(defined(CELL.replace(old, new)))


def test_the_first_use_of_a_class_does_not_make_it_another() -> None:
    class Bare(torch.optim.SGD):
        pass

    for cls in (defined(), Bare):
        before = fingerprint(cls)
        p = torch.nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        cls([p], lr=0.1).step()  # torch has wrapped step() by now
        assert fingerprint(cls) == before


def test_an_edited_cell_is_trained_again(tiny_task: MakeTask, tmp_path: Path) -> None:
    def last(text: str) -> float:
        results = compare(tiny_task(), ["adam", defined(text)], seeds=1, epochs=1, out=tmp_path, progress=False)
        return next(float(record.epochs[-1]["train_loss"]) for record in results.runs if record.label == "Mine")

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
    assert fingerprint(module)


def test_code_that_changed_after_the_plan_is_not_trained(tiny_task: MakeTask, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\nclass Mine(torch.optim.SGD):\n    twist = 1\n")
    task, contestant = tiny_task(), Contestant.parse(f"{file}:Mine")
    config = RunConfig.plan(task, contestant, seed=0, epochs=1)
    file.write_text(file.read_text().replace("1", "2"))
    other = Contestant.parse(f"{file}:Mine")  # as a worker that starts now would load it
    with pytest.raises(ValueError, match="changed after the comparison began; start the command again"):
        run(config, task, folder_of(tmp_path, config), contestant=other)


def test_a_task_whose_data_are_drawn_anew_is_not_trained_in_another_process(tmp_path: Path) -> None:
    file = tmp_path / "my_task.py"
    file.write_text(
        "import random, torch\nfrom surefoot.lab import Task\n"
        "x, y = torch.full((8, 3), random.SystemRandom().random()), torch.zeros(8, dtype=torch.long)\n"
        "mine = Task('mine', lambda: torch.nn.Linear(3, 2), (x, y), (x, y), batch_size=4)\n"
    )
    results = compare(str(file), ["sgd"], seeds=1, epochs=1, jobs=2, progress=False, out=tmp_path / "runs")
    [message] = results.failures.values()
    assert "my_task.py' has other data each time it is loaded; draw them with a fixed seed" in message


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
    results = compare(str(file), ["sgd"], executor=late, **options)
    [message] = results.failures.values()
    assert "my_task.py' changed after the command began; start the command again" in message
    assert not results.runs
    assert compare(str(file), ["sgd"], jobs=2, **options).ok


def test_a_run_without_its_contestant_has_the_recorded_options(tiny_task: MakeTask, tmp_path: Path) -> None:
    task, contestant = tiny_task(), Contestant.parse("adams:eta=0.5,betas=(0.5,0.9)")
    config = RunConfig.plan(task, contestant, seed=0, epochs=1)
    given = run(config, task, tmp_path / "given", contestant=contestant)
    alone = run(config, task, tmp_path / "alone")
    assert given.epochs[-1]["train_loss"] == alone.epochs[-1]["train_loss"]


def test_functions_as_options_have_different_fingerprints(tiny_task: MakeTask) -> None:
    class Shaped(torch.optim.SGD):
        def __init__(self, params: Any, lr: float = 0.1, shape: Any = None) -> None:
            super().__init__(params, lr)

    task = tiny_task()
    first, same, other = (
        RunConfig.plan(task, Contestant.create("a", Shaped, {"shape": shape}), seed=0, epochs=1).key
        for shape in (lambda t: t, lambda t: t, lambda t: t * t)
    )
    assert first == same != other


def test_a_named_task_with_other_data_is_another() -> None:
    task = find_task("digits-mlp")
    x, y = task.train
    assert task.is_built_in
    other = dataclasses.replace(task, train=(x, y.flip(0)))
    assert not other.is_built_in
    assert len({task.digest, other.digest, dataclasses.replace(task, train=(x, y.roll(1))).digest}) == 3
    travelled = pickle.loads(pickle.dumps(task.subset(50)))
    assert (travelled.digest, task_fingerprint(travelled)) == (task.digest, "")
    before = task.digest
    task.train[1][:20] = 0
    assert task.digest != before
    assert not task.is_built_in
    assert not pickle.loads(pickle.dumps(task)).is_built_in


def test_data_changed_in_place_are_others(tiny_task: MakeTask) -> None:
    task = tiny_task()
    before = task.digest
    assert task.digest == before
    task.valid[0].add_(1)
    assert task.digest != before


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
def test_what_a_task_binds_is_part_of_its_fingerprint(what: str) -> None:
    first, same, other = (task_fingerprint(toy(**PAIRS[what](value))) for value in (1.0, 1.0, 2.0))
    assert first == same != other


def test_a_global_that_the_loss_reads_is_part_of_the_fingerprint_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = toy(loss=smoothed)
    before = task_fingerprint(task)
    monkeypatch.setitem(globals(), "UNREAD", 3)
    assert task_fingerprint(task) == before
    monkeypatch.setitem(globals(), "SMOOTHING", 0.5)
    assert task_fingerprint(task) != before


def test_a_helper_in_another_module_is_fingerprinted_by_what_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_helper.py").write_text("class Scale:\n    factor = 2.0\nscale = Scale()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_helper  # type: ignore[import-not-found]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) * sys.modules["my_helper"].scale.factor

    before = task_fingerprint(toy(loss=loss))
    assert before == task_fingerprint(toy(loss=loss))
    my_helper.scale.factor = 3.0
    assert before != task_fingerprint(toy(loss=loss))


def test_a_named_task_is_recorded_by_name_unless_it_was_changed() -> None:
    for name in ("digits-lr", "digits-mlp", "digits-cnn"):
        assert task_fingerprint(named_task(name)) == ""
    assert task_fingerprint(named_task("digits-mlp", dropout=True).subset(50)) == ""
    assert set(NAMED) >= {"digits-mlp"}
    task = named_task("digits-mlp")
    changed = [
        dataclasses.replace(task, loss=nn.CrossEntropyLoss(label_smoothing=0.5)),
        dataclasses.replace(task, model=functools.partial(NAMED["digits-mlp"].model, dropout=True)),
        dataclasses.replace(task, prepare=lambda inputs, generator: inputs),
        dataclasses.replace(task, name="mine"),
    ]
    assert len({"", *map(task_fingerprint, changed)}) == 5


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
    task_fingerprint(toy(model=model))
    assert draw() == expected


def test_code_that_fails_or_does_not_repeat_itself_is_left_to_the_run() -> None:
    generator = np.random.default_rng()

    def model() -> nn.Module:
        return started_at(float(generator.random()))()

    def broken() -> nn.Module:
        raise ArithmeticError("the user's own mistake")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ArithmeticError("the user's own mistake")

    for task in (toy(model=model), toy(model=broken), toy(loss=loss)):
        assert task_fingerprint(task) == task_fingerprint(task)


def test_a_model_function_that_returns_no_model_is_refused() -> None:
    with pytest.raises(TaskError, match=r"'toy': model must return a torch.nn.Module, not NoneType"):
        toy(model=lambda: None).fresh_model()


SCRIPT = """
import functools, torch
from torch import nn
from surefoot.lab.spec.task import Task
from surefoot.lab.spec.code import task_fingerprint

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
print(task_fingerprint(task))
"""


def output_of(*arguments: object, seed: str = "0") -> str:
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    return ended.stdout.strip() or ended.stderr.strip()


def test_another_process_takes_the_same_fingerprint(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    [code] = {output_of(script, seed=seed) for seed in ("1", "2", "3")}
    assert len(code) == 16
    script.write_text(SCRIPT.replace("\nprint(", "\nseeds = 10\nprint("))  # what the task does not read may change
    assert output_of(script) == code
    script.write_text(SCRIPT.replace('if "a" in', 'if "b" in'))
    assert output_of(script) != code


def test_code_without_a_source_is_refused() -> None:
    assert "CodeError: the source of Net.__init__ is unknown" in output_of("-c", SCRIPT)


HELPERS = {
    "my_scale": "factor = 2.0\n",
    "my_losses": "from my_scale import factor\ndef loss(x):\n    return factor * x\n",
}


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with two modules that can be imported; one reads the other."""
    for name, text in HELPERS.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in HELPERS:
        sys.modules.pop(name, None)


def imported_loss() -> Any:
    for name in HELPERS:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("my_losses").loss


@pytest.mark.parametrize(("module", "old", "new"), [("my_scale", "2.0", "3.0"), ("my_losses", "factor *", "factor +")])
def test_an_edited_helper_makes_another_task(helpers: Path, module: str, old: str, new: str) -> None:
    first = fingerprint(imported_loss())
    assert fingerprint(imported_loss()) == first
    (helpers / f"{module}.py").write_text(HELPERS[module].replace(old, new))
    assert fingerprint(imported_loss()) != first


def test_a_file_that_was_edited_after_its_import_is_refused(helpers: Path) -> None:
    loss = imported_loss()
    (helpers / "my_losses.py").write_text(HELPERS["my_losses"].replace("factor *", "factor +"))
    with pytest.raises(CodeError, match=r"my_losses.py was edited after it was imported; import it again"):
        fingerprint(loss)


def test_classes_of_one_text_differ_by_what_they_enclose() -> None:
    def make(power: float) -> Any:
        class Mine(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                return power

        return Mine

    assert fingerprint(make(1.0)) == fingerprint(make(1.0)) != fingerprint(make(2.0))
