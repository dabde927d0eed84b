"""LossWeighted around other people's optimizers: what the base is given, and the loop around it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from surefoot import EtaSchedule, LossWeighted
from surefoot.reference import Reference
from wrapped import BASES, assert_equal, every_base, loss_at, make_model, params_of, train

# -- what the base is given ----------------------------------------------------------------------------------------


@every_base
def test_eta_zero_is_the_base_itself(name: str) -> None:
    plain, wrapped = make_model(), make_model()
    losses = train(plain, BASES[name](plain.parameters()), range(20))
    assert losses == train(wrapped, LossWeighted(BASES[name](wrapped.parameters()), "ucb", eta=0.0), range(20))
    assert_equal(params_of(plain), params_of(wrapped))


@pytest.mark.parametrize("weighting", ["unit", "paper"])
@pytest.mark.parametrize("rule", ["ucb", "cb", "s"])
@every_base
def test_the_base_gets_the_gradient_times_the_oracle_s_weight(name: str, rule: str, weighting: Any) -> None:
    """The weight of every step as the paper's own r and s give it, multiplied in by hand."""
    by_hand, wrapped = make_model(), make_model()
    base = BASES[name](by_hand.parameters())
    optimizer = LossWeighted(BASES[name](wrapped.parameters()), rule, eta=0.3, weighting=weighting, seed=7)
    oracle = Reference([], rule=rule, eta=0.3, lr=0.0, weighting=weighting, seed=7)
    for mode in (base, optimizer):
        if hasattr(mode, "train"):
            mode.train()
    for step in range(6):
        for model, chosen in ((by_hand, base), (wrapped, optimizer)):
            chosen.zero_grad()
            loss = loss_at(model, step)
            loss.backward()
            if chosen is optimizer:
                optimizer.step(loss=loss)
                continue
            weight = oracle.weight_of(loss.item())
            oracle.losses.append(loss.item())
            for p in by_hand.parameters():
                p.grad.mul_(weight)
            base.step()
        assert float(optimizer.confidence()[0]["weight"]) == pytest.approx(weight, rel=1e-4, abs=1e-6)
    for p, q in zip(by_hand.parameters(), wrapped.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


@every_base
def test_gradients_are_left_as_they_were(name: str) -> None:
    model = make_model()
    optimizer = LossWeighted(BASES[name](model.parameters()), "ucb", eta=0.5)
    train(model, optimizer, range(3))
    loss = loss_at(model, 3)
    loss.backward()
    before = [(p.grad, p.grad.clone()) for p in model.parameters()]
    optimizer.step(loss=loss)
    for p, (same, copy_of_it) in zip(model.parameters(), before):
        assert p.grad is same
        assert torch.equal(p.grad, copy_of_it)


def test_gradients_and_statistics_survive_a_base_that_raises() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("out of luck")

    p = nn.Parameter(torch.ones(2))
    p.grad = torch.full((2,), 3.0)
    grad = p.grad
    optimizer = LossWeighted(Broken([p], lr=0.1), "ucb", eta=0.5, weighting="paper")
    with pytest.raises(RuntimeError, match="out of luck"):
        optimizer.step(loss=2.0)
    assert p.grad is grad
    assert p.grad.tolist() == [3.0, 3.0]
    assert optimizer.param_groups[0]["seen"][0] == 0


def test_weights_are_per_group() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [first], "eta": 0.5}, {"params": [second]}]
    optimizer = LossWeighted(torch.optim.SGD(groups, lr=1.0), "ucb", eta=0.1)
    for loss in (1.0, 3.0, 4.0):
        first.grad, second.grad = torch.ones(1), torch.ones(1)
        before = first.item(), second.item()
        optimizer.step(loss=loss)
    strong, weak = optimizer.confidence()
    assert strong["weight"] - 1 == pytest.approx(5 * (float(weak["weight"]) - 1))
    assert before[0] - first.item() == pytest.approx(float(strong["weight"]))
    third = nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": [third], "eta": 0.2})
    assert optimizer.base.param_groups[2]["eta"] == 0.2
    assert optimizer.confidence()[2]["mean"] == weak["mean"]
    optimizer.base.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    optimizer.step(loss=5.0)
    assert optimizer.param_groups[3]["eta"] == 0.1


def test_what_is_maximized_is_a_loss_turned_around() -> None:
    down, up = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    descends = LossWeighted(torch.optim.SGD([down], lr=0.1), "ucb", eta=0.5)
    climbs = LossWeighted(torch.optim.SGD([up], lr=0.1, maximize=True), "ucb", eta=0.5)
    lion = LossWeighted(pytorch_optimizer.Lion([up], maximize=True), "ucb")
    for loss in (1.0, 3.0, 4.0):
        down.grad, up.grad = torch.ones(1), -torch.ones(1)
        descends.step(loss=loss)
        climbs.step(loss=-loss)
    assert torch.equal(down, up)
    assert descends.confidence() == climbs.confidence()
    lion.step(loss=2.0)  # keeps the flag outside its groups
    assert lion.confidence()[0]["mean"] == -2


def test_sparse_gradients_reach_a_base_that_takes_them() -> None:
    embedding = nn.Embedding(5, 2, sparse=True)
    optimizer = LossWeighted(torch.optim.SparseAdam(list(embedding.parameters()), lr=0.1), "ucb", eta=0.5)
    before = embedding.weight.detach().clone()
    for row in (1, 2):
        optimizer.zero_grad()
        loss = embedding(torch.tensor([row])).pow(2).sum()
        loss.backward()
        optimizer.step(loss=loss)
    assert embedding.weight.grad.is_sparse
    moved = (embedding.weight != before).any(dim=1)
    assert moved.tolist() == [False, True, True, False, False]


# -- the loop around it --------------------------------------------------------------------------------------------


def test_closure_runs_once_and_its_value_comes_back() -> None:
    model = make_model()
    optimizer = LossWeighted(torch.optim.SGD(model.parameters(), lr=0.05), "ucb", eta=0.5)
    other = make_model()
    same = LossWeighted(torch.optim.SGD(other.parameters(), lr=0.05), "ucb", eta=0.5)
    calls = []
    for step in range(5):

        def closure(step: int = step) -> Tensor:
            calls.append(torch.is_grad_enabled())
            optimizer.zero_grad()
            loss = loss_at(model, step)
            loss.backward()
            return loss

        assert optimizer.step(closure).item() == train(other, same, range(step, step + 1))[0]
    assert calls == [True] * 5
    assert_equal(params_of(model), params_of(other))


def test_recorded_losses_are_averaged() -> None:
    p = nn.Parameter(torch.zeros(1))
    optimizer = LossWeighted(torch.optim.SGD([p], lr=0.1), "ucb")
    p.grad = torch.ones(1)
    optimizer.record_loss(torch.tensor(1.0), weight=3)
    optimizer.record_loss(5.0, weight=1)
    optimizer.step()
    assert optimizer.confidence()[0]["mean"] == 2
    optimizer.record_loss(100.0)
    optimizer.zero_grad()  # that step never came
    p.grad = torch.ones(1)
    optimizer.record_loss(2.0)
    optimizer.step()
    assert optimizer.confidence()[0]["mean"] == 2


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_skips_and_the_statistics_see_nothing(fused: bool) -> None:
    model = make_model()
    optimizer = LossWeighted(torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused), "ucb", eta=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        optimizer.zero_grad()
        loss = loss_at(model, step)
        scaler.scale(loss).backward()
        if step == 2:
            next(model.parameters()).grad[0, 0] = math.inf
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = params_of(model)
        scaler.step(optimizer, loss=loss)
        scaler.update()
        if step == 2:
            assert_equal(before, params_of(model))
    assert optimizer.param_groups[0]["seen"][0] == 4
    assert scaler.get_scale() == 512


@pytest.mark.parametrize("on_base", [False, True])
def test_schedulers_work_on_either(on_base: bool) -> None:
    model = make_model()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = LossWeighted(base, "ucb", eta=0.4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = torch.optim.lr_scheduler.StepLR(base if on_base else optimizer, step_size=1, gamma=0.5)
        eta = EtaSchedule(optimizer, lambda step: 0.5**step)
        for step in range(2):
            train(model, optimizer, range(step, step + 1))
            scheduler.step()
            eta.step()
    assert base.param_groups[0]["lr"] == 0.025
    assert optimizer.param_groups[0]["eta"] == 0.1


@pytest.mark.parametrize("nonfinite", ["skip", "coast"])
def test_a_compiled_step_goes_the_same_way(nonfinite: str) -> None:
    torch._dynamo.reset()
    ends = []
    for is_compiled in (False, True):
        model = make_model()
        base = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = LossWeighted(base, "ucb", eta=0.3, nonfinite=nonfinite)
        step = torch.compile(optimizer.step, backend="eager") if is_compiled else optimizer.step
        for i in range(4):
            optimizer.zero_grad()
            loss = loss_at(model, i)
            loss.backward()
            grads = [(p, p.grad) for p in model.parameters()]
            step(loss=loss)
            assert all(p.grad is grad for p, grad in grads)
        ends.append([*params_of(model), optimizer.param_groups[0]["seen"].float()])
    for eager, compiled in zip(*ends):
        torch.testing.assert_close(eager, compiled, rtol=1e-4, atol=1e-5)


def test_schedule_free_modes_pass_through() -> None:
    model = make_model()
    optimizer = LossWeighted(BASES["ScheduleFree"](model.parameters()), "ucb", eta=0.1)
    train(model, optimizer, range(5))
    while_training = params_of(model)
    optimizer.eval()
    assert not all(torch.equal(a, b) for a, b in zip(while_training, params_of(model)))
    with pytest.raises(Exception, match="train mode"):
        optimizer.step(loss=1.0)
    assert not hasattr(LossWeighted(torch.optim.SGD(model.parameters())), "train")


def test_every_hook_fires_once() -> None:
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    base = torch.optim.SGD([p], lr=0.1)
    seen: list[tuple[str, Optimizer]] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda optimizer, *_: seen.append((name, optimizer))

    base.register_step_pre_hook(noting("pre on base"))
    optimizer = LossWeighted(base, "ucb")
    optimizer.register_step_pre_hook(noting("pre"))
    optimizer.register_step_post_hook(noting("post"))
    everywhere = [
        register_optimizer_step_pre_hook(noting("all pre")),
        register_optimizer_step_post_hook(noting("all post")),
    ]
    try:
        optimizer.step(loss=1.0)
    finally:
        for handle in everywhere:
            handle.remove()
    assert sorted(name for name, _ in seen) == ["all post", "all pre", "post", "pre", "pre on base"]
    assert all(hooked is optimizer for _, hooked in seen)
    seen.clear()
    optimizer.register_state_dict_pre_hook(noting("state pre"))
    optimizer.register_state_dict_post_hook(noting("state post"))
    optimizer.register_load_state_dict_pre_hook(noting("load pre"))
    optimizer.register_load_state_dict_post_hook(noting("load post"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [(name, optimizer) for name in ("state pre", "state post", "load pre", "load post")]


def test_hooks_on_checkpoints_may_replace_them() -> None:
    optimizer = LossWeighted(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": "mine"})
    optimizer.register_load_state_dict_pre_hook(
        lambda _, state: {**state, "param_groups": [{**group, "lr": 0.5} for group in state["param_groups"]]}
    )
    state = optimizer.state_dict()
    assert state["note"] == "mine"
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.5
