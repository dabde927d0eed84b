"""AdaMax on the weighted gradient: Adam with the largest gradient in place of the mean square."""

from __future__ import annotations

from typing import Any

from surefoot.optim.engines.base import (
    Engine,
    Members,
    applied,
    betas_of,
    counted,
    decay_decoupled,
    eps_of,
    keep,
    masked,
    ops_of,
    weighted,
)
from surefoot.optim.engines.tensor_lists import add_scaled
from surefoot.statistics import Number


class AdaMax(Engine):
    """``u = max(b2*u, abs(weight*g) + eps)``, ``param -= lr / (1 - b1**t) * m / u``."""

    name = "adamax"

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_inf")

    def update(self, members: Members, group: dict[str, Any], weight: Number, proceed: Number, path: str) -> None:
        beta1, beta2 = betas_of(group)
        ops, (averages, largest) = ops_of(path), members.kept
        lr, t = group["lr"], counted(members, proceed)
        h = weighted(members, group, weight, proceed, ops)
        decay_decoupled(members, group, lr, proceed, ops)
        ops.mul_(averages, keep(beta1, proceed))
        add_scaled(ops, averages, h, 1 - beta1)
        ops.mul_(largest, keep(beta2, proceed))
        sizes = ops.abs(h)
        ops.add_(sizes, eps_of(group))
        ops.maximum_(largest, masked(sizes, proceed))
        # Before the first step that counts, the largest is 0 as well.
        move = masked(ops.div(averages, largest), proceed)
        add_scaled(ops, members.params, move, -applied(lr, proceed) / (1 - beta1**t))
