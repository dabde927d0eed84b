"""Anytime around every torch optimizer: the base trains as if alone, and the wrong weights are never saved."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import pytorch_optimizer
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

import surefoot
from host_reads import no_host_reads
from saved import through_a_file
from surefoot import Anytime, WeightAverage
from surefoot.averaging.memory import LossDriven
from warm import take_step
from wrapped import BASES, assert_equal, loss_at, make_model, params_of

TORCH = {
    name: lambda params, cls=cls: cls(params, lr=0.01)
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, Optimizer) and name not in ("Optimizer", "SparseAdam")
}
OURS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamS": lambda params: surefoot.AdamS(params, lr=0.01, eta=0.3),
    "LossWeighted": lambda params: surefoot.LossWeighted(torch.optim.SGD(params, lr=0.05), "ucb", eta=0.3),
}
EVERY = {**TORCH, **BASES, **OURS}
every_optimizer = pytest.mark.parametrize("name", EVERY)


def train(model: nn.Module, optimizer: Any, steps: range) -> list[list[Tensor]]:
    """The weights after every step."""
    if hasattr(optimizer, "train"):
        optimizer.train()
    trajectory = []
    for step in steps:

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_at(model, step)
            loss.backward()
            return loss

        if isinstance(getattr(optimizer, "base", optimizer), torch.optim.LBFGS):
            optimizer.step(closure)
        elif isinstance(optimizer, (Anytime, surefoot.LossAware, surefoot.LossWeighted)):
            optimizer.step(loss=closure())
        else:
            closure()
            optimizer.step()
        trajectory.append(params_of(model))
    return trajectory


def averages(model: nn.Module, optimizer: Anytime) -> list[Tensor]:
    with optimizer.averaged():
        return params_of(model)


# -- the base --------------------------------------------------------------------------------------------------------


@every_optimizer
def test_the_base_takes_the_steps_it_would_take_alone(name: str) -> None:
    plain, wrapped = make_model(), make_model()
    alone = train(plain, EVERY[name](plain.parameters()), range(25))
    optimizer = Anytime(EVERY[name](wrapped.parameters()), every=3)
    beside = []
    for step in range(25):
        beside += train(wrapped, optimizer, range(step, step + 1))
        if step % 4 == 0:
            averages(wrapped, optimizer)
            optimizer.averaged_state_dict(wrapped)
    for a, b in zip(alone, beside, strict=True):
        assert_equal(a, b)


@every_optimizer
def test_the_average_is_that_of_an_observer(name: str) -> None:
    """What `WeightAverage`, whose recurrence is tested against the formula, makes of the trajectory of the base."""
    plain, wrapped = make_model(), make_model()
    optimizer = Anytime(EVERY[name](wrapped.parameters()), kappa=0.5, loss_beta=0.9, every=3)
    tensors = [torch.empty_like(p) for p in plain.parameters()]
    observer = WeightAverage(tensors, LossDriven(0.9, 0.5), every=3)
    for step, weights in enumerate(train(plain, EVERY[name](plain.parameters()), range(17))):
        loss = loss_at(wrapped, step).item()
        train(wrapped, optimizer, range(step, step + 1))
        for x, value in zip(tensors, weights):
            x.copy_(value)
        observer.update(loss)
        with observer.averaged():
            for x, y in zip(tensors, averages(wrapped, optimizer), strict=True):
                torch.testing.assert_close(x, y)


def test_a_base_that_takes_the_loss_gets_it_however_it_came() -> None:
    for give in ("loss", "record", "closure"):
        alone, wrapped = make_model(), make_model()
        base, optimizer = OURS["AdamS"](alone.parameters()), Anytime(OURS["AdamS"](wrapped.parameters()))
        for step in range(5):
            for model, chosen in ((alone, base), (wrapped, optimizer)):
                chosen.zero_grad()
                losses = [loss_at(model, 2 * step + i) for i in range(2)]
                sum(losses).backward()
                if give == "record":
                    chosen.record_loss(losses[0], weight=3)
                    chosen.record_loss(losses[1])
                    chosen.step()
                elif give == "closure":
                    assert chosen.step(lambda losses=losses: losses[1]) is losses[1]
                else:
                    chosen.step(loss=losses[1])
        assert_equal(params_of(alone), params_of(wrapped))
        assert torch.equal(base.param_groups[0]["seen"], optimizer.param_groups[0]["seen"])
        assert optimizer.confidence()[0]["weight"] == base.confidence()[0]["weight"]


def test_it_is_an_optimizer_with_the_groups_of_the_base() -> None:
    model = make_model()
    optimizer = Anytime(torch.optim.SGD(model.parameters(), lr=0.1))
    assert isinstance(optimizer, Optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    take_step(optimizer)
    scheduler.step()
    assert optimizer.base.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_skips_and_the_average_sees_nothing(fused: bool) -> None:
    model = make_model()
    optimizer = Anytime(torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused), every=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_at(model, step)
        scaler.scale(loss).backward()
        if step == 2:
            next(model.parameters()).grad[0, 0] = math.inf
        scaler.step(optimizer, loss=loss)
        scaler.update()
    assert optimizer.state_dict()["param_groups"][0]["average_numbers"][0] == 3
    assert all(p.isfinite().all() for p in averages(model, optimizer))


def test_recorded_losses_are_averaged() -> None:
    p = Parameter(torch.zeros(1))
    optimizer = Anytime(torch.optim.SGD([p], lr=0.1))
    p.grad = torch.ones(1)
    optimizer.record_loss(torch.tensor(1.0), weight=3)
    optimizer.record_loss(5.0, weight=1)
    optimizer.step()
    assert optimizer.confidence()[0]["mean"] == 2


@pytest.mark.parametrize("base", ["SGD", "AdamS"])
def test_losses_that_the_closure_records_belong_to_its_step(base: str) -> None:
    """As in Lightning: micro-batches before the last one are recorded outside of the closure, the last one inside."""
    p = Parameter(torch.zeros(1))
    optimizer = Anytime(torch.optim.SGD([p], lr=0.1) if base == "SGD" else surefoot.AdamS([p]), every=2)
    losses = []
    for first, last in ((1.0, 3.0), (5.0, 7.0), (9.0, 11.0), (2.0, 4.0)):
        p.grad = torch.ones(1)
        optimizer.record_loss(first)

        def closure(last: float = last) -> float:
            optimizer.record_loss(last)
            return 1000.0

        assert optimizer.step(closure) == 1000
        losses.append((first + last) / 2)
    mean = surefoot.statistics.LossStats()
    for loss in losses:
        mean = mean.with_loss(loss, 0.99)
    assert optimizer.state_dict()["param_groups"][0]["average_numbers"][1] == pytest.approx(mean.mean)
    if base == "AdamS":
        assert optimizer.base.param_groups[0]["seen"][0] == 4


def test_what_is_maximized_is_followed_where_it_rises() -> None:
    down, up = Parameter(torch.zeros(1)), Parameter(torch.zeros(1))
    descends = Anytime(torch.optim.SGD([down], lr=0.1), every=1)
    climbs = Anytime(torch.optim.SGD([up], lr=0.1, maximize=True), every=1)
    for loss in (3.0, 2.0, 1.5, 1.7):
        down.grad, up.grad = torch.ones(1), -torch.ones(1)
        descends.step(loss=loss)
        climbs.step(loss=-loss)
    with descends.averaged(), climbs.averaged():
        assert torch.equal(down, up)


def test_weigh_works_on_its_base_and_loss_weighted_belongs_inside() -> None:
    model = make_model()
    optimizer = Anytime(torch.optim.SGD(model.parameters(), lr=0.1))
    weigh = surefoot.weigh(optimizer, "ucb", eta=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_at(model, step)
        weigh(loss).backward()
        optimizer.step(loss=loss)
    assert weigh.confidence()[0]["mean"] > 0
    with pytest.raises(TypeError, match=r"write Anytime\(LossWeighted\(base\)\)"):
        surefoot.LossWeighted(optimizer)
    with pytest.raises(TypeError, match=r"Anytime weighs its gradients by the loss already"):
        surefoot.weigh(Anytime(OURS["AdamS"](model.parameters())))
    with pytest.raises(TypeError, match="Anytime keeps an average of these weights already"):
        Anytime(optimizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kappa": 0}, "Invalid kappa value: 0; it must be finite and above 0"),
        ({"kappa": "x"}, "Invalid kappa value: 'x'"),
        ({"loss_beta": 1.0}, "Invalid loss_beta value: 1.0; it must be at least 0 and below 1"),
        ({"every": 0}, "Invalid every: 0; it must be a whole number of steps, at least 1"),
    ],
)
def test_options_that_have_no_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Anytime(torch.optim.SGD([Parameter(torch.ones(1))], lr=0.1), **options)


def test_a_step_without_a_loss_is_refused_before_anything_changes() -> None:
    p = Parameter(torch.ones(2))
    optimizer = Anytime(torch.optim.SGD([p], lr=0.1))
    p.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match=r"Anytime.step\(\) got no loss: pass it as step\(loss=loss\)"):
        optimizer.step()
    with pytest.raises(TypeError, match=r"takes the loss by name.*write step\(loss=loss\)"):
        optimizer.step(torch.tensor(1.0))  # type: ignore[call-overload]
    assert p.tolist() == [1, 1]


# -- the wrong weights are never saved ---------------------------------------------------------------------------------


def trained(every: int = 3, steps: int = 8, base: str = "AdamW") -> tuple[nn.Module, Anytime]:
    model = make_model()
    optimizer = Anytime(BASES[base](model.parameters()), every=every)
    train(model, optimizer, range(steps))
    return model, optimizer


def test_before_the_first_step_the_average_is_the_weights() -> None:
    model = make_model()
    optimizer = Anytime(BASES["AdamW"](model.parameters()))
    assert_equal(params_of(model), averages(model, optimizer))
    assert_equal(params_of(model), list(optimizer.averaged_state_dict(model).values()))
    train(model, optimizer, range(1))
    assert_equal(params_of(model), averages(model, optimizer))  # also after one step: there is nothing else to average


def test_the_trained_weights_come_back_whatever_happens_inside() -> None:
    model, optimizer = trained()
    before = params_of(model)

    def break_everything() -> None:
        with optimizer.averaged():
            assert not torch.equal(next(model.parameters()), before[0])
            for p in model.parameters():
                p.data.zero_()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_everything()
    assert_equal(before, params_of(model))
    train(model, optimizer, range(8, 9))  # and training goes on


def test_what_may_not_be_done_inside_says_what_to_do() -> None:
    model, optimizer = trained()
    saved = optimizer.state_dict()
    with optimizer.averaged():
        # A copy of model and optimizer would take the averaged weights for the trained ones.
        copies = (lambda: copy.deepcopy((model, optimizer)), lambda: pickle.dumps(optimizer))
        for call in (lambda: optimizer.step(loss=1.0), lambda: optimizer.load_state_dict(saved), *copies):
            with pytest.raises(RuntimeError, match=r"inside averaged\(\).*call it after the with block"):
                call()
        with pytest.raises(RuntimeError, match=r"averaged\(\) was called inside"), optimizer.averaged():
            pass
        assert optimizer._is_swapped
    train(model, optimizer, range(8, 9))


def test_state_dicts_mean_the_same_inside_and_outside() -> None:
    model, optimizer = trained()
    outside, weights = through_a_file(optimizer.state_dict()), optimizer.averaged_state_dict(model)
    with optimizer.averaged():
        inside = through_a_file(optimizer.state_dict())
        again = optimizer.averaged_state_dict(model)
    assert str(inside) == str(outside)
    assert_equal(list(weights.values()), list(again.values()))
    for name, p in model.named_parameters():
        assert not torch.equal(weights[name], p)


def test_the_averaged_state_dict_is_a_copy() -> None:
    model, optimizer = trained()
    saved = optimizer.averaged_state_dict(model)
    kept = copy.deepcopy(saved)
    train(model, optimizer, range(8, 20))
    assert_equal(list(kept.values()), list(saved.values()))
    other = make_model()
    other.load_state_dict(saved)


def test_tensors_are_matched_as_objects() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="eager")
    optimizer = Anytime(BASES["AdamW"](compiled.parameters()), every=2)
    train(compiled, optimizer, range(6))
    plain, prefixed = optimizer.averaged_state_dict(model), optimizer.averaged_state_dict(compiled)
    assert list(prefixed) == [f"_orig_mod.{name}" for name in plain]
    assert_equal(list(plain.values()), list(prefixed.values()))
    assert_equal(list(plain.values()), averages(model, optimizer))
    assert not torch.equal(plain["0.weight"], model[0].weight)
    with pytest.raises(ValueError, match=r"none of the parameters of this Sequential.*not a copy of it"):
        optimizer.averaged_state_dict(make_model())


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    optimizer = Anytime(torch.optim.SGD(model.parameters(), lr=0.1), every=1)
    train(model, optimizer, range(0))
    for loss in (1.0, 2.0, 3.0):
        take_step(optimizer, loss)
    saved = optimizer.averaged_state_dict(model)
    assert saved["0.weight"].data_ptr() == saved["1.weight"].data_ptr()
    assert torch.equal(saved["0.weight"], averages(model, optimizer)[0])


# -- parameters of every kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64])
def test_the_average_has_at_least_single_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    p = Parameter(torch.randn(5, dtype=dtype))
    optimizer = Anytime(torch.optim.SGD([p], lr=2**-6), every=1)
    values = []
    for _ in range(4):
        p.grad = torch.ones_like(p)
        optimizer.step(loss=1.0)
        values.append(p.detach().clone())
    wide = torch.promote_types(dtype, torch.float32)
    expected = torch.stack(values).to(wide).mean(0)
    optimizer.load_state_dict(through_a_file(optimizer.state_dict()))  # torch would cast to the parameter's dtype
    take_step(optimizer)
    assert optimizer.state[p]["average"].dtype == wide
    torch.testing.assert_close(optimizer.state[p]["average"], expected)
    with optimizer.averaged():
        torch.testing.assert_close(p.detach(), ((4 * expected + values[-1].to(wide) - 2**-6) / 5).to(dtype))


def test_frozen_parameters_have_no_average_until_they_are_trained() -> None:
    model = make_model()
    model[0].weight.requires_grad_(False)
    optimizer = Anytime(torch.optim.AdamW(model.parameters(), lr=0.01), every=1)
    train(model, optimizer, range(5))
    assert "average" not in optimizer.state_dict()["state"].get(0, {})
    frozen = model[0].weight.detach().clone()
    assert torch.equal(averages(model, optimizer)[0], frozen)
    model[0].weight.requires_grad_(True)
    train(model, optimizer, range(5, 12))
    average = averages(model, optimizer)[0]
    assert not torch.equal(average, frozen)
    assert not torch.equal(average, model[0].weight)


def test_a_group_that_is_added_later_has_an_average_of_its_own() -> None:
    first, late = Parameter(torch.zeros(1)), Parameter(torch.full((1,), 100.0))
    optimizer = Anytime(torch.optim.SGD([first], lr=1.0), every=1)
    for _ in range(50):
        take_step(optimizer)
    optimizer.add_param_group({"params": [late]})
    for _ in range(3):
        take_step(optimizer)
    with optimizer.averaged():
        assert first.item() == pytest.approx(-27)
        assert late.item() == pytest.approx(98)  # of 99, 98, 97: not of the 100 that it started from
    optimizer.base.add_param_group({"params": [Parameter(torch.zeros(1))]})
    take_step(optimizer)
    assert len(optimizer.confidence()) == 3


def test_a_parameter_without_a_gradient_keeps_the_base_at_peace() -> None:
    """Adam takes a parameter with any state for one that it has set up."""
    a, b = Parameter(torch.ones(1)), Parameter(torch.ones(1))
    optimizer = Anytime(torch.optim.Adam([a, b], lr=0.1), every=1)
    for i in range(4):
        a.grad, b.grad = torch.ones(1), torch.ones(1) if i == 3 else None
        optimizer.step(loss=1.0)
    assert b.item() != 1
    restored = Anytime(torch.optim.Adam([a, b], lr=0.1), every=1)
    b.grad = None
    restored.load_state_dict(optimizer.state_dict())


# -- when things go wrong ----------------------------------------------------------------------------------------------


def test_nan_weights_never_enter_the_average() -> None:
    for use_closure in (False, True):
        model, optimizer = trained(every=1, steps=5)
        good = averages(model, optimizer)
        with torch.no_grad():
            next(model.parameters()).fill_(math.nan)
        for step in range(5, 8):
            loss = loss_at(model, step)
            loss.backward()
            if use_closure:
                optimizer.step(lambda loss=loss: loss)
            else:
                optimizer.step(loss=loss)
        assert all(p.isnan().all() for p in model.parameters())  # the base does what it does alone
        for a, b in zip(averages(model, optimizer), good, strict=True):
            torch.testing.assert_close(a, b, rtol=0.1, atol=0.01)
        assert optimizer.confidence()[0]["skipped"] == 3


def quadratic(every: int, steps: int = 1500) -> tuple[Parameter, Anytime, Callable[[], float]]:
    """SGD at the bottom of a bowl, in noise; the step that goes on, which returns the loss."""
    torch.manual_seed(0)
    p, curvature = Parameter(torch.ones(10)), torch.linspace(0.1, 1, 10)
    optimizer = Anytime(torch.optim.SGD([p], lr=0.1), every=every)

    def step() -> float:
        optimizer.zero_grad()
        loss = (curvature * (p - torch.randn(10)) ** 2).sum() / 2
        loss.backward()
        optimizer.step(loss=loss)
        return loss.item()

    for _ in range(steps):
        step()
    return p, optimizer, step


def distance(p: Parameter, optimizer: Anytime) -> float:
    with optimizer.averaged():
        return p.detach().norm().item()


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("lr", [2.05, 2.3, 10.0])
def test_a_divergence_leaves_the_average_where_it_was(lr: float, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a learning rate that is a little too high to one that is absurd, until the loss is infinite or 1e17."""

    def worst() -> float:
        p, optimizer, step = quadratic(every)
        assert distance(p, optimizer) < 0.15 < 0.5 < p.detach().norm()
        optimizer.param_groups[0]["lr"] = lr
        distances = []
        for _ in range(400):
            distances += [distance(p, optimizer)] if math.isfinite(step()) else []
        return max(distances)

    assert worst() < 0.15
    monkeypatch.setattr(LossDriven, "spread", lambda self, before, after: after.std)
    assert worst() > 1000


def test_weights_whose_own_loss_is_out_of_proportion_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics know nothing yet of weights that were good until the last step."""

    def after_one_bad_step() -> float:
        p, optimizer, step = quadratic(every=1)
        optimizer.param_groups[0]["lr"] = 1e6
        step()
        optimizer.param_groups[0]["lr"] = 0.0
        step()
        return distance(p, optimizer)

    assert after_one_bad_step() < 0.15
    monkeypatch.setattr(LossDriven, "accepts", lambda self, stats, loss: True)
    assert after_one_bad_step() > 100


@pytest.mark.parametrize("other", [30.0, 0.0])
def test_weights_of_another_model_replace_the_average(other: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are worse, and trained for good, or better: the loss shows it, and the old ones are forgotten."""

    def left_of_the_old() -> float:
        torch.manual_seed(0)
        p = Parameter(torch.full((1,), 10.0))
        optimizer = Anytime(torch.optim.SGD([p], lr=0.0))
        for value in (10.0, other):
            with torch.no_grad():
                p.fill_(value)
            for _ in range(2500):
                p.grad = torch.zeros(1)
                optimizer.step(loss=value + torch.randn(()).item())
        with optimizer.averaged():
            return (p.item() - other) / (10 - other)

    assert abs(left_of_the_old()) < 1e-3
    monkeypatch.setattr(LossDriven, "forget", lambda self, before, best, std, exp: 1.0)
    assert left_of_the_old() > 0.1


def test_the_average_can_be_restarted_from_other_weights() -> None:
    """Two models with the same loss: nothing shows that the weights are others."""
    p, optimizer, step = quadratic(every=10)
    with torch.no_grad():
        p.fill_(100.0)
    optimizer.restart_average()
    assert optimizer.state_dict()["state"].get(0, {}).get("average") is None
    optimizer.param_groups[0]["lr"] = 0.0
    for _ in range(25):
        step()
    with optimizer.averaged():
        assert p.tolist() == pytest.approx([100.0] * 10)
    assert optimizer.confidence()[0]["skipped"] == 0
    with optimizer.averaged(), pytest.raises(RuntimeError, match=r"restart_average\(\) was called inside"):
        optimizer.restart_average()


def test_the_average_that_was_handed_over_is_not_averaged_again() -> None:
    model, optimizer = trained()
    average = list(optimizer.averaged_state_dict(model).values())
    assert not optimizer.is_averaged
    optimizer.hand_over()
    assert optimizer.is_averaged
    copied_model, copied = copy.deepcopy((model, optimizer))
    for net, opt in ((model, optimizer), (copied_model, copied)):
        assert_equal(average, list(opt.averaged_state_dict(net).values()))
        with opt.averaged():
            assert_equal(average, list(net.state_dict().values()))
        assert_equal(average, list(net.state_dict().values()))


def test_after_other_weights_or_a_step_the_average_that_was_handed_over_is_history() -> None:
    model, optimizer = trained()
    weights, average = copy.deepcopy(model.state_dict()), optimizer.averaged_state_dict(model)
    optimizer.hand_over()
    model.load_state_dict(weights)
    assert not optimizer.is_averaged
    assert_equal(list(average.values()), list(optimizer.averaged_state_dict(model).values()))
    optimizer.hand_over()
    train(model, optimizer, range(8, 9))
    assert not optimizer.is_averaged
    with optimizer.averaged():
        assert optimizer.is_averaged
        with pytest.raises(RuntimeError, match=r"hand_over\(\) was called inside"):
            optimizer.hand_over()


@pytest.mark.parametrize("how", ["state dict", "inside"])
def test_an_average_that_is_loaded_into_the_model_is_not_averaged_again(how: str) -> None:
    model, optimizer = trained()
    weights, average = copy.deepcopy(model.state_dict()), optimizer.averaged_state_dict(model)
    if how == "inside":
        with optimizer.averaged():
            average = copy.deepcopy(model.state_dict())
    model.load_state_dict(average)
    assert optimizer.is_averaged
    copied_model, copied = copy.deepcopy((model, optimizer))
    for net, opt in ((model, optimizer), (copied_model, copied)):
        assert_equal(list(average.values()), list(opt.averaged_state_dict(net).values()))
        with opt.averaged():
            assert_equal(list(average.values()), list(net.state_dict().values()))
    model.load_state_dict(weights)
    assert not optimizer.is_averaged
    assert_equal(list(average.values()), list(optimizer.averaged_state_dict(model).values()))
    model.load_state_dict(average)
    train(model, optimizer, range(8, 9))
    assert not optimizer.is_averaged


def test_half_an_average_is_none() -> None:
    model, optimizer = trained()
    average = optimizer.averaged_state_dict(model)
    first = next(iter(average))
    model.load_state_dict({first: average[first]}, strict=False)
    assert not optimizer.is_averaged
    assert torch.equal(optimizer.averaged_state_dict(model)[first], average[first])


def test_a_base_that_writes_behind_autograds_back_ends_a_hand_over_too() -> None:
    class Behind(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for p in self.param_groups[0]["params"]:
                p.data.sub_(p.grad, alpha=0.1)

    model = make_model()
    optimizer = Anytime(Behind(model.parameters(), lr=0.1), every=100)
    train(model, optimizer, range(8))
    optimizer.hand_over()
    train(model, optimizer, range(8, 9))
    assert not optimizer.is_averaged


def test_buffers_of_an_average_that_was_handed_over_are_kept_and_recomputed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = Anytime(torch.optim.SGD(model.parameters(), lr=0.1), model=model, every=3)
    for x in torch.randn(5, 8, 3):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step(loss=loss)
    average = list(optimizer.averaged_state_dict(model).values())
    optimizer.hand_over()
    assert_equal(average, list(optimizer.averaged_state_dict(model).values()))
    optimizer.update_bn([torch.ones(8, 3)])
    with optimizer.averaged():
        inside = copy.deepcopy(model.state_dict())
    assert not torch.equal(inside["1.running_mean"], average[2])
    assert_equal(list(inside.values()), list(model.state_dict().values()))


def test_a_base_that_raises_leaves_an_average_that_goes_on() -> None:
    model, optimizer = trained(every=1)
    weights = averages(model, optimizer)

    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("out of luck")

    broken = Anytime(Broken(model.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="out of luck"):
        broken.step(loss=1.0)
    assert broken.param_groups[0]["average_numbers"] is not None
    del broken
    assert_equal(weights, averages(model, optimizer))


# -- checkpoints -------------------------------------------------------------------------------------------------------


@every_optimizer
@pytest.mark.parametrize("at", [1, 7, 9])
def test_killed_and_resumed_bit_for_bit(name: str, at: int) -> None:
    model, straight = make_model(), make_model()
    optimizer, other = (Anytime(EVERY[name](x.parameters()), every=3) for x in (model, straight))
    train(straight, other, range(14))
    train(model, optimizer, range(at))
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    model = make_model()
    for p in model.parameters():
        nn.init.zeros_(p)
    optimizer = Anytime(EVERY[name](model.parameters()), every=3)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer, range(at, 14))
    assert_equal(params_of(model), params_of(straight))
    assert_equal(averages(model, optimizer), averages(straight, other))
    numbers = [x.state_dict()["param_groups"][0]["average_numbers"] for x in (optimizer, other)]
    assert torch.equal(*numbers)


def test_checkpoints_of_the_base_alone_and_for_it() -> None:
    model, optimizer = trained()
    base = BASES["AdamW"](model.parameters())
    base.load_state_dict(through_a_file(optimizer.state_dict()))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    base.step()
    alone = through_a_file(BASES["AdamW"](model.parameters()).state_dict())
    optimizer.load_state_dict(alone)
    assert_equal(averages(model, optimizer), params_of(model))
    train(model, optimizer, range(3))
    with pytest.raises(ValueError, match="a checkpoint of an optimizer has state and param_groups"):
        optimizer.load_state_dict({})


def test_a_base_with_a_checkpoint_form_of_its_own() -> None:
    def make(model: nn.Module) -> Anytime:
        return Anytime(pytorch_optimizer.Lookahead(torch.optim.AdamW(model.parameters(), lr=0.01)), every=2)

    model, other_model = make_model(), make_model()
    optimizer, other = make(model), make(other_model)
    train(model, optimizer, range(7))
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(through_a_file(optimizer.state_dict()))
    assert_equal(averages(model, optimizer), averages(other_model, other))
    train(model, optimizer, range(7, 12))
    train(other_model, other, range(7, 12))
    assert_equal(averages(model, optimizer), averages(other_model, other))


def test_the_checkpoint_of_another_model_is_refused() -> None:
    _, optimizer = trained(base="SGD")
    other = Anytime(torch.optim.SGD([Parameter(torch.ones(3)), Parameter(torch.ones(2))], lr=0.1))
    with pytest.raises(ValueError, match=r"has the shape \(6, 4\), the parameter \(3,\): it is of another model"):
        other.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda group, state: group.update(average_numbers=None), "has None in the place of its numbers"),
        (lambda group, state: group.update(average_numbers="text"), "has 'text' in the place of its numbers"),
        (lambda group, state: group.update(average_numbers=group["average_numbers"][:4]), "has 4 numbers"),
        (
            lambda group, state: group["average_numbers"].unsqueeze_(0),
            "in the place of its numbers",
        ),
        (lambda group, state: group["average_numbers"][5].fill_(math.nan), "total = nan, which no training reaches"),
        (lambda group, state: group["average_numbers"][0].fill_(-3.0), r"count = -3\.0, which no training reaches"),
        (lambda group, state: group["average_numbers"][3].fill_(math.inf), "best = inf, which no training reaches"),
        (lambda group, state: state.update(average="text"), "has 'text' in the place of the average of a tensor"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(damage: Callable[..., Any], message: str) -> None:
    model, optimizer = trained()
    saved = copy.deepcopy(optimizer.state_dict())
    damage(saved["param_groups"][0], saved["state"][0])
    before, expected = str(optimizer.state_dict()), averages(model, optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert str(optimizer.state_dict()) == before
    assert_equal(averages(model, optimizer), expected)


def test_a_checkpoint_is_not_changed_by_training_on() -> None:
    model, optimizer = trained(every=1)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = copy.deepcopy(saved)
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(8, 12))
    assert torch.equal(saved["state"][0]["average"], kept["state"][0]["average"])
    assert torch.equal(saved["param_groups"][0]["average_numbers"], kept["param_groups"][0]["average_numbers"])


@pytest.mark.parametrize("how", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_on_by_themselves(how: Callable[[Any], Any]) -> None:
    model, optimizer = trained()
    other_model, other = how((model, optimizer))
    train(model, optimizer, range(8, 15))
    train(other_model, other, range(8, 15))
    assert_equal(averages(model, optimizer), averages(other_model, other))
    assert other.averaged_state_dict(other_model).keys() == other_model.state_dict().keys()


def test_state_shows_the_averages_and_takes_them() -> None:
    """Lightning moves the state of optimizers to a device in this way."""
    model, optimizer = trained(base="SGD")
    expected = averages(model, optimizer)
    assert len(optimizer.state) == 2
    for p, values in list(optimizer.state.items()):
        optimizer.state[p] = {name: value.double().float() for name, value in values.items()}
    assert_equal(expected, averages(model, optimizer))
    del optimizer.state[p]
    assert "average" not in optimizer.state[p]
    assert not optimizer.base.state[p]


# -- devices -----------------------------------------------------------------------------------------------------------


def test_no_host_read_where_the_loss_stays_a_tensor() -> None:
    """On the CPU under a mode that refuses every read; `capturable` keeps the loss a tensor, as a device would."""
    models = make_model(), make_model()
    read, unread = (Anytime(torch.optim.SGD(model.parameters(), lr=0.05), every=2) for model in models)
    unread.param_groups[0]["capturable"] = True
    unread.step(loss=loss_at(models[1], 0))  # a mode that reads nothing cannot see that zeros are on the host
    read.step(loss=loss_at(models[0], 0))
    for step in range(7):
        for model, optimizer in zip(models, (read, unread)):
            optimizer.zero_grad()
            loss = loss_at(model, step)
            loss.backward()
            given = loss * (math.nan if step == 4 else 1)
            with no_host_reads() if optimizer is unread else nullcontext():
                optimizer.step(loss=given)
    assert isinstance(unread._observers[0].state.mean, Tensor)
    for a, b in zip(averages(models[0], read), averages(models[1], unread), strict=True):
        torch.testing.assert_close(a, b)


def test_parameters_on_another_device_are_averaged_there() -> None:
    p = Parameter(torch.ones(3, device="meta"))
    optimizer = Anytime(torch.optim.SGD([p], lr=0.1), every=1)
    for _ in range(3):
        p.grad = torch.ones(3, device="meta")
        with no_host_reads():
            optimizer.step(loss=torch.ones((), device="meta"))
    assert optimizer.state[p]["average"].is_meta


@every_optimizer
def test_an_average_on_another_device_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands for the other device: its copies are on the way for some steps, and checkpoints have them."""
    monkeypatch.setattr("surefoot.averaging.weights.is_elsewhere", lambda x, device: device is not None)
    model, other = make_model(), make_model()
    plain = Anytime(EVERY[name](model.parameters()), every=3)
    offloaded = Anytime(EVERY[name](other.parameters()), every=3, device="cpu")
    train(model, plain, range(9))
    train(other, offloaded, range(9))
    assert offloaded._observers[0]._transfer is not None
    saved = through_a_file(offloaded.state_dict())
    assert_equal(averages(model, plain), averages(other, offloaded))
    model.load_state_dict(other.state_dict())
    resumed = Anytime(EVERY[name](model.parameters()), every=3, device="cpu")
    resumed.load_state_dict(saved)
    train(other, offloaded, range(9, 14))
    train(model, resumed, range(9, 14))
    assert_equal(averages(model, resumed), averages(other, offloaded))


def test_hooks_and_profilers_see_a_step_once() -> None:
    """Without them a step is not wrapped, which costs more than the average does."""
    model, optimizer = trained()
    calls: list[str] = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: calls.append("before")),
        optimizer.register_step_post_hook(lambda *_: calls.append("after")),
        optimizer.base.register_step_post_hook(lambda *_: calls.append("after the base")),
        register_optimizer_step_post_hook(lambda *_: calls.append("after any")),
    ]
    train(model, optimizer, range(8, 9))
    assert sorted(calls) == ["after", "after any", "after the base", "before"]
    for handle in handles:
        handle.remove()
    train(model, optimizer, range(9, 10))
    assert len(calls) == 4
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(model, optimizer, range(10, 11))
    assert sum("Optimizer.step#Anytime" in event.name for event in profile.events()) == 1
