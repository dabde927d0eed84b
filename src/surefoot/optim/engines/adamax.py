"""AdaMax on the weighted gradient: Adam with the largest gradient in place of the mean square."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.optim.engines.base import (
    Bucket,
    Engine,
    Group,
    amount_or_zero,
    betas_of,
    decay_decoupled,
    decay_or_one,
    eps_of,
    masked,
    next_step,
    ops_of,
    weighted_gradient,
)
from surefoot.optim.engines.tensor_lists import add_scaled
from surefoot.statistics import Number


class AdaMax(Engine):
    """``u = max(b2*u, abs(weight*g) + eps)``, ``param -= lr / (1 - b1**t) * m / u``."""

    name = "adamax"

    def state_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_inf")

    def update(self, bucket: Bucket, group: Group, weight: Number, proceed: bool | Tensor) -> None:
        beta1, beta2 = betas_of(group)
        ops, (averages, largest) = ops_of(bucket.path), bucket.state
        lr, t = group["lr"], next_step(bucket, proceed)
        h = weighted_gradient(bucket, group, weight, proceed, ops)
        decay_decoupled(bucket, group, lr, proceed, ops)
        ops.mul_(averages, decay_or_one(beta1, proceed))
        add_scaled(ops, averages, h, 1 - beta1)
        ops.mul_(largest, decay_or_one(beta2, proceed))
        sizes = ops.abs(h)
        eps, dtype = eps_of(group), bucket.params[0].dtype
        ops.add_(sizes, eps if dtype.itemsize >= 4 else max(eps, _least(dtype)))
        ops.maximum_(largest, masked(sizes, proceed))
        # Before the first step that counts, the largest is 0 as well.
        move = masked(ops.div(averages, largest), proceed)
        add_scaled(ops, bucket.params, move, -amount_or_zero(lr, proceed) / (1 - beta1**t))


def _least(dtype: torch.dtype) -> float:
    """The least number of a dtype: in half precision an eps of 1e-8 is 0, and a gradient of zero would be 0 / 0."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps
