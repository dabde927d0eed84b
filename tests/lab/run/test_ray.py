"""Runs on a real Ray cluster: a node is taken away while it works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab import compare
from surefoot.lab.run.pool import Event, OnEvent, Outcome, RunJob
from surefoot.lab.run.ray import RayPool, cause, make_pool, needs
from surefoot.lab.run.runner import without_timing
from surefoot.lab.spec.config import OptimizerConfig, RunConfig, TaskConfig
from surefoot.lab.store import Run

pytest.importorskip("ray", reason="Ray is not installed; pip install 'surefoot[ray]'")

EPOCHS = 40
SEEDS = 3
BATCHES = 4
# An epoch takes a while on the cluster, and every batch leaves a trace.
TASK = """
import os, time
import torch
from torch import nn
from surefoot.lab import Task

x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()

def prepare(batch, generator):
    if generator is not None and "BATCH_LOG" in os.environ:
        time.sleep(0.03)
        with open(os.environ["BATCH_LOG"], "ab", buffering=0) as log:
            log.write(b".")
    return batch

task = Task("mine", lambda: nn.Linear(4, 2), train=(x, y), valid=(x, y), batch_size=10, prepare=prepare)
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A head without CPUs; the tests add the nodes that work."""
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_health_check_period_ms": "300",
        "RAY_health_check_failure_threshold": "5",
        "BATCH_LOG": str(tmp_path / "batches"),
    }.items():
        monkeypatch.setenv(name, value)
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80 * 1024 * 1024, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def numbers(run: Run) -> list[dict[str, Any]]:
    return [without_timing(row) for row in run.epochs]


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=80 * 1024 * 1024, include_dashboard=False)


def test_a_node_is_lost_and_nothing_else_is(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my_task.py"
    path.write_text(TASK)
    first, _ = add_node(cluster), add_node(cluster)
    options: dict[str, Any] = {"seeds": SEEDS, "epochs": EPOCHS, "progress": False}
    events: list[Event] = []
    removed: list[int] = []

    class Watched(RayPool):
        def __init__(self, on_event: OnEvent) -> None:
            super().__init__(self.follow, cluster.address)
            self.on_event, self.folders = on_event, dict[int, Path]()

        def submit(self, job: RunJob) -> Future[Outcome]:
            self.folders[job.index] = job.folder
            return super().submit(job)

        def follow(self, event: Event) -> None:
            events.append(event)
            self.on_event(event)
            working = {event.index for event in events} - {event.index for event in events if event.kind == "done"}
            # one run on each node, both far enough to have something to go on from
            if (
                len(working) == 2
                and not removed
                and all((self.folders[index] / "checkpoint.pt").exists() for index in working)
            ):
                removed.append(sum(event.kind == "done" for event in events))
                cluster.remove_node(first, allow_graceful=False)

    far = compare(str(path), ["adams"], out=tmp_path / "ray", executor=Watched, **options)
    assert removed == [0], "both nodes should have been at work"
    assert far.ok, far.failures
    # what was trained before the last checkpoint was not trained again, and something was lost
    trained = (tmp_path / "batches").stat().st_size
    assert SEEDS * EPOCHS * BATCHES < trained < (SEEDS + 1) * EPOCHS * BATCHES
    monkeypatch.delenv("BATCH_LOG")
    near = compare(str(path), ["adams"], out=tmp_path / "local", **options)
    assert [numbers(run) for run in far.runs] == [numbers(run) for run in near.runs]
    # every epoch was reported once, in order, also of the run that moved
    for index in range(SEEDS):
        reported = [event.row["epoch"] for event in events if event.index == index and event.row]
        assert reported == list(range(1, EPOCHS + 1))
    assert sorted(event.index for event in events if event.kind == "done") == list(range(SEEDS))
    assert {row["jobs"] for run in far.runs for row in run.epochs} == {2}  # flagged: seconds are not comparable


def test_an_error_on_a_node_is_reported_as_what_it_is() -> None:
    text = (
        "ray::_compute() (pid=7)\n  At least one of the input arguments\nModuleNotFoundError: No module named 'mine'\n"
    )
    assert cause(RuntimeError(text)).endswith("on its node: ModuleNotFoundError: No module named 'mine'")
    assert cause(RuntimeError()).endswith("on its node: RuntimeError")


def test_a_run_asks_for_its_threads_and_for_a_gpu_when_it_needs_one() -> None:
    config = RunConfig(TaskConfig("toy"), OptimizerConfig("Adam"), seed=0, epochs=1, threads=3)
    assert needs(config) == {"num_cpus": 3, "num_gpus": 0}
    assert needs(replace(config, threads=1, device="cuda")) == {"num_cpus": 1, "num_gpus": 1}
    assert needs(replace(config, device="cuda:0"), 0.5, 0.25) == {"num_cpus": 0.5, "num_gpus": 0.25}


def test_an_address_where_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"cannot reach the Ray cluster at 127.0.0.1:9"):
        compare("digits-lr", ["adam"], seeds=1, epochs=1, out=tmp_path, executor=make_pool("127.0.0.1:9"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[ray\]'"):
        make_pool()
