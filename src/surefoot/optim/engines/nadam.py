"""NAdam on the weighted gradient: Adam with Nesterov's look ahead and its warm-up of the momentum."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from surefoot.optim.engines.base import (
    Engine,
    Members,
    Scalar,
    applied,
    betas_of,
    counted,
    decay_decoupled,
    eps_of,
    keep,
    ops_of,
    root,
    weighted,
)
from surefoot.optim.engines.tensor_lists import add_scaled, square_into
from surefoot.statistics import Number

WARM_UP = 0.96


class NAdam(Engine):
    """``param -= lr * ((1-mu_t) * weight*g / (1-prod) + mu_next * m / (1 - prod*mu_next)) / (sqrt(v_hat) + eps)``.

    ``mu_t = b1 * (1 - 0.96**(t*momentum_decay) / 2)`` and prod is the product of all mu so far.
    """

    name = "nadam"
    scalars = {"mu_product": 1.0}

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def update(self, members: Members, group: dict[str, Any], weight: Number, proceed: Number, path: str) -> None:
        beta1, beta2 = betas_of(group)
        ops, (averages, squares) = ops_of(path), members.kept
        lr, t = group["lr"], counted(members, proceed)
        h = weighted(members, group, weight, proceed, ops)
        decay_decoupled(members, group, lr, proceed, ops)
        ops.mul_(averages, keep(beta1, proceed))
        add_scaled(ops, averages, h, 1 - beta1)
        ops.mul_(squares, keep(beta2, proceed))
        square_into(ops, squares, h, 1 - beta2)
        denominators = ops.mul(ops.sqrt(squares), 1 / root(1 - beta2**t))
        ops.add_(denominators, eps_of(group))
        mu, mu_next = (beta1 * (1 - 0.5 * WARM_UP ** (s * group["momentum_decay"])) for s in (t, t + 1))
        product = _multiply_in(members.scalars["mu_product"], mu, proceed)
        newest = applied(lr, proceed) * (1 - mu) / (1 - product)
        memory = applied(lr, proceed) * mu_next / (1 - product * mu_next)
        move = ops.mul(h, newest)
        add_scaled(ops, move, averages, memory)
        ops.div_(move, denominators)
        add_scaled(ops, members.params, move, -1.0)


def _multiply_in(product: Scalar, mu: Number, proceed: Number) -> Number:
    """Take mu into the shared running product and return it (0 where the step is skipped: it may still be 1)."""
    if not isinstance(proceed, Tensor):
        product.fill_(product.item() * mu)
        return product.item()
    # Through a view: torch.compile (2.13) loses what is written in place into a float64 scalar itself.
    product.view(1).mul_(keep(mu, proceed))
    return applied(product, proceed)
