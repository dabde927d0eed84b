"""Rounding, with weights of any size and sign, against torch's own optimizer and its float64 self.

On average over many numbers no worse; a single number never much worse, which is luck on both sides.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot import LossAware, LossAwareAdam, LossAwareAdaMax, LossAwareMomentum, LossAwareNAdam
from surefoot.rules import Rule, Tilt
from surefoot.statistics import LossStats, Number

STEPS = 24
LR, BETAS = 0.01, (0.9, 0.99)
#: A single number may be off by this many times what torch's worst is off by, and by two roundings on top.
FACTOR = 3.0
ULPS = 2.0


def weights_of(kind: str) -> list[float]:
    generator = torch.Generator().manual_seed(7)
    normal = torch.randn(STEPS, dtype=torch.float64, generator=generator)
    ramp = torch.logspace(0, -10, STEPS, dtype=torch.float64)
    return {
        "positive": normal.abs() + 0.1,
        "mixed": normal,
        "zeros": torch.where(torch.arange(STEPS) % 3 == 0, 0.0, normal),
        "only zeros later": torch.where(torch.arange(STEPS) < 5, normal, 0.0),
        "tiny": 1e-12 * normal,
        "shrinking": ramp * normal.sign(),
        "growing": ramp.flip(0) * normal.sign(),
        "huge": 1e12 * normal,
    }[kind].tolist()


KINDS = ["positive", "mixed", "zeros", "only zeros later", "tiny", "shrinking", "growing", "huge"]
DTYPES = [torch.float32, torch.bfloat16, torch.complex64]
OPTIONS: dict[str, dict[str, Any]] = {
    "L2": {"weight_decay": 0.1},
    "decoupled, maximize": {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
}
ENGINES: dict[str, tuple[type[LossAware], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": (LossAwareAdam, torch.optim.Adam, {"betas": BETAS, "eps": 1e-10}),
    "amsgrad": (LossAwareAdam, torch.optim.Adam, {"betas": BETAS, "eps": 1e-10, "amsgrad": True}),
    "adamax": (LossAwareAdaMax, torch.optim.Adamax, {"betas": BETAS, "eps": 1e-10}),
    "nadam": (LossAwareNAdam, torch.optim.NAdam, {"betas": BETAS, "eps": 1e-10}),
    "momentum": (LossAwareMomentum, torch.optim.SGD, {"momentum": BETAS[0]}),
    "nesterov": (LossAwareMomentum, torch.optim.SGD, {"momentum": BETAS[0], "nesterov": True}),
}
PATHS: dict[str, dict[str, Any]] = {
    "fused": {},
    "foreach": {"foreach": True},
    "forloop": {"foreach": False},
    "fused, device": {"capturable": True},
    "foreach, device": {"foreach": True, "capturable": True},
}
CASES = [
    (engine, path, kind)
    for engine, paths in {
        "adam": ["fused", "foreach", "fused, device", "foreach, device"],
        "amsgrad": ["foreach", "fused, device", "foreach, device"],
        "momentum": ["fused", "foreach", "foreach, device"],
        **{engine: ["foreach", "foreach, device"] for engine in ("nesterov", "adamax", "nadam")},
    }.items()
    for path in paths
    for kind in KINDS
    if kind != "huge" or "betas" in ENGINES[engine][2]  # plain momentum does not forgive a huge weight
]


@functools.cache
def data(dtype: torch.dtype) -> list[Tensor]:
    """The initial parameter, then the gradients: numbers that the dtype holds exactly."""
    generator = torch.Generator().manual_seed(11)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return [torch.randn(6, dtype=wide, generator=generator).to(dtype) for _ in range(STEPS + 1)]


class Prescribed:
    """A rule's tilt that gives exactly the weights of a list: `denominator * std`, with nothing for the distance."""

    def __init__(self, weights: list[float]) -> None:
        self.left = list(weights)

    def __call__(self, stats: LossStats, eta: float, noise: Number) -> Tilt:
        return 0.0, self.left.pop(0) / stats.std


def unbounded(cls: Any) -> dict[str, Any]:
    """What lets the prescribed weights pass as they are."""
    return {"gain": None} if "gain" in inspect.signature(cls).parameters else {}


def ours(engine: str, dtype: torch.dtype, option: str, path: str, kind: str) -> Tensor:
    cls, _, settings = ENGINES[engine]
    start, *grads = data(dtype)
    p = start.clone().requires_grad_()
    rule = Rule("prescribed", Prescribed(weights_of(kind)), eta=0.0)
    optimizer = cls(
        [p], lr=LR, rule=rule, weighting="paper", **settings, **unbounded(cls), **OPTIONS[option], **PATHS[path]
    )
    # A spread that was there before the first step: without one, weights lose their sign.
    optimizer.param_groups[0]["seen"] = torch.tensor(LossStats(count=3.0, mean=1.0, std=1.0), dtype=torch.float64)
    for t, g in enumerate(grads):
        p.grad = g.clone()
        loss = 2.0 - t % 2
        optimizer.step(loss=torch.tensor(loss) if optimizer.param_groups[0]["capturable"] else loss)
    return p.detach()


@functools.cache
def theirs(engine: str, dtype: torch.dtype, wide: bool, option: str, kind: str) -> Tensor:
    """torch's optimizer, handed the weighted gradient, with the decay and the direction done outside."""
    _, cls, settings = ENGINES[engine]
    start, *grads = data(dtype)
    to = dtype if not wide else (torch.complex128 if dtype.is_complex else torch.float64)
    options = OPTIONS[option]
    decay, decoupled = options.get("weight_decay", 0.0), options.get("decoupled_weight_decay", False)
    p = start.to(to).clone().requires_grad_()
    optimizer = cls([p], lr=LR, **settings)
    for t, (g, weight) in enumerate(zip(grads, weights_of(kind))):
        with torch.no_grad():
            g = -g if options.get("maximize") else g
            p.grad = g.to(to) * weight if decoupled else (g.to(to) + decay * p) * weight
            if decoupled:
                p.mul_(1 - LR * decay)
        if "momentum" in settings:  # Algorithm 1's bias-corrected average, as a learning rate
            optimizer.param_groups[0]["lr"] = LR * (1 - BETAS[0]) / (1 - BETAS[0] ** (t + 1))
        with default_dtype(torch.float64 if wide else torch.float32):  # of NAdam's running product
            optimizer.step()
    return p.detach()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def off(a: Tensor, b: Tensor) -> float:
    return (a.to(b.dtype) - b).abs().max().item()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("engine", "path", "kind"), CASES)
def test_rounding_is_that_of_torch(engine: str, path: str, option: str, kind: str) -> None:
    for dtype in DTYPES:
        truth = theirs(engine, dtype, True, option, kind)
        allowed = FACTOR * off(theirs(engine, dtype, False, option, kind), truth)
        allowed += ULPS * torch.finfo(dtype).eps * truth.abs().max().item()
        assert off(ours(engine, dtype, option, path, kind), truth) <= allowed, dtype
    truth = theirs(engine, torch.float64, True, option, kind)
    torch.testing.assert_close(ours(engine, torch.float64, option, path, kind), truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("falls_to", [1.0, 1e-6])
@pytest.mark.parametrize(
    ("engine", "path"), [*(("adam", path) for path in PATHS), *((other, "foreach") for other in ENGINES)]
)
def test_on_average_the_error_in_float32_is_no_larger_than_torchs_own(engine: str, path: str, falls_to: float) -> None:
    cls, torch_cls, settings = ENGINES[engine]
    generator = torch.Generator().manual_seed(5)
    start, *grads = torch.randn(201, 4096, generator=generator)
    weights = torch.logspace(0, math.log10(falls_to), 200, dtype=torch.float64).mul(
        torch.randn(200, dtype=torch.float64, generator=generator)
    ).tolist()  # fmt: skip

    def end(dtype: torch.dtype, of_ours: bool) -> Tensor:
        p = start.to(dtype).clone().requires_grad_()
        optimizer: Any = torch_cls([p], lr=LR, **settings)
        if of_ours:
            rule = Rule("prescribed", Prescribed(weights), eta=0.0)
            optimizer = cls([p], lr=LR, rule=rule, weighting="paper", **settings, **unbounded(cls), **PATHS[path])
            stats = LossStats(count=3.0, mean=1.0, std=1.0)
            optimizer.param_groups[0]["seen"] = torch.tensor(stats, dtype=torch.float64)
        for t, (g, weight) in enumerate(zip(grads, weights)):
            p.grad = g.to(dtype) * (1 if of_ours else weight)
            if "momentum" in settings and not of_ours:
                optimizer.param_groups[0]["lr"] = LR * (1 - BETAS[0]) / (1 - BETAS[0] ** (t + 1))
            with default_dtype(dtype):
                optimizer.step(**{"loss": torch.tensor(2.0 - t % 2)} if of_ours else {})
        return p.detach().double()

    truth = end(torch.float64, of_ours=False)
    theirs_off = (end(torch.float32, of_ours=False) - truth).abs().mean()
    assert (end(torch.float32, of_ours=True) - truth).abs().mean() <= 1.05 * theirs_off


@pytest.mark.parametrize("path", ["fused", "foreach", "forloop"])
@pytest.mark.parametrize("small", [0.0, 1e-9, 1e-20])
@pytest.mark.parametrize("engine", ["adam", "amsgrad", "momentum", "nesterov"])
def test_a_weight_near_zero_keeps_a_large_gradient_out(engine: str, small: float, path: str) -> None:
    cls, torch_cls, settings = ENGINES[engine]
    weights = [1.0, *[small] * 6, 1.0]
    p, q = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    rule = Rule("prescribed", Prescribed(weights), eta=0.0)
    optimizer = cls([p], lr=LR, rule=rule, weighting="paper", **settings, **unbounded(cls), **PATHS[path])
    optimizer.param_groups[0]["seen"] = torch.tensor(LossStats(count=3.0, mean=1.0, std=1.0), dtype=torch.float64)
    other = torch_cls([q], lr=LR, **settings)
    for t, weight in enumerate(weights):
        # The others are a million times as large as the first and the last.
        g = torch.tensor([1e-6, -2e-6] if weight == 1 else [1.0, 3.0], dtype=torch.float64)
        p.grad, q.grad = g, g * weight
        if "momentum" in settings:
            other.param_groups[0]["lr"] = LR * (1 - BETAS[0]) / (1 - BETAS[0] ** (t + 1))
        optimizer.step(loss=2.0 - t % 2)
        other.step()
    moved = q.detach() - 1
    # The kernel computes a gain of 1e-9 from a decay: good to 1e-7.
    torch.testing.assert_close(p.detach() - 1, moved, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize(("betas", "steps"), [((0.99, 0.9), 2500), ((0.9, 0.0), 50)])
@pytest.mark.parametrize("decoupled", [False, True])
def test_many_zero_weights_do_no_harm(betas: tuple[float, float], steps: int, decoupled: bool) -> None:
    # With a first moment that outlives the second, the units of the kernel would leave float32.
    ends = []
    for dtype, path in ((torch.float32, {}), (torch.float64, {"foreach": False})):
        p = torch.ones(2, dtype=dtype, requires_grad=True)
        options = {"lr": 1e-9, "betas": betas, "weight_decay": 1e3 * decoupled, "decoupled_weight_decay": decoupled}
        optimizer = LossAwareAdam([p], rule="ucb", eta=0.5, **options, **path)
        for _ in range(steps):
            p.grad = torch.tensor([1.0, -2.0], dtype=dtype)
            optimizer.step(loss=2.0)  # never a spread, so only the first weight is not zero
        ends.append(p.detach().double())
    assert ends[0].isfinite().all()
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-3, atol=1e-6)
