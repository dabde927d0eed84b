"""Where runs are computed: in this process, or in worker processes with pinned threads.

An executor is a function `(source, requests, report)`: it computes every request and calls `report` with an
Event for what happens. Another place to compute (a cluster) is another such function, built on `execute`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

from surefoot._extras import require
from surefoot.lab.run.runner import run
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task, TaskError, find_task
from surefoot.lab.spec.task_code import task_code, task_identity
from surefoot.lab.spec.user_code import FAULTS
from surefoot.lab.store import Busy, StoreError, write_atomic


@dataclass(frozen=True)
class TaskSource:
    """How a process gets at the task: by name, or as a value that is sent to it."""

    spec: str = ""
    data_dir: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    task: Task | None = None
    #: `task_identity` of the task that the runs were planned with; when '' any will do.
    planned: str = ""

    def load(self) -> Task:
        """The task itself; refused when it is another by now, since its runs would be filed under the planned one."""
        if self.task is not None:
            return self.task
        task = find_task(self.spec, self.data_dir, **self.overrides)
        if self.planned and task_identity(task, task_code(task)) != self.planned:
            raise TaskError(f"the task {self.spec!r} changed after the command began; start the command again")
        return task


@dataclass(frozen=True)
class RunRequest:
    """One run to compute."""

    index: int
    config: dict[str, Any]
    folder: Path
    contestant: Contestant
    start: Path | None = None
    jobs: int = 1


@dataclass(frozen=True)
class Event:
    """What happened to a request: it started, recorded an epoch (`row`), ended, or is held by another command."""

    kind: Literal["start", "epoch", "done", "failed", "waiting"]
    index: int
    row: dict[str, Any] | None = None
    message: str = ""
    fatal: bool = False


Report = Callable[[Event], None]


class Executor(Protocol):
    """Computes the requests and reports what happens; returns when all are done or one failed fatally."""

    def __call__(self, source: TaskSource, requests: Sequence[RunRequest], report: Report) -> None: ...


def execute(request: RunRequest, task: Task, report: Report, *, wait: bool = True) -> Event:
    """Compute one request here, whatever its code does; returns the event it ended with."""
    report(Event("start", request.index))
    try:
        run(
            request.config,
            task,
            request.folder,
            lambda row: report(Event("epoch", request.index, row)),
            contestant=request.contestant,
            start=request.start,
            jobs=request.jobs,
            wait=wait,
        )
        last = Event("done", request.index)
    except Busy as error:
        last = Event("waiting", request.index, message=str(error))
    except StoreError as error:
        last = Event("failed", request.index, message=str(error), fatal=error.fatal)
    except FAULTS as error:  # sys.exit in a user's model ends its run, not the comparison
        last = Event("failed", request.index, message=f"{type(error).__name__}: {error}")
    report(last)
    return last


def in_process(source: TaskSource, requests: Sequence[RunRequest], report: Report) -> None:
    """Compute one run after the other in this process."""
    task = source.load()
    held = []
    for request in requests:
        last = execute(request, task, report, wait=False)
        if last.fatal:
            return
        if last.kind == "waiting":
            held.append(request)
    for request in held:
        if execute(request, task, report).fatal:
            return


def in_workers(source: TaskSource, requests: Sequence[RunRequest], report: Report) -> None:
    """Compute in as many worker processes as the requests' `jobs` say; one that dies fails its run only."""
    if not requests:
        return
    queue, held = deque(requests), deque[RunRequest]()
    count = min(requests[0].jobs, len(requests))
    workers = [Worker(source, requests[0].config["threads"]) for _ in range(count)]
    try:
        busy: dict[Connection, Worker] = {}
        for worker in workers:
            worker.send_task()
        while True:
            for worker in workers:
                if worker.request is None and (queue or held):
                    last_resort = not queue
                    worker.give((queue or held).popleft(), wait=last_resort)
                    busy[worker.connection] = worker
            if not busy:
                return
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]
                request = worker.request
                assert request is not None
                event = worker.receive()
                if event is None:
                    event = _died(worker, request)
                    workers.remove(worker)
                    if queue or held:
                        workers.append(Worker(source, request.config["threads"]))
                        workers[-1].send_task()
                report(event)
                if event.kind in ("done", "failed", "waiting"):
                    del busy[worker.connection]
                    worker.request = None
                if event.kind == "waiting":
                    held.append(request)
                if event.fatal:
                    return
    finally:
        for worker in workers:
            worker.kill()


class Worker:
    """A child process that imports torch once and computes requests for as long as its parent is there."""

    def __init__(self, source: TaskSource, threads: int) -> None:
        self.source = source
        self.request: RunRequest | None = None
        ours, theirs = socket.socketpair()
        number = str(threads)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": number,
            "MKL_NUM_THREADS": number,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        with _ignoring_interrupts():  # Ctrl-C reaches the whole group of processes; only the parent answers it
            self.process = subprocess.Popen(
                [sys.executable, "-m", "surefoot.lab.run.worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=2,  # what user code prints must not end up in a table
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        theirs.close()
        self.connection = Connection(ours.detach())

    def send_task(self) -> None:
        self._send(self.source)

    def give(self, request: RunRequest, *, wait: bool) -> None:
        self.request = request
        self._send((request, wait))

    def receive(self) -> Event | None:
        """The next event, or None when the process died."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.wait()
            return None

    def kill(self) -> None:
        """End the process: safe at any moment, as every file it writes is."""
        self.connection.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def _send(self, message: Any) -> None:
        # A notebook's own classes and functions travel by value.
        dumps = require("cloudpickle", extra="lab").dumps
        with suppress(OSError):  # it died; receive() will tell
            self.connection.send_bytes(dumps(message))


def _died(worker: Worker, request: RunRequest) -> Event:
    code = worker.process.returncode
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    message = f"its worker process ended {how}" + ("; is there enough memory?" if code == -signal.SIGKILL else "")
    worker.kill()
    with suppress(StoreError):
        write_atomic(request.folder / "error.txt", f"{message}\n".encode())
    return Event("failed", request.index, message=message)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
