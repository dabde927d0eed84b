"""Several worker processes on one list of trials: on SQLite, and on a real PostgreSQL server."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.run.pool import OnEvent, Outcome, Pool, Processes, RunJob
from surefoot.lab.store import StoreError, read_metrics, read_runs
from surefoot.lab.tune import tune

optuna = pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'surefoot[tune]'")

TASK = """
import os, time
import torch
from torch import nn
from surefoot.lab import Task

x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()

def prepare(batch, generator):
    if generator is not None:
        time.sleep(float(os.environ.get("PAUSE", "0")))
    return batch

task = Task("mine", lambda: nn.Linear(4, 2), train=(x, y), valid=(x, y), batch_size=10, prepare=prepare)
"""
SPACE = {"eta": "1e-4,1e-2", "lr": "1e-3,1e-2,1e-1,1"}


@pytest.fixture
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'list.db'}"
    return str(request.getfixturevalue("postgres"))


@functools.cache
def opened(url: str) -> Any:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.storages.RDBStorage(url.replace("postgresql://", "postgresql+psycopg://"))


def trials(url: str) -> list[Any]:
    """The trials as Optuna itself sees them."""
    return optuna.load_study(study_name=None, storage=opened(url)).trials


def until(condition: Callable[[], bool], what: str, process: subprocess.Popen[bytes], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the command ended before {what}"
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.2)


@pytest.mark.timeout(900)  # several processes that import torch, on a machine that may have other things to do
@pytest.mark.parametrize("storage", ["sqlite", "postgresql"], indirect=True)
def test_workers_share_a_grid_and_take_up_what_a_killed_one_left(storage: str, tmp_path: Path) -> None:
    path, out = tmp_path / "my_task.py", tmp_path / "runs"
    path.write_text(TASK)
    words = [
        sys.executable,
        "-c",
        "from surefoot.cli import main; main()",
        "tune",
        str(path),
        "-o",
        "adams",
        "--no-prune",
        "-q",
    ]
    words += ["--seeds", "1", "--epochs", "3", "--storage", storage, "--out", str(out)]
    for name, values in SPACE.items():
        words += [f"--{name}", values]

    def states() -> list[str]:
        return [trial.state.name for trial in trials(storage)]

    def trained() -> bool:
        return any(read_metrics(path)[0] for path in out.rglob("metrics.jsonl"))

    slow = subprocess.Popen(words, env={**os.environ, "PAUSE": "0.6"})
    others = None
    try:
        until(trained, "its first epoch", slow)
        slow.send_signal(signal.SIGSTOP)  # slow, but not dead: nobody may take its trial
        assert states().count("RUNNING") == 1
        others = subprocess.Popen([*words, "--jobs", "2"], stdout=subprocess.DEVNULL)
        until(lambda: states().count("COMPLETE") == 7, "all trials but one", others)
        time.sleep(1.0)  # time enough for a waiting worker to do something wrong
        assert others.poll() is None
        assert sorted(states()) == ["COMPLETE"] * 7 + ["RUNNING"]
        slow.kill()
        assert others.wait(240) == 0
    finally:
        for process in (slow, others):
            if process is not None:
                process.kill()
                process.wait()

    recorded = trials(storage)
    done = [trial for trial in recorded if trial.state.name == "COMPLETE"]
    [lost] = [trial for trial in recorded if trial.state.name != "COMPLETE"]
    assert lost.state.name == "FAIL"
    # every point once; the lost one is counted once, with its own setting
    points = [(trial.params["eta"], trial.params["lr"]) for trial in done]
    assert sorted(points) == sorted((eta, lr) for eta in (1e-4, 1e-2) for lr in (1e-3, 1e-2, 1e-1, 1))
    [again] = [trial for trial in done if trial.user_attrs["slot"] == lost.user_attrs["slot"]]
    assert again.params == lost.params
    assert again.user_attrs["attempt"] == 2
    assert len({trial.user_attrs["worker"] for trial in done}) == 2
    assert len(read_runs(out, tuning=True)) == 8
    assert read_runs(out) == []  # trials are no results
    # the same command has nothing left to do, and one undisturbed process finds the same, to the last bit
    alone = tune(
        str(path), ["adams"], space=SPACE, seeds=1, epochs=3, prune=False, out=tmp_path / "alone", progress=False
    )
    assert {trial.user_attrs["slot"]: trial.value for trial in done} == {
        trial.slot: trial.value for trial in alone.studies[0].trials
    }


DEADLY = """
import os, signal
from pathlib import Path
import torch

class Deadly(torch.optim.SGD):
    def step(self, closure=None):
        first = Path(os.environ["MARKER"])
        if self.param_groups[0]["lr"] == 0.5 or (self.param_groups[0]["lr"] == 0.25 and not first.exists()):
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.param_groups[0]["lr"] == 0.75:
            raise ArithmeticError("too fast")
        return super().step(closure)
"""


@pytest.mark.timeout(300)
def test_a_process_that_dies_costs_its_trial_an_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, optimizer, out = tmp_path / "my_task.py", tmp_path / "deadly.py", tmp_path / "runs"
    path.write_text(TASK)
    optimizer.write_text(DEADLY)
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    result = tune(
        str(path),
        [f"{optimizer}:Deadly"],
        space={"lr": "0.125,0.25,0.5,0.75"},
        seeds=2,
        epochs=2,
        out=out,
        jobs=2,
        progress=False,
    )
    attempts = {
        lr: [
            trial.user_attrs["attempt"] for trial in trials(f"sqlite:///{out / 'tune.db'}") if trial.params["lr"] == lr
        ]
        for lr in (0.125, 0.25, 0.5, 0.75)
    }
    assert attempts == {0.125: [1], 0.25: [1, 2], 0.5: [1, 2, 3], 0.75: [1]}
    assert sorted(trial.options["lr"] for trial in result.studies[0].trials) == [0.125, 0.25]
    assert sorted(message for _, message in result.failures) == [
        "ArithmeticError: too fast",
        "its worker process ended by signal SIGKILL; is there enough memory?",
    ]


def test_an_error_of_the_search_ends_all_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my_task.py"
    path.write_text(TASK)
    computed: list[RunJob] = []

    class Full(Processes):
        """A pool that finds the disk full with its second job."""

        def submit(self, job: RunJob) -> Future[Outcome]:
            computed.append(job)
            if len(computed) < 2:
                return super().submit(job)
            future = Future[Outcome]()
            future.set_result(Outcome("failed", "no space left", fatal=True))
            return future

    def full(on_event: OnEvent) -> Pool:
        monkeypatch.setenv("PAUSE", "1000")  # no run ends by itself
        return Full(on_event, jobs=2)

    options: dict[str, Any] = {"space": {"lr": "0.1,0.2,0.3"}, "seeds": 1, "epochs": 1, "out": tmp_path, "jobs": 2}
    with pytest.raises(StoreError, match="no space left"):
        tune(str(path), ["sgd"], executor=full, progress=False, **options)
    states = sorted(trial.state.name for trial in trials(f"sqlite:///{tmp_path / 'tune.db'}"))
    assert states == ["RUNNING", "RUNNING", "WAITING"]  # the next command takes them up
    monkeypatch.delenv("PAUSE")
    assert tune(str(path), ["sgd"], progress=False, **options).ok
