"""Real training loops: mixed precision, accumulation, clipping, every scheduler of torch, autograd through the step."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.optim import lr_scheduler

from surefoot import AdaMaxUCB, AdamCB, AdamS, AdamUCB, LossAware, MomentumCB, MomentumUCB, NAdamUCB
from surefoot.optim.named import OPTIMIZERS

CLASS = pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)


def model_and_data(seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(6, 16, 3)
    return model, x, x.sum(-1, keepdim=True)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@CLASS
@pytest.mark.parametrize("capturable", [False, True])
def test_the_whole_family_learns(cls: type[LossAware], capturable: bool) -> None:
    model, x, y = model_and_data()
    lr = 0.1 if cls.engine.name == "momentum" else 0.02
    optimizer = cls(model.parameters(), lr=lr, capturable=capturable)
    first = loss_of(model, x[0], y[0]).item()
    for t in range(60):
        optimizer.zero_grad()
        loss = loss_of(model, x[t % 6], y[t % 6])
        loss.backward()
        optimizer.step(loss=loss)
    assert loss_of(model, x[0], y[0]).item() < 0.5 * first


@pytest.mark.parametrize("cls", [AdamS, AdamCB, MomentumUCB])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("options", [{}, {"capturable": True}])
def test_grad_scaler_overflow_leaves_no_trace(cls: type[LossAware], recorded: bool, options: dict[str, Any]) -> None:
    """One run meets an overflow in its third step, the other never makes that step: they must end alike."""

    def go(batches: list[int], overflows: set[int]) -> tuple[Tensor, LossAware, GradScaler]:
        model, x, y = model_and_data()
        optimizer = cls(model.parameters(), lr=0.01, **options)
        scaler = GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)
        for t in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, x[t], y[t])
            scaler.scale(loss).backward()
            if t in overflows:
                next(model.parameters()).grad[0, 0] = math.inf
            if recorded:
                optimizer.record_loss(loss)
                scaler.step(optimizer)
            else:
                scaler.step(optimizer, loss=loss)
            scaler.update()
        return flat(model), optimizer, scaler

    hit, with_overflow, scaler = go([0, 1, 2, 3, 4, 5], {2})
    spared, without_batch, _ = go([0, 1, 3, 4, 5], set())
    assert scaler.get_scale() == 2.0**7  # it did overflow
    assert torch.equal(hit, spared)
    assert torch.equal(with_overflow.param_groups[0]["seen"], without_batch.param_groups[0]["seen"])
    assert with_overflow.confidence()[0]["skipped"] == 0


def test_grad_scaler_does_the_unscaling() -> None:
    p = Parameter(torch.zeros(2))
    for fused in (True, None):
        optimizer = AdamS([p], fused=fused)
        assert not getattr(optimizer, "_step_supports_amp_scaling", False)


@pytest.mark.parametrize("cls", [AdamS, AdamCB, MomentumUCB])
def test_accumulation_equals_one_large_batch(cls: type[LossAware]) -> None:
    def go(parts: int) -> tuple[Tensor, LossAware]:
        model, x, y = model_and_data()
        model.double()
        optimizer = cls(model.parameters(), lr=0.01)
        for inputs, targets in zip(x.double(), y.double()):
            optimizer.zero_grad()
            for a, b in zip(inputs.split(16 // parts), targets.split(16 // parts)):
                loss = loss_of(model, a, b)
                (loss / parts).backward()
                optimizer.record_loss(loss, weight=len(a))
            optimizer.step()
        return flat(model), optimizer

    whole, whole_optimizer = go(1)
    parts, parts_optimizer = go(4)
    torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        parts_optimizer.param_groups[0]["seen"], whole_optimizer.param_groups[0]["seen"], rtol=1e-10, atol=1e-12
    )


def test_clipped_gradients_are_what_the_step_uses() -> None:
    def go(clip: Callable[[list[Tensor]], Any]) -> Tensor:
        model, x, y = model_and_data()
        optimizer = MomentumUCB(model.parameters(), lr=0.01, eta=0.3)
        for inputs, targets in zip(x, y):
            optimizer.zero_grad()
            loss = 100 * loss_of(model, inputs, targets)
            loss.backward()
            clip(list(model.parameters()))
            optimizer.step(loss=loss)
        return flat(model)

    def by_hand(params: list[Tensor]) -> None:
        norm = torch.cat([p.grad.flatten() for p in params]).norm()
        for p in params:
            p.grad = p.grad * min(1.0, 1.0 / (norm.item() + 1e-6))

    torch.testing.assert_close(go(lambda ps: nn.utils.clip_grad_norm_(ps, 1.0)), go(by_hand))


ADAM_LIKE: dict[str, tuple[type[LossAware], type[torch.optim.Optimizer]]] = {
    "adam": (AdamUCB, torch.optim.Adam),
    "nadam": (NAdamUCB, torch.optim.NAdam),
    "adamax": (AdaMaxUCB, torch.optim.Adamax),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, total_iters=4),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (t + 1)),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.0 + 0.1, total_iters=5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 8, power=2.0),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=4),
}


def test_every_scheduler_of_torch_is_here() -> None:
    schedulers = {
        name
        for name, value in vars(lr_scheduler).items()
        if inspect.isclass(value) and issubclass(value, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert schedulers - {"LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.parametrize("engine", ADAM_LIKE)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_drive_it_as_they_drive_the_plain_optimizer(name: str, engine: str) -> None:
    ours, plain = ADAM_LIKE[engine]
    generator = torch.Generator().manual_seed(1)
    p, q = (Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    ours_optimizer, plain_optimizer = ours([p], lr=0.01, eta=0.0, weighting="unit"), plain([q], lr=0.01)
    schedules = [SCHEDULERS[name](x) for x in (ours_optimizer, plain_optimizer)]
    rates = []
    for _ in range(8):
        g = torch.randn(3, dtype=torch.float64, generator=generator)
        p.grad, q.grad = g, g.clone()
        ours_optimizer.step(loss=torch.tensor(2.0))
        plain_optimizer.step()
        for schedule in schedules:
            schedule.step(*([1.0] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
        rates.append(ours_optimizer.param_groups[0]["lr"])
        for key in ("lr", "betas"):  # OneCycleLR and CyclicLR move the momentum too
            assert ours_optimizer.param_groups[0][key] == plain_optimizer.param_groups[0][key]
    assert len(set(rates)) > 1
    torch.testing.assert_close(p, q, rtol=1e-6 if engine == "nadam" else 1e-12, atol=0)


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
def test_schedulers_cycle_the_momentum(name: str) -> None:
    p = Parameter(torch.ones(3))
    optimizer = MomentumCB([p], lr=0.01)
    schedule = SCHEDULERS[name](optimizer)
    seen = set()
    for t in range(8):
        p.grad = torch.ones(3)
        optimizer.step(loss=2.0 + t % 2)
        schedule.step()
        seen.add(optimizer.param_groups[0]["momentum"])
    assert len(seen) > 4
    assert p.isfinite().all()


def test_a_tensor_learning_rate_is_scheduled_in_place() -> None:
    p = Parameter(torch.ones(3))
    lr = torch.tensor(0.1)
    optimizer = AdamS([p], lr=lr, capturable=True)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    moved = []
    for _ in range(3):
        p.grad = torch.ones(3)
        before = p.detach().clone()
        optimizer.step(loss=torch.tensor(1.0) if not moved else torch.tensor(3.0))
        moved.append((before - p.detach()).max().item())
        schedule.step()
    assert optimizer.param_groups[0]["lr"] is lr
    assert lr.item() == pytest.approx(0.0125)
    assert moved[0] == pytest.approx(0.1, rel=1e-3)
    assert moved[1] < 0.8 * moved[0]


DIFFERENTIABLE: list[dict[str, Any]] = [{}, {"weight_decay": 0.1}, {"capturable": True}, {"maximize": True}]


@CLASS
def test_autograd_follows_several_steps(cls: type[LossAware]) -> None:
    extra = {"adam": [{"amsgrad": True}], "momentum": [{"nesterov": True}]}.get(cls.engine.name, [])
    for options in [*DIFFERENTIABLE, *extra]:

        def end(start: Tensor, options: dict[str, Any] = options) -> Tensor:
            p = start.clone()
            optimizer = cls([torch.zeros(2, dtype=torch.float64)], lr=0.1, eta=0.3, differentiable=True, **options)
            optimizer.param_groups[0]["params"] = [p]
            for loss in (1.0, 2.0, 1.4):
                p.grad = p.clone() ** 2 + 1
                optimizer.step(loss=loss)
            return p

        start = torch.tensor([0.7, -1.3], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(end, start)


@CLASS
@pytest.mark.parametrize("losses", [(1.0, 2.0, 1.4, 1.1), (1.0, 1.0, 1.0, 1.0)], ids=["varying", "constant"])
@pytest.mark.parametrize("options", [{}, {"weighting": "unit"}, {"maximize": True}], ids=str)
def test_autograd_follows_options_through_the_weights(
    cls: type[LossAware], losses: tuple[float, ...], options: dict[str, Any]
) -> None:
    """The weights depend on the decay rates, which are those of the loss statistics too."""

    def end(start: Tensor, lr: Tensor, beta1: Tensor, beta2: Tensor, decay: Tensor) -> Tensor:
        p = start.clone()
        pair: Any = {} if cls.engine.name == "momentum" else {"betas": (beta1, beta2)}
        settings = {"lr": lr.clone(), "weight_decay": decay.clone(), "eta": 0.3, **pair, **options}
        optimizer = cls([torch.zeros(2, dtype=torch.float64)], differentiable=True, **settings)
        optimizer.param_groups[0]["params"] = [p]
        for loss in losses:
            p.grad = p.clone() ** 2 + 1
            optimizer.step(loss=loss)
        return p

    values = ([0.7, -1.3], 0.1, 0.8, 0.95, 0.05)
    assert torch.autograd.gradcheck(end, [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in values])


def test_what_is_shown_of_a_followed_step_can_be_read() -> None:
    betas = [torch.tensor(x, requires_grad=True) for x in (0.8, 0.95)]
    p = Parameter(torch.ones(2)).clone()
    optimizer = AdamS([p], differentiable=True, betas=(betas[0], betas[1]))
    for loss in (1.0, 2.0, 1.4):
        p.grad = p.clone()
        optimizer.step(loss=loss)
    assert optimizer.param_groups[0]["seen"].requires_grad  # the statistics depend on the decay rate
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a float() of what autograd follows
        shown = {name: float(value) for name, value in optimizer.confidence()[0].items()}
    assert shown["std"] > 0


def test_without_differentiable_no_step_is_followed() -> None:
    p = Parameter(torch.ones(2))
    p.grad = torch.ones(2, requires_grad=True) * 2
    optimizer = AdamS([p])
    with torch.enable_grad():
        optimizer.step(loss=1.0)
    assert p.is_leaf
    assert not optimizer.state[p]["exp_avg"].requires_grad


def test_lbfgs_like_closures_may_be_called_by_the_user_too() -> None:
    model, x, y = model_and_data()
    optimizer = AdamS(model.parameters(), lr=0.01)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x[0], y[0])
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(30)]
    assert losses[-1] < losses[0]
    assert float(optimizer.confidence()[0]["mean"]) == pytest.approx(
        sum(0.9 ** (29 - k) * value for k, value in enumerate(losses)) / sum(0.9**k for k in range(30)), rel=1e-6
    )
