"""Pools: what is sent to another process, what comes last, and what ends with a pool."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from surefoot.lab.run.pool import Event, InProcess, Outcome, Processes, RunJob, TaskSource, run_all
from surefoot.lab.spec.config import RunConfig, folder_of
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task

MakeTask = Callable[..., Task]


def make_jobs(task: Task, out: Path, *, seeds: int, epochs: int, spec: str = "") -> list[RunJob]:
    contestant, source = Contestant.parse("sgd"), TaskSource(spec, task=task)
    configs = [RunConfig.plan(task, contestant, seed=seed, epochs=epochs) for seed in range(seeds)]
    return [RunJob(seed, config, folder_of(out, config), source, contestant) for seed, config in enumerate(configs)]


def test_a_task_with_a_name_is_not_sent(tiny_task: MakeTask) -> None:
    task = tiny_task(loss=lambda outputs, targets: outputs.sum())  # cannot be pickled
    source = TaskSource("digits-lr", task=task)
    assert source.load() is task
    there = pickle.loads(pickle.dumps(source))
    assert there.task is None
    assert there.load().name == "digits-lr"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(TaskSource(task=task))


def test_what_another_command_holds_comes_last_and_a_full_disk_ends_all(tiny_task: MakeTask, tmp_path: Path) -> None:
    submitted: list[tuple[int, bool]] = []
    planned = {0: ["waiting", "done"], 1: ["done"], 2: ["failed"]}

    class Planned(InProcess):
        def submit(self, job: RunJob) -> Future[Outcome]:
            submitted.append((job.index, job.wait))
            future = Future[Outcome]()
            kind = planned[job.index].pop(0)
            future.set_result(Outcome(kind, fatal=job.index == 3))  # type: ignore[arg-type]
            return future

    jobs = make_jobs(tiny_task(), tmp_path, seeds=5, epochs=1)
    outcomes = run_all(Planned(lambda event: None), jobs[:3])
    assert submitted == [(0, False), (1, False), (2, False), (0, True)]
    assert {index: outcome.kind for index, outcome in outcomes.items()} == {0: "done", 1: "done", 2: "failed"}
    submitted.clear()
    planned.update({3: ["failed"], 4: ["done"]})
    assert list(run_all(Planned(lambda event: None), jobs[3:])) == [3]
    assert submitted == [(3, False)]


def test_a_pool_that_is_left_ends_its_runs_and_whoever_waits_for_them(tiny_task: MakeTask, tmp_path: Path) -> None:
    jobs = make_jobs(tiny_task(), tmp_path, seeds=2, epochs=10**6)
    trained = threading.Event()
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        if event.kind == "epoch":
            trained.set()

    errors: list[BaseException] = []

    def wait_for(future: Future[Outcome]) -> None:
        try:
            future.result()
        except CancelledError as error:
            errors.append(error)

    with Processes(on_event) as pool:
        waiters = [threading.Thread(target=wait_for, args=(pool.submit(job),)) for job in jobs]
        for waiter in waiters:
            waiter.start()
        assert trained.wait(200)
    for waiter in waiters:
        waiter.join(30)
        assert not waiter.is_alive()
    assert len(errors) == 2
    assert {event.kind for event in events} == {"start", "epoch"}  # neither failed
    assert not list(tmp_path.rglob("error.txt"))


def test_an_error_of_the_display_reaches_the_caller(tiny_task: MakeTask, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if event.kind == "epoch":
            raise BrokenPipeError("nobody reads this")  # not to be taken for the death of the process

    with Processes(on_event) as pool, pytest.raises(BrokenPipeError, match="nobody reads this"):
        run_all(pool, make_jobs(tiny_task(), tmp_path, seeds=1, epochs=3))
    assert not list(tmp_path.rglob("error.txt"))
