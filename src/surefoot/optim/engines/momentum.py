"""Momentum with bias correction (the paper's Algorithm 1) on the weighted gradient, with Nesterov's look ahead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from surefoot.optim.engines.base import (
    Bucket,
    Engine,
    Group,
    amount_or_zero,
    as_float,
    decay_decoupled,
    decay_or_one,
    descent_gradient,
    kernel_is_precise_enough,
    next_step,
    ops_of,
    update_weight_moment,
    weighted_gradient,
)
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

    def state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def momentum(self, group: Group) -> Number:
        return group["momentum"]

    def update(self, bucket: Bucket, group: Group, weight: Number, proceed: bool | Tensor) -> None:
        beta, ops = group["momentum"], ops_of(bucket.path)
        beta = beta if type(beta) is float else as_float(beta)
        buffers = bucket.state[0]
        if isinstance(weight, Tensor):
            lr, t = group["lr"], next_step(bucket, proceed)
            h = weighted_gradient(bucket, group, weight, proceed, ops)
            decay_decoupled(bucket, group, lr, proceed, ops)
            ops.mul_(buffers, decay_or_one(beta, proceed))
            add_scaled(ops, buffers, h, 1 - beta)
            _move(bucket, group, ops, amount_or_zero(lr, proceed) / (1 - beta**t), beta, h, (1 - beta))
            return
        lr, t = as_float(group["lr"]), next_step(bucket, True)
        mean, decay, gain = update_weight_moment(bucket.scalars["weight_mean"], abs(weight), beta)
        step_size = lr * mean / (1 - beta**t)
        decay_decoupled(bucket, group, lr, True, ops)
        if bucket.path == "fused" and kernel_is_precise_enough(gain, bucket.params[0].is_cpu) and not group["nesterov"]:
            _fused(bucket, group, step_size, decay, negative=weight < 0)
            return
        newest = -gain if weight < 0 else gain
        h = descent_gradient(bucket, group, ops)
        ops.mul_(buffers, decay)
        add_scaled(ops, buffers, h, newest)
        _move(bucket, group, ops, step_size, beta, h, newest)


def _move(bucket: Bucket, group: Group, ops: Any, step_size: Number, beta: float, h: Tensors, newest: float) -> None:
    if not group["nesterov"]:
        add_scaled(ops, bucket.params, bucket.state[0], -step_size)
        return
    ahead = ops.mul(bucket.state[0], beta)
    add_scaled(ops, ahead, h, newest)
    add_scaled(ops, bucket.params, ahead, -step_size)


def _fused(bucket: Bucket, group: Group, step_size: float, decay: float, negative: bool) -> None:
    """torch's SGD kernel on the raw gradient, with the decay as its dampening: both sum to one."""
    l2 = 0.0 if group["decoupled_weight_decay"] else group["weight_decay"]
    torch._fused_sgd_(
        bucket.params,
        bucket.grads,
        bucket.state[0],
        weight_decay=-l2 if negative else l2,
        momentum=decay or TINY,
        lr=step_size,
        dampening=decay,
        nesterov=False,
        maximize=bool(group["maximize"]) != negative,
        is_first_step=False,
    )
