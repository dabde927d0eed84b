"""The loss statistics against exact arithmetic: losses that are constant, huge with a small wobble, negative, tiny."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from surefoot import AdamUCB
from surefoot.statistics import LossStats, no_statistics

EPS = 2.0**-52
BETAS = st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999])
ORDINARY = st.floats(-1e3, 1e3, allow_subnormal=False)
WOBBLE = st.floats(-1e-3, 1e-3).map(lambda x: 1e6 + x)
NEGATIVE = st.floats(-10, -1e-3)
TINY = st.floats(1e-31, 1e-29)
HUGE = st.floats(1e150, 1e160)
LOSSES = st.one_of(*(st.lists(kind, min_size=1, max_size=30) for kind in (ORDINARY, WOBBLE, NEGATIVE, TINY, HUGE)))


def exact(losses: list[float], beta: float) -> tuple[float, float]:
    """The paper's r/(1-b**t), and the root of s/(1-b**t) - mean**2, in rational arithmetic."""
    b, values = Fraction(beta), [Fraction(x) for x in losses]
    shares = [b ** (len(values) - 1 - k) for k in range(len(values))]
    total = sum(shares)
    mean = sum((w * x for w, x in zip(shares, values)), Fraction(0)) / total
    variance = sum((w * x * x for w, x in zip(shares, values)), Fraction(0)) / total - mean**2
    context = Context(prec=60, Emax=10**6, Emin=-(10**6))
    root = context.sqrt(context.divide(Decimal(variance.numerator), Decimal(variance.denominator)))
    return float(mean), float(root)


def watch(losses: list[float], beta: float) -> LossStats:
    stats = LossStats()
    for loss in losses:
        stats = stats.with_loss(loss, beta)
    return stats


def watch_on_device(losses: list[float], beta: float) -> LossStats:
    stats = LossStats(*no_statistics().unbind())
    for loss in losses:
        stats = stats.with_loss(torch.tensor(loss, dtype=torch.float64), beta)
    assert all(isinstance(x, Tensor) for x in stats)
    return LossStats(*map(float, stats))


@settings(max_examples=150, deadline=None)
@given(LOSSES, BETAS)
@example([1e6 - 1e-3, 1e6 + 1e-3] * 15, 0.9)
@example([1e6] * 30, 0.9)
def test_mean_and_std_are_those_of_exact_arithmetic(losses: list[float], beta: float) -> None:
    mean, std = exact(losses, beta)
    # A few roundings of numbers as large as the losses, and of 1 - beta**t as small as 1 - beta; nothing like the
    # square of a large mean, in which the std would be lost.
    size, spread = max(map(abs, losses)), max(losses) - min(losses)
    allowed = 8 * EPS * (size + spread / (1 - beta))
    for stats in (watch(losses, beta), watch_on_device(losses, beta)):
        assert stats.mean == pytest.approx(mean, rel=0, abs=allowed)
        assert stats.std == pytest.approx(std, rel=0, abs=allowed)
        assert stats.count == len(losses)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e300, 1e300), st.integers(1, 50), BETAS)
def test_a_constant_loss_has_no_spread_at_all(loss: float, count: int, beta: float) -> None:
    for watched in (watch, watch_on_device):
        stats = watched([loss] * count, beta)
        assert stats.mean == loss
        assert stats.std == 0
        assert stats.best == loss


@settings(max_examples=50, deadline=None)
@given(LOSSES, BETAS, st.floats(0.01, 100))
def test_mean_and_std_scale_with_the_loss(losses: list[float], beta: float, factor: float) -> None:
    plain, scaled = watch(losses, beta), watch([factor * x for x in losses], beta)
    size = factor * max(map(abs, losses))
    assert scaled.mean == pytest.approx(factor * plain.mean, rel=1e-12, abs=16 * EPS * size)
    assert scaled.std == pytest.approx(factor * plain.std, rel=1e-12, abs=16 * EPS * size)


@settings(max_examples=50, deadline=None)
@given(LOSSES, BETAS)
def test_best_is_the_lowest_mean_so_far(losses: list[float], beta: float) -> None:
    means = [watch(losses[: k + 1], beta).mean for k in range(len(losses))]
    assert watch(losses, beta).best == min(means)
    assert watch_on_device(losses, beta).best == pytest.approx(min(means), rel=1e-12)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_an_optimizer_keeps_the_spread_of_a_large_loss(kind: str) -> None:
    # Float32 squares of 1e6 are off by thousands: the published r and s would see no spread here.
    losses = [1e6 + 1e-3 * (-1) ** t for t in range(40)]
    p = torch.zeros(2, requires_grad=True)
    optimizer = AdamUCB([p], capturable=kind == "device")
    for loss in losses:
        p.grad = torch.ones(2)
        optimizer.step(loss=torch.tensor(loss, dtype=torch.float64))
    mean, std = exact(losses, 0.9)
    (stats,) = optimizer.confidence()
    assert float(stats["mean"]) == pytest.approx(mean, rel=0, abs=1e-9)
    assert float(stats["std"]) == pytest.approx(std, rel=1e-5)


def test_loss_beta_sets_the_memory_of_the_statistics() -> None:
    losses = [1.0, 3.0, 2.0, 7.0]
    p = torch.zeros(1, requires_grad=True)
    optimizer = AdamUCB([p], loss_beta=0.5)
    for loss in losses:
        p.grad = torch.ones(1)
        optimizer.step(loss=loss)
    mean, std = exact(losses, 0.5)
    (stats,) = optimizer.confidence()
    assert float(stats["mean"]) == pytest.approx(mean, rel=1e-14)
    assert float(stats["std"]) == pytest.approx(std, rel=1e-14)


def test_before_the_first_loss() -> None:
    stats = LossStats(*no_statistics().tolist())
    assert (stats.count, stats.mean, stats.std, stats.skipped, stats.weight) == (0, 0, 0, 0, 1)
    assert stats.best == math.inf
