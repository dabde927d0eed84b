"""Rules in JAX: from the statistics of the loss to the tilt. The table mirrors ``surefoot.rules``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from surefoot.objectives import PROBES, check_is_no_objective, check_slopes


class TiltState(NamedTuple):
    """The statistics of the losses so far, and the z, tilt and weight of the last one; plain scalars."""

    count: Array  # type: ignore[assignment]
    mean: Array
    std: Array
    best: Array
    z: Array
    tilt: Array
    weight: Array
    taken: Array  # whether the last step was taken
    power: Array = 0.0  # type: ignore[assignment]  # mean square of the weights so far, where gain bounds them


class Rule(NamedTuple):
    """A member of the family: ``tilt(stats, eta, noise)`` returns the tilt as ``(numerator, denominator)``.

    So a rule can express a tilt that would divide by zero; the paper's scale is ``denominator * std``.
    ``eta`` is the default, ``low <= eta < high`` its range; ``climbs`` says whether bounded weights may be negative.
    """

    tilt: Callable[[TiltState, Any, Array], tuple[Any, Any]]
    eta: float
    uses_noise: bool = False
    low: float = -math.inf
    high: float = math.inf
    climbs: bool = True


def _cb(stats: TiltState, eta: Any, noise: Array) -> tuple[Any, Any]:
    # Before the first loss there is no relative spread: use the tilt of the upper bound.
    first, size = stats.count == 0, jnp.abs(stats.mean)
    return jnp.where(first, eta, stats.std - eta * size), jnp.where(first, 1.0, size)


def _shortfall(stats: TiltState, eta: Any) -> Array:
    """How far, in std, the mean lies below the best mean so far less the margin."""
    best = jnp.where(stats.count == 0, stats.mean, stats.best)
    return (best - eta - stats.mean) / jnp.where(stats.std == 0, 1.0, stats.std)


def _inverse_mills(u: Array) -> Array:
    """pdf(u) / cdf(u); far in the lower tail, where their logarithms cancel, by the asymptotic series."""
    tail = u < (-30.0 if u.dtype == jnp.float64 else -10.0)
    near, far = jnp.where(tail, 0.0, u), jnp.where(tail, u, -30.0)
    direct = jnp.exp(jax.scipy.stats.norm.logpdf(near) - jax.scipy.special.log_ndtr(near))
    return jnp.where(tail, -far - 1 / far + 2 / far**3 - 10 / far**5, direct)


def _pi(stats: TiltState, eta: Any, noise: Array) -> tuple[Any, Any]:
    return jnp.where(stats.std == 0, 1.0, _shortfall(stats, eta)), 1.0


def _ei(stats: TiltState, eta: Any, noise: Array) -> tuple[Any, Any]:
    return jnp.where(stats.std == 0, 1.0, -_inverse_mills(_shortfall(stats, eta))), 1.0


def _cvar(stats: TiltState, eta: Any, noise: Array) -> tuple[Any, Any]:
    return jax.scipy.stats.norm.pdf(jax.scipy.special.ndtri(eta)) / (1 - eta), 1.0


#: The rules by name, with the default eta of the PyTorch classes.
RULES: dict[str, Rule] = {
    "ucb": Rule(lambda stats, eta, noise: (eta, 1.0), eta=0.01),
    "cb": Rule(_cb, eta=1e-4),
    "s": Rule(lambda stats, eta, noise: (eta * noise, 1.0), eta=1e-4, uses_noise=True, low=0.0),
    "pi": Rule(_pi, eta=0.0, climbs=False),
    "ei": Rule(_ei, eta=0.0, climbs=False),
    "cvar": Rule(_cvar, eta=0.5, low=0.0, high=1.0),
}


def from_objective(objective: Callable[[Array, Array, Any], Array], *, eta: float | None = None) -> Rule:
    """Make a rule of any objective ``a(mean, std, eta)``: its tilt is ``a_std / a_mean``, by autodiff.

    The objective is minimized, so it must rise with the mean of the loss.

    Args:
        objective: takes mean, std and eta, and returns one number.
        eta: the strength by default; only an objective that needs none may leave it out.

    >>> rule = from_objective(lambda mean, std, eta: mean + eta * std**2, eta=0.5)
    >>> from surefoot.optax import adam
    >>> optimizer = adam(rule, learning_rate=1e-3)
    """

    is_given, eta = eta is not None, 0.0 if eta is None else eta
    slopes = jax.grad(objective, argnums=(0, 1))
    name = getattr(objective, "__name__", "objective")
    try:
        probed = [[float(slope) for slope in slopes(*point, eta)] for point in PROBES]
        # With an eta of 0 the std may well have no slope.
        by_std = [float(slopes(*point, strength)[1]) or None for point in PROBES for strength in (eta, 0.5, 1.0)]
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f"the objective {name} must take (mean, std, eta) and give one number that JAX can differentiate; with "
            f"mean 1 and std 1 it failed ({type(error).__name__}: {error})"
        ) from error
    is_flat = not is_given and not any(slope for _, slope in probed)
    check_slopes(name, [by_mean for by_mean, _ in probed], by_std, library="jax.numpy", is_flat=is_flat)

    def tilt_of(stats: TiltState, eta: Any, noise: Array) -> tuple[Any, Any]:
        by_mean, by_std = slopes(stats.mean, stats.std, eta)
        tilt = by_std / by_mean
        # While there is no spread, some objectives (mean / std) have no slope; only the magnitude counts there.
        return jnp.where((stats.std == 0) & ~jnp.isfinite(tilt), 1.0, tilt), 1.0

    return Rule(tilt_of, eta=eta)


def find_rule(rule: str | Rule) -> Rule:
    """Look a rule up by name; a Rule passes through.

    >>> find_rule("UCB") is RULES["ucb"]
    True
    """
    if isinstance(rule, Rule):
        return rule
    check_is_no_objective(rule, "surefoot.optax")
    if not isinstance(rule, str) or rule.lower() not in RULES:
        raise ValueError(f"Unknown rule {rule!r}; take one of {', '.join(RULES)} or a surefoot.optax.Rule")
    return RULES[rule.lower()]
