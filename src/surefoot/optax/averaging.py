"""anytime: beside any optax optimizer, an average of its parameters whose memory the loss sets."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from surefoot.averaging.memory import AverageState, LossDriven, rate_factor
from surefoot.optax.tilt import MAX_LOSS, scalar, with_loss


class AnytimeState(NamedTuple):
    """The average, what it remembers, and the state of the optimizer that trains the parameters.

    ``share`` is that of the newest parameters in the average as of now; the average itself has not taken them in yet.
    """

    average: optax.Params
    numbers: AverageState
    share: Array
    base_state: optax.OptState


def anytime(
    base: optax.GradientTransformation,
    *,
    kappa: float = 0.2,
    loss_beta: float = 0.99,
    every: int | None = None,
    rate_span: float | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Wrap any optimizer: it takes the steps it would take alone, and an average of the parameters is kept.

    It is `surefoot.Anytime` for JAX: while the loss falls the average follows, on a plateau it remembers everything
    since the plateau began. ``averaged_params(state, params)`` returns it. A loss that is not finite is left out, and
    so are parameters that have one, or one that is out of all proportion.

    Args:
        base: the optimizer that trains the parameters.
        kappa: how far the loss has to fall, in units of its std, until older parameters are forgotten.
        loss_beta: decay rate of the loss statistics.
        every: update the average at every so many steps (None: at first at every step, and from the thousandth on at
            every twentieth); the statistics see every loss.
        rate_span: also multiply the updates by ``1 / (1 + steps / rate_span)``, where ``steps`` is how many steps the
            average spans, as `surefoot.AnytimeLR` does with the learning rate (its span is 300).

    >>> optimizer = anytime(optax.adam(0.1), every=1)
    >>> loss = lambda params: jnp.sum((params - 3.0) ** 2)
    >>> params = jnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> for _ in range(200):
    ...     value, grads = jax.value_and_grad(loss)(params)
    ...     updates, state = optimizer.update(grads, state, params, value=value)
    ...     params = optax.apply_updates(params, updates)
    >>> bool(loss(averaged_params(state, params)) < 1e-2)
    True
    """
    if every is not None and not (isinstance(every, int) and every >= 1):
        raise ValueError(f"Invalid every: {every!r}; it must be a whole number of steps, at least 1, or None")
    if not 0 < kappa < math.inf:
        raise ValueError(f"Invalid kappa value: {kappa}; it must be finite and above 0")
    if not 0 <= loss_beta < 1:
        raise ValueError(f"Invalid loss_beta value: {loss_beta}; take a number from 0 to below 1")
    if rate_span is not None and not 0 < rate_span < math.inf:
        raise ValueError(f"Invalid rate_span value: {rate_span}; it must be finite and above 0, or None")
    memory = LossDriven(float(loss_beta), float(kappa))
    base = optax.with_extra_args_support(base)

    def init(params: optax.Params) -> AnytimeState:
        # An array each: jit refuses to donate one buffer twice.
        numbers = AverageState(*(jnp.full((), x, float) for x in AverageState()))
        return AnytimeState(jax.tree.map(_started, params), numbers, jnp.zeros((), float), base.init(params))

    def update(
        updates: optax.Updates,
        state: AnytimeState,
        params: optax.Params | None = None,
        *,
        value: Any = None,
        **more: Any,
    ) -> tuple[optax.Updates, AnytimeState]:
        if params is None:
            raise ValueError("anytime averages the parameters: pass them, update(grads, state, params, value=loss)")
        numbers = state.numbers
        value = scalar(value, numbers.mean.dtype)
        sound = jnp.abs(value) <= MAX_LOSS
        # These parameters are taken in now that their own loss is known, which is not finite if they are not.
        due = sound & memory.accepts(numbers, value) & numbers.is_due(every)
        share, updated = numbers.with_update(memory, every, jnp.exp)
        average = jax.lax.cond(due, lambda: _moved(state.average, params, share), lambda: state.average)
        numbers = _choose(due, updated, numbers)
        updates, base_state = base.update(updates, state.base_state, params, value=value, **more)
        if rate_span is not None:
            rate = rate_factor(numbers.span(every), rate_span)
            updates = jax.tree.map(lambda u: (u * rate).astype(u.dtype), updates)
        after = with_loss(numbers, jnp.where(sound, value, numbers.mean), loss_beta)
        left_out = numbers._replace(skipped=numbers.skipped + 1, pending=numbers.pending + 1)
        numbers = _choose(sound, numbers.with_step(memory, after, jnp.exp), left_out)
        share, _ = numbers.with_update(memory, every, jnp.exp)
        return updates, AnytimeState(average, numbers, share, base_state)

    return optax.GradientTransformationExtraArgs(init, update)


def averaged_params(state: optax.OptState, params: optax.Params) -> optax.Params:
    """The average as of now, in the dtypes of the parameters; ``params`` are those after the last step.

    Args:
        state: of an optimizer that has an `anytime` somewhere in it.
        params: the trained parameters; ``nnx.state(model, nnx.Param)`` of Flax, for the ``opt_state`` of its Optimizer.
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AnytimeState))
    states = [leaf for leaf in leaves if isinstance(leaf, AnytimeState)]
    if len(states) != 1:
        raise ValueError(f"averaged_params needs the state of one anytime(...), but this state has {len(states)}")
    # By their leaves: in the state of Flax's Optimizer each array is in a variable of a kind of its own.
    average, [share] = jax.tree.leaves(states[0].average), jax.tree.leaves(states[0].share)
    trained, structure = jax.tree.flatten(params)
    if [x.shape for x in average] != [jnp.shape(p) for p in trained]:
        raise ValueError(
            f"averaged_params needs the parameters that the optimizer trains, {len(average)} arrays, but got "
            f"{len(trained)} arrays of these or other shapes; pass those that were given to init"
        )
    now = _moved(average, trained, share)
    # Parameters that are not finite would make the average so.
    sound = jnp.stack([jnp.isfinite(x).all() for x in now] or [jnp.ones((), bool)]).all()
    values = [jnp.where(sound, x, old).astype(p.dtype) for x, old, p in zip(now, average, trained)]
    return jax.tree.unflatten(structure, values)


def _started(x: Any) -> Array:
    """A copy, of at least float32."""
    x = jnp.asarray(x)
    return jnp.array(x, jnp.promote_types(x.dtype, jnp.float32) if jnp.issubdtype(x.dtype, jnp.inexact) else x.dtype)


def _moved(average: optax.Params, params: optax.Params, share: Array) -> optax.Params:
    """``average + share * (params - average)``; whole numbers are not averaged."""

    def move(x: Array, p: Any) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.asarray(p)
        return x + share.astype(x.real.dtype) * (p.astype(x.dtype) - x)

    return jax.tree.map(move, average, params)


def _choose(condition: Array, then: AverageState, otherwise: AverageState) -> AverageState:
    return AverageState(*(jnp.where(condition, a, b).astype(b.dtype) for a, b in zip(then, otherwise)))
