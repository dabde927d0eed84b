"""weighting="unit" with eta 0 is the plain optimizer, to rounding, over 500 steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot import (
    AdaMaxS,
    AdaMaxUCB,
    AdamCVaR,
    AdamS,
    AdamUCB,
    AdamWS,
    AdamWUCB,
    LossAware,
    LossAwareAdam,
    Momentum,
    MomentumS,
    MomentumUCB,
    NAdamS,
    NAdamUCB,
)

STEPS = 500
LR = 1e-2
PATHS: dict[str, dict[str, Any]] = {
    "default": {},
    "foreach": {"foreach": True},
    "forloop": {"foreach": False},
    "device": {"capturable": True},
}


def sgd(params: list[Tensor], *, decoupled_weight_decay: bool = False, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, momentum=0.9, **options)


Maker = Callable[..., torch.optim.Optimizer]
SETTINGS: dict[str, tuple[Maker, list[type[LossAware]], dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, [AdamUCB, AdamS, AdamCVaR, LossAwareAdam], {"weight_decay": 0.01}),
    "AdamW": (torch.optim.AdamW, [AdamS], {"weight_decay": 0.01, "decoupled_weight_decay": True}),
    "AdamW by name": (torch.optim.AdamW, [AdamWS, AdamWUCB], {}),  # the default decay too
    "AdamW, strong decay": (torch.optim.AdamW, [AdamWS], {"weight_decay": 0.5, "amsgrad": True, "maximize": True}),
    "AMSGrad": (torch.optim.Adam, [AdamUCB], {"amsgrad": True, "maximize": True}),
    "NAdam": (torch.optim.NAdam, [NAdamUCB, NAdamS], {"weight_decay": 0.01}),
    "NAdamW": (torch.optim.NAdam, [NAdamS], {"weight_decay": 0.01, "decoupled_weight_decay": True}),
    "Adamax": (torch.optim.Adamax, [AdaMaxUCB, AdaMaxS], {"weight_decay": 0.01, "maximize": True}),
    "SGD": (sgd, [Momentum, MomentumUCB, MomentumS], {"weight_decay": 0.01}),
    "Nesterov": (sgd, [MomentumUCB], {"nesterov": True, "maximize": True}),
}
CASES = [(name, cls, path) for name, (_, classes, _) in SETTINGS.items() for cls in classes[:1] for path in PATHS]
CASES += [(name, cls, "default") for name, (_, classes, _) in SETTINGS.items() for cls in classes[1:]]


@functools.cache
def data() -> tuple[Tensor, Tensor, list[float]]:
    generator = torch.Generator().manual_seed(3)
    start, grads = torch.randn(4, generator=generator), torch.randn(STEPS, 4, generator=generator)
    losses = 1 + torch.rand(STEPS, generator=generator, dtype=torch.float64)
    return start, grads, losses.tolist()


@functools.cache
def plain(name: str, dtype: torch.dtype) -> Tensor:
    """torch's own optimizer; Algorithm 1's average is SGD's sum, with a learning rate that corrects for it."""
    maker, _, options = SETTINGS[name]
    start, grads, _ = data()
    p = start.to(dtype).clone().requires_grad_()
    if maker is torch.optim.AdamW:
        options = {key: value for key, value in options.items() if key != "decoupled_weight_decay"}
    optimizer = maker([p], lr=LR, **options)
    torch.set_default_dtype(dtype)  # of NAdam's running product
    for t, g in enumerate(grads.to(dtype)):
        p.grad = g.clone()
        if maker is sgd:
            optimizer.param_groups[0]["lr"] = LR * 0.1 / (1 - 0.9 ** (t + 1))
        optimizer.step()
    torch.set_default_dtype(torch.float32)
    return p.detach()


def ours(name: str, cls: type[LossAware], path: str, dtype: torch.dtype) -> tuple[Tensor, LossAware]:
    start, grads, losses = data()
    p = start.to(dtype).clone().requires_grad_()
    options = SETTINGS[name][2]
    optimizer = cls([p], lr=LR, eta=0.0, weighting="unit", **options, **PATHS[path])
    for g, loss in zip(grads.to(dtype), losses):
        p.grad = g.clone()
        optimizer.step(loss=torch.tensor(loss) if path == "device" else loss)
    return p.detach(), optimizer


@pytest.mark.parametrize(("name", "cls", "path"), CASES)
def test_eta_zero_is_the_plain_optimizer(name: str, cls: type[LossAware], path: str) -> None:
    truth = plain(name, torch.float64)
    result, optimizer = ours(name, cls, path, torch.float64)
    torch.testing.assert_close(result, truth, rtol=1e-11, atol=1e-11)
    # The losses did vary: the weight is 1 because eta is 0, not because there was nothing to weigh.
    seen = optimizer.confidence()[0]
    assert seen["weight"] == 1
    assert seen["std"] > 0.1
    assert seen["z"] != 0


@pytest.mark.parametrize(("name", "cls", "path"), [case for case in CASES if case[2] in ("default", "device")])
def test_float32_rounds_no_worse_than_torch(name: str, cls: type[LossAware], path: str) -> None:
    truth = plain(name, torch.float64)
    result, _ = ours(name, cls, path, torch.float32)
    allowed = 2 * (plain(name, torch.float32).double() - truth).abs().max().item() + 2 * 2.0**-23
    assert (result.double() - truth).abs().max().item() <= allowed


@pytest.mark.parametrize("cls", [AdamUCB, NAdamUCB, AdaMaxUCB])
def test_paper_weighting_with_a_constant_spread_is_plain_too(cls: type[LossAware]) -> None:
    # The paper says that eta = 0 restores Adam: true of a constant std, which Adam's division cancels.
    start, grads, _ = data()
    torch_cls = {AdamUCB: torch.optim.Adam, NAdamUCB: torch.optim.NAdam, AdaMaxUCB: torch.optim.Adamax}[cls]
    p, q = (start.double().clone().requires_grad_() for _ in range(2))
    scaled, plain_one = cls([p], lr=LR, eta=0.0, eps=0.0), torch_cls([q], lr=LR, eps=0.0)
    for g in grads[:20].double():
        # The same statistics before every step: mean 1, std 0.25.
        scaled.param_groups[0]["seen"] = torch.tensor([9.0, 1.0, 0.25, 1.0, 0, 0, 0, 1], dtype=torch.float64)
        p.grad, q.grad = g.clone(), g.clone()
        scaled.step(loss=1.5)
        plain_one.step()
    torch.testing.assert_close(p, q, rtol=1e-6 if cls is NAdamUCB else 1e-12, atol=0)
