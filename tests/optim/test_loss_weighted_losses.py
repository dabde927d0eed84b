"""LossWeighted: losses that are not finite, devices, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from host_reads import no_host_reads
from surefoot import AdamUCB, LossWeighted
from surefoot.statistics import LossStats
from wrapped import BASES, assert_equal, loss_at, make_model, params_of, train


def sgd_as_on_a_device(params: Any) -> Optimizer:
    return torch.optim.SGD([{"params": list(params), "capturable": True}], lr=0.05, momentum=0.9)


def fused_as_on_a_device(params: Any) -> Optimizer:
    optimizer = torch.optim.AdamW(params, lr=0.01, fused=True)
    optimizer.param_groups[0]["capturable"] = True
    return optimizer


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [BASES["SGD momentum"], BASES["AdamW"], sgd_as_on_a_device, fused_as_on_a_device])
def test_a_loss_that_is_not_finite_leaves_everything_as_it_was(make: Callable[..., Optimizer], bad: float) -> None:
    model, other = make_model(), make_model()
    optimizer, undisturbed = (LossWeighted(make(m.parameters()), "s", eta=0.3) for m in (model, other))
    train(model, optimizer, range(4))
    train(other, undisturbed, range(4))
    for p in model.parameters():
        p.grad = torch.full_like(p, bad)
    optimizer.step(loss=torch.tensor(bad))
    assert optimizer.confidence()[0]["skipped"] == 1
    assert train(model, optimizer, range(4, 8)) == train(other, undisturbed, range(4, 8))
    assert_equal(params_of(model), params_of(other))


@pytest.mark.parametrize("make", [BASES["SGD momentum"], sgd_as_on_a_device])
@pytest.mark.parametrize("nonfinite", ["skip", "coast", "raise"])
def test_a_loss_beyond_all_measure_is_as_bad(make: Callable[..., Optimizer], nonfinite: str) -> None:
    """The loss is finite, the std of it that the gradient is multiplied by would make the parameters infinite."""
    model = make_model()
    optimizer = LossWeighted(make(model.parameters()), weighting="paper", nonfinite=nonfinite)
    train(model, optimizer, range(3))
    seen = optimizer.param_groups[0]["seen"].clone()
    if nonfinite == "raise":
        with pytest.raises(FloatingPointError, match="the loss is"):
            optimizer.step(loss=torch.tensor(1e30))
    else:
        optimizer.step(loss=torch.tensor(1e30))
        seen[LossStats._fields.index("skipped")] += 1
    assert torch.equal(optimizer.param_groups[0]["seen"], seen)
    assert all(p.isfinite().all() for p in model.parameters())
    train(model, optimizer, range(3, 6))
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("make", [BASES["SGD momentum"], sgd_as_on_a_device])
def test_nonfinite_raise_stops_before_anything_changes(make: Callable[..., Optimizer]) -> None:
    model = make_model()
    optimizer = LossWeighted(make(model.parameters()), nonfinite="raise")
    train(model, optimizer, range(2))
    before, seen = params_of(model), optimizer.param_groups[0]["seen"].clone()
    with pytest.raises(FloatingPointError, match="nonfinite='raise'"):
        optimizer.step(loss=torch.tensor(math.nan))
    assert_equal(before, params_of(model))
    assert torch.equal(seen, optimizer.param_groups[0]["seen"])


@pytest.mark.parametrize("make", [BASES["SGD momentum"], sgd_as_on_a_device])
def test_coasting_gives_the_base_zero_gradients(make: Callable[..., Optimizer]) -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer, base = LossWeighted(make([p]), nonfinite="coast"), make([q])
    for gradient, loss in ((1.0, 2.0), (math.nan, math.nan), (1.0, 2.0)):
        p.grad = torch.full((2,), gradient)
        q.grad = torch.full((2,), gradient).nan_to_num(0.0)
        optimizer.step(loss=torch.tensor(loss))
        base.step()
    assert torch.equal(p, q)
    assert optimizer.confidence()[0]["skipped"] == 1


@pytest.mark.parametrize("rule", ["ucb", "cb", "s", "pi", "ei", "cvar"])
def test_device_path_equals_host_path_and_reads_nothing(rule: str) -> None:
    eta = {"cvar": 0.5}.get(rule, 0.3)
    for make, nonfinite in ((sgd_as_on_a_device, "coast"), (fused_as_on_a_device, "skip")):
        on_device, on_host = make_model(), make_model()
        first = LossWeighted(make(on_device.parameters()), rule, eta=eta, nonfinite=nonfinite)
        second = LossWeighted(make(on_host.parameters()), rule, eta=eta)
        second.param_groups[0]["capturable"] = False
        for step in range(6):
            train(on_host, second, range(step, step + 1))
            first.zero_grad()
            loss = loss_at(on_device, step)
            loss.backward()
            with no_host_reads():
                first.step(loss=loss)
        torch.testing.assert_close(first.param_groups[0]["seen"], second.param_groups[0]["seen"], rtol=1e-4, atol=1e-5)
        for p, q in zip(on_device.parameters(), on_host.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_statistics_follow_the_loss_to_its_device() -> None:
    p = nn.Parameter(torch.ones(2, device="meta"))
    p.grad = torch.ones(2, device="meta")
    optimizer = LossWeighted(torch.optim.SGD([p], lr=0.1), "s", nonfinite="coast")
    optimizer.step(loss=torch.ones((), device="meta"))
    assert optimizer.param_groups[0]["seen"].device.type == "meta"
    optimizer.step(loss=1.0)  # a number now: the statistics stay where they are
    assert optimizer.param_groups[0]["seen"].device.type == "meta"
    assert optimizer.confidence()[0]["mean"].is_meta


# -- refusals ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_wrapped_is_refused_with_the_way_out() -> None:
    params = [nn.Parameter(torch.zeros(1))]

    class HasEta(torch.optim.SGD):
        def __init__(self, params: Any) -> None:
            super().__init__(params)
            self.defaults["eta"] = 1.0

    with pytest.raises(TypeError, match="wraps a torch optimizer, but got list"):
        LossWeighted(params)
    with pytest.raises(TypeError, match="AdamUCB weighs its gradients by the loss already"):
        LossWeighted(AdamUCB(params))
    with pytest.raises(TypeError, match=r"LBFGS evaluates the closure by itself.*surefoot\.weigh"):
        LossWeighted(torch.optim.LBFGS(params))
    with pytest.raises(ValueError, match="HasEta has an 'eta' of its own"):
        LossWeighted(HasEta(params))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "ucbb"}, "Unknown rule 'ucbb'"),
        ({"rule": "s", "eta": -1.0}, "Invalid eta value: -1.0"),
        ({"eta": math.nan}, "Invalid eta value: nan"),
        ({"weighting": "papper"}, "Invalid weighting value: 'papper'; take one of 'paper', 'unit'"),
        ({"nonfinite": "stop"}, "Invalid nonfinite value: 'stop'; take one of 'skip', 'raise', 'coast'"),
        ({"loss_beta": 1.0}, "Invalid loss_beta value: 1.0"),
        ({"loss_beta": None}, "Invalid loss_beta value: None; it must be a number, not NoneType"),
        ({"loss_beta": "0.9"}, "Invalid loss_beta value: '0.9'; it must be a number, not str"),
        ({"eta": "x"}, "Invalid eta value: 'x'; it must be a number, not str"),
        ({"seed": 0.5}, "Invalid seed value: 0.5"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    base = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    with pytest.raises(ValueError, match=message):
        LossWeighted(base, **settings)
    assert "seen" not in base.param_groups[0]


def test_bad_etas_of_groups_are_named() -> None:
    p, q = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="Invalid eta value: -2"):
        LossWeighted(torch.optim.SGD([{"params": [p], "eta": -2}]), "s")
    optimizer = LossWeighted(torch.optim.SGD([p]), "s")
    with pytest.raises(ValueError, match="Invalid eta value: -2"):
        optimizer.add_param_group({"params": [q], "eta": -2})
    assert len(optimizer.param_groups) == 1


def test_a_step_without_a_loss_names_the_ways_to_pass_it() -> None:
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    optimizer = LossWeighted(torch.optim.SGD([p], lr=0.1))
    with pytest.raises(RuntimeError, match=r"step\(loss=loss\)"):
        optimizer.step()
    assert p.item() == 0
    with pytest.raises(AttributeError, match="no_such_thing"):
        optimizer.no_such_thing  # noqa: B018
