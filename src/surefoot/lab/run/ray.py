"""Computes runs as tasks of a Ray cluster: when a node is lost, its runs go on elsewhere from their checkpoints.

The run folders are the only state, so every node must see them. The progress is read from them too: a run that moved to
another node goes on where its metrics end, whatever messages were lost with the first one.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from surefoot._extras import require
from surefoot.lab.run.memory import keep_freed_memory
from surefoot.lab.run.pool import SENT, Event, MakePool, OnEvent, Outcome, RunJob, TaskSource, execute
from surefoot.lab.spec.code import first_line
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.task import Task
from surefoot.lab.store import StoreError, last_epoch, read_metrics

#: How often the metrics files of running runs are read, in seconds.
POLL_SECONDS = 0.25
#: How long a cluster may take to answer at all, in seconds.
CONNECT_SECONDS = 10.0
#: The last task that this Ray worker process loaded: many runs share it.
_loaded: dict[str, Task] = {}
#: The cluster that this process was connected to by us, under "to".
_connected: dict[str, str] = {}


def make_pool(
    address: str | None = None, *, cpus: float | None = None, gpus: float | None = None, retries: int = 5
) -> MakePool:
    """Compute runs on a Ray cluster: `compare(..., executor=make_pool("auto"))`.

    Args:
        address: The cluster, "auto" or "host:6379"; None is RAY_ADDRESS, or else a cluster of this machine's cores.
        cpus: CPUs that each run asks for; by default its threads.
        gpus: GPUs that each run asks for; by default 1 if its device is CUDA.
        retries: How often a run is started again after its node or process was lost.

    >>> make_pool("auto", retries=-1)
    Traceback (most recent call last):
    ValueError: retries must be 0 or more, got -1
    """
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, got {retries}")
    require("ray", extra="ray")
    return lambda on_event: RayPool(on_event, address, cpus=cpus, gpus=gpus, retries=retries)


class RayPool:
    """A pool on a Ray cluster, connected when the first job is submitted; the arguments are those of `make_pool`."""

    def __init__(
        self,
        on_event: OnEvent,
        address: str | None = None,
        *,
        cpus: float | None = None,
        gpus: float | None = None,
        retries: int = 5,
    ) -> None:
        self._on_event, self._address, self._cpus, self._gpus, self._retries = on_event, address, cpus, gpus, retries
        self._lock = threading.Lock()
        self._ray: Any = None
        self._places = 1
        self._shared: tuple[TaskSource, Any] | None = None
        self._running: dict[Any, _RunningJob] = {}
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="ray pool", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        if self._ray is None:
            return
        self._watcher.join()
        for reference, running in self._running.items():
            running.future.set_exception(CancelledError())
            with suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(reference, force=True)

    def submit(self, job: RunJob) -> Future[Outcome]:
        resources = needs(job.config, self._cpus, self._gpus)
        with self._lock:
            if self._closed.is_set():
                raise CancelledError
            if self._ray is None:
                self._ray = _connect(self._address)
                self._places = _places(self._ray, resources)
                self._watcher.start()
            if self._shared is None or self._shared[0] is not job.source:
                self._shared = job.source, self._ray.put(_portable(job.source))
            moved = replace(
                job,
                folder=job.folder.resolve(),
                source=SENT,
                start=None if job.start is None else job.start.resolve(),
                jobs=max(job.jobs, self._places),
                wait=True,
            )
            remote = self._ray.remote(_compute).options(
                max_retries=self._retries, retry_exceptions=False, scheduling_strategy="SPREAD", **resources
            )
            running = _RunningJob(moved, self._on_event)
            # A reference within a list arrives as a reference: a process that holds the task fetches nothing.
            self._running[remote.remote([self._shared[1]], moved)] = running
        return running.future

    def _watch(self) -> None:
        """Report the epochs of the running jobs and complete their futures, until the pool is closed."""
        try:
            while not self._closed.is_set():
                with self._lock:
                    running = dict(self._running)
                if not running:
                    self._closed.wait(POLL_SECONDS)
                    continue
                ended, _ = self._ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
                for job in running.values():
                    job.report_epochs()
                for reference in ended:
                    running[reference].end(self._outcome(reference))
                    with self._lock:
                        del self._running[reference]
        except BaseException as error:  # from the display: whoever waits for a run gets it
            with self._lock:
                for job in self._running.values():
                    job.future.set_exception(error)
                self._running.clear()

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(reference)
            return outcome
        except self._ray.exceptions.RayTaskError as error:  # it ran, and failed before the run itself could say so
            return Outcome("failed", cause(error))
        except self._ray.exceptions.RayError as error:
            return Outcome("failed", _lost(error, self._retries), died=True)


class _RunningJob:
    """A job on the cluster; its epochs are reported as its metrics file shows them."""

    def __init__(self, job: RunJob, on_event: OnEvent) -> None:
        self.future = Future[Outcome]()
        self._job, self._on_event = job, on_event
        self._reported = last_epoch(self._rows())
        self._started = False

    def report_epochs(self) -> None:
        for row in self._rows():
            if row["epoch"] > self._reported:
                if not self._started:
                    self._on_event(Event("start", self._job.index))
                    self._started = True
                self._on_event(Event("epoch", self._job.index, row))
                self._reported = row["epoch"]

    def end(self, outcome: Outcome) -> None:
        self.report_epochs()
        self._on_event(outcome.event(self._job.index))
        self.future.set_result(outcome)

    def _rows(self) -> Sequence[dict[str, Any]]:
        try:
            return read_metrics(self._job.folder / "metrics.jsonl")[0]
        except StoreError:  # the run itself will say so, and better
            return []


def needs(config: RunConfig, cpus: float | None = None, gpus: float | None = None) -> dict[str, float]:
    """What a run asks of its node.

    >>> from surefoot.lab.spec.config import OptimizerConfig, RunConfig, TaskConfig
    >>> config = RunConfig(TaskConfig("toy"), OptimizerConfig("Adam"), seed=0, epochs=1, threads=2)
    >>> needs(config), needs(replace(config, threads=1, device="cuda"), gpus=0.5)
    ({'num_cpus': 2, 'num_gpus': 0}, {'num_cpus': 1, 'num_gpus': 0.5})
    """
    on_gpu = config.device.startswith("cuda")
    return {
        "num_cpus": config.threads if cpus is None else cpus,
        "num_gpus": (1 if on_gpu else 0) if gpus is None else gpus,
    }


def _connect(address: str | None) -> Any:
    """Ray, connected; it stays so for the next call and ends with this process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = require("ray", extra="ray")
    place = address or os.environ.get("RAY_ADDRESS", "local")
    if ray.is_initialized():
        if address is None or _connected.get("to", place) == place:  # by the user, or by us to the same cluster
            return ray
        ray.shutdown()
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if place == "local":
        options["include_dashboard"] = False
    try:
        _probe(place)
        ray.init(address=place, **options)
    except (OSError, RuntimeError) as error:
        raise ConnectionError(
            f"cannot reach the Ray cluster at {place}: {first_line(error)}; "
            "check --address, or leave it out to use this machine"
        ) from error
    _connected["to"] = place
    return ray


def _probe(place: str) -> None:
    """Raise OSError when nobody listens at host:port: Ray itself would go on trying for minutes."""
    host, colon, port = place.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


def _compute(shared: list[Any], job: RunJob) -> Outcome:
    """What a Ray worker does; a run that another process still holds is waited for."""
    keep_freed_memory()
    return execute(job, lambda: _load(shared[0]), lambda event: None)


def _load(reference: Any) -> Task:
    import ray

    name = reference.hex()
    if name not in _loaded:
        _loaded.clear()
        _loaded[name] = ray.get(reference).load()
    return _loaded[name]


def _portable(source: TaskSource) -> TaskSource:
    """The source as another working directory can read it: files by their whole path."""
    data_dir = None if source.data_dir is None else str(Path(source.data_dir).resolve())
    path, colon, name = source.spec.partition(":")
    spec = f"{Path(path).resolve()}{colon}{name}" if path.endswith(".py") else source.spec
    return replace(source, spec=spec, data_dir=data_dir)


def _places(ray: Any, resources: dict[str, float]) -> int:
    """How many such runs the cluster computes at once; warns when no node can do even one."""
    places = 0.0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            wanted = [("CPU", resources["num_cpus"]), ("GPU", resources["num_gpus"])]
            places += min((has.get(name, 0) // number for name, number in wanted if number), default=1)
    if places < 1:
        warnings.warn(
            f"no node of the Ray cluster has {resources['num_cpus']:g} CPUs and {resources['num_gpus']:g} GPUs; "
            "the runs wait until one comes (or give fewer --threads)",
            stacklevel=2,
        )
    return max(1, int(places))


def cause(error: Exception) -> str:
    """What went wrong on the node; the text begins with Ray's own account of where, and ends with the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"it could not be started on its node: {lines[-1] if lines else type(error).__name__}"


def _lost(error: Exception, retries: int) -> str:
    reason = f"{type(error).__name__}: {first_line(error)}"
    return f"its node or process was lost {retries + 1} times ({reason}); is there enough memory?"
