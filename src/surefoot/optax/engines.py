"""Adam and Momentum that skip a step by themselves, and the guard around them.

``skip_nonfinite`` chooses between the state before and after a step. The compiler then needs both at once: it computes
the moments twice, and copies buffers that were donated. Here each moment makes that choice where it is computed, and
the step goes on from what was chosen. So a step reads and writes what ``optax.adam`` does; with ``check_gradients`` it
reads the gradients once more.
"""

from __future__ import annotations

from collections.abc import Callable
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

    The gradients are then 0 too.
    """

    init: Callable[[optax.Params], Any]
    update: Callable[[optax.Updates, Any, Array], tuple[optax.Updates, Any]]


def _moments(decay: Any, newest: optax.Updates, moments: optax.Updates, taken: Array) -> optax.Updates:
    """``(1 - decay) * newest + decay * moment``; without a step ``newest`` is 0, and each moment stays what it is."""
    share, decay = jnp.where(taken, 1 - decay, 0.0), jnp.where(taken, decay, 1.0)
    return jax.tree.map(lambda new, moment: share * new + decay * moment, newest, moments)


def _square(gradient: Array) -> Array:
    return gradient**2 if jnp.isrealobj(gradient) else gradient.real**2 + gradient.imag**2


def _cast_like(tree: Any, other: Any) -> Any:
    return jax.tree.map(lambda x, y: x.astype(y.dtype), tree, other)


def _corrected(count: Array, taken: Array, eps: Any, *decays: Any) -> tuple[Array, list[Array], Array]:
    """The step count, what each bias correction divides by, and eps; without a step these make a direction of 0.

    So no array has to be chosen from. In a branch, because the compiler would compute them anew for every array.
    """

    def step(count: Array) -> tuple[list[Array], Array]:
        return [jnp.asarray(1 - decay**count, float) for decay in decays], jnp.asarray(eps, float)

    def stay(_: Array) -> tuple[list[Array], Array]:
        return [jnp.full((), of, float) for of in (jnp.inf, 1.0)[: len(decays)]], jnp.ones((), float)

    count = jnp.where(taken, optax.safe_increment(count), count)
    return (count, *_branch(taken, step, stay, count))


def adam_engine(b1: Any, b2: Any, eps: Any, mu_dtype: Any) -> Engine:
    """What ``optax.scale_by_adam`` computes, up to rounding."""

    def update(gradients: optax.Updates, state: Any, taken: Array) -> tuple[optax.Updates, Any]:
        mu = _moments(b1, gradients, state.mu, taken)
        nu = _moments(b2, jax.tree.map(_square, gradients), state.nu, taken)
        count, (first, second), floor = _corrected(state.count, taken, eps, b1, b2)

        def towards(m: Array, v: Array) -> Array:
            return m / first.astype(m.dtype) / (jnp.sqrt(v / second.astype(v.dtype)) + floor.astype(v.dtype))

        kept = {"mu": _cast_like(mu, state.mu), "nu": _cast_like(nu, state.nu)}
        return jax.tree.map(towards, mu, nu), optax.ScaleByAdamState(count=count, **kept)

    return Engine(optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype).init, update)


def momentum_engine(beta: Any, accumulator_dtype: Any) -> Engine:
    """What ``optax.ema`` computes, up to rounding."""

    def update(gradients: optax.Updates, state: Any, taken: Array) -> tuple[optax.Updates, Any]:
        ema = _moments(beta, gradients, state.ema, taken)
        count, [correction], _ = _corrected(state.count, taken, 0.0, beta)
        direction = jax.tree.map(lambda m: m / correction.astype(m.dtype), ema)
        return direction, optax.EmaState(count, _cast_like(ema, state.ema))

    return Engine(optax.ema(beta, accumulator_dtype=accumulator_dtype).init, update)


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

    def assess(stats: TiltState, value: Array) -> tuple[Array, TiltState, Array]:
        # The multiplier is what the tilt makes of a gradient of 1.
        multiplier, tilted = tilt.update(jnp.ones((), stats.mean.dtype), stats, value=value)
        return multiplier, tilted, tilted.taken

    def leave(stats: TiltState, value: Array) -> tuple[Array, TiltState, Array]:
        return jnp.zeros((), stats.mean.dtype), stats, jnp.zeros((), bool)

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
        multiplier, tilted, taken = _branch(sound, assess, leave, stats, jnp.where(sound, value, 0.0))
        # What is not finite stays outside, so that no derivative meets it.
        updates = jax.tree.map(lambda g: jnp.where(taken, g, jnp.zeros_like(g)), updates)

        def kept(new: Any, old: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, old)

        if not decoupled:
            updates, decayed = decay.update(updates, decaying, params)
        updates = jax.tree.map(lambda g: weigh(g, multiplier).astype(g.dtype), updates)
        updates, moved = engine.update(updates, moments, taken)
        if decoupled:
            updates, decayed = decay.update(updates, decaying, params)
            updates = jax.tree.map(lambda u: jnp.where(taken, u, jnp.zeros_like(u)), updates)
        updates, rated = rate.update(updates, rating, params)
        decayed, rated = kept(decayed, decaying), kept(rated, rating)
        after = (tilted, moved, decayed, rated) if decoupled else (decayed, tilted, moved, rated)
        return updates, SkipState(state.skipped + ~taken, after)

    return optax.GradientTransformationExtraArgs(init, update)


def _branch(condition: Array, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """``lax.cond``: the compiler does not copy what is computed in a branch into the loop over every array.

    Outside of ``jit`` an ``if``: there ``lax.cond`` would be compiled anew in every step.
    """
    if isinstance(condition, jax.core.Tracer):
        return jax.lax.cond(condition, then, otherwise, *operands)
    return (then if condition else otherwise)(*operands)
