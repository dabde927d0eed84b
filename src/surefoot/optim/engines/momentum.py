"""Momentum with bias correction (the paper's Algorithm 1) on the weighted gradient, with Nesterov's look ahead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surefoot.optim.engines.base import (
    Engine,
    Members,
    applied,
    counted,
    decay_decoupled,
    descent,
    keep,
    ops_of,
    plain,
    weighted,
)
from surefoot.optim.engines.normalised import advance, kernel_knows
from surefoot.optim.engines.tensor_lists import Tensors, add_scaled
from surefoot.statistics import Number

#: The kernel refuses a buffer when its momentum is exactly zero, as the first step's is.
TINY = 1e-300


class Momentum(Engine):
    """``m = b*m + (1-b)*weight*g``, ``param -= lr * m / (1 - b**t)``.

    Nesterov moves along ``b*m + (1-b)*weight*g`` instead, the momentum of one step further on, corrected as m is.
    """

    name = "momentum"
    has_fused = True
    scalars = {"weight_mean": 0.0}
    units = {"momentum_buffer": "weight_mean"}

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def momentum(self, group: dict[str, Any]) -> float:
        return float(group["momentum"])

    def update(self, members: Members, group: dict[str, Any], weight: Number, proceed: Number, path: str) -> None:
        beta, ops = float(group["momentum"]), ops_of(path)
        buffers = members.kept[0]
        if isinstance(weight, Tensor):
            lr, t = group["lr"], counted(members, proceed)
            h = weighted(members, group, weight, proceed, ops)
            decay_decoupled(members, group, lr, proceed, ops)
            ops.mul_(buffers, keep(beta, proceed))
            add_scaled(ops, buffers, h, 1 - beta)
            _move(members, group, ops, applied(lr, proceed) / (1 - beta**t), beta, h, (1 - beta))
            return
        lr, t = plain(group["lr"]), counted(members, 1)
        mean, decay, gain = advance(members.scalars["weight_mean"], abs(weight), beta)
        step_size = lr * mean / (1 - beta**t)
        decay_decoupled(members, group, lr, 1, ops)
        if path == "fused" and kernel_knows(gain, members.params[0].device) and not group["nesterov"]:
            _fused(members, group, step_size, decay, negative=weight < 0)
            return
        newest = -gain if weight < 0 else gain
        h = descent(members, group, ops)
        ops.mul_(buffers, decay)
        add_scaled(ops, buffers, h, newest)
        _move(members, group, ops, step_size, beta, h, newest)


def _move(
    members: Members, group: dict[str, Any], ops: Any, step_size: Number, beta: float, h: Tensors, newest: float
) -> None:
    if not group["nesterov"]:
        add_scaled(ops, members.params, members.kept[0], -step_size)
        return
    ahead = ops.mul(members.kept[0], beta)
    add_scaled(ops, ahead, h, newest)
    add_scaled(ops, members.params, ahead, -step_size)


def _fused(members: Members, group: dict[str, Any], step_size: float, decay: float, negative: bool) -> None:
    """torch's SGD kernel on the raw gradient, with the decay as its dampening: both sum to one."""
    l2 = 0.0 if group["decoupled_weight_decay"] else group["weight_decay"]
    torch._fused_sgd_(
        members.params,
        members.grads,
        members.kept[0],
        weight_decay=-l2 if negative else l2,
        momentum=decay or TINY,
        lr=step_size,
        dampening=decay,
        nesterov=False,
        maximize=bool(group["maximize"]) != negative,
        is_first_step=False,
    )
