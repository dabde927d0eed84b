"""The step cache changes nothing but the time: whatever a user disturbs between two steps is noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import surefoot
from surefoot.optim.step_cache import HostFloats, StepCache
from surefoot.statistics import LossStats, no_statistics

Disturb = Callable[[Any], Any]
KINDS = {
    "AdamUCB": lambda groups: surefoot.AdamUCB(groups, lr=0.01, eta=0.1, weight_decay=0.01),
    "AdamS": lambda groups: surefoot.AdamS(groups, lr=0.01, eta=0.5),
    "MomentumCB": lambda groups: surefoot.MomentumCB(groups, lr=0.01),
    "NAdamUCB": lambda groups: surefoot.NAdamUCB(groups, lr=0.01),
}


def fresh_gradients(optimizer: Any, step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.randn(p.shape, generator=draw)


def loss_of(step: int) -> Tensor:
    return torch.tensor(2.0 / (1 + step) + 0.3 * (step % 3))


def params_of(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def transposed_gradient(optimizer: Any) -> None:
    p = params_of(optimizer)[0]
    p.grad = p.grad.t().contiguous().t()


def sliced_parameter(optimizer: Any) -> None:
    p = params_of(optimizer)[0]
    p.data = torch.cat([p.data, p.data], dim=1)[:, : p.shape[1]]


def missing_gradient(optimizer: Any) -> None:
    params_of(optimizer)[1].grad = None


def forgotten_state(optimizer: Any) -> None:
    del optimizer.state[params_of(optimizer)[0]]


def replaced_moment(optimizer: Any) -> None:
    state = optimizer.state[params_of(optimizer)[0]]
    name = next(name for name in ("exp_avg", "momentum_buffer") if name in state)
    state[name] = torch.ones_like(state[name])


def replaced_count(optimizer: Any) -> None:
    for p in optimizer.param_groups[0]["params"]:
        optimizer.state[p]["step"] = torch.tensor(100.0)


def count_in_place(optimizer: Any) -> None:
    optimizer.state[params_of(optimizer)[0]]["step"].fill_(50.0)


def statistics_in_place(optimizer: Any) -> None:
    optimizer.param_groups[0]["seen"][1] = 7.0


def reloaded(optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def another_group(optimizer: Any) -> None:
    draw = torch.Generator().manual_seed(99)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.randn(3, generator=draw))]})
    optimizer.param_groups[-1]["params"][0].grad = torch.randn(3, generator=draw)


def options(**changes: Any) -> Disturb:
    def change(optimizer: Any) -> None:
        optimizer.param_groups[0].update({k: v for k, v in changes.items() if k in optimizer.param_groups[0]})

    return change


def infinite_gradient(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["check_gradients"] = True
    params_of(optimizer)[0].grad[0, 0] = torch.inf


def infinite_loss(optimizer: Any) -> Tensor:
    return torch.tensor(torch.inf)


DISTURBANCES: list[Disturb] = [
    transposed_gradient,
    sliced_parameter,
    missing_gradient,
    forgotten_state,
    replaced_moment,
    replaced_count,
    count_in_place,
    statistics_in_place,
    reloaded,
    another_group,
    infinite_gradient,
    infinite_loss,
    options(amsgrad=True),
    options(foreach=False),
    options(fused=False, foreach=True),
    options(capturable=True),
    options(maximize=True),
    options(lr=0.5, eta=0.2, weight_decay=0.1),
    options(weighting="unit"),
]


def trained(kind: str, disturb: Disturb) -> Any:
    torch.manual_seed(0)
    first = [torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(3))]
    optimizer = KINDS[kind]([{"params": first}, {"params": [torch.nn.Parameter(torch.randn(2, 2))]}])
    for step in range(9):
        fresh_gradients(optimizer, step)
        loss = (disturb(optimizer) if step == 4 else None) or loss_of(step)
        optimizer.step(loss=loss)
    return optimizer


def numbers(optimizer: Any) -> list[Tensor]:
    """Parameters, statistics and all state, in order."""
    kept = [state[name] for p in params_of(optimizer) for state in [optimizer.state[p]] for name in sorted(state)]
    return [*params_of(optimizer), *(group["seen"] for group in optimizer.param_groups), *kept]


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda d: d.__qualname__.split(".")[0])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_steps_are_uncached_ones_bit_for_bit(
    kind: str, disturb: Disturb, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = trained(kind, disturb)
    monkeypatch.setattr(StepCache, "keep", lambda *_: None)
    uncached = trained(kind, disturb)
    assert not uncached._cache.buckets
    for actual, expected in zip(numbers(cached), numbers(uncached), strict=True):
        assert torch.equal(actual, expected)


def test_the_cache_is_filled_and_used() -> None:
    """Else the test above would compare uncached steps with themselves."""
    optimizer = trained("AdamUCB", lambda _: None)
    before = list(optimizer._cache.buckets.values())
    assert len(before) == 2
    assert None not in before
    fresh_gradients(optimizer, 10)
    assert None not in optimizer._cache.look_up(optimizer.param_groups, optimizer.state)
    optimizer.step(loss=0.5)
    assert list(map(id, optimizer._cache.buckets.values())) == list(map(id, before))


def test_a_group_that_changed_does_not_cost_the_others_their_cache() -> None:
    optimizer = trained("AdamUCB", lambda _: None)
    fresh_gradients(optimizer, 10)
    optimizer.param_groups[1]["params"][0].grad = None
    first, second = optimizer._cache.look_up(optimizer.param_groups, optimizer.state)
    assert first is not None
    assert second is None


def test_a_sparse_gradient_in_the_last_group_changes_nothing_in_the_first() -> None:
    optimizer = trained("AdamUCB", lambda _: None)
    fresh_gradients(optimizer, 10)
    last = params_of(optimizer)[-1]
    last.grad = last.grad.to_sparse()
    before = [x.clone() for x in numbers(optimizer)]
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step(loss=1.0)
    for actual, expected in zip(numbers(optimizer), before, strict=True):
        assert torch.equal(actual, expected)


def test_host_floats_and_their_tensor_are_one_memory() -> None:
    floats = HostFloats(no_statistics())
    floats.write(LossStats(count=2.0, mean=5.0))
    assert floats.tensor.tolist() == list(LossStats(count=2.0, mean=5.0))
    floats.tensor[1] = 7.0
    assert LossStats(*floats.values) == LossStats(count=2.0, mean=7.0)
