"""Every path and option against the paper's algorithms in float64: same losses, same gradients, same parameters."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot import AdamCB, AdamS, AdamUCB, LossAware, Momentum, MomentumCB, MomentumS, MomentumUCB
from surefoot.reference import Reference

STEPS = 9
SHAPES = [(3, 2), (4,), ()]
LOSSES = [2.0, 2.0, 1.5, 2.5, 0.3, 1.1, 0.0, 3.0, 0.9]
PATHS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "forloop": {"foreach": False},
    "fused, device": {"fused": True, "capturable": True},
    "foreach, device": {"foreach": True, "capturable": True},
    "forloop, device": {"foreach": False, "capturable": True},
}
DECAYS: dict[str, dict[str, Any]] = {
    "no decay": {},
    "L2": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
}
# A large eta makes weights of both signs out of these losses.
ADAMS = [(AdamUCB, 0.7), (AdamCB, 2.0), (AdamS, 0.9)]
MOMENTA = [(Momentum, 0.0), (MomentumUCB, 0.7), (MomentumCB, 2.0), (MomentumS, 0.9)]


def randoms(seed: int, steps: int = STEPS, dtype: torch.dtype = torch.float64) -> list[list[Tensor]]:
    """Gradients per step, after the parameters' initial values."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, dtype=dtype, generator=generator) for shape in SHAPES] for _ in range(steps + 1)]


def as_reading(loss: float, options: dict[str, Any]) -> Any:
    """Losses arrive as tensors where the statistics stay on the device."""
    return torch.tensor(loss, dtype=torch.float64) if options.get("capturable") else loss


def run(
    optimizer: LossAware, params: list[Tensor], grads: list[list[Tensor | None]], losses: list[float]
) -> list[Tensor]:
    options = optimizer.param_groups[0]
    for step, loss in zip(grads, losses):
        for p, g in zip(params, step):
            p.grad = None if g is None else g.clone()
        optimizer.step(loss=as_reading(loss, options))
    return [p.detach() for p in params]


def oracle_of(optimizer: LossAware, thetas: list[Tensor], group: dict[str, Any] | None = None) -> Reference:
    """The reference with the settings of a parameter group."""
    group = group or optimizer.param_groups[0]
    return Reference(
        thetas,
        rule=optimizer.rule.name,
        eta=group["eta"],
        lr=float(group["lr"]),
        engine=optimizer.engine.name,
        betas=group["betas"] if "betas" in group else (group["momentum"], 0.0),
        eps=group.get("eps", 0.0),
        weight_decay=group["weight_decay"],
        decoupled=group["decoupled_weight_decay"],
        maximize=group["maximize"],
        amsgrad=group.get("amsgrad", False),
        weighting=group["weighting"],
    )


@functools.cache
def truth(cls: type[LossAware], options: tuple[tuple[str, Any], ...]) -> list[Tensor]:
    """Where the oracle ends; the same for every path."""
    start, *grads = randoms(1)
    oracle = oracle_of(cls([torch.zeros(())], **dict(options)), [x.clone() for x in start])
    for step, loss in zip(grads, LOSSES):
        oracle.step(step, loss)
    return oracle.thetas


def assert_agrees(cls: type[LossAware], path: str, options: dict[str, Any]) -> None:
    start, *grads = randoms(1)
    params = [x.clone().requires_grad_() for x in start]
    ours = run(cls(params, **options, **PATHS[path]), params, grads, LOSSES)
    for a, b in zip(ours, truth(cls, tuple(options.items()))):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("amsgrad", "maximize", "weighting"), itertools.product([False, True], [False, True], ["paper", "unit"])
)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("cls", "eta"), ADAMS)
def test_adam_in_float64(
    cls: type[LossAware], eta: float, path: str, decay: str, amsgrad: bool, maximize: bool, weighting: str
) -> None:
    options = {"lr": 0.1, "eta": eta, "amsgrad": amsgrad, "maximize": maximize, "weighting": weighting}
    assert_agrees(cls, path, {**options, **DECAYS[decay]})


@pytest.mark.parametrize(("maximize", "weighting"), itertools.product([False, True], ["paper", "unit"]))
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("cls", "eta"), MOMENTA)
def test_momentum_in_float64(
    cls: type[LossAware], eta: float, path: str, decay: str, maximize: bool, weighting: str
) -> None:
    options = {"lr": 0.1, "eta": eta, "maximize": maximize, "weighting": weighting}
    assert_agrees(cls, path, {**options, **DECAYS[decay]})


def test_these_losses_give_weights_of_both_signs() -> None:
    # Otherwise the two sweeps above would show less than they seem to.
    for cls, eta in [*ADAMS, *MOMENTA[1:]]:
        oracle = Reference([], rule=cls.rule.name, eta=eta, lr=0.1)
        weights = []
        for loss in LOSSES:
            weights.append(oracle.weight_of(loss))
            oracle.step([], loss)
        assert min(weights) < 0 < max(weights), (cls, weights)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("cls", "eta"), [*ADAMS, *MOMENTA])
def test_parameters_without_gradient_keep_their_own_history(cls: type[LossAware], eta: float, path: str) -> None:
    start, *grads = randoms(2)
    absent = {0: [2], 1: [1, 2], 3: [0], 4: [0, 1, 2], 6: [1]}
    steps: list[list[Tensor | None]] = [
        [None if i in absent.get(t, ()) else g for i, g in enumerate(step)] for t, step in enumerate(grads)
    ]
    params = [x.clone().requires_grad_() for x in start]
    optimizer = cls(params, lr=0.1, eta=eta, weight_decay=0.1, **PATHS[path])
    thetas = [x.clone() for x in start]
    oracle = oracle_of(optimizer, thetas)
    ours = run(optimizer, params, steps, LOSSES)
    for step, loss in zip(steps, LOSSES):
        oracle.step(step, loss)
    for a, b in zip(ours, thetas):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert [optimizer.state[p]["step"].item() for p in params] == oracle.t


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("cls", "eta"), [(AdamUCB, 0.7), (AdamCB, 2.0), (MomentumUCB, 0.7)])
def test_a_group_added_later_starts_from_what_was_seen(cls: type[LossAware], eta: float, path: str) -> None:
    start, *grads = randoms(3)
    params = [x.clone().requires_grad_() for x in start]
    optimizer = cls(params[:2], lr=0.1, eta=eta, **PATHS[path])
    first = oracle_of(optimizer, [x.clone() for x in start[:2]])
    run(optimizer, params[:2], [g[:2] for g in grads[:4]], LOSSES[:4])
    optimizer.add_param_group({"params": params[2:], "lr": 0.03, "eta": eta / 2, "weight_decay": 0.2})
    second = oracle_of(optimizer, [start[2].clone()], optimizer.param_groups[1])
    ours = run(optimizer, params, grads[4:], LOSSES[4:])
    for step, loss in zip(grads[:4], LOSSES[:4]):
        first.step(step[:2], loss)
    second.losses = list(first.losses)
    for step, loss in zip(grads[4:], LOSSES[4:]):
        first.step(step[:2], loss)
        second.step(step[2:], loss)
    for a, b in zip(ours, [*first.thetas, *second.thetas]):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", [name for name in PATHS if "fused" not in name] + ["default"])
@pytest.mark.parametrize(("cls", "eta"), [*ADAMS, *MOMENTA[1:]])
def test_dtypes_may_be_mixed_in_one_group(cls: type[LossAware], eta: float, path: str) -> None:
    dtypes = [torch.float64, torch.float32, torch.complex128, torch.complex64]
    generator = torch.Generator().manual_seed(4)
    start, *grads = [[torch.randn(3, dtype=dtype, generator=generator) for dtype in dtypes] for _ in range(STEPS + 1)]
    params = [x.clone().requires_grad_() for x in start]
    optimizer = cls(params, lr=0.1, eta=eta, weight_decay=0.1, **PATHS.get(path, {}))
    ours = run(optimizer, params, grads, LOSSES)
    real = [[torch.view_as_real(x) if x.is_complex() else x for x in step] for step in [start, *grads]]
    thetas = [x.double().clone() for x in real[0]]
    oracle = oracle_of(optimizer, thetas)
    for step, loss in zip(real[1:], LOSSES):
        oracle.step([x.double() for x in step], loss)
    for p, a, b in zip(params, ours, thetas):
        close = 1e-12 if p.dtype in (torch.float64, torch.complex128) else 1e-6
        torch.testing.assert_close((torch.view_as_real(a) if a.is_complex() else a).double(), b, rtol=0, atol=close)


@pytest.mark.parametrize(("cls", "eta"), [*ADAMS, *MOMENTA[1:]])
def test_hyper_parameters_may_change_between_steps(cls: type[LossAware], eta: float) -> None:
    start, *grads = randoms(5)
    params = [x.clone().requires_grad_() for x in start]
    optimizer = cls(params, lr=0.1, eta=eta)
    oracle = oracle_of(optimizer, [x.clone() for x in start])
    group = optimizer.param_groups[0]
    for t, (step, loss) in enumerate(zip(grads, LOSSES)):
        group["lr"] = oracle.lr = 0.1 / (t + 1)
        group["eta"] = oracle.eta = eta * (t % 3)
        group["weight_decay"] = oracle.weight_decay = 0.1 * (t % 2)
        oracle.step(step, loss)
        run(optimizer, params, [step], [loss])
    for p, b in zip(params, oracle.thetas):
        torch.testing.assert_close(p.detach(), b, rtol=0, atol=1e-12)
