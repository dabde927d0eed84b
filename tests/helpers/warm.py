"""An optimizer after some ordinary steps, and all that it could have changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from surefoot import AdamS, LossAware


def ready(cls: type[LossAware] = AdamS, **options: Any) -> tuple[list[Tensor], LossAware]:
    """An optimizer after two ordinary steps, with gradients for the next."""
    params = [Parameter(torch.tensor([1.0, -2.0])), Parameter(torch.ones(3))]
    optimizer = cls([{"params": params[:1]}, {"params": params[1:]}], **options)
    for loss in (1.0, 2.0):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step(loss=loss)
    return params, optimizer


def everything(params: list[Tensor], optimizer: LossAware) -> list[Any]:
    """Parameters, state and statistics, as they are now."""
    state = [sorted((k, v.tolist()) for k, v in optimizer.state[p].items()) for p in params]
    seen = [group["seen"].tolist() for group in optimizer.param_groups]
    return [[p.tolist() for p in params], state, seen]


def take_step(optimizer: Any, loss: Any = 1.0) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p, device=p.device)
    optimizer.step(loss=loss)
