"""NAdam on the weighted gradient: Adam with Nesterov's look ahead and its warm-up of the momentum."""

from __future__ import annotations

from torch import Tensor

from surefoot.optim.engines.base import (
    Bucket,
    Engine,
    Group,
    Scalar,
    amount_or_zero,
    betas_of,
    decay_decoupled,
    decay_or_one,
    eps_of,
    next_step,
    ops_of,
    root,
    weighted_gradient,
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

    def state_names(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def update(self, bucket: Bucket, group: Group, weight: Number, proceed: bool | Tensor) -> None:
        beta1, beta2 = betas_of(group)
        ops, (averages, squares) = ops_of(bucket.path), bucket.state
        lr, t = group["lr"], next_step(bucket, proceed)
        h = weighted_gradient(bucket, group, weight, proceed, ops)
        decay_decoupled(bucket, group, lr, proceed, ops)
        ops.mul_(averages, decay_or_one(beta1, proceed))
        add_scaled(ops, averages, h, 1 - beta1)
        ops.mul_(squares, decay_or_one(beta2, proceed))
        square_into(ops, squares, h, 1 - beta2)
        denominators = ops.mul(ops.sqrt(squares), 1 / root(1 - beta2**t))
        ops.add_(denominators, eps_of(group))
        mu, mu_next = (beta1 * (1 - 0.5 * WARM_UP ** (s * group["momentum_decay"])) for s in (t, t + 1))
        product = _multiply_in(bucket.scalars["mu_product"], mu, proceed)
        amount = amount_or_zero(lr, proceed)
        newest = amount * (1 - mu) / (1 - product)
        memory = amount * mu_next / (1 - product * mu_next)
        move = ops.mul(h, newest)
        add_scaled(ops, move, averages, memory)
        ops.div_(move, denominators)
        add_scaled(ops, bucket.params, move, -1.0)


def _multiply_in(product: Scalar, mu: Number, proceed: Number) -> Number:
    """Take mu into the shared running product and return it (0 where the step is skipped: it may still be 1)."""
    if not isinstance(proceed, Tensor):
        product.fill_(product.item() * mu)
        return product.item()
    # Through a view: torch.compile (2.13) loses what is written in place into a float64 scalar itself.
    product.view(1).mul_(decay_or_one(mu, proceed))
    return amount_or_zero(product, proceed)
