"""Workers: each takes trials until the budgets are spent; as many processes, on as many machines, as one likes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from surefoot._extras import require
from surefoot.lab.experiments import Setup
from surefoot.lab.run.pool import InProcess, MakePool, TaskSource
from surefoot.lab.tune.objective import Ended, evaluate
from surefoot.lab.tune.study import Plan, Studies, storage_errors

#: How often a worker without a trial looks whether one that others compute has been lost, in seconds.
WAIT_SECONDS = 0.5
#: Workers that die are replaced, but not for ever.
REPLACEMENTS = 5


@dataclass(frozen=True)
class Job:
    """What a worker needs to know."""

    source: TaskSource
    plans: tuple[Plan, ...]
    storage: str
    out: Path
    jobs: int
    threads: int
    device: str


def work(
    job: Job,
    on_end: Callable[[Ended], None],
    *,
    executor: MakePool | None = None,
    studies: Studies | None = None,
) -> None:
    """Take and compute trials until every budget is spent, also by others.

    Args:
        on_end: Called with how each trial of this worker ended.
        executor: Where to compute the runs, `job.jobs` trials at a time; by default one at a time in this process.
    """
    studies = studies or Studies(job.storage)
    task = job.source.load()
    setup = Setup(job.source, task, [], [], {}, job.threads, job.device)

    most = 1 if executor is None else job.jobs
    with studies.locks.live() as worker:
        while True:
            taken, elsewhere = studies.take(job.plans, worker, most)
            if taken:
                # Trials of different plans may have different rungs: a schedule allows no pruning.
                for rungs in sorted({one.plan.rungs for one in taken}):
                    batch = [one for one in taken if one.plan.rungs == rungs]
                    evaluate(batch, studies, setup, job.out, on_end, jobs=job.jobs, executor=executor or InProcess)
            elif elsewhere:
                time.sleep(WAIT_SECONDS)
            else:
                return


def in_processes(job: Job, on_end: Callable[[Ended], None]) -> None:
    """Work with `job.jobs` processes; one that dies is replaced, and its trial taken up by another."""
    workers = [_Process(job, on_end) for _ in range(job.jobs)]
    replacements = REPLACEMENTS
    try:
        while workers:
            for one in list(workers):
                code = one.ended()
                if code is None:
                    continue
                workers.remove(one)
                if one.error:
                    raise RuntimeError(one.error)
                if code != 0:
                    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
                    if replacements == 0:
                        raise RuntimeError(
                            f"too many worker processes died, the last one {how}; is there enough memory?"
                        )
                    replacements -= 1
                    workers.append(_Process(job, on_end))
            time.sleep(0.05)
    finally:
        for one in workers:
            one.kill()


class _Process:
    """A worker process and the thread that reads what it tells."""

    def __init__(self, job: Job, on_end: Callable[[Ended], None]) -> None:
        self.error = ""
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(job.threads),
            "MKL_NUM_THREADS": str(job.threads),
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        # Ctrl-C reaches the whole group of processes; only the parent answers it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from surefoot.lab.tune.worker import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self.process.stdin is not None
        data = require("cloudpickle", extra="lab").dumps(job)
        try:
            self.process.stdin.write(len(data).to_bytes(8, "big") + data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died; ended() will tell
        self._reader = threading.Thread(target=self._read, args=(on_end,), daemon=True)
        self._reader.start()

    def _read(self, on_end: Callable[[Ended], None]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "error" in message:
                self.error = message["error"]
            else:
                on_end(Ended(**message))

    def ended(self) -> int | None:
        """The exit code, or None while the process works."""
        code = self.process.poll()
        if code is not None:
            self._reader.join()
            self._close()
        return code

    def kill(self) -> None:
        """End the process: safe at any moment, as every file it writes is."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def main() -> None:
    """Be a worker process: the job comes in by standard input, what happens goes out by standard output."""
    import pickle

    told: IO[bytes] = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what user code prints must not end up among the messages
    size = int.from_bytes(_exactly(8), "big")
    job: Job = pickle.loads(_exactly(size))
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(message: dict[str, Any]) -> None:
        told.write(json.dumps(message).encode() + b"\n")
        told.flush()

    try:
        with storage_errors():
            work(job, lambda ended: tell(asdict(ended)))
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        if os.environ.get("SUREFOOT_DEBUG"):
            raise
        tell({"error": str(error)})
        sys.exit(1)


def _exactly(size: int) -> bytearray:
    data = bytearray(size)  # filled in place: a task may be of hundreds of megabytes, and a pipe hands out 64 KiB
    rest = memoryview(data)
    while rest:
        read = os.readv(0, [rest])
        if not read:
            os._exit(1)  # the parent was killed
        rest = rest[read:]
    return data


def _end_with_parent() -> None:
    """A killed parent closes our standard input: end then, so that its trial is free for the next command."""
    os.read(0, 1)
    os._exit(1)
