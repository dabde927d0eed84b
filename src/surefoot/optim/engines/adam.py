"""Adam on the weighted gradient, with AMSGrad and decoupled decay, as torch has them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from surefoot.optim.engines.base import (
    Engine,
    Members,
    applied,
    betas_of,
    counted,
    decay_decoupled,
    descent,
    eps_of,
    keep,
    ops_of,
    plain,
    root,
    weighted,
)
from surefoot.optim.engines.normalised import advance, kernel_knows
from surefoot.optim.engines.tensor_lists import Tensors, add_scaled, square_into
from surefoot.statistics import Number

#: Well inside of what float32 can hold.
MOST = 1e30


class Adam(Engine):
    """``param -= lr * m_hat / (sqrt(v_hat) + eps)`` with m and v of ``weight * gradient``."""

    name = "adam"
    has_fused = True
    scalars = {"weight_mean": 0.0, "weight_power": 0.0}
    units = {"exp_avg": "weight_mean", "exp_avg_sq": "weight_power"}

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def update(self, members: Members, group: dict[str, Any], weight: Number, proceed: Number, path: str) -> None:
        if isinstance(weight, Tensor):
            self._on_device(members, group, weight, proceed, path)
            return
        beta1, beta2 = betas_of(group)
        lr, t = plain(group["lr"]), counted(members, 1)
        mean, decay1, gain1 = advance(members.scalars["weight_mean"], abs(weight), beta1)
        power, decay2, gain2 = advance(members.scalars["weight_power"], weight * weight, beta2)
        # Back in units of the weight: m_hat = mean * N / (1 - b1**t) and v_hat = power * V / (1 - b2**t).
        step_size, correction = lr * mean / (1 - beta1**t), 1 / math.sqrt(1 - beta2**t)
        sign = -1.0 if weight < 0 else 1.0
        spread = correction * math.sqrt(power)
        # The maximum of AMSGrad has to be kept in units of the weight, which the kernel knows nothing about. The kernel
        # takes the gains as the rest of the decays, and units that fit into float32: not so when weights are near zero.
        known = kernel_knows(min(gain1, gain2), members.params[0].device)
        fits = known and max(step_size, group["eps"]) <= MOST * spread
        if path == "fused" and fits and not group["amsgrad"]:
            _fused(members, group, lr, step_size, spread, (decay1, decay2), negative=weight < 0)
            return
        ops = ops_of(path)
        decay_decoupled(members, group, lr, 1, ops)
        h = descent(members, group, ops)
        _moments(members, h, ops, (decay1, sign * gain1), (decay2, gain2))
        _move(members, group, ops, step_size, correction, power)

    def _on_device(self, members: Members, group: dict[str, Any], weight: Tensor, proceed: Tensor, path: str) -> None:
        beta1, beta2 = betas_of(group)
        ops = ops_of(path)
        h = weighted(members, group, weight, proceed, ops)
        if path == "fused":
            counted(members, proceed)
            _fused_on_device(members, group, h, proceed)
            return
        lr, t = group["lr"], counted(members, proceed)
        decay_decoupled(members, group, lr, proceed, ops)
        _moments(members, h, ops, (keep(beta1, proceed), 1 - beta1), (keep(beta2, proceed), 1 - beta2))
        step_size = applied(lr, proceed) / (1 - beta1**t)
        _move(members, group, ops, step_size, 1 / root(1 - beta2**t), 1.0)


def _moments(
    members: Members, h: Tensors, ops: Any, first: tuple[Number, Number], second: tuple[Number, Number]
) -> None:
    """moment = decay * moment + gain * gradient, for the mean and for the square."""
    ops.mul_(members.kept[0], first[0])
    add_scaled(ops, members.kept[0], h, first[1])
    ops.mul_(members.kept[1], second[0])
    square_into(ops, members.kept[1], h, second[1])


def _move(
    members: Members, group: dict[str, Any], ops: Any, step_size: Number, correction: Number, power: float
) -> None:
    """param -= step_size * N / (correction * sqrt(power * V) + eps); AMSGrad keeps the largest power * V there was."""
    squares, spread = members.kept[1], correction * math.sqrt(power)
    if group["amsgrad"]:
        ops.maximum_(members.kept[2], ops.mul(squares, power))
        squares, spread = members.kept[2], correction
    denominators = ops.mul(ops.sqrt(squares), spread)
    ops.add_(denominators, eps_of(group))
    add_scaled(ops, members.params, ops.div(members.kept[0], denominators), -step_size)


def _fused(
    members: Members,
    group: dict[str, Any],
    lr: float,
    step_size: float,
    spread: float,
    decays: tuple[float, float],
    negative: bool,
) -> None:
    """torch's kernel on the raw gradient: the weight's sign is `maximize`, its size is in lr and eps."""
    scaled_lr = step_size / spread
    decoupled = group["decoupled_weight_decay"] and group["weight_decay"] != 0
    decay = -group["weight_decay"] if negative else group["weight_decay"]
    if decoupled:
        if scaled_lr == 0:
            torch._foreach_mul_(members.params, 1 - lr * group["weight_decay"])
        # The kernel shrinks by its own lr times decay; what is asked for is the user's lr times decay.
        decay = lr * group["weight_decay"] / scaled_lr if scaled_lr else 0.0
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        members.params,
        members.grads,
        members.kept[0],
        members.kept[1],
        [],
        [_long_ago(members.params[0].device)] * len(members.params),
        lr=scaled_lr,
        beta1=decays[0],
        beta2=decays[1],
        weight_decay=decay,
        eps=eps_of(group) / spread,
        amsgrad=False,
        maximize=bool(group["maximize"]) != negative,
    )


def _fused_on_device(members: Members, group: dict[str, Any], h: Tensors, proceed: Tensor) -> None:
    """torch's kernel on the weighted copy; a step to be skipped is what the kernel calls an overflow."""
    decoupled = group["decoupled_weight_decay"]
    beta1, beta2 = betas_of(group)
    lr = group["lr"]
    if isinstance(lr, Tensor):
        lr = lr.to(h[0].device, torch.float32, non_blocking=True)
    (torch._fused_adamw_ if decoupled else torch._fused_adam_)(
        members.params,
        h,
        members.kept[0],
        members.kept[1],
        members.kept[2] if group["amsgrad"] else [],
        [members.step] * len(h),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=float(group["weight_decay"]) if decoupled else 0.0,
        eps=eps_of(group),
        amsgrad=bool(group["amsgrad"]),
        maximize=False,
        found_inf=torch.logical_not(proceed).to(torch.float32),
    )


_STEPS: dict[torch.device, Tensor] = {}


def _long_ago(device: torch.device) -> Tensor:
    """A step count so large that the kernel's own bias correction is exactly 1."""
    if device not in _STEPS:
        _STEPS[device] = torch.full((), 1e30, dtype=torch.float32, device=device)
    return _STEPS[device]
