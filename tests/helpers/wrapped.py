"""Other people's optimizers, and a small problem to wrap them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from surefoot import LossWeighted

#: Every base goes through the same tests; all parameters are matrices because Muon takes nothing else.
BASES: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05),
    "SGD momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
    "AdamW fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "AdamW tensor lr": lambda params: torch.optim.AdamW(params, lr=torch.tensor(0.01)),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.5),
    "Muon": lambda params: torch.optim.Muon(params, lr=0.01),
    "ScheduleFree": lambda params: schedulefree.AdamWScheduleFree(params, lr=0.01, weight_decay=0.01),
    "Lion": lambda params: pytorch_optimizer.Lion(params, lr=0.001),
    "Lookahead": lambda params: pytorch_optimizer.Lookahead(torch.optim.Adam(params, lr=0.01), k=2),
}
every_base = pytest.mark.parametrize("name", BASES)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 2, bias=False))


def loss_at(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    return model(x).sub(x[:, :2].sin()).pow(2).mean() * (1 + step % 3)


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> list[float]:
    losses = []
    if hasattr(optimizer, "train"):
        optimizer.train()
    for step in steps:
        optimizer.zero_grad()
        loss = loss_at(model, step)
        loss.backward()
        if isinstance(optimizer, LossWeighted):
            optimizer.step(loss=loss)
        else:
            optimizer.step()
        losses.append(loss.item())
    return losses


def params_of(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_equal(first: list[Tensor], second: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
