"""A folder of runs under random use: commands, kills, hands-on changes and readers, in any order.

After every step each run folder holds, bit for bit, the epochs of a run that nobody disturbed, each once and none
lost; and after a command that ended, all that it was asked for. The machine knows the folder's files and the public
functions of the lab, nothing of the modules between them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from processes import exit_code, in_child
from surefoot.lab import Results, Task, compare, read_runs

Row = dict[str, Any]
Command = dict[str, Any]

MOST_EPOCHS = 4
#: One with statistics of the loss, one with torch's kernel, one whose key has the epochs, one that diverges.
OPTIMIZERS = ("adams:eta=0.1", "adam", "sgd:schedule=cosine", "sgd:lr=1e30")
STEPS_PER_EPOCH = 3
FILE_POINTS = ("before replace", "after replace", "before fsync", "after fsync")
KILLED = 9
#: A folder in memory where there is one: most of the time would go into fsync.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def margin(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.multi_margin_loss(outputs, targets)


def make_task(higher_is_better: bool) -> Task:
    """A task of milliseconds; `higher_is_better` is the direction of a metric, which is recorded and in no key."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 4, generator=generator)
    y = x[:, :3].argmax(1)
    metrics = {"margin": margin}
    directions = {"margin": higher_is_better}
    return Task(
        "tiny", model, train=(x, y), valid=(x[:10], y[:10]), batch_size=16, metrics=metrics, higher_is_better=directions
    )


TASKS = {higher_is_better: make_task(higher_is_better) for higher_is_better in (False, True)}


def go(out: Path, optimizers: list[str], seeds: list[int], epochs: int, higher_is_better: bool = False) -> Results:
    return compare(TASKS[higher_is_better], optimizers, seeds=seeds, epochs=epochs, out=out, lr=0.01, progress=False)


@contextmanager
def checkpoint_pace(often: bool) -> Iterator[None]:
    """Checkpoints after every epoch, or only after the last one: by the clock it would be left to chance."""
    pace = {"CHECKPOINT_SECONDS": 0.0, "CHECKPOINT_SHARE": float("inf")} if often else {"CHECKPOINT_SECONDS": 1e9}
    lab = [module for name, module in sys.modules.items() if name.startswith("surefoot.lab")]
    with ExitStack() as stack:
        for name, value in pace.items():
            homes = [module for module in lab if name in vars(module)]
            assert homes, f"no module of the lab has {name}"
            for module in homes:
                stack.enter_context(mock.patch.object(module, name, value))
        yield


@cache
def reference(spec: str, seed: int, epochs: int) -> tuple[list[Row], dict[str, Any] | None]:
    """Rows and last checkpoint of a run that nobody disturbed."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        [run] = go(Path(scratch), [spec], [seed], epochs).runs
        return numbers(run.epochs), checkpoint(run.folder)


def numbers(rows: list[Row]) -> list[Row]:
    """What training gives, without how long it took."""
    return [
        {name: value for name, value in row.items() if name not in ("seconds", "jobs", "peak_memory")} for row in rows
    ]


def checkpoint(folder: Path) -> dict[str, Any] | None:
    path = folder / "checkpoint.pt"
    return torch.load(path, weights_only=True) if path.exists() else None


def same(left: Any, right: Any) -> bool:
    """Whether two checkpoints are equal to the bit."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def whole_lines(folder: Path) -> list[Row]:
    """The rows of a run as the file has them, without their hashes and without a last line that was torn."""
    path = folder / "metrics.jsonl"
    data = path.read_bytes() if path.exists() else b""
    rows = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    return [{name: value for name, value in row.items() if name != "chain"} for row in rows]


def chained_lines(rows: list[Row], key: str) -> str:
    """The file of these rows: every line ends with a hash of itself and of the hash before it, the first of the key."""
    text, last = "", key
    for body in map(json.dumps, rows):
        last = hashlib.sha256(f"{last}{body}".encode()).hexdigest()[:16]
        text += f'{body[:-1]}, "chain": "{last}"}}\n'
    return text


def recorded_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def recorded_direction(folder: Path) -> bool:
    """Whether a report takes more of the metric for better."""
    directions = recorded_config(folder)["task"]["higher_is_better"]
    corrected = folder.parent / "task.json"
    if corrected.exists():
        directions = json.loads(corrected.read_text())["higher_is_better"]["tiny"]
    return directions["margin"]


def throw(error: BaseException) -> Callable[[], None]:
    def strike() -> None:
        raise error

    return strike


@contextmanager
def struck(point: str, number: int, strike: Callable[[], None], *, lasting: bool = False) -> Iterator[None]:
    """Call `strike` the `number`-th time that a command comes to a point: a step, or an operation on a file.

    Args:
        lasting: and every time after it.
    """
    left = number

    def here(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0 or (lasting and left < 0):
            strike()

    def before(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            here()
            return function(*arguments, **more)

        return call

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            result = function(*arguments, **more)
            here()
            return result

        return call

    if point == "step":
        handle = register_optimizer_step_post_hook(here)
        try:
            yield
        finally:
            handle.remove()
    else:
        when, name = point.split()
        wrapped = {"before": before, "after": after}[when](getattr(os, name))
        with mock.patch.object(os, name, wrapped):
            yield


def ended(pid: int) -> int | None:
    """The exit code of a child, None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


specs = st.lists(st.sampled_from(OPTIMIZERS), min_size=1, max_size=2, unique=True)
seed_lists = st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)
commands = st.fixed_dictionaries(
    {"optimizers": specs, "seeds": seed_lists, "epochs": st.integers(1, MOST_EPOCHS), "higher_is_better": st.booleans()}
)
step_points = st.tuples(st.just("step"), st.integers(1, 2 * STEPS_PER_EPOCH + 1))
file_points = st.tuples(st.sampled_from(FILE_POINTS), st.integers(1, 6))
points = step_points | file_points
places = st.integers(0, 11)


class RunFolders(RuleBasedStateMachine):
    """Drives one --out folder; knows of each run folder the lines that must stay there."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory(dir=MEMORY)
        self.out = Path(self.scratch.name) / "runs"
        self.rows: dict[Path, list[Row]] = {}
        self.keys: dict[Path, str] = {}
        self.unsaved: set[Path] = set()  # their checkpoint was deleted
        self.last: Command = {"optimizers": ["adam"], "seeds": [0], "epochs": 2, "higher_is_better": False}
        self.others = {
            self.out / "notes.txt": b"mine",
            self.out / "model" / "config.json": b'{"model_type": "bert"}',
            self.out / "tiny" / "todo.txt": b"more seeds",
        }
        for path, content in self.others.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def teardown(self) -> None:
        self.scratch.cleanup()

    # Commands that end.

    @rule(command=commands, often=st.booleans())
    def run(self, command: Command, often: bool) -> None:
        self.last = command
        self.finish(often)

    @rule(more=st.sampled_from(["nothing", "epochs", "seeds", "optimizers"]), often=st.booleans())
    def run_again(self, more: str, often: bool) -> None:
        """The same command, or one that asks for more."""
        command = dict(self.last)
        if more == "epochs":
            command["epochs"] = min(command["epochs"] + 1, MOST_EPOCHS)
        elif more == "seeds":
            command["seeds"] = [*dict.fromkeys([*command["seeds"], 0, 1])]
        elif more == "optimizers":
            command["optimizers"] = [*dict.fromkeys([*command["optimizers"], "adams:eta=0.1"])]
        self.last = command
        self.finish(often)

    def finish(self, often: bool) -> None:
        """The last command, this time to its end: nothing is missing then, and its results say so."""
        with checkpoint_pace(often):
            results = go(self.out, **self.last)
        assert results.ok, results.failures
        epochs = self.last["epochs"]
        wanted = {(spec, seed) for spec in self.last["optimizers"] for seed in self.last["seeds"]}
        for run in results.runs:
            config = recorded_config(run.folder)
            wanted.remove((config["optimizer"]["spec"], run.seed))
            expected, _ = reference(config["optimizer"]["spec"], run.seed, epochs)
            assert numbers(run.epochs) == expected
            assert recorded_direction(run.folder) == self.last["higher_is_better"]
            if len(self.rows.get(run.folder, [])) < len(expected):
                assert config["epochs"] >= epochs
                self.check_tidy(run.folder)
                self.unsaved.discard(run.folder)
        assert not wanted

    def check_tidy(self, folder: Path) -> None:
        """A run that was computed to its end leaves its last checkpoint, and no error, torn line or part of a file."""
        rows, saved = whole_lines(folder), checkpoint(folder)
        diverged = rows[-1]["diverged"]
        assert (folder / "metrics.jsonl").read_text() == chained_lines(rows, recorded_config(folder)["key"])
        assert {path.name for path in folder.iterdir()} - {"checkpoint.pt"} == {"config.json", "metrics.jsonl", "lock"}
        assert (saved is None) if diverged else (saved is not None and saved["epoch"] == rows[-1]["epoch"])

    # Commands that are stopped.

    @rule(command=commands, kills=st.lists(points, min_size=1, max_size=3), often=st.booleans(), resume=st.booleans())
    def kill(self, command: Command, kills: list[tuple[str, int]], often: bool, resume: bool) -> None:
        """A command is killed once or several times, on its way to the same end."""
        self.last = command
        for point in kills:
            pid = self.start(command, often, point)
            assert exit_code(pid) in (0, KILLED)
            self.folder_is_sound()
        if resume:
            self.finish(often)

    def start(self, command: Command, often: bool, point: tuple[str, int] | None = None, slow: bool = False) -> int:
        """The process of a command, which ends at this point as if it were killed; a slow one meets others."""

        def work() -> None:
            if slow:
                register_optimizer_step_post_hook(lambda *_: time.sleep(0.003))
            with checkpoint_pace(often), struck(*(point or ("step", -1)), lambda: os._exit(KILLED)):
                results = go(self.out, **command)
            os._exit(0 if results.ok else 1)

        return in_child(work)

    @rule(command=commands, point=points, often=st.booleans())
    def interrupt(self, command: Command, point: tuple[str, int], often: bool) -> None:
        """Ctrl-C."""
        self.last = command
        with suppress(KeyboardInterrupt), checkpoint_pace(often), struck(*point, throw(KeyboardInterrupt())):
            assert go(self.out, **command).ok

    @rule(command=commands, step=st.integers(1, 4 * STEPS_PER_EPOCH), often=st.booleans())
    def fail(self, command: Command, step: int, often: bool) -> None:
        """The user's code raises: this run fails, is recorded as failed, and the others are computed."""
        self.last = command
        with checkpoint_pace(often), struck("step", step, throw(ArithmeticError("too hard"))):
            results = go(self.out, **command)
        assert list(results.failures.values()) in ([], ["ArithmeticError: too hard"])
        for run in results.runs:
            failed = str(run.folder) in results.failures
            assert run.finished != failed
            if failed:
                assert "too hard" in (run.folder / "error.txt").read_text()

    @rule(command=commands, point=file_points, often=st.booleans())
    def fill_disk(self, command: Command, point: tuple[str, int], often: bool) -> None:
        """The disk is full from one moment on: the command says so once and stops."""
        self.last = command
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with checkpoint_pace(often), struck(*point, throw(full), lasting=True):
            results = go(self.out, **command)
        assert len(results.failures) <= 1
        assert all("free some space and run the same command again" in text for text in results.failures.values())

    @rule(command=commands, epochs=st.integers(1, MOST_EPOCHS), point=st.none() | points, often=st.booleans())
    def two_at_once(self, command: Command, epochs: int, point: tuple[str, int] | None, often: bool) -> None:
        """Two commands on the same runs, one of which may be killed, and a reader: the other one computes them all."""
        first = {**command, "seeds": [*command["seeds"], 3]}  # a seed that few other rules use: there is work left
        second = {**first, "epochs": epochs, "higher_is_better": often}
        self.last = second
        processes = [self.start(first, often, point, slow=True), self.start(second, not often, slow=True)]
        codes: list[int | None] = [None, None]
        while None in codes:
            self.check_readable()
            codes = [ended(pid) if code is None else code for pid, code in zip(processes, codes)]
        assert codes[0] in (0, KILLED if point else 0)
        assert codes[1] == 0
        for command, code in zip((first, second), codes):
            if code == 0:
                self.check_there(command)

    def check_there(self, command: Command) -> None:
        """What a command was asked for is in the folder."""
        there = []
        for folder in self.folders():
            config = recorded_config(folder)
            there.append((config["optimizer"]["spec"], config["seed"], numbers(whole_lines(folder))))
        for spec in command["optimizers"]:
            for seed in command["seeds"]:
                expected, _ = reference(spec, seed, command["epochs"])
                assert any(
                    (spec, seed, expected) == (name, number, rows[: len(expected)]) for name, number, rows in there
                )

    # Changes by hand.

    def pick(self, place: int) -> Path:
        return sorted(self.rows)[place % len(self.rows)]

    @precondition(lambda self: self.rows)
    @rule(place=places, keep_ending=st.booleans())
    def rename(self, place: int, keep_ending: bool) -> None:
        """A folder is found by its ending; without it, it is read but not continued."""
        old = self.pick(place)
        ending = "-".join(old.name.rsplit("-", 2)[-2:])
        new = old.with_name(
            f"mine-{ending}" if keep_ending else f"copy{len(list(old.parent.iterdir()))}-of-{old.name}.bak"
        )
        if not new.exists():
            old.rename(new)
            self.rows[new], self.keys[new] = self.rows.pop(old), self.keys.pop(old)
            if old in self.unsaved:
                self.unsaved.add(new)

    @precondition(lambda self: self.rows)
    @rule(place=places)
    def delete_run(self, place: int) -> None:
        folder = self.pick(place)
        shutil.rmtree(folder)
        del self.rows[folder], self.keys[folder]

    @precondition(lambda self: self.rows)
    @rule(place=places, keep=st.integers(0, MOST_EPOCHS), torn=st.integers(0, 40))
    def lose_lines(self, place: int, keep: int, torn: int) -> None:
        """The end of the metrics is gone, maybe in the middle of a line."""
        folder = self.pick(place)
        path = folder / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        path.write_bytes(b"".join(lines[:keep]) + b"".join(lines[keep : keep + 1])[:torn])
        self.rows[folder] = self.rows[folder][:keep]

    @precondition(lambda self: self.rows)
    @rule(place=places, name=st.sampled_from(["checkpoint.pt", "lock", ".checkpoint.pt.1.part", ".config.json.1.part"]))
    def delete_or_leave_file(self, place: int, name: str) -> None:
        """A file is deleted, or is left by a process that was killed while it wrote it."""
        path = self.pick(place) / name
        if name.endswith(".part"):
            path.write_bytes(b"half")
        else:
            path.unlink(missing_ok=True)
            self.unsaved.add(path.parent)

    # Readers.

    @precondition(lambda self: any(self.rows.values()))
    @rule(page=st.booleans())
    def report(self, page: bool) -> None:
        results = Results.read(self.out)
        assert "tiny" in results.to_markdown()
        results.check()
        if page:
            assert "</html>" in results.report(self.out.parent / "report.html").read_text()

    def folders(self) -> list[Path]:
        """The run folders, without the folder of the other program."""
        return sorted(path.parent for path in (self.out / "tiny").glob("*/config.json"))

    def check_readable(self) -> None:
        for run in read_runs(self.out):
            expected, _ = reference(*self.asked(run.folder))
            assert numbers(run.epochs) == expected[: len(run.epochs)]

    def asked(self, folder: Path) -> tuple[str, int, int]:
        """Optimizer, seed and epochs of the longest run that this one is a part of; a schedule has its own end."""
        config = recorded_config(folder)
        spec = config["optimizer"]["spec"]
        return spec, config["seed"], config["epochs"] if "schedule" in spec else MOST_EPOCHS

    @invariant()
    def folder_is_sound(self) -> None:
        folders = self.folders()
        assert self.rows.keys() <= {*folders}
        for folder in folders:
            rows, config = whole_lines(folder), recorded_config(folder)
            expected, _ = reference(*self.asked(folder))
            assert [row["epoch"] for row in rows] == [*range(1, len(rows) + 1)]
            assert numbers(rows) == expected[: len(rows)]
            before = self.rows.get(folder, [])
            assert rows[: len(before)] == before, "a line that was recorded is gone, or was computed again"
            assert config["key"] == self.keys.get(folder, config["key"])
            self.check_checkpoint(folder)
            self.rows[folder], self.keys[folder] = rows, config["key"]
        endings = [key for folder, key in self.keys.items() if folder.name.endswith(f"-{key[:8]}")]
        assert len(endings) == len(set(endings)), "a run was not found by its key, and begun again"
        recorded = read_runs(self.out)
        assert {run.folder: run.epochs for run in recorded} == self.rows
        assert not any(run.edited for run in recorded)
        assert all(run.chained for run in recorded)
        assert {path: path.read_bytes() for path in self.others} == self.others

    def check_checkpoint(self, folder: Path) -> None:
        """A checkpoint is whole and that of an undisturbed run at its epoch; a run that reached its end has one."""
        saved, rows = checkpoint(folder), whole_lines(folder)
        if rows and len(rows) == recorded_config(folder)["epochs"] and not rows[-1]["diverged"]:
            assert folder in self.unsaved or (saved is not None and saved["epoch"] >= len(rows))
        if saved is None:
            return
        spec, seed, epochs = self.asked(folder)
        if "schedule" in spec and saved["epoch"] != epochs:
            return  # the undisturbed run has the checkpoint of its end only
        _, expected = reference(spec, seed, saved["epoch"])
        assert expected is not None
        assert numbers([saved["row"]]) == numbers([expected["row"]])
        assert same({**saved, "row": None}, {**expected, "row": None})


RunFolders.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=12,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRunFolders = RunFolders.TestCase


@contextmanager
def machine() -> Iterator[RunFolders]:
    folders = RunFolders()
    try:
        yield folders
        folders.folder_is_sound()
    finally:
        folders.teardown()


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("spec", [OPTIMIZERS[0], OPTIMIZERS[2]])
def test_every_step_and_every_write_can_be_the_last(spec: str, often: bool) -> None:
    """What the machine does at random, once in order: a kill at each point of a run, then the rest of it."""
    command = {"optimizers": [spec], "seeds": [0], "epochs": 3, "higher_is_better": False}
    with machine() as folders:
        for number in range(1, 3 * STEPS_PER_EPOCH + 1, 2):
            folders.kill(command, [("step", number)], often, resume=True)
            folders.folder_is_sound()
            folders.delete_run(0)
        for point in FILE_POINTS:
            for number in (1, 2, 4):
                folders.kill(command, [(point, number)], often, resume=True)
                folders.folder_is_sound()
                folders.delete_run(0)


@pytest.mark.parametrize("keep", range(3))
def test_lines_that_are_lost_are_computed_again(keep: int) -> None:
    command = {"optimizers": ["adams:eta=0.1"], "seeds": [0], "epochs": 3, "higher_is_better": False}
    with machine() as folders:
        for torn in (0, 20):
            folders.run(command, True)
            folders.folder_is_sound()
            folders.lose_lines(0, keep, torn)
            folders.folder_is_sound()
            folders.run_again("nothing", True)


def test_a_corrected_direction_is_recorded_and_computes_nothing() -> None:
    command = {"optimizers": ["adam"], "seeds": [0, 1], "epochs": 2, "higher_is_better": False}
    with machine() as folders:
        folders.run(command, False)
        folders.folder_is_sound()
        folders.run({**command, "higher_is_better": True}, False)  # the machine compares the lines with those before
        assert [recorded_direction(folder) for folder in folders.folders()] == [True, True]


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    """What the machine relies on: rows of an undisturbed run do not depend on the epochs that were asked for."""
    for spec in OPTIMIZERS:
        if "schedule" not in spec:
            assert reference(spec, 0, 2)[0] == reference(spec, 0, MOST_EPOCHS)[0][:2]
    assert len(reference("sgd:lr=1e30", 0, MOST_EPOCHS)[0]) == 1
