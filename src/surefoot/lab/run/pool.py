"""Where runs are computed: in this process, or in worker processes with pinned threads.

A pool takes jobs and returns a future of how each ended; what happens meanwhile it reports as events. Another place to
compute (a cluster) is another pool, built on `execute`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from surefoot._extras import require
from surefoot.lab.run.memory import keep_freed_memory
from surefoot.lab.run.runner import run
from surefoot.lab.run.trainer import task_fault
from surefoot.lab.spec.code import FAULTS, error_text
from surefoot.lab.spec.config import RunConfig, TaskConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import Task, TaskError
from surefoot.lab.store import Busy, StoreError, write_atomic


@dataclass(frozen=True)
class TaskSource:
    """How a process gets the task: by name or file where there is one, otherwise as a value that is sent to it."""

    spec: str = ""
    data_dir: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    #: The task itself, where it is loaded already; another process loads it again if it has a spec.
    task: Task | None = None
    #: What the runs record of the task; None accepts any.
    planned: TaskConfig | None = None

    def load(self) -> Task:
        """The task; refused if it changed since the runs were planned: they would be filed under the old one."""
        if self.task is not None:
            return self.task
        task = find_task(self.spec, self.data_dir, **self.overrides)
        if self.planned is not None and (config := TaskConfig.plan(task, self.spec)) != self.planned:
            same_source = "source" in config.settings and config.settings == self.planned.settings
            if same_source and config.data != self.planned.data:
                raise TaskError(
                    f"the task {self.spec!r} has other data each time it is loaded; draw them with a fixed seed, as in "
                    "torch.randn(600, 8, generator=torch.Generator().manual_seed(0))"
                )
            raise TaskError(f"the task {self.spec!r} changed after the command began; start the command again")
        return task

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "task": None if self.spec else self.task}


#: Stands in a job for a source that its process was sent before.
SENT = TaskSource()


@dataclass(frozen=True)
class RunJob:
    """One run to compute.

    Args:
        index: Its place among the runs of the command, by which events name it.
        start: Checkpoint of the run that this one is forked from.
        jobs: How many runs share the machine; recorded with each epoch.
        wait: Wait while another command computes this run; otherwise it ends as "waiting".
    """

    index: int
    config: RunConfig
    folder: Path
    source: TaskSource
    contestant: Contestant
    start: Path | None = None
    jobs: int = 1
    wait: bool = False


@dataclass(frozen=True)
class Event:
    """What happened to a job: it started, recorded an epoch (`row`), ended, or is held by another command."""

    kind: Literal["start", "epoch", "done", "failed", "waiting"]
    index: int
    row: dict[str, Any] | None = None
    message: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Args:
        fatal: No other run could be computed either: the disk is full, or the task itself fails.
        died: Its process died; the run can go on from its checkpoint.
    """

    kind: Literal["done", "failed", "waiting"]
    message: str = ""
    fatal: bool = False
    died: bool = False

    def event(self, index: int) -> Event:
        return Event(self.kind, index, message=self.message)


OnEvent = Callable[[Event], None]


class Pool(Protocol):
    """Computes jobs; leaving its context ends those that are still at work."""

    def submit(self, job: RunJob) -> Future[Outcome]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


#: Makes a pool that reports to this function; what `compare(..., executor=...)` takes.
MakePool = Callable[[OnEvent], Pool]


def run_all(pool: Pool, jobs: Sequence[RunJob]) -> dict[int, Outcome]:
    """Compute these jobs and return how each ended, by its index; a fatal outcome leaves the others out.

    What another command holds comes last, since it may be done by then.
    """
    outcomes: dict[int, Outcome] = {}
    queue, pending = deque(jobs), dict[Future[Outcome], RunJob]()
    while queue or pending:
        while queue:
            job = queue.popleft()
            future = pool.submit(job)
            pending[future] = job
            if future.done():  # it was computed in this process: look at it before the next one begins
                break
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            job, outcome = pending.pop(future), future.result()
            if outcome.kind == "waiting":
                queue.append(replace(job, wait=True))
            else:
                outcomes[job.index] = outcome
            if outcome.fatal:
                return outcomes
    return outcomes


def execute(job: RunJob, load: Callable[[], Task], on_event: OnEvent) -> Outcome:
    """Compute one job in this process, on the task that `load` returns; whatever its code does, the outcome says it."""
    on_event(Event("start", job.index))
    task = None
    try:
        task = load()
        run(
            job.config,
            task,
            job.folder,
            lambda row: on_event(Event("epoch", job.index, row)),
            contestant=job.contestant,
            start=job.start,
            jobs=job.jobs,
            wait=job.wait,
        )
    except Busy as error:
        return Outcome("waiting", str(error))
    except StoreError as error:
        return Outcome("failed", str(error), fatal=error.fatal)
    except FAULTS as error:  # sys.exit in a user's model ends its run, not the comparison
        # What fails in the task itself, or in loading it, would fail in every run: it is said once.
        fault = error_text(error) if task is None else task_fault(task, job.config)
        return Outcome("failed", fault or f"{type(error).__name__}: {error}", fatal=bool(fault))
    return Outcome("done")


class InProcess:
    """Computes each job in this process, before `submit` returns."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def submit(self, job: RunJob) -> Future[Outcome]:
        outcome = execute(job, job.source.load, self._on_event)
        self._on_event(outcome.event(job.index))
        future = Future[Outcome]()
        future.set_result(outcome)
        return future


class Processes:
    """Computes jobs in worker processes, which import torch once; a process that dies fails its job only.

    Each process has a thread here, which sends it jobs and reads its messages. Processes start when they are needed.

    Args:
        jobs: The number of processes.
        threads: Threads of each.
    """

    def __init__(self, on_event: OnEvent, jobs: int = 1, threads: int = 1) -> None:
        self._report, self._threads = on_event, threads
        self._lock = threading.Lock()  # for what follows, and for events of several threads
        self._pickled: tuple[TaskSource, bytes] | None = None
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._closed = False
        # Ctrl-C reaches all processes of a terminal, but only the parent's main thread answers it: the others block it,
        # and a new process inherits that from the thread that starts it.
        block = signal.SIG_BLOCK, {signal.SIGINT}
        self._executor = ThreadPoolExecutor(jobs, "pool", initializer=signal.pthread_sigmask, initargs=block)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()
        self._executor.shutdown()  # the jobs that wait see that the pool is closed, and so does whoever waits for them
        for worker in self._workers:
            worker.close()

    def submit(self, job: RunJob) -> Future[Outcome]:
        return self._executor.submit(self._compute, job)

    def _compute(self, job: RunJob) -> Outcome:
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._idle:
                worker = self._idle.pop()
            else:
                worker = _Worker(self._threads)
                self._workers.append(worker)
            if self._pickled is None or self._pickled[0] is not job.source:
                # Once for all processes: a task may be of hundreds of megabytes.
                self._pickled = job.source, _dumps(job.source)
            pickled = self._pickled[1]
        outcome = worker.compute(job, pickled, self._on_event)
        with self._lock:
            if self._closed:
                raise CancelledError
            if not outcome.died:
                self._idle.append(worker)
        if outcome.died:
            with suppress(StoreError):
                write_atomic(job.folder / "error.txt", f"{outcome.message}\n".encode())
        self._on_event(outcome.event(job.index))
        return outcome

    def _on_event(self, event: Event) -> None:
        with self._lock:
            if not self._closed:
                self._report(event)


class _Worker:
    """A child process that computes jobs for as long as its parent is there."""

    def __init__(self, threads: int) -> None:
        self._source: TaskSource | None = None
        self._socket, theirs = socket.socketpair()
        number = str(threads)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": number,
            "MKL_NUM_THREADS": number,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from surefoot.lab.run.pool import main; main()", str(theirs.fileno())],
            stdin=subprocess.PIPE,
            stdout=2,  # what user code prints must not end up in a table
            pass_fds=[theirs.fileno()],
            env=environment,
        )
        theirs.close()
        self._connection = Connection(os.dup(self._socket.fileno()))

    def compute(self, job: RunJob, pickled: bytes, on_event: OnEvent) -> Outcome:
        """Let the process compute a job; its pickled source is sent with the first one."""
        if self._source is not job.source:
            self._send(pickled)
            self._source = job.source
        self._send(_dumps(replace(job, source=SENT)))
        while True:
            try:
                message: Event | Outcome = self._connection.recv()
            except (EOFError, OSError):
                return Outcome("failed", self.close(), died=True)
            if isinstance(message, Outcome):
                return message
            on_event(message)

    def kill(self) -> None:
        """End the process: safe at any moment, as every file it writes is; a thread that waits for it goes on."""
        self._process.kill()
        with suppress(OSError):  # also where a process that it started holds the other end
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> str:
        """Wait for the end of the process; returns how it ended. May be called again."""
        self._connection.close()
        self._socket.close()
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        hint = "; is there enough memory?" if code == -signal.SIGKILL else ""
        return f"its worker process ended {how}{hint}"

    def _send(self, data: bytes) -> None:
        with suppress(OSError):  # it died, as the next message will show
            self._connection.send_bytes(data)


def _dumps(message: TaskSource | RunJob) -> bytes:
    data: bytes = require("cloudpickle", extra="lab").dumps(message)  # classes and functions of a notebook by value
    return data


def main() -> None:
    """Be a worker process: compute what comes through the connection until the parent closes it."""
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    load = SENT.load
    while True:
        try:
            message: TaskSource | RunJob = connection.recv()
        except EOFError:
            return
        if isinstance(message, TaskSource):
            load = cache(message.load)
        else:
            connection.send(execute(message, load, connection.send))


def _end_with_parent() -> None:
    """A killed parent closes our standard input: end then, so that the next command finds the run free."""
    os.read(0, 1)
    os._exit(1)
