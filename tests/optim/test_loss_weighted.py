"""LossWeighted around other people's optimizers: what the base is given, and the loop around it."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from host_reads import no_host_reads
from saved import through_a_file
from surefoot import AdamUCB, EtaSchedule, LossWeighted
from surefoot.reference import Reference
from surefoot.statistics import LossStats
from warm import take_step
from wrapped import BASES, assert_equal, every_base, loss_at, make_model, params_of, train

# -- what the base is given ------------------------------------------------------------------------------------------


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


def test_a_maximized_loss_is_negated() -> None:
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


# -- the loop around it ----------------------------------------------------------------------------------------------


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


# -- losses that are not finite, devices, and what is refused --------------------------------------------------------


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
def test_a_loss_that_is_too_large_is_skipped_too(make: Callable[..., Optimizer], nonfinite: str) -> None:
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


# -- refusals --------------------------------------------------------------------------------------------------------


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


def test_an_eta_changed_later_is_checked_by_the_wrapper_too() -> None:
    p = Parameter(torch.ones(1))
    optimizer = LossWeighted(torch.optim.SGD([p], lr=0.1), "s", eta=0.1)
    take_step(optimizer)
    for bad in (-3.0, float("nan"), "strong"):
        optimizer.param_groups[0]["eta"] = bad
        with pytest.raises(ValueError, match="Invalid eta value"):
            take_step(optimizer)
    with pytest.raises(ValueError, match="Invalid eta value"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(1))], "eta": "strong"})


def test_the_error_of_a_base_without_a_learning_rate_names_the_three_ways_too() -> None:
    """As Adafactor of Transformers, which finds its own rate."""
    weight = torch.nn.Parameter(torch.ones(2))
    base = torch.optim.SGD([weight], lr=0.1)
    base.param_groups[0]["lr"] = None
    weight.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="got no loss"):
        LossWeighted(base).step()


# -- checkpoints, copies, and state that is the base's ---------------------------------------------------------------


@every_base
def test_resumed_training_is_bit_for_bit_the_same(name: str) -> None:
    model = make_model()
    optimizer = LossWeighted(BASES[name](model.parameters()), "s", eta=0.5, seed=3)
    train(model, optimizer, range(5))
    state = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    losses = train(model, optimizer, range(5, 10))
    again = make_model()
    again.load_state_dict(state["model"])
    resumed = LossWeighted(BASES[name](again.parameters()), "s", eta=0.1, seed=3)
    resumed.load_state_dict(state["optimizer"])
    assert losses == train(again, resumed, range(5, 10))
    assert_equal(params_of(model), params_of(again))


# A copy of pytorch-optimizer's Lion has lost its flags, with or without a wrapper, and its Lookahead cannot be copied.
@pytest.mark.parametrize("name", [name for name in BASES if name not in ("Lion", "Lookahead")])
def test_copies_and_pickles_go_on_as_the_original(name: str) -> None:
    for duplicate in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        model = make_model()
        optimizer = LossWeighted(BASES[name](model.parameters()), "s", eta=0.5, process_group=False)
        train(model, optimizer, range(3))
        twin_model, twin = duplicate((model, optimizer))
        assert train(model, optimizer, range(3, 6)) == train(twin_model, twin, range(3, 6))
        assert twin.process_group is False


def test_checkpoints_of_the_base_go_in_and_out() -> None:
    model = make_model()
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, plain, range(3))
    optimizer = LossWeighted(torch.optim.AdamW(model.parameters(), lr=0.5), "ucb", eta=0.3)
    optimizer.load_state_dict(through_a_file(plain.state_dict()))
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["eta"] == 0.3
    assert optimizer.param_groups[0]["seen"][0] == 0
    train(model, optimizer, range(3))
    plain.load_state_dict(through_a_file(optimizer.state_dict()))
    assert next(iter(plain.state.values()))["step"] == 6
    cut = optimizer.state_dict()
    cut["param_groups"][0]["seen"] = torch.zeros(3)
    with pytest.raises(ValueError, match="3 entries"):
        optimizer.load_state_dict(cut)


def test_a_base_with_a_form_of_its_own_is_saved_in_it() -> None:
    """pytorch_optimizer.Lookahead writes neither state nor param_groups."""
    model = make_model()
    optimizer = LossWeighted(BASES["Lookahead"](model.parameters()), "ucb", eta=0.3)
    train(model, optimizer, range(3))
    saved = through_a_file(optimizer.state_dict())
    assert {"lookahead_state", "base_optimizer", "param_groups"} == saved.keys()
    other = LossWeighted(BASES["Lookahead"](model.parameters()), "ucb", eta=0.1)
    other.load_state_dict(saved)
    assert other.param_groups[0]["eta"] == 0.3
    assert_equal(other.param_groups[0]["seen"], optimizer.param_groups[0]["seen"])
    alone = BASES["Lookahead"](model.parameters())
    alone.param_groups[0]["lr"] = 0.5
    optimizer.load_state_dict(alone.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["eta"] == 0.3
    assert optimizer.param_groups[0]["seen"][0] == 0
    alone.load_state_dict(saved)
    train(model, optimizer, range(3))
    with pytest.raises(KeyError, match="lookahead_state"):  # Lookahead's own refusal
        optimizer.load_state_dict({"something": 1})


CLOSURE_ONLY: dict[str, Callable[[Any], Optimizer]] = {
    "SAM": lambda params: pytorch_optimizer.SAM(params, torch.optim.SGD, lr=0.1),
    "AliG": lambda params: pytorch_optimizer.AliG(params),
    "CallsClosure": lambda params: CallsClosure(params, lr=0.1),
}


class CallsClosure(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure()
        super().step()
        return loss


@pytest.mark.parametrize("name", CLOSURE_ONLY)
def test_a_base_that_needs_its_closure_is_named_before_anything_changes(name: str) -> None:
    model = make_model()
    optimizer = LossWeighted(CLOSURE_ONLY[name](model.parameters()))
    before = copy.deepcopy([params_of(model), optimizer.confidence()])
    loss = loss_at(model, 0)
    loss.backward()
    with pytest.raises(TypeError, match=rf"{name} evaluates the closure by itself, .* surefoot\.weigh instead"):
        optimizer.step(loss=loss)
    torch.testing.assert_close([params_of(model), optimizer.confidence()], before, rtol=0, atol=0)


def test_other_errors_of_a_base_are_its_own() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        LossWeighted(Broken(make_model().parameters(), lr=0.1)).step(loss=1.0)


def test_groups_and_state_are_the_base_s_own() -> None:
    model = make_model()
    base = torch.optim.AdamW(model.parameters())
    optimizer = LossWeighted(base)
    assert isinstance(optimizer, Optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    assert base.param_groups[0]["lr"] == 0.5
    train(model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups is base.param_groups
    assert optimizer.state is base.state
    assert "AdamW" not in repr(optimizer).splitlines()[0]
    optimizer.state, optimizer.param_groups = {}, []
    assert base.state == {}
    assert base.param_groups == []


def test_a_base_may_write_its_groups_in_its_own_way() -> None:
    class Terse(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            whole = super().state_dict()
            everything = [index for group in whole["param_groups"] for index in group["params"]]
            return {**whole, "param_groups": [{"lr": 0.1, "params": everything}]}

    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    saved = LossWeighted(Terse(groups, lr=0.1)).state_dict()
    assert saved["param_groups"] == [{"lr": 0.1, "params": [0, 1]}]
