"""The central transformation: weight the gradient by how unusual its loss is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike

from surefoot import noise as counters
from surefoot.optax.rules import Rule, TiltState, find_rule

Weighting = Literal["paper", "unit"]
#: As in surefoot.meter, surefoot.rules and surefoot.optim.options, which import torch.
MAX_LOSS, RESOLUTION, UNIT_RESOLUTION, MAX_UNIT_DEVIATION = 1e19, 2.0**-19, 2.0**-13, 100.0
GAIN = (0.3, 1.5)


def standard_normal(seed: ArrayLike, step: ArrayLike, group: ArrayLike = 0) -> Array:
    """Return the draw from N(0, 1) of :func:`surefoot.noise.standard_normal`, from arrays or traced values.

    >>> from surefoot.noise import standard_normal as on_host
    >>> bool(abs(standard_normal(0, 7) - on_host(0, 7)) < 1e-6)
    True
    """
    word = jnp.uint32
    if isinstance(seed, int | np.integer) and isinstance(group, int | np.integer):
        first, second = map(word, counters.keys(int(seed), int(group)))
    else:  # a traced seed has 32 bits; the upper word repeats its sign, as that of a Python integer does
        low = jnp.asarray(seed)
        high = jnp.where(low < 0, word(counters.MASK), word(0))
        first, second = counters.fold((low.astype(word), high, jnp.asarray(group).astype(word)), of=word)
    radius, angle = counters.bits(jnp.asarray(step).astype(word), (first, second), of=word)
    radius, angle = radius.astype(float), angle.astype(float)
    return jnp.sqrt(-2.0 * jnp.log((radius + 1) * 2.0**-24)) * jnp.cos(angle * (2.0**-23 * math.pi))


def scalar(value: Any, dtype: Any) -> Array:
    """Read the loss that ``update`` was given."""
    if value is None:
        raise ValueError(
            "update() got no loss; pass it: update(grads, state, params, value=loss). With Flax: update(model, grads, "
            "value=loss) of an nnx.Optimizer, apply_gradients(grads=grads, value=loss) of "
            "surefoot.integrations.flax.TrainState"
        )
    if np.iscomplexobj(value):  # JAX would drop the imaginary part with nothing but a warning
        raise ValueError(f"value= takes a real loss but got {np.result_type(value)}; pass its real part or its abs()")
    if isinstance(value, str | bytes) or getattr(getattr(value, "dtype", None), "kind", "") in ("U", "S"):
        # JAX would parse it.
        raise ValueError(f"value= takes the loss as a number but got {type(value).__name__}: {value!r:.40}")
    try:
        value = jnp.asarray(float(value) if isinstance(value, int) else value, dtype)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"value= takes the loss as a number but got {type(value).__name__} ({error})") from error
    if value.size != 1:
        raise ValueError(f"value= takes the scalar loss but has shape {value.shape}; pass its mean")
    return value.reshape(())


def with_loss(stats: Any, value: Array, beta: Any) -> Any:
    """Add a loss to the statistics; by hypot, whose squares cannot overflow or underflow.

    ``share = (1 - beta) / (1 - beta**t)``, ``mean += share * d`` with ``d = value - mean``, and
    ``std = sqrt((1 - share) * (std**2 + share * d**2))``.
    """
    count = optax.safe_increment(stats.count)
    # log1p and expm1 keep the digits that 1 - beta**t loses in float32. The first loss must have the share 1:
    # a rounding error would look like a spread.
    rest = jnp.asarray(1 - beta, value.dtype)
    share = rest / -jnp.expm1(count.astype(value.dtype) * jnp.log1p(-rest))
    share = jnp.where(count == 1, 1.0, jnp.minimum(share, 1.0)).astype(value.dtype)
    distance = value - stats.mean
    mean = stats.mean + share * distance
    std = jnp.sqrt(1 - share) * jnp.hypot(stats.std, jnp.sqrt(share) * distance)
    return stats._replace(count=count, mean=mean, std=std, best=jnp.minimum(stats.best, mean))


def weighted(gradient: Array, weight: Array) -> Array:
    """The weighted gradient, no larger than its dtype can hold and Adam can square: an infinite moment never decays."""
    product = gradient * weight
    most = min(MAX_LOSS, float(jnp.finfo(gradient.dtype).max))
    if jnp.iscomplexobj(product):
        bounded = jax.lax.complex(*(jax.lax.clamp(-most, part, most) for part in (product.real, product.imag)))
    else:
        bounded = jax.lax.clamp(-most, product, most)  # jnp.clip takes longer
    return jnp.where(jnp.isfinite(gradient), bounded, product)  # one that was not finite before is not hidden


def _bounded(
    weight: Array, usable: Array, state: TiltState, bounds: tuple[float, float], beta: Any, climbs: bool
) -> tuple[Array, Array]:
    """The weight as a multiple of the root mean square of the weights so far, within bounds; and the mean square.

    As ``surefoot.meter`` does it: a multiple below the lower bound descends, whatever its sign.
    """
    low, high = bounds
    rest = jnp.asarray(1 - beta, weight.dtype)
    share = rest / -jnp.expm1((state.count + 1).astype(weight.dtype) * jnp.log1p(-rest))
    share = jnp.where(state.power == 0, 1.0, jnp.minimum(share, 1.0))
    weight = jnp.where(usable, weight, 0.0)
    power = jnp.where(usable, state.power + share * (weight * weight - state.power), state.power)
    known = power > 0
    multiple = jnp.clip(weight / jnp.sqrt(jnp.where(known, power, 1.0)), -high if climbs else low, high)
    return jnp.where(known, jnp.where(jnp.abs(multiple) < low, low, multiple), 1.0), power


def scale_by_tilt(
    rule: str | Rule,
    eta: float | Array | Callable[[Array], Any] | None = None,
    *,
    weighting: Weighting = "unit",
    loss_beta: float | Array = 0.9,
    seed: int | Array = 0,
    group: int | Array = 0,
    gain: tuple[float, float] | None = None,
    gain_beta: float | Array = 0.999,
) -> optax.GradientTransformationExtraArgs:
    """Weight the gradient by how unusual its loss is, given the losses before it.

    ``weight = 1 + tilt * (value - mean) / std`` with ``weighting="unit"``, which stays within 100 of 1, and
    ``std + tilt * (value - mean)`` with ``"paper"`` (CB: times ``abs(mean)``). While the std is 0 the weight is 1 in
    the former, and the magnitude of the latter. A value that is not finite, or beyond 1e19, leaves the statistics
    alone and gives a zero gradient; so does a weight that is not, but its value is remembered. Weighted gradients
    end at 1e19, or at the largest number of their dtype. To keep what follows in a chain from seeing a zero gradient
    that was none, wrap the chain in :func:`skip_nonfinite`, as the aliases do.

    Args:
        rule: ``"ucb"``, ``"cb"``, ``"s"``, ``"pi"``, ``"ei"``, ``"cvar"``, or a :class:`Rule`.
        eta: the rule's parameter, or a schedule of it over the steps taken; None is the rule's default.
        weighting: ``"unit"`` or ``"paper"``, whose scale something behind it in the chain has to cancel, as Adam does,
            or ``gain`` to bound.
        loss_beta: decay of the running mean and spread of the loss.
        seed: of the noise of rule ``"s"``.
        group: index that gives groups of parameters noise of their own.
        gain: bounds on what multiplies the gradient with ``weighting="paper"``: the weight as a multiple of the root
            mean square of the weights so far. For what divides by the size of the gradients, as Adam does.
        gain_beta: decay of that mean square, such as Adam's ``b2``.

    >>> import jax.numpy as jnp
    >>> tilt = scale_by_tilt("ucb", 0.1)
    >>> state = tilt.init(jnp.ones(2))
    >>> for value in (1.0, 3.0, 2.5):
    ...     grads, state = tilt.update(jnp.ones(2), state, value=value)
    >>> round(float(state.weight), 4)  # 1 + 0.1 * (2.5 - 2.0526) / 0.9986
    1.0448
    """
    rule = find_rule(rule)
    eta = rule.eta if eta is None else eta
    if isinstance(eta, (int, float)) and not (math.isfinite(eta) and rule.low <= eta < rule.high):
        raise ValueError(f"Invalid eta value: {eta}; this rule takes a number from {rule.low} to below {rule.high}")
    if weighting not in ("paper", "unit"):
        raise ValueError(f"Invalid weighting: {weighting!r}; take 'paper' or 'unit'")
    if isinstance(loss_beta, (int, float)) and not 0 <= loss_beta < 1:
        raise ValueError(f"Invalid loss_beta value: {loss_beta}; take a number from 0 to below 1")
    if gain is not None and not (len(gain) == 2 and 0 <= gain[0] <= 1 <= gain[1]):
        raise ValueError(f"Invalid gain value: {gain!r}; give two numbers around 1, such as {GAIN}, or None")
    bounds = gain if weighting == "paper" else None

    def init(params: optax.Params) -> TiltState:
        # An array each: jit refuses to donate one buffer twice.
        mean, std, best, z, tilt, weight, power = (jnp.full((), x, float) for x in (0, 0, math.inf, 0, 0, 1, 0))
        return TiltState(jnp.zeros((), jnp.int32), mean, std, best, z, tilt, weight, jnp.ones((), bool), power)

    def update(
        updates: optax.Updates,
        state: TiltState,
        params: optax.Params | None = None,
        *,
        value: Any = None,
        **_: Any,
    ) -> tuple[optax.Updates, TiltState]:
        value = scalar(value, state.mean.dtype)
        accepted = jnp.abs(value) <= MAX_LOSS
        value = jnp.where(accepted, value, state.mean)  # no NaN inside, also for those who differentiate through this
        now = jnp.asarray(eta(state.count) if callable(eta) else eta, value.dtype)
        noise = standard_normal(seed, state.count, group) if rule.uses_noise else jnp.zeros(())
        # A spread below the resolution of the loss is none.
        size = jnp.abs(state.mean)
        std = jnp.where(state.std <= RESOLUTION * size, 0.0, state.std)
        numerator, denominator = rule.tilt(state._replace(std=std), now, noise.astype(value.dtype))
        no_spread, distance = std == 0, value - state.mean
        tilt = numerator / jnp.where(denominator == 0, 1.0, denominator)
        unit = jnp.maximum(std, UNIT_RESOLUTION * size) if weighting == "unit" else std
        z = jnp.where(no_spread, 0.0, distance / jnp.where(no_spread, 1.0, unit))
        if weighting == "unit":
            deviation = tilt * z
            bounded = jnp.clip(deviation, -MAX_UNIT_DEVIATION, MAX_UNIT_DEVIATION)
            weight = 1 + jnp.where(jnp.isfinite(deviation), bounded, deviation)
        else:
            # Without a spread the sign of the distance means nothing: with its magnitude the first step cannot climb.
            weight = denominator * std + numerator * distance
            weight = jnp.where(no_spread, jnp.abs(weight), weight)
        usable = accepted & jnp.isfinite(weight * weight)  # Adam squares it
        # A loss is remembered even if its weight is unusable: otherwise the next losses would be unusable too.
        multiplier, power = weight, state.power
        if bounds is not None:
            multiplier, power = _bounded(weight, usable, state, bounds, gain_beta, rule.climbs)
        stats = with_loss(state, value, loss_beta)._replace(z=z, tilt=tilt, weight=weight, power=power)
        stats = jax.tree.map(lambda new, old: jnp.where(accepted, new, old).astype(old.dtype), stats, state)
        stats = stats._replace(taken=usable)
        updates = jax.tree.map(lambda g: jnp.where(usable, weighted(g, multiplier), 0).astype(g.dtype), updates)
        return updates, stats

    return optax.GradientTransformationExtraArgs(init, update)
