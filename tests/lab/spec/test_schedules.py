"""Schedules: their values, and which of them depend on the length of a run."""

from __future__ import annotations

import math

import pytest

from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.schedules import SCHEDULES, depends_on_length, factor


@pytest.mark.parametrize("schedule", [*SCHEDULES, None])
def test_the_warm_up_is_linear_and_ends_at_the_full_rate(schedule: str | None) -> None:
    assert [factor(schedule, 4, step, 20) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert max(factor(schedule, 4, step, 20) for step in range(20)) <= 1


def test_decays_after_the_warm_up() -> None:
    assert factor("cosine", 0, 3, 10) == 0.5 * (1 + math.cos(math.pi * 3 / 10))
    assert factor("linear", 10, 60, 110) == 0.5
    assert [factor("wsd", 0, step, 10) for step in (0, 8, 9)] == [1.0, 1.0, 0.5]
    assert factor("invsqrt", 25, 99, 10**6) == 0.5
    assert factor("anytime", 0, 5, 10, span=300.0) == 0.5
    assert factor(None, 0, 5, 10) == factor("linear", 9, 9, 9) == 1


def test_a_run_without_a_horizon_is_the_beginning_of_a_longer_one() -> None:
    task = find_task("digits-lr")

    def key(spec: str, epochs: int) -> str:
        return RunConfig.plan(task, Contestant.parse(spec), seed=0, epochs=epochs).key

    for schedule in SCHEDULES:
        same = key(f"adam:schedule={schedule}", 1) == key(f"adam:schedule={schedule}", 2)
        assert same != depends_on_length(schedule)
    specs = ("adam", "adam:warmup=5", "adam:schedule=invsqrt", "adam:average=poly:8", "adam:average=ema:0.99")
    assert len({key(spec, 1) for spec in specs}) == len(specs)
