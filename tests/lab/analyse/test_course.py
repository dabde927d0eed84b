"""The best epoch, the area under a curve, costs, and the width of a basin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from surefoot.lab.analyse.course import basin, courses
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.store import Run


def curve(run: Callable[..., Run], label: str, losses: list[float], **more: float) -> Run:
    made = run(label, 0, epochs=len(losses))
    return replace(made, epochs=[{**row, "valid_loss": loss, **more} for row, loss in zip(made.epochs, losses)])


def test_last_best_and_area(run: Callable[..., Run]) -> None:
    [group] = group_runs([curve(run, "Adam", [0.8, 0.2, 0.5], peak_memory=3 * 2**20)])
    [course] = courses(group, "valid_loss")
    assert (course.last.mean, course.best.mean, course.best_epoch) == (0.5, 0.2, 2.0)
    assert course.area.mean == pytest.approx(0.5)
    assert course.seconds.mean > 0
    assert course.memory == 3 * 2**20


def test_of_an_accuracy_the_highest_is_best(run: Callable[..., Run]) -> None:
    [group] = group_runs([run("Adam", 0, epochs=4)])
    [course] = courses(group, "valid_accuracy")
    assert course.best.mean == max(row["valid_accuracy"] for row in group.runs[0].epochs)


def test_a_run_that_diverged_has_no_course(run: Callable[..., Run]) -> None:
    [group] = group_runs([run("Adam", 0, diverged=True)])
    [course] = courses(group, "valid_loss")
    assert (course.last.n, course.best_epoch) == (0, None)


def test_a_basin_that_reaches_the_end_is_open() -> None:
    interval = basin([(0.001, 1.0), (0.01, 1.05), (0.1, 1.08)])
    assert interval is not None
    assert (interval.low, interval.high, interval.is_open) == (0.001, 0.1, True)
    assert interval.decades == pytest.approx(2.0)


def test_of_an_accuracy_the_basin_is_below_the_best() -> None:
    interval = basin([(0.001, 0.5), (0.01, 0.9), (0.1, 0.6)], higher=True)
    assert interval is not None
    assert interval.level == pytest.approx(0.81)
    assert 0.001 < interval.low < 0.01 < interval.high < 0.1


def test_one_value_has_no_basin() -> None:
    assert basin([(0.1, 1.0)]) is None
    assert basin([(0.0, 1.0), (0.1, 1.0)]) is None
