"""The path for accelerators: nothing is read back or copied over from the host, and every tensor stays in place."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from host_reads import no_host_reads
from surefoot import LossAware
from surefoot.optim.named import OPTIMIZERS
from surefoot.rules import from_objective

CLASS = pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)


def test_the_guards_do_fail() -> None:
    x = torch.ones(3)
    for read in (lambda: x.sum().item(), lambda: bool(x.sum() > 0), lambda: x.nonzero(), lambda: float(x[0])):
        with pytest.raises(AssertionError, match="waits"), no_host_reads():
            read()
    with pytest.raises(AssertionError, match="waits"), no_host_reads():
        x.to("meta")
    with pytest.raises(AssertionError, match="copies"), no_host_reads():
        torch.tensor(1.0, device="meta")


def settings_of(cls: type[LossAware]) -> list[dict[str, Any]]:
    own: dict[str, list[dict[str, Any]]] = {
        "adam": [{"amsgrad": True}, {"fused": True}, {"foreach": True}],
        "momentum": [{"nesterov": True}],
    }
    return [
        {},
        {"weighting": "unit", "weight_decay": 0.1, "maximize": True},
        {"weight_decay": 0.1, "decoupled_weight_decay": True, "check_gradients": True},
        {"foreach": False},
        *own.get(cls.engine.name, []),
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
    optimizer = OPTIMIZERS["AdamUCB"]([p], rule=from_objective(lambda mean, std, eta: mean + std**2))
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
