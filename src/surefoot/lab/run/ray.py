"""Computes runs as tasks of a Ray cluster: when a node is lost, its runs go on elsewhere from their checkpoints.

The run folders are the only state, so they must be where every node sees them. The progress is read from them too:
a run that moved to another node goes on where its metrics end, whatever messages died with the first one.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from surefoot._extras import require
from surefoot.lab.run.memory import keep_freed_memory
from surefoot.lab.run.pool import Event, Executor, Report, RunRequest, TaskSource, execute
from surefoot.lab.store import StoreError, last_epoch, read_metrics

#: How often the metrics files of running runs are looked at, in seconds.
POLL_SECONDS = 0.25
#: How long a cluster may take to answer at all, in seconds.
CONNECT_SECONDS = 10.0
#: The last task this Ray worker process loaded: many runs share it.
_loaded: dict[str, Any] = {}
#: The cluster that this process was connected to by us, under "to".
_connected: dict[str, str] = {}


def make_executor(
    address: str | None = None, *, cpus: float | None = None, gpus: float | None = None, retries: int = 5
) -> Executor:
    """An executor that computes runs on a Ray cluster, for `compare(..., executor=...)`.

    Args:
        address: The cluster, "auto" or "host:6379"; None is RAY_ADDRESS, or else a cluster of this machine's cores.
        cpus: CPUs each run asks for; by default its threads.
        gpus: GPUs each run asks for; by default 1 when its device is CUDA.
        retries: How often a run is started again after its node or process was lost.

    >>> make_executor("auto", retries=-1)
    Traceback (most recent call last):
    ValueError: retries must be 0 or more, got -1
    """
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, got {retries}")
    require("ray", extra="ray")

    def on_ray(source: TaskSource, requests: Sequence[RunRequest], report: Report) -> None:
        if not requests:
            return
        _run_all(_connect(address), source, requests, report, cpus, gpus, retries)

    return on_ray


def needs(config: dict[str, Any], cpus: float | None = None, gpus: float | None = None) -> dict[str, float]:
    """What a run asks of its node.

    >>> needs({"threads": 2, "device": "cpu"}), needs({"threads": 1, "device": "cuda"}, gpus=0.5)
    ({'num_cpus': 2, 'num_gpus': 0}, {'num_cpus': 1, 'num_gpus': 0.5})
    """
    on_gpu = str(config.get("device", "cpu")).startswith("cuda")
    return {
        "num_cpus": config["threads"] if cpus is None else cpus,
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
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConnectionError(
            f"cannot reach the Ray cluster at {place}: {reason}; check --address, or leave it out to use this machine"
        ) from error
    _connected["to"] = place
    return ray


def _probe(place: str) -> None:
    """Raise OSError when nobody listens at host:port: Ray itself would go on trying for minutes."""
    host, colon, port = place.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


def _run_all(
    ray: Any,
    source: TaskSource,
    requests: Sequence[RunRequest],
    report: Report,
    cpus: float | None,
    gpus: float | None,
    retries: int,
) -> None:
    resources = needs(requests[0].config, cpus, gpus)
    jobs = max(requests[0].jobs, min(_places(ray, resources), len(requests)))
    shared = ray.put(_portable(source))
    remote = ray.remote(_compute).options(
        max_retries=retries, retry_exceptions=False, scheduling_strategy="SPREAD", **resources
    )
    watched: dict[Any, _Watched] = {}
    try:
        for request in requests:
            moved = replace(
                request,
                folder=request.folder.resolve(),
                start=None if request.start is None else request.start.resolve(),
                jobs=jobs,
            )
            # A reference within a list arrives as a reference: a process that holds the task fetches nothing.
            watched[remote.remote([shared], moved)] = _Watched(moved, report)
        while watched:
            done, _ = ray.wait(list(watched), num_returns=1, timeout=POLL_SECONDS)
            for one in watched.values():
                one.look()
            for reference in done:
                one = watched.pop(reference)
                try:
                    last = ray.get(reference)
                except ray.exceptions.RayTaskError as error:  # it ran, and failed before the run itself could tell
                    last = Event("failed", one.request.index, message=_cause(error))
                except ray.exceptions.RayError as error:
                    last = Event("failed", one.request.index, message=_lost(error, retries))
                one.look()
                report(last)
                if last.fatal:
                    return
    finally:
        for reference in watched:
            with suppress(ray.exceptions.RayError, ValueError):
                ray.cancel(reference, force=True)


class _Watched:
    """Tells the epochs of a run as its metrics file shows them."""

    def __init__(self, request: RunRequest, report: Report) -> None:
        self.request, self.report = request, report
        self.seen = last_epoch(self._rows())
        self.started = False

    def look(self) -> None:
        for row in self._rows():
            if row["epoch"] > self.seen:
                if not self.started:
                    self.report(Event("start", self.request.index))
                    self.started = True
                self.report(Event("epoch", self.request.index, row))
                self.seen = row["epoch"]

    def _rows(self) -> list[dict[str, Any]]:
        try:
            return read_metrics(self.request.folder / "metrics.jsonl")[0]
        except StoreError:  # the run itself will say so, and better
            return []


def _compute(shared: list[Any], request: RunRequest) -> Event:
    """What a Ray worker does; a run that another process still holds is waited for."""
    import ray

    keep_freed_memory()
    name = shared[0].hex()
    if name not in _loaded:
        _loaded.clear()
        try:
            _loaded[name] = ray.get(shared[0]).load()
        except Exception as error:
            return Event("failed", request.index, message=f"{type(error).__name__}: {error}")
    return execute(request, _loaded[name], lambda event: None)


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


def _cause(error: Exception) -> str:
    """What went wrong on the node; the text begins with Ray's own account of where, and ends with the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"it could not be started on its node: {lines[-1] if lines else type(error).__name__}"


def _lost(error: Exception, retries: int) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"its node or process was lost {retries + 1} times ({type(error).__name__}: {first}); is there enough memory?"
    )
