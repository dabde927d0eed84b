"""Adam on the weighted gradient, with AMSGrad and decoupled decay, as torch has them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from surefoot.optim.engines.base import (
    Bucket,
    Engine,
    Group,
    amount_or_zero,
    as_float,
    betas_of,
    decay_decoupled,
    decay_or_one,
    descent_gradient,
    eps_of,
    kernel_is_precise_enough,
    next_step,
    ops_of,
    root,
    update_weight_moment,
    weighted_gradient,
)
from surefoot.optim.engines.tensor_lists import Tensors, add_scaled, square_into
from surefoot.statistics import Number

#: The largest learning rate and eps for the kernel: well inside the range of float32.
MAX_KERNEL_SCALE = 1e30
#: The least decay for the kernel: it takes 1 - decay of the way to the gradient, and in float32 the rest is lost.
MIN_KERNEL_DECAY = 1e-4


class Adam(Engine):
    """``param -= lr * m_hat / (sqrt(v_hat) + eps)`` with m and v of ``weight * gradient``."""

    name = "adam"
    has_fused = True
    refuses_tensors_with_foreach = True
    scalars = {"weight_mean": 0.0, "weight_power": 0.0}
    units = {"exp_avg": "weight_mean", "exp_avg_sq": "weight_power"}

    def state_names(self, group: Group) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def update(self, bucket: Bucket, group: Group, weight: Number, proceed: bool | Tensor) -> None:
        if isinstance(weight, Tensor):
            self._on_device(bucket, group, weight, proceed)
            return
        beta1, beta2 = betas_of(group)
        lr, t = group["lr"], next_step(bucket, True)
        if type(lr) is not float:
            lr = as_float(lr)
        mean, decay1, gain1 = update_weight_moment(bucket.scalars["weight_mean"], abs(weight), beta1)
        power, decay2, gain2 = update_weight_moment(bucket.scalars["weight_power"], weight * weight, beta2)
        # Back in units of the weight: m_hat = mean * N / (1 - b1**t) and v_hat = power * V / (1 - b2**t).
        step_size, correction = lr * mean / (1 - beta1**t), 1 / math.sqrt(1 - beta2**t)
        sign = -1.0 if weight < 0 else 1.0
        spread = correction * math.sqrt(power)
        # The kernel computes the gains as 1 - decay and holds lr and eps as float32: both fail for weights near zero.
        # And it cannot keep AMSGrad's maximum in units of the weight.
        is_precise = kernel_is_precise_enough(min(gain1, gain2), bucket.params[0].is_cpu)
        is_precise = is_precise and not 0 < decay1 < MIN_KERNEL_DECAY
        fits = is_precise and max(step_size, group["eps"]) <= MAX_KERNEL_SCALE * spread
        if bucket.path == "fused" and fits and not group["amsgrad"]:
            _fused(bucket, group, lr, step_size, spread, (decay1, decay2), negative=weight < 0)
            return
        ops = ops_of(bucket.path)
        decay_decoupled(bucket, group, lr, True, ops)
        h = descent_gradient(bucket, group, ops)
        _moments(bucket, h, ops, (decay1, sign * gain1), (decay2, gain2))
        _move(bucket, group, ops, step_size, correction, power)

    def _on_device(self, bucket: Bucket, group: Group, weight: Tensor, proceed: Any) -> None:
        beta1, beta2 = betas_of(group)
        ops = ops_of(bucket.path)
        h = weighted_gradient(bucket, group, weight, proceed, ops)
        if bucket.path == "fused":
            next_step(bucket, proceed)
            _fused_on_device(bucket, group, h, proceed)
            return
        lr, t = group["lr"], next_step(bucket, proceed)
        decay_decoupled(bucket, group, lr, proceed, ops)
        _moments(bucket, h, ops, (decay_or_one(beta1, proceed), 1 - beta1), (decay_or_one(beta2, proceed), 1 - beta2))
        step_size = amount_or_zero(lr, proceed) / (1 - beta1**t)
        _move(bucket, group, ops, step_size, 1 / root(1 - beta2**t), 1.0)


def _moments(bucket: Bucket, h: Tensors, ops: Any, first: tuple[Number, Number], second: tuple[Number, Number]) -> None:
    """moment = decay * moment + gain * gradient, for the mean and for the square."""
    ops.mul_(bucket.state[0], first[0])
    add_scaled(ops, bucket.state[0], h, first[1])
    ops.mul_(bucket.state[1], second[0])
    square_into(ops, bucket.state[1], h, second[1])


def _move(bucket: Bucket, group: Group, ops: Any, step_size: Number, correction: Number, power: float) -> None:
    """param -= step_size * N / (correction * sqrt(power * V) + eps); AMSGrad keeps the largest power * V there was."""
    squares, spread = bucket.state[1], correction * math.sqrt(power)
    if group["amsgrad"]:
        ops.maximum_(bucket.state[2], ops.mul(squares, power))
        squares, spread = bucket.state[2], correction
    denominators = ops.mul(ops.sqrt(squares), spread)
    ops.add_(denominators, eps_of(group))
    add_scaled(ops, bucket.params, ops.div(bucket.state[0], denominators), -step_size)


def _fused(
    bucket: Bucket,
    group: Group,
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
            torch._foreach_mul_(bucket.params, 1 - lr * group["weight_decay"])
        # The kernel shrinks by its own lr times decay; what is asked for is the user's lr times decay.
        decay = lr * group["weight_decay"] / scaled_lr if scaled_lr else 0.0
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        bucket.params,
        bucket.grads,
        bucket.state[0],
        bucket.state[1],
        [],
        [_no_bias_correction_step(bucket.params[0])] * len(bucket.params),
        lr=scaled_lr,
        beta1=decays[0],
        beta2=decays[1],
        weight_decay=decay,
        eps=eps_of(group) / spread,
        amsgrad=False,
        maximize=bool(group["maximize"]) != negative,
    )


def _fused_on_device(bucket: Bucket, group: Group, h: Tensors, proceed: Tensor) -> None:
    """torch's kernel on the weighted copy; a step to be skipped is what the kernel calls an overflow."""
    decoupled = group["decoupled_weight_decay"]
    beta1, beta2 = betas_of(group)
    lr = group["lr"]
    if isinstance(lr, Tensor):
        lr = lr.to(h[0].device, torch.float32, non_blocking=True)
    (torch._fused_adamw_ if decoupled else torch._fused_adam_)(
        bucket.params,
        h,
        bucket.state[0],
        bucket.state[1],
        bucket.state[2] if group["amsgrad"] else [],
        [bucket.step.to(torch.float32)] * len(h),
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        weight_decay=float(group["weight_decay"]) if decoupled else 0.0,
        eps=eps_of(group),
        amsgrad=bool(group["amsgrad"]),
        maximize=False,
        found_inf=torch.logical_not(proceed).to(torch.float32),
    )


#: By device; the CPU is None, because to ask a tensor for its device takes longer than to ask whether it is there.
_STEPS: dict[torch.device | None, Tensor] = {}


def _no_bias_correction_step(p: Tensor) -> Tensor:
    """A step count so large that the kernel's own bias correction is exactly 1, on the device of a parameter."""
    device = None if p.is_cpu else p.device
    if device not in _STEPS:
        _STEPS[device] = torch.full((), 1e30, dtype=torch.float32, device=p.device)
    return _STEPS[device]
