"""Schedules of eta: what torch's schedulers do to the learning rate."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from surefoot import AdamS, AdamUCB, EtaSchedule, MomentumUCB, weigh


def test_eta_follows_the_factor() -> None:
    optimizer = AdamUCB([Parameter(torch.ones(1))], eta=0.8)
    schedule = EtaSchedule(optimizer, lambda step: 1 / (1 + step))
    etas = [optimizer.param_groups[0]["eta"]]
    for _ in range(3):
        schedule.step()
        etas.append(optimizer.param_groups[0]["eta"])
    assert etas == pytest.approx([0.8, 0.4, 0.8 / 3, 0.2])


def test_the_scheduled_eta_is_what_weighs() -> None:
    p = Parameter(torch.ones(1))
    optimizer = MomentumUCB([p], eta=0.5)
    schedule = EtaSchedule(optimizer, lambda step: float(step < 2))
    for loss in (1.0, 3.0, 2.5, 4.0):
        p.grad = torch.ones(1)
        optimizer.step(loss=loss)
        schedule.step()
        seen = optimizer.confidence()[0]
        assert float(seen["tilt"]) == (0.5 if schedule.last_step <= 2 else 0.0)
        assert float(seen["weight"]) == pytest.approx(1 + float(seen["tilt"] * seen["z"]))


def test_each_group_may_have_its_own() -> None:
    params = [Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = AdamS([{"params": params[:1], "eta": 0.1}, {"params": params[1:], "eta": 0.2}])
    schedule = EtaSchedule(optimizer, [lambda step: 0.5**step, lambda step: 1.0])
    schedule.step()
    assert [group["eta"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.2])
    together = EtaSchedule(AdamS([{"params": params[:1], "eta": 0.1}, {"params": params[1:], "eta": 0.2}]), math.exp)
    together.step()
    assert [group["eta"] for group in together.optimizer.param_groups] == pytest.approx([0.1 * math.e, 0.2 * math.e])


@pytest.mark.parametrize("optimizer_first", [True, False])
def test_a_schedule_resumes(optimizer_first: bool) -> None:
    def build() -> tuple[AdamUCB, EtaSchedule]:
        optimizer = AdamUCB([Parameter(torch.ones(1))], eta=0.8)
        return optimizer, EtaSchedule(optimizer, lambda step: 0.9**step)

    optimizer, schedule = build()
    for _ in range(4):
        schedule.step()
    saved, saved_optimizer = schedule.state_dict(), optimizer.state_dict()
    again, resumed = build()
    loads = [lambda: again.load_state_dict(saved_optimizer), lambda: resumed.load_state_dict(saved)]
    for load in loads if optimizer_first else reversed(loads):
        load()
    assert again.param_groups[0]["eta"] == optimizer.param_groups[0]["eta"]
    schedule.step()
    resumed.step()
    assert again.param_groups[0]["eta"] == optimizer.param_groups[0]["eta"] == pytest.approx(0.8 * 0.9**5)


def test_what_cannot_be_scheduled_is_refused() -> None:
    with pytest.raises(TypeError, match="SGD has no eta to schedule"):
        EtaSchedule(torch.optim.SGD([Parameter(torch.ones(1))]), lambda step: 1.0)
    with pytest.raises(ValueError, match="3 factors for 1 parameter groups"):
        EtaSchedule(AdamUCB([Parameter(torch.ones(1))]), [math.exp] * 3)


def test_an_eta_the_rule_has_no_meaning_for_is_refused() -> None:
    schedule = EtaSchedule(AdamS([Parameter(torch.ones(1))], eta=0.1), lambda step: 1.0 - step)
    schedule.step()
    with pytest.raises(ValueError, match=r"Invalid eta value: -0\.1; the s rule takes"):
        schedule.step()
    assert schedule.optimizer.param_groups[0]["eta"] == 0.0


def test_a_schedule_of_eta_takes_groups_in_that_come_later() -> None:
    optimizer = AdamUCB([Parameter(torch.ones(1))], eta=0.1)
    schedule = EtaSchedule(optimizer, lambda step: 0.5**step)
    schedule.step()
    optimizer.add_param_group({"params": [Parameter(torch.ones(1))], "eta": 0.4})
    schedule.step()
    assert [group["eta"] for group in optimizer.param_groups] == pytest.approx([0.025, 0.1])
    schedule_per_group = EtaSchedule(optimizer, [lambda step: 1.0, lambda step: 0.5])
    optimizer.add_param_group({"params": [Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match="2 factors for 3 parameter groups"):
        schedule_per_group.step()


@pytest.mark.parametrize(
    "state",
    [
        {},
        None,
        {"last_step": "two", "initial": [0.1]},
        {"last_step": 2, "initial": None},
        {"last_step": 2, "initial": ["text"]},
        {"last_step": 2, "initial": [math.nan]},
        {"last_step": 0.9, "initial": [0.1]},
        {"last_step": -(10**6), "initial": [0.1]},
    ],
    ids=str,
)
def test_a_damaged_state_changes_nothing(state: Any) -> None:
    optimizer = AdamUCB([Parameter(torch.ones(1))], eta=0.1)
    schedule = EtaSchedule(optimizer, lambda step: 0.5**step)
    schedule.step()
    before = schedule.state_dict()
    with pytest.raises(ValueError, match=r"EtaSchedule cannot continue from .*; load what its state_dict\(\) gave"):
        schedule.load_state_dict(state)
    assert schedule.state_dict() == before
    assert optimizer.param_groups[0]["eta"] == 0.05


@pytest.mark.parametrize(
    ("what", "factor", "message"),
    [
        (lambda: weigh(), lambda step: 1.0, "Weigher has no eta to schedule"),
        (lambda: AdamUCB([Parameter(torch.ones(1))]), 0.5, "takes a function from the step to a factor"),
        (lambda: AdamUCB([Parameter(torch.ones(1))]), [0.5], "takes a function from the step to a factor"),
    ],
)
def test_a_wrong_optimizer_or_factor_is_refused(what: Any, factor: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        EtaSchedule(what(), factor)
