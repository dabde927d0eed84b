"""Around an optimizer: skip what is not finite, accumulate micro-batches and their losses, read the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from surefoot.optax.rules import TiltState
from surefoot.optax.tilt import scalar


class SkipState(NamedTuple):
    """How many steps were skipped, and the state that they left alone."""

    skipped: Array
    inner_state: optax.OptState


def skip_nonfinite(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Skip a step whose loss, gradient or weight is not finite: a zero update, and the inner state as it was.

    >>> import jax.numpy as jnp, optax
    >>> optimizer = skip_nonfinite(optax.adam(0.1))
    >>> state = optimizer.init(jnp.ones(2))
    >>> updates, state = optimizer.update(jnp.ones(2), state, value=jnp.nan)
    >>> updates.tolist(), int(state.skipped), int(state.inner_state[0].count)
    ([0.0, 0.0], 1, 0)
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> SkipState:
        return SkipState(jnp.zeros((), jnp.int32), inner.init(params))

    def update(
        updates: optax.Updates,
        state: SkipState,
        params: optax.Params | None = None,
        *,
        value: Any = None,
        **more: Any,
    ) -> tuple[optax.Updates, SkipState]:
        value = scalar(value, float)
        sound = jnp.isfinite(value) & all_finite(updates)
        # What is not finite stays outside, so that no derivative meets it.
        updates = jax.tree.map(lambda g: jnp.where(sound, g, jnp.zeros_like(g)), updates)
        value = jnp.where(sound, value, 0.0)
        updates, after = inner.update(updates, state.inner_state, params, value=value, **more)
        taken = sound
        for node in jax.tree.leaves(after, is_leaf=_is_tilt):
            taken &= node.taken if _is_tilt(node) else True

        def kept(new: Any, old: Any) -> Any:
            # A tilt decides by itself which losses of sound steps enter its statistics.
            stays = sound if _is_tilt(new) else taken
            return jax.tree.map(lambda a, b: jnp.where(stays, a, b), new, old)

        updates = jax.tree.map(lambda u: jnp.where(taken, u, jnp.zeros_like(u)), updates)
        after = jax.tree.map(kept, after, state.inner_state, is_leaf=_is_tilt)
        return updates, SkipState(state.skipped + ~taken, after)

    return optax.GradientTransformationExtraArgs(init, update)


def all_finite(gradients: optax.Updates) -> Array:
    """Whether all gradients are finite, and their squares too, which is what Adam needs.

    By the sum of squares, one dot product for each array: XLA compiles it to a read at the speed of the memory, while a
    reduction of ``isfinite`` takes three times as long on a CPU.
    """
    squares = [
        jnp.vdot(g, g, preferred_element_type=_at_least_single(g.dtype)).real for g in jax.tree.leaves(gradients)
    ]
    return jnp.isfinite(sum(squares, jnp.zeros(())))


def _at_least_single(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def _is_tilt(node: Any) -> bool:
    return isinstance(node, TiltState)


class AccumulateState(NamedTuple):
    """The mean loss of the micro-batches since the last step, and the state of ``optax.MultiSteps``."""

    value: Array
    steps: optax.MultiStepsState


def accumulate(
    optimizer: optax.GradientTransformation, every_k: int | Callable[[Array], Any], **options: Any
) -> optax.GradientTransformationExtraArgs:
    """Accumulate gradients as ``optax.MultiSteps`` does, and hand on the mean loss of the micro-batches.

    ``MultiSteps`` alone hands the last micro-batch's loss to the optimizer. A micro-batch whose loss is not finite
    makes the optimizer skip the one step it belongs to.

    Args:
        optimizer: takes ``value=``.
        every_k: micro-batches per step, or a schedule of it over the steps.
        options: of ``optax.MultiSteps``.

    >>> import jax.numpy as jnp
    >>> from surefoot.optax import scale_by_tilt
    >>> optimizer = accumulate(scale_by_tilt("ucb", 1.0), every_k=2)
    >>> state = optimizer.init(jnp.ones(1))
    >>> for value in (1.0, 3.0):
    ...     updates, state = optimizer.update(jnp.ones(1), state, value=value)
    >>> confidence(state)[0]["mean"].item()
    2.0
    """
    steps = optax.MultiSteps(optimizer, every_k, **options)

    def init(params: optax.Params) -> AccumulateState:
        return AccumulateState(jnp.zeros((), float), steps.init(params))

    def update(
        updates: optax.Updates,
        state: AccumulateState,
        params: optax.Params | None = None,
        *,
        value: Any = None,
        **more: Any,
    ) -> tuple[optax.Updates, AccumulateState]:
        before = state.steps.mini_step
        value = state.value + (scalar(value, state.value.dtype) - state.value) / (before + 1)
        updates, after = steps.update(updates, state.steps, params, value=value, **more)
        # MultiSteps clears by a product with 0, which a NaN survives.
        cleared = after.mini_step == 0
        after = after._replace(
            acc_grads=jax.tree.map(lambda a: jnp.where(cleared, jnp.zeros_like(a), a), after.acc_grads)
        )
        kept = jnp.where(after.mini_step == before, state.value, value)  # should_skip_update_fn refused this one
        return updates, AccumulateState(jnp.where(cleared, 0.0, kept), after)

    return optax.GradientTransformationExtraArgs(init, update)


def confidence(state: optax.OptState) -> list[dict[str, Array]]:
    """Return mean, std, z, tilt, weight and skipped of every tilt in an optimizer's state.

    >>> import jax.numpy as jnp
    >>> from surefoot.optax import adam_ucb
    >>> [sorted(seen) for seen in confidence(adam_ucb(1e-3).init(jnp.ones(2)))]
    [['mean', 'skipped', 'std', 'tilt', 'weight', 'z']]
    """
    statistics: list[dict[str, Array]] = []

    def visit(node: Any, skipped: Any) -> None:
        if isinstance(node, TiltState):
            shown = {name: getattr(node, name) for name in ("mean", "std", "z", "tilt", "weight")}
            statistics.append({**shown, "skipped": skipped})
        elif isinstance(node, SkipState):
            visit(node.inner_state, skipped + node.skipped)
        else:
            ours = (TiltState, SkipState)
            for leaf in jax.tree.leaves(node, is_leaf=lambda x: isinstance(x, ours)):
                if isinstance(leaf, ours):
                    visit(leaf, skipped)

    visit(state, jnp.zeros((), jnp.int32))
    return statistics
