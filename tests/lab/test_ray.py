"""Runs on a real Ray cluster: a node is taken away while it works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab import compare
from surefoot.lab.executors import Event, RunRequest, TaskSource
from surefoot.lab.executors_ray import make_executor, needs
from surefoot.lab.runner import _numbers
from surefoot.lab.store import Run

pytest.importorskip("ray", reason="Ray is not installed; pip install 'surefoot[ray]'")

EPOCHS = 150
SEEDS = 3


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs; the tests add the nodes that work."""
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_health_check_period_ms": "300",
        "RAY_health_check_failure_threshold": "5",
        "OMP_NUM_THREADS": "1",
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
    return [_numbers(row) for row in run.epochs]


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=80 * 1024 * 1024, include_dashboard=False)


def test_a_node_is_lost_and_nothing_else_is(cluster: Any, tmp_path: Path) -> None:
    first, _ = add_node(cluster), add_node(cluster)
    options: dict[str, Any] = {"seeds": SEEDS, "epochs": EPOCHS, "progress": False}
    on_ray = make_executor(cluster.address)
    events: list[Event] = []
    removed: list[bool] = []
    working: set[int] = set()

    def watching(source: TaskSource, requests: list[RunRequest], report: Any) -> None:
        def follow(event: Event) -> None:
            events.append(event)
            report(event)
            if event.kind == "epoch":
                working.add(event.index)
            if len(working) == 2 and not removed:  # one run on each node
                removed.append(True)
                cluster.remove_node(first, allow_graceful=False)

        on_ray(source, requests, follow)

    far = compare("digits-lr", ["adams"], out=tmp_path / "ray", executor=watching, **options)
    assert removed, "both nodes should have worked at once"
    assert far.ok, far.failures
    near = compare("digits-lr", ["adams"], out=tmp_path / "local", **options)
    assert [numbers(run) for run in far.runs] == [numbers(run) for run in near.runs]
    # every epoch was told once, in order, also of the run that moved
    for index in range(SEEDS):
        told = [event.row["epoch"] for event in events if event.index == index and event.row]
        assert told == list(range(1, EPOCHS + 1))
    assert sorted(event.index for event in events if event.kind == "done") == list(range(SEEDS))
    assert {row["jobs"] for run in far.runs for row in run.epochs} == {2}  # flagged: seconds are not comparable
