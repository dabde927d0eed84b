"""A plan from a pilot: what it says, how many seeds it counts on, and the time that is left."""

from __future__ import annotations

import pytest

from surefoot.lab.analyse.anytime_valid import HORIZON, SeedRange
from surefoot.lab.analyse.planning import Plan, PlanRow, make_plan

WORDS = ["surefoot", "compare", "digits-lr", "-o", "adam", "-o", "adams", "--seeds", "5", "--epochs", "5"]


def row(label: str = "AdamS", low: int = 8, high: int | None = 12) -> PlanRow:
    return PlanRow(label, 4, 0.02, 0.01, SeedRange(low, high), 2.0)


def test_the_contestant_that_needs_most_decides_the_seeds_and_the_time() -> None:
    plan = Plan("valid_loss", "Adam", (row(), row("AdamCB", 10, 20)), 1.0, 2, "surefoot compare")
    assert plan.seeds == 20
    # 8 more runs of AdamS and 16 of AdamCB of 2 s, and 16 of the baseline of 1 s, two at a time.
    assert plan.time == (8 * 2 + 16 * 2 + 16 * 1) / 2
    assert "at most 20 seeds" in str(plan)
    assert str(plan).endswith("surefoot compare")


def test_more_than_the_horizon_is_said() -> None:
    far = row("AdamS", 90, None)
    assert str(far).endswith(f"decided with 90 seeds in half of all cases, with over {HORIZON} in four of five")
    assert Plan("valid_loss", "Adam", (far,), 1.0, 1, "").seeds == HORIZON


def test_a_plan_from_a_pilot(paired_runs) -> None:
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01}, seeds=5)
    plan = make_plan(runs, ["Adam", "AdamS"], 0.01, None, 1, WORDS)
    assert [(planned.label, planned.pairs, planned.detect) for planned in plan.rows] == [("AdamS", 5, 0.01)]
    assert plan.rows[0].seconds == plan.seconds == 2.5  # five epochs of half a second
    assert "--until-decided --max-seeds" in plan.command
    half = make_plan(runs, ["Adam", "AdamS"], 0.005, None, 1, WORDS)
    assert half.seeds >= plan.seeds  # a smaller difference needs no fewer seeds


@pytest.mark.parametrize("detect", ["abc", "0", -1, "-1%"])
def test_a_difference_that_is_none_is_refused_by_its_name(paired_runs, detect) -> None:
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01}, seeds=5)
    with pytest.raises(ValueError, match="the difference to detect must be a number above zero, such as"):
        make_plan(runs, ["Adam", "AdamS"], detect, None, 1, WORDS)


def test_without_a_pilot_the_command_for_one_is_named(paired_runs) -> None:
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01}, seeds=1)
    with pytest.raises(ValueError, match=r"there are 1 paired seeds of Adam and AdamS; make one with: .* --seeds 3 "):
        make_plan(runs, ["Adam", "AdamS"], 0.01, None, 1, WORDS)
