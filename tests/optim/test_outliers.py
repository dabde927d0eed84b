"""Losses beyond all measure, spreads that shrink to nothing, steps that are skipped: training goes on after them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from surefoot import AdamUCB, LossAware, LossWeighted, MomentumUCB, weigh
from surefoot.meter import WARN_AFTER_SKIPS
from surefoot.optim.named import OPTIMIZERS
from surefoot.rules import MAX_UNIT_DEVIATION, RULES

CLASS = pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
WEIGHTING = pytest.mark.parametrize("weighting", ["paper", "unit"])


def usual(step: int) -> float:
    return 2 + 0.1 * (-1) ** step


def step_on(optimizer: Any, p: Parameter, loss: Any) -> float:
    """One step with a gradient of one; how far the parameter went."""
    before = p.item()
    p.grad = torch.ones_like(p)
    optimizer.step(loss=loss)
    return p.item() - before


def trained(cls: type[LossAware], **options: Any) -> tuple[Parameter, LossAware]:
    p = Parameter(torch.zeros(1))
    optimizer = cls([p], lr=0.01, **options)
    for step in range(20):
        step_on(optimizer, p, usual(step))
    return p, optimizer


@CLASS
@WEIGHTING
@pytest.mark.parametrize("loss", [1e22, -1e30, 1e300])
def test_a_loss_beyond_all_measure_leaves_no_trace(cls: type[LossAware], weighting: Any, loss: float) -> None:
    p, optimizer = trained(cls, weighting=weighting)
    before = optimizer.confidence()[0]
    assert step_on(optimizer, p, loss) == 0
    after = optimizer.confidence()[0]
    assert (after["skipped"], after["mean"], after["std"]) == (1, before["mean"], before["std"])
    twin, untouched = trained(cls, weighting=weighting)
    assert step_on(optimizer, p, usual(20)) == step_on(untouched, twin, usual(20))


@CLASS
@pytest.mark.parametrize("loss", [1e6, 1e12, 1e18])
def test_training_goes_on_after_a_large_loss(cls: type[LossAware], loss: float) -> None:
    p, optimizer = trained(cls, weighting="unit")
    assert abs(step_on(optimizer, p, loss)) < 1
    moved = [step_on(optimizer, p, usual(step)) for step in range(600)]
    assert all(map(math.isfinite, moved))
    assert sum(map(abs, moved[-100:])) > 0.01


@CLASS
@WEIGHTING
@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_training_goes_on_after_the_spread_has_vanished(cls: type[LossAware], weighting: Any, on_device: bool) -> None:
    p, optimizer = trained(cls, weighting=weighting, capturable=on_device)
    zeros = 200 if on_device else 2000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for loss in [0.0] * zeros + [usual(step) for step in range(120)]:
            assert abs(step_on(optimizer, p, loss)) < 100
    assert abs(step_on(optimizer, p, 2.05)) > 0
    assert optimizer.confidence()[0]["std"] == pytest.approx(0.1, rel=0.5)


@CLASS
@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_a_first_weight_of_zero_without_eps_is_no_division_by_zero(cls: type[LossAware], on_device: bool) -> None:
    p = Parameter(torch.zeros(1))
    options = {} if "Momentum" in cls.__name__ else {"eps": 0}
    optimizer = cls([p], lr=0.01, weighting="paper", capturable=on_device, **options)
    moved = [step_on(optimizer, p, loss) for loss in (0.0, 0.0, 2.0, 2.5, 2.0)]
    assert all(map(math.isfinite, moved))
    assert any(moved)


def test_the_weight_of_unit_weighting_stays_in_bounds() -> None:
    p, optimizer = trained(MomentumUCB, eta=0.01)
    for _ in range(400):
        step_on(optimizer, p, 0.0)
    assert abs(step_on(optimizer, p, 0.1)) < 0.01 * (1 + MAX_UNIT_DEVIATION)
    seen = optimizer.confidence()[0]
    assert seen["weight"] == 1 + MAX_UNIT_DEVIATION
    assert seen["z"] > 1e6  # told as it is


@pytest.mark.parametrize("loss", [math.inf, math.nan, -math.inf])
def test_a_half_precision_loss_that_overflowed_is_skipped_on_a_device_too(loss: float) -> None:
    p, optimizer = trained(AdamUCB, capturable=True)
    assert step_on(optimizer, p, torch.tensor(loss, dtype=torch.float16)) == 0
    assert optimizer.confidence()[0]["skipped"] == 1


def wrapped(p: Parameter) -> LossWeighted:
    return LossWeighted(torch.optim.SGD([p], lr=0.01), "ucb")


@pytest.mark.parametrize("make", [lambda p: AdamUCB([p]), wrapped], ids=["AdamUCB", "LossWeighted"])
def test_many_skipped_steps_are_told_once(make: Any) -> None:
    p = Parameter(torch.zeros(1))
    optimizer = make(p)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3 * WARN_AFTER_SKIPS):
            step_on(optimizer, p, math.nan)
    [warning] = [one for one in caught if "skipped" in str(one.message)]
    assert f"{type(optimizer).__name__} has skipped {WARN_AFTER_SKIPS} steps" in str(warning.message)
    assert "the last skipped loss was nan" in str(warning.message)


def test_raise_names_a_loss_beyond_all_measure() -> None:
    p, optimizer = trained(AdamUCB, nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"the loss is 1e\+30"):
        step_on(optimizer, p, 1e30)


def test_weigh_leaves_a_loss_beyond_all_measure_out() -> None:
    weigher = weigh(rule="ucb", eta=0.1)
    for value in (1.0, 3.0, 1e30, 2.0):
        loss = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        weigher(loss).backward()
        weigher.update()
        assert isinstance(loss.grad, Tensor)
        assert value < 1e19 or loss.grad == 1
    seen = weigher.confidence()[0]
    assert (seen["skipped"], bool(seen["mean"] < 4)) == (1, True)


def test_rules_agree_on_the_bound_on_host_and_device() -> None:
    from surefoot.rules import weigh as apply
    from surefoot.statistics import LossStats

    seen = LossStats(count=9.0, mean=1.0, std=1e-6)
    on_device = LossStats(*(torch.tensor(x, dtype=torch.float64) for x in seen))
    for loss in (0.0, 1.0, 1.00005, 2.0, math.inf):
        here = apply(RULES["ucb"], seen, loss, 0.1, 0.0, "unit").weight
        there = apply(RULES["ucb"], on_device, torch.tensor(loss, dtype=torch.float64), 0.1, 0.0, "unit").weight
        assert here == pytest.approx(float(there))
        assert abs(here - 1) <= MAX_UNIT_DEVIATION or loss == math.inf  # which is skipped
