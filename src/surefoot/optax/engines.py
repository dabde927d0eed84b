"""Adam and Momentum that skip a step by themselves, and the guard around them.

``skip_nonfinite`` chooses between the state before and after a step. The compiler then needs both at once: it computes
the moments twice, and copies buffers that were donated. Here each moment makes that choice where it is computed, and
the step goes on from what was chosen. So a step reads and writes what ``optax.adam`` does; with ``check_gradients`` it
reads the gradients once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from surefoot.optax.rules import TiltState
from surefoot.optax.tilt import MAX_LOSS, scalar, weighted
from surefoot.optax.wrappers import SkipState, all_finite


class Engine(NamedTuple):
    """From weighted gradients to a direction; if not ``taken``, ``update`` leaves the state and gives a direction of 0.

    The gradients are then 0 too. ``scalars(state, taken)`` are the next step count and the numbers for ``update``.
    """

    init: Callable[[optax.Params], Any]
    scalars: Callable[[Any, Array], tuple[Array, list[Array]]]
    update: Callable[[optax.Updates, Any, Array, Sequence[Array]], tuple[optax.Updates, Any]]


def _moments(share: Array, decay: Array, newest: optax.Updates, moments: optax.Updates) -> optax.Updates:
    """``share * newest + decay * moment``."""
    return jax.tree.map(lambda new, moment: _like(share, new) * new + _like(decay, moment) * moment, newest, moments)


def _like(number: Array, array: Array) -> Array:
    """A number in the precision of an array, so that the product has it too."""
    return number.astype(jnp.finfo(array.dtype).dtype)


def _square(gradient: Array) -> Array:
    return gradient**2 if jnp.isrealobj(gradient) else gradient.real**2 + gradient.imag**2


def _cast_like(tree: Any, other: Any) -> Any:
    return jax.tree.map(lambda x, y: x.astype(y.dtype), tree, other)


def _decays(decay: Any, count: Array, taken: Array, otherwise: float) -> list[Array]:
    """The share of the newest in a moment, that of the moment before, and what the bias correction divides by.

    Without a step the moment stays what it is, and ``otherwise`` divides it.
    """
    # A whole number as the exponent would be compiled into the power outside of jit, anew in every step.
    choices = ((1 - decay, 0.0), (decay, 1.0), (1 - decay ** count.astype(float), otherwise))
    return [jnp.where(taken, of_step, of_none) for of_step, of_none in choices]


def _next(count: Array, taken: Array) -> Array:
    return jnp.where(taken, optax.safe_increment(count), count)


def adam_engine(b1: Any, b2: Any, eps: Any, mu_dtype: Any) -> Engine:
    """What ``optax.scale_by_adam`` computes, up to rounding."""

    def scalars(state: Any, taken: Array) -> tuple[Array, list[Array]]:
        count = _next(state.count, taken)
        # m / inf is a direction of 0.
        decays = [*_decays(b1, count, taken, jnp.inf), *_decays(b2, count, taken, 1.0)]
        return count, [*decays, jnp.where(taken, eps, 1.0)]

    def update(
        gradients: optax.Updates, state: Any, count: Array, scalars: Sequence[Array]
    ) -> tuple[optax.Updates, Any]:
        share1, decay1, first, share2, decay2, second, floor = scalars
        mu = _moments(share1, decay1, gradients, state.mu)
        nu = _moments(share2, decay2, jax.tree.map(_square, gradients), state.nu)

        def towards(m: Array, v: Array) -> Array:
            return m / _like(first, m) / (jnp.sqrt(v / _like(second, v)) + _like(floor, v))

        kept = {"mu": _cast_like(mu, state.mu), "nu": _cast_like(nu, state.nu)}
        return jax.tree.map(towards, mu, nu), optax.ScaleByAdamState(count=count, **kept)

    return Engine(optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype).init, scalars, update)


def momentum_engine(beta: Any, accumulator_dtype: Any) -> Engine:
    """What ``optax.ema`` computes, up to rounding."""

    def scalars(state: Any, taken: Array) -> tuple[Array, list[Array]]:
        count = _next(state.count, taken)
        return count, _decays(beta, count, taken, jnp.inf)

    def update(
        gradients: optax.Updates, state: Any, count: Array, scalars: Sequence[Array]
    ) -> tuple[optax.Updates, Any]:
        share, decay, correction = scalars
        ema = _moments(share, decay, gradients, state.ema)
        direction = jax.tree.map(lambda m: m / _like(correction, m), ema)
        return direction, optax.EmaState(count, _cast_like(ema, state.ema))

    return Engine(optax.ema(beta, accumulator_dtype=accumulator_dtype).init, scalars, update)


def _times(gradient: Array, weight: Array) -> Array:
    """A gradient times a weight near 1.

    The bounds of ``weighted`` would take 5% of a step on small tensors. A gradient that needs them has a square that
    overflows in ``optax.adam`` too, but not in float16, which ends at 65504.
    """
    if float(jnp.finfo(gradient.dtype).max) < MAX_LOSS:
        return weighted(gradient, weight)
    return gradient * weight


def guarded(
    tilt: optax.GradientTransformationExtraArgs,
    engine: Engine,
    decay: optax.GradientTransformation,
    rate: optax.GradientTransformation,
    *,
    decoupled: bool,
    check_gradients: bool,
    near_one: bool,
) -> optax.GradientTransformationExtraArgs:
    """``skip_nonfinite(chain(decay, tilt, engine, rate))``, or with the decay last but one; the state is the same.

    ``near_one`` says that what multiplies the gradient has bounds: then the product needs none.
    """
    weigh = _times if near_one else weighted

    def init(params: optax.Params) -> SkipState:
        parts = (tilt, engine, decay, rate) if decoupled else (decay, tilt, engine, rate)
        return SkipState(jnp.zeros((), jnp.int32), tuple(part.init(params) for part in parts))

    def assess(stats: TiltState, moments: Any, value: Array) -> tuple[tuple[TiltState, Array], list[Array]]:
        # The multiplier is what the tilt makes of a gradient of 1.
        multiplier, tilted = tilt.update(jnp.ones((), stats.mean.dtype), stats, value=value)
        count, scalars = engine.scalars(moments, tilted.taken)
        return (tilted, count), [multiplier, tilted.taken, *scalars]

    def leave(stats: TiltState, moments: Any, value: Array) -> tuple[tuple[TiltState, Array], list[Array]]:
        taken = jnp.zeros((), bool)
        count, scalars = engine.scalars(moments, taken)
        return (stats, count), [jnp.zeros(()), taken, *scalars]

    def update(
        updates: optax.Updates,
        state: SkipState,
        params: optax.Params | None = None,
        *,
        value: Any = None,
        **_: Any,
    ) -> tuple[optax.Updates, SkipState]:
        before = state.inner_state
        stats, moments, decaying, rating = before if decoupled else (*before[1:3], before[0], before[3])
        value = scalar(value, float)
        sound = jnp.isfinite(value)
        if check_gradients:
            sound &= all_finite(updates)
        value = jnp.where(sound, value, 0.0)
        (tilted, count), numbers = _branch(sound, assess, leave, stats, moments, value)
        multiplier, taken, *scalars = numbers
        taken = taken > 0
        # What is not finite stays outside, so that no derivative meets it.
        updates = jax.tree.map(lambda g: jnp.where(taken, g, jnp.zeros_like(g)), updates)

        def kept(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, old)

        if not decoupled:
            updates, decayed = decay.update(updates, decaying, params)
        updates = jax.tree.map(lambda g: weigh(g, multiplier).astype(g.dtype), updates)
        updates, moved = engine.update(updates, moments, count, scalars)
        if decoupled:
            updates, decayed = decay.update(updates, decaying, params)
            updates = jax.tree.map(lambda u: jnp.where(taken, u, jnp.zeros_like(u)), updates)
        updates, rated = rate.update(updates, rating, params)
        decayed, rated = kept(decayed, decaying), kept(rated, rating)
        after = (tilted, moved, decayed, rated) if decoupled else (decayed, tilted, moved, rated)
        return updates, SkipState(state.skipped + ~taken, after)

    return optax.GradientTransformationExtraArgs(init, update)


Branch = Callable[..., tuple[Any, Sequence[Array]]]


def _branch(condition: Array, then: Branch, otherwise: Branch, *operands: Any) -> tuple[Any, Sequence[Array]]:
    """``lax.cond``: the compiler does not copy what is computed in a branch into the loop over every array.

    The numbers that arrays meet leave the branch as one vector. As values of their own they make the compiler order its
    work such that it reads each gradient from memory twice.

    Outside of ``jit`` an ``if``: there ``lax.cond`` would be compiled anew in every step.
    """
    if not isinstance(condition, jax.core.Tracer):
        return (then if condition else otherwise)(*operands)

    def packed(branch: Branch) -> Callable[..., tuple[Any, Array]]:
        def call(*operands: Any) -> tuple[Any, Array]:
            kept, numbers = branch(*operands)
            return kept, jnp.stack([jnp.asarray(number, float) for number in numbers])

        return call

    kept, vector = jax.lax.cond(condition, packed(then), packed(otherwise), *operands)
    return kept, jnp.unstack(vector)
