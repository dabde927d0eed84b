"""weigh_examples: the weights of single examples of `surefoot.weigh` for JAX, as two pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from surefoot.optax.rules import TiltState, find_rule
from surefoot.optax.tilt import MAX_LOSS, MAX_UNIT_DEVIATION, RESOLUTION, standard_normal, with_loss

#: As in surefoot.examples and surefoot.otsu, which import torch and explain them.
PATIENCE, MIN_MEAN_WEIGHT, AUTO_ETA = 8000, 0.1, -3.0
BINS, LOWEST, HIGHEST = 160, -4.0, 12.0
MEMORY, LEARNT, FULL = 1500, 0.4, 0.8
SHARE_OF_VARIANCE, SHARE_ABOVE, EVIDENCE = (0.73, 0.79), (0.06, 0.08), (0.5, 0.9)
SHARE_WITHOUT_TAIL, SHARE_ABOVE_WITHOUT_TAIL = (0.805, 0.825), (0.10, 0.13)


class ExampleState(NamedTuple):
    """The statistics of single losses, how strongly weights count, and what is known of two groups of losses."""

    stats: TiltState
    first: Array
    ramp: Array
    learnt: Array
    strength: Array  # of the weights: the ramp, or with eta="auto" what was found of the groups
    evidence: Array
    above: Array
    histogram: Array
    skipped: Array


class ExampleWeights(NamedTuple):
    """``init()`` gives the state; ``apply(losses, state, mask=None)`` gives the loss and the next state."""

    init: Callable[[], ExampleState]
    apply: Callable[..., tuple[Array, ExampleState]]


def weigh_examples(
    rule: str = "tilted",
    eta: float | str | None = None,
    *,
    loss_beta: float = 0.9,
    seed: int = 0,
    warmup: int | None = None,
    signed: bool = False,
) -> ExampleWeights:
    """A weight for every example of a batch; the mean weight is 1.

    ``apply`` returns the plain mean of the losses with the gradient of the weighted one. Call it once per step, inside
    the function that is differentiated, and carry its state as an auxiliary value. With several devices compute the
    losses of the whole batch in one program, as ``jit`` with sharded arrays does.

    Args:
        rule: "tilted" is ``exp(eta * strength * z)``; "cvar" keeps the worst ``1 - eta`` of the batch, "trimmed" all
            but the worst ``eta``; the others are those of `scale_by_tilt`.
        eta: the strength (None: the rule's default). "auto", for the tilted rule and its default, goes from 0 to -3
            where the losses fall into two groups, as they do where many labels are wrong.
        loss_beta: decay rate of the loss statistics, per step.
        seed: of the noise (rule S).
        warmup: over how many steps the weights come to count (None: with what was learnt).
        signed: let the weights ``1 + tilt * z`` be negative.

    >>> weigh = weigh_examples("tilted", -3.0)
    >>> def loss(w, state, x, y):
    ...     return weigh.apply((w * x - y) ** 2, state)
    >>> x, y, w, state = jnp.arange(4.0), jnp.array([0.0, 2.0, 4.0, 90.0]), 0.0, weigh.init()
    >>> for _ in range(20):
    ...     (value, state), grad = jax.value_and_grad(loss, has_aux=True)(w, state, x, y)
    ...     w = w - 0.02 * grad
    >>> bool(state.stats.mean > 0)
    True
    """
    rule = str(rule).lower()
    eta = _checked(rule, eta)
    number_eta = AUTO_ETA if eta == "auto" else float(eta)
    if not 0 <= loss_beta < 1:
        raise ValueError(f"Invalid loss_beta value: {loss_beta}; take a number from 0 to below 1")

    def init() -> ExampleState:
        # An array each: jit refuses to donate one buffer twice.
        mean, std, best, z, tilt, weight, power = (jnp.full((), x, float) for x in (0, 0, math.inf, 0, 0, 1, 0))
        stats = TiltState(jnp.zeros((), jnp.int32), mean, std, best, z, tilt, weight, jnp.ones((), bool), power)
        first, ramp, learnt, strength, evidence, above = (jnp.full((), x, float) for x in (math.nan, 0, 0, 0, 0, 0))
        skipped = jnp.zeros((), jnp.int32)
        return ExampleState(stats, first, ramp, learnt, strength, evidence, above, jnp.zeros(BINS, float), skipped)

    def apply(losses: Array, state: ExampleState, mask: Array | None = None) -> tuple[Array, ExampleState]:
        counted = jnp.ones(losses.shape, bool) if mask is None else jnp.asarray(mask, bool)
        if counted.shape != losses.shape or losses.size == 0:
            raise ValueError(f"mask has shape {counted.shape}, but the losses have {losses.shape}")
        values = jax.lax.stop_gradient(losses).astype(state.stats.mean.dtype)
        valid = counted & (jnp.abs(values) <= MAX_LOSS)
        values = jnp.where(valid, values, 0.0)
        number = valid.sum().astype(values.dtype)
        plain = values.sum() / jnp.maximum(number, 1)
        spread = state.stats.std > RESOLUTION * jnp.abs(state.stats.mean)
        z = jnp.where(spread, (values - state.stats.mean) / jnp.where(spread, state.stats.std, 1.0), 0.0)
        noise = standard_normal(seed, state.stats.count) if rule == "s" else jnp.zeros(())
        shares = _shares(rule, number_eta, state, values, z, valid, noise, signed)
        kept = jnp.where(valid, losses, 0.0)
        weighted = (kept * jax.lax.stop_gradient(shares).astype(losses.dtype)).sum()
        loss = weighted + jax.lax.stop_gradient(plain.astype(losses.dtype) - weighted)
        stats = _with_batch(state.stats, plain, jnp.where(valid, values - plain, 0.0), number, loss_beta)
        after = _ramped(state._replace(stats=stats), warmup, number)
        after = _looked(after, z, valid & spread, warmup) if eta == "auto" else after._replace(strength=after.ramp)
        after = after._replace(skipped=state.skipped + (counted & ~valid).sum())
        return loss, jax.lax.stop_gradient(jax.tree.map(lambda new, old: new.astype(old.dtype), after, state))

    return ExampleWeights(init, apply)


def _checked(rule: str, eta: float | str | None) -> float | str:
    """The eta to use; one without a meaning is refused."""
    if rule == "tilted":
        eta = "auto" if eta is None else eta
        if eta == "auto" or (not isinstance(eta, str) and math.isfinite(eta)):
            return eta
        raise ValueError(f"Invalid eta value: {eta!r}; the tilted rule takes a finite number, or 'auto'")
    low, high, default = (0.0, 1.0, 0.1) if rule == "trimmed" else (find_rule(rule).low, find_rule(rule).high, None)
    eta = (find_rule(rule).eta if default is None else default) if eta is None else eta
    if isinstance(eta, str) or not (math.isfinite(eta) and low <= eta < high):
        raise ValueError(f"Invalid eta value: {eta!r}; the {rule} rule takes a number from {low} to below {high}")
    return eta


def _shares(
    rule: str, eta: float, state: ExampleState, losses: Array, z: Array, valid: Array, noise: Array, signed: bool
) -> Array:
    """The weight of each loss as a share of all weights: `surefoot.examples.example_shares`."""
    strength = state.strength
    if rule == "tilted":
        exponents = jnp.where(valid, eta * strength * z, -jnp.inf)
        return jnp.where(valid, jax.nn.softmax(exponents, axis=None), 0.0)
    count = jnp.maximum(valid.sum(), 1)
    if rule in ("cvar", "trimmed"):
        threshold = jnp.nanquantile(jnp.where(valid, losses, jnp.nan), eta if rule == "cvar" else 1 - eta)
        kept = valid & ((losses >= threshold) if rule == "cvar" else (losses <= threshold))
        weights = 1 + strength * (kept / jnp.maximum(kept.sum(), 1) * count - 1)
    else:
        numerator, denominator = find_rule(rule).tilt(state.stats, eta, noise.astype(z.dtype))
        tilt = strength * numerator / jnp.where(denominator == 0, 1.0, denominator)
        weights = 1 + jnp.clip(tilt * z, -MAX_UNIT_DEVIATION, MAX_UNIT_DEVIATION)
        weights = weights if signed else jnp.maximum(weights, 0)
    weights = jnp.where(valid, weights, 0.0)
    total = weights.sum()
    usable = total > (MIN_MEAN_WEIGHT * count if signed else 0)
    return jnp.where(usable, weights / jnp.where(usable, total, 1.0), valid / count)


def _with_batch(stats: TiltState, mean: Array, distances: Array, number: Array, beta: float) -> TiltState:
    """Add the losses of a step: their mean moves the mean, and their spread about it enters the std."""
    after = with_loss(stats, mean, beta)
    rest = jnp.asarray(1 - beta, mean.dtype)
    share = rest / -jnp.expm1(after.count.astype(mean.dtype) * jnp.log1p(-rest))
    within = jnp.minimum(share, 1.0) * jnp.square(distances).sum() / jnp.maximum(number, 1)
    after = after._replace(std=jnp.hypot(after.std, jnp.sqrt(within)))
    return jax.tree.map(lambda new, old: jnp.where(number > 0, new, old).astype(old.dtype), after, stats)


def _ramped(state: ExampleState, warmup: int | None, number: Array) -> ExampleState:
    """How strongly weights count after a step: `surefoot.examples.Ramp`."""
    stats = state.stats
    first = jnp.where(jnp.isnan(state.first), stats.mean, state.first)
    if warmup is not None:
        ramp = jnp.maximum(state.ramp, jnp.minimum(stats.count / max(warmup, 1), 1.0))
        return state._replace(first=first, ramp=ramp)
    fallen = (stats.std > 0) & (stats.mean < first)
    fall = (first - stats.mean) / jnp.where(fallen, stats.std, 1.0)
    learnt = jnp.maximum(state.learnt, jnp.where(fallen, -jnp.expm1(-2 * jnp.maximum(fall, 0)), 0.0))
    return state._replace(first=first, learnt=learnt, ramp=1 - (1 - state.ramp) * jnp.exp(-learnt * number / PATIENCE))


def _looked(state: ExampleState, z: Array, counted: Array, warmup: int | None) -> ExampleState:
    """What is known of the two groups after a step: `surefoot.otsu.TwoGroups`."""
    places = jnp.clip((z - LOWEST) / ((HIGHEST - LOWEST) / BINS), 0, BINS - 1).astype(jnp.int32)
    counts = jnp.zeros(BINS, z.dtype).at[places.reshape(-1)].add(counted.reshape(-1).astype(z.dtype))
    number = counts.sum()
    histogram = state.histogram * jnp.exp(-number / MEMORY) + counts
    variance, above, upper_mean = otsu(histogram)
    tailless, tailless_above, _ = otsu(histogram, highest=upper_mean)
    learnt = state.learnt >= LEARNT if warmup is None else state.ramp >= 1
    looks = learnt & (histogram.sum() >= FULL * MEMORY)
    now = looks * jnp.maximum(
        _from_to(variance, *SHARE_OF_VARIANCE) * _from_to(above, *SHARE_ABOVE),
        _from_to(tailless, *SHARE_WITHOUT_TAIL) * _from_to(tailless_above, *SHARE_ABOVE_WITHOUT_TAIL),
    )
    evidence = state.evidence - jnp.expm1(-number / PATIENCE) * (now - state.evidence)
    strength = jnp.maximum(state.strength, _from_to(evidence, *EVIDENCE))
    return state._replace(evidence=evidence, strength=strength, above=above, histogram=histogram)


def otsu(histogram: Array, highest: Array | float = math.inf) -> tuple[Array, Array, Array]:
    """Otsu's cut of a histogram: its share of the variance, the share of examples above it, and their mean place.

    Losses above the place ``highest`` count as if they were there: `surefoot.otsu.otsu`.

    >>> variance, above, upper_mean = otsu(jnp.zeros(BINS).at[30].set(3.0).at[70].set(1.0))
    >>> round(float(variance), 3), round(float(above), 3), float(upper_mean)
    (1.0, 0.25, -10.0)
    """
    shares = histogram / jnp.maximum(histogram.sum(), 1e-9)
    places = jnp.minimum(jnp.arange(BINS) - BINS / 2, highest)
    moments = shares * places
    mean = moments.sum()
    below, sums = shares.cumsum()[:-1], moments.cumsum()[:-1]
    between = jnp.square(mean * below - sums) / jnp.maximum(below * (1 - below), 1e-9)
    place = between.argmax()
    variance = (moments * places).sum() - mean * mean
    above = 1 - below[place]
    return between[place] / jnp.maximum(variance, 1e-9), above, (mean - sums[place]) / jnp.maximum(above, 1e-9)


def _from_to(value: Array, low: float, high: float) -> Array:
    return jnp.clip((value - low) / (high - low), 0, 1)
