"""LossAware: steps that are skipped, steps after huge losses, steps on a device."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from host_reads import no_host_reads
from surefoot import AdamS, AdamUCB, LossAware, LossAwareAdam, LossWeighted, MomentumUCB
from surefoot.meter import WARN_AFTER_SKIPS
from surefoot.optim.named import OPTIMIZERS
from surefoot.rules import MAX_UNIT_DEVIATION, from_objective
from warm import everything, ready, take_step

CLASSES = list(OPTIMIZERS.values())


CLASS = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


DEVICE = pytest.mark.parametrize("capturable", [False, True])


WEIGHTING = pytest.mark.parametrize("weighting", ["paper", "unit"])


# -- losses that are not finite, sparse gradients --------------------------------------------------------------------


@DEVICE
@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_a_weight_that_one_group_cannot_bear_stops_the_step_of_all(nonfinite: str, capturable: bool) -> None:
    params, optimizer = ready(AdamUCB, nonfinite=nonfinite, capturable=capturable)
    before = everything(params, optimizer)
    optimizer.param_groups[1]["eta"] = 1e300
    if nonfinite == "raise":
        with pytest.raises(FloatingPointError, match=r"weights the gradient by .*nothing was changed"):
            optimizer.step(loss=5.0)
        optimizer.param_groups[1]["eta"] = optimizer.param_groups[0]["eta"]
        assert everything(params, optimizer) == before
        return
    optimizer.step(loss=5.0)
    assert everything(params, optimizer)[0] == before[0]
    assert [seen["skipped"].item() for seen in optimizer.confidence()] == [1, 1]


@DEVICE
@CLASS
def test_a_loss_that_is_not_finite_is_skipped_and_counted(cls: type[LossAware], capturable: bool) -> None:
    params, optimizer = ready(cls, capturable=capturable, weight_decay=0.1)
    before = everything(params, optimizer)
    for count, loss in enumerate([math.nan, math.inf, -math.inf, torch.tensor(math.nan)], start=1):
        optimizer.step(loss=loss)
        after = everything(params, optimizer)
        assert [seen["skipped"].item() for seen in optimizer.confidence()] == [count, count]
        for seen in after[2]:
            seen[4] = 0.0
        assert after == before
    optimizer.step(loss=1.5)
    assert [seen["skipped"].item() for seen in optimizer.confidence()] == [4, 4]
    assert everything(params, optimizer)[0] != before[0]


@DEVICE
@CLASS
def test_a_first_loss_that_is_not_finite_changes_nothing(cls: type[LossAware], capturable: bool) -> None:
    def two_steps(first: float | None) -> tuple[list[Any], float]:
        p = Parameter(torch.tensor([1.0, -2.0]))
        optimizer = cls([p], capturable=capturable)
        for loss in ([] if first is None else [first]) + [1.0, 2.0]:
            p.grad = torch.ones(2)
            optimizer.step(loss=loss)
        return everything([p], optimizer)[:2], optimizer.confidence()[0]["skipped"].item()

    clean, skipped = two_steps(None), two_steps(math.inf)
    assert clean[0] == skipped[0]
    assert (clean[1], skipped[1]) == (0, 1)


@DEVICE
def test_nonfinite_may_raise_instead(capturable: bool) -> None:
    params, optimizer = ready(nonfinite="raise", capturable=capturable)
    before = everything(params, optimizer)
    with pytest.raises(FloatingPointError, match="AdamS: the loss is nan, and nonfinite='raise' was asked for"):
        optimizer.step(loss=torch.tensor(math.nan))
    assert everything(params, optimizer) == before


@DEVICE
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gradients_are_looked_at_when_asked(value: float, capturable: bool) -> None:
    params, optimizer = ready(check_gradients=True, capturable=capturable)
    before = everything(params, optimizer)
    params[1].grad = torch.tensor([1.0, value, 1.0])  # the second group's: the first must not move either
    optimizer.step(loss=1.0)
    after = everything(params, optimizer)
    assert after[:2] == before[:2]
    assert [seen["skipped"].item() for seen in optimizer.confidence()] == [1, 1]
    for group in optimizer.param_groups:
        group["nonfinite"] = "raise"
    with pytest.raises(FloatingPointError, match="a gradient is not finite"):
        optimizer.step(loss=1.0)
    assert everything(params, optimizer)[:2] == before[:2]


@DEVICE
@pytest.mark.parametrize(
    ("dtype", "large"),  # their sum does not fit into the dtype
    [(torch.float16, 1e3), (torch.bfloat16, 3e38), (torch.float32, 3e38), (torch.complex64, 3e38)],
)
def test_large_finite_gradients_are_finite(dtype: torch.dtype, large: float, capturable: bool) -> None:
    p = Parameter(torch.zeros(200, dtype=dtype))
    p.grad = torch.full_like(p, large)
    optimizer = AdamS([p], check_gradients=True, capturable=capturable)
    optimizer.step(loss=1.0)
    assert optimizer.confidence()[0]["skipped"] == 0


@DEVICE
@CLASS
def test_sparse_gradients_are_refused_before_anything_moves(cls: type[LossAware], capturable: bool) -> None:
    params, optimizer = ready(cls, capturable=capturable)
    before = everything(params, optimizer)
    params[1].grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match=rf"{cls.__name__} does not support sparse gradients .* shape \(3,\)"):
        optimizer.step(loss=1.0)
    assert everything(params, optimizer) == before


# -- huge losses, and a spread that vanishes: training goes on -------------------------------------------------------


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
def test_a_loss_that_is_too_large_leaves_no_trace(cls: type[LossAware], weighting: Any, loss: float) -> None:
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
    p, optimizer = trained(MomentumUCB, eta=0.1)
    for _ in range(200):
        step_on(optimizer, p, 0.0)
    assert abs(step_on(optimizer, p, 0.1)) < 0.01 * (1 + MAX_UNIT_DEVIATION)
    seen = optimizer.confidence()[0]
    assert seen["weight"] == 1 + MAX_UNIT_DEVIATION
    assert seen["z"] > MAX_UNIT_DEVIATION / 0.1  # reported as it is


@pytest.mark.parametrize("loss", [math.inf, math.nan, -math.inf])
def test_a_half_precision_loss_that_overflowed_is_skipped_on_a_device_too(loss: float) -> None:
    p, optimizer = trained(AdamUCB, capturable=True)
    assert step_on(optimizer, p, torch.tensor(loss, dtype=torch.float16)) == 0
    assert optimizer.confidence()[0]["skipped"] == 1


def wrapped(p: Parameter) -> LossWeighted:
    return LossWeighted(torch.optim.SGD([p], lr=0.01), "ucb")


@pytest.mark.parametrize("make", [lambda p: AdamUCB([p]), wrapped], ids=["AdamUCB", "LossWeighted"])
def test_many_skipped_steps_warn_once(make: Any) -> None:
    p = Parameter(torch.zeros(1))
    optimizer = make(p)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3 * WARN_AFTER_SKIPS):
            step_on(optimizer, p, math.nan)
    [warning] = [record for record in caught if "skipped" in str(record.message)]
    assert f"{type(optimizer).__name__} has skipped {WARN_AFTER_SKIPS} steps" in str(warning.message)
    assert "the last skipped loss was nan" in str(warning.message)


def test_raise_names_a_loss_that_is_too_large() -> None:
    p, optimizer = trained(AdamUCB, nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"the loss is 1e\+30"):
        step_on(optimizer, p, 1e30)


# -- the path for accelerators: nothing is read back or copied over, and every tensor stays in place -----------------


def test_the_guard_against_host_reads_fails_on_one() -> None:
    x = torch.ones(3)
    for read in (lambda: x.sum().item(), lambda: bool(x.sum() > 0), lambda: x.nonzero(), lambda: float(x[0])):
        with pytest.raises(AssertionError, match="waits"), no_host_reads():
            read()
    with pytest.raises(AssertionError, match="waits"), no_host_reads():
        x.to("meta")
    with pytest.raises(AssertionError, match="copies"), no_host_reads():
        torch.tensor(1.0, device="meta")


def settings_of(cls: type[LossAware]) -> list[dict[str, Any]]:
    engine_options: dict[str, list[dict[str, Any]]] = {
        "adam": [{"amsgrad": True}, {"fused": True}, {"foreach": True}],
        "momentum": [{"nesterov": True}],
    }
    return [
        {},
        {"weighting": "unit", "weight_decay": 0.1, "maximize": True},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "check_gradients": True},
        {"foreach": False},
        *engine_options.get(cls.engine.name, []),
    ]


@CLASS
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_step_never_waits_for_the_device(cls: type[LossAware], device: str) -> None:
    # Operations on a device without memory are slow Python, and the fused kernel has none.
    for options in settings_of(cls)[: 2 if device == "meta" else None]:
        params = [Parameter(torch.ones(shape, device=device)) for shape in [(2, 3), (4,), ()]]
        optimizer = cls(params, capturable=device == "cpu", **options)
        loss = torch.zeros((), device=device)
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step(loss=loss)  # creates state, and moves the statistics to the loss's device
        assert optimizer.param_groups[0]["seen"].device.type == device
        with no_host_reads():
            optimizer.step(loss=loss + 1)
            optimizer.record_loss(loss + 2)
            optimizer.record_loss(loss + 4, weight=3)
            optimizer.step()
            optimizer.step(loss=loss * math.nan)
            params[1].grad = None
            optimizer.step(lambda loss=loss: loss + 1)
            optimizer.confidence()
            optimizer.zero_grad()


def test_a_users_objective_never_waits_either() -> None:
    p = Parameter(torch.ones(3, device="meta"))
    p.grad = torch.ones_like(p)
    optimizer = LossAwareAdam([p], rule=from_objective(lambda mean, std, eta: mean + std**2))
    loss = torch.ones((), device="meta")
    optimizer.step(loss=loss)
    with no_host_reads():
        optimizer.step(loss=loss)


@pytest.mark.parametrize("name", ["AdamS", "NAdamS"])
def test_a_learning_rate_on_the_device_stays_there(name: str) -> None:
    p = Parameter(torch.ones(3, device="meta"))
    p.grad = torch.ones_like(p)
    optimizer = OPTIMIZERS[name]([p], lr=torch.tensor(0.1, device="meta"), weight_decay=0.1)
    loss = torch.ones((), device="meta")
    optimizer.step(loss=loss)
    with no_host_reads():
        optimizer.step(loss=loss)


@CLASS
def test_every_tensor_stays_where_it_is(cls: type[LossAware]) -> None:
    # A captured graph replays addresses, so nothing may be replaced after the first step.
    for options in settings_of(cls):
        params = [Parameter(torch.ones(shape)) for shape in [(2, 3), (4,)]]
        optimizer = cls(params, capturable=True, **options)
        addresses = []
        for loss in (1.0, 2.0, math.nan, 0.5):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step(loss=torch.tensor(loss))
            kept = [x for p in params for x in optimizer.state[p].values()]
            addresses.append([x.data_ptr() for x in (*params, *kept, optimizer.param_groups[0]["seen"])])
        assert addresses.count(addresses[0]) == len(addresses), options


@CLASS
def test_host_and_device_make_the_same_steps(cls: type[LossAware]) -> None:
    for options in settings_of(cls):
        ends = []
        for capturable in (False, True):
            params = [Parameter(torch.full(shape, 0.5, dtype=torch.float64)) for shape in [(2, 3), (4,), ()]]
            groups = [{"params": params[:2]}, {"params": params[2:]}]
            optimizer = cls(groups, lr=0.01, eta=0.4, capturable=capturable, **options)
            for t, loss in enumerate([2.0, 1.0, math.nan, 2.5, 0.1, 0.7]):
                for i, p in enumerate(params):
                    p.grad = p.detach() * (i + t) + 1
                params[1].grad = None if t == 3 else params[1].grad
                optimizer.step(loss=torch.tensor(loss, dtype=torch.float64))
            ends.append([*(p.detach() for p in params), *(group["seen"] for group in optimizer.param_groups)])
        tilts = [group["seen"][6].item() for group in optimizer.param_groups]
        assert (tilts[0] != tilts[1]) == cls.rule.uses_noise  # each group draws its own
        torch.testing.assert_close(ends[0], ends[1], rtol=1e-11, atol=1e-12)


@CLASS
def test_a_skip_on_the_device_is_bitwise_nothing(cls: type[LossAware]) -> None:
    for options in settings_of(cls):
        for before_it in (0, 3):
            params = [Parameter(torch.ones(shape)) for shape in [(2, 3), ()]]
            optimizer = cls(params, capturable=True, **options)
            for loss in [1.0, 3.0, 2.0][:before_it]:
                for p in params:
                    p.grad = torch.full_like(p, loss)
                optimizer.step(loss=torch.tensor(loss))
            before = copy.deepcopy([params, optimizer.state_dict()])
            for p in params:  # a loss that is not finite usually comes with such gradients
                p.grad = torch.full_like(p, math.nan)
            optimizer.step(loss=torch.tensor(math.inf))
            assert all(map(torch.equal, params, before[0]))
            saved = optimizer.state_dict()
            for key, state in saved["state"].items():
                new = {name: torch.full_like(x, name == "mu_product") for name, x in state.items()}
                earlier = before[1]["state"].get(key) or new
                assert all(torch.equal(x, earlier[name]) for name, x in state.items())
            seen = before[1]["param_groups"][0]["seen"].clone()
            seen[4] += 1
            assert torch.equal(saved["param_groups"][0]["seen"], seen)


def test_one_group_on_the_device_takes_the_others_along() -> None:
    params = [Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = OPTIMIZERS["AdamUCB"]([{"params": params[:1], "capturable": True}, {"params": params[1:]}], eta=0.3)
    for loss in (1.0, 2.0, 0.5):
        for p in params:
            p.grad = torch.ones(2)
        optimizer.step(loss=torch.tensor(loss))
    assert torch.allclose(*params)
    assert torch.equal(*(group["seen"] for group in optimizer.param_groups))


# -- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [lambda p: AdamUCB([p]), lambda p: LossWeighted(torch.optim.SGD([p], lr=0.1))],
    ids=["AdamUCB", "LossWeighted"],
)
def test_statistics_of_the_host_stay_there_whatever_the_default_device(make: Any) -> None:
    p = Parameter(torch.ones(1, device="cpu"))
    with torch.device("meta"):
        optimizer = make(p)
        for loss in (1.0, 2.0, 3.0):
            p.grad = torch.ones(1, device="cpu")
            optimizer.step(loss=loss)
        resumed = make(p)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        resumed.step(loss=2.0)
    assert resumed.param_groups[0]["seen"].device.type == "cpu"
    assert resumed.confidence()[0]["mean"] > 1


@pytest.mark.parametrize("seed", [np.int32(3), np.uint8(3), np.int64(3)])
def test_seeds_of_every_kind_give_the_same_noise(seed: Any) -> None:
    weights = []
    for kind in (3, seed):
        p = Parameter(torch.ones(1))
        optimizer = AdamS([p], eta=0.5, seed=kind)
        for loss in (1.0, 2.0, 1.5):
            take_step(optimizer, loss)
        weights.append(float(optimizer.confidence()[0]["weight"]))
    assert weights[0] == weights[1]


def test_profilers_and_hooks_see_a_step_as_they_see_torchs() -> None:
    """Without them nothing is recorded, which is much of the time of a step of a tiny model."""
    p = Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    optimizer = AdamS([p])
    optimizer.step(loss=1.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        optimizer.step(loss=1.0)
    assert "Optimizer.step#AdamS.step" in {event.key for event in profiler.key_averages()}

    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("own pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("own post"))
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("global pre")),
        register_optimizer_step_post_hook(lambda *_: seen.append("global post")),
    ]
    optimizer.step(loss=1.0)
    for hook in hooks:
        hook.remove()
    assert seen == ["global pre", "own pre", "own post", "global post"]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_step_leaves_the_grad_mode_as_it_was(enabled: bool) -> None:
    p = Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    with torch.set_grad_enabled(enabled):
        AdamS([p]).step(loss=1.0)
        assert torch.is_grad_enabled() is enabled
        with pytest.raises(FloatingPointError):
            AdamS([p], nonfinite="raise").step(loss=float("nan"))
        assert torch.is_grad_enabled() is enabled
