"""Rules: from the statistics of the loss to the tilt, and from the tilt to the weight of the current gradient.

For an objective ``a(mean, std)`` the gradient of every mini-batch is weighted by ``scale * (1 + tilt * z)`` with
``tilt = a_std / a_mean`` and ``z = (loss - mean) / std``. A rule is one function. Add it to ``RULES``, and all tests
that go through the table test it too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from surefoot.objectives import PROBES, check_is_no_objective, check_slopes
from surefoot.statistics import LossStats, Number

Weighting = Literal["paper", "unit"]
#: With weighting="unit" the weight differs from 1 by at most this: after many equal losses the std is tiny, the next
#: loss is thousands of std away, and the step would be multiplied by that.
MAX_UNIT_DEVIATION = 100.0
#: A std below this share of the mean is no spread: a mean over a batch in float32 is rounded by about as much.
RESOLUTION = 2.0**-19
#: Distances are divided by at least this share of the mean: in a smaller unit a loss that is one percent lower after
#: many equal ones would make the step climb.
UNIT_RESOLUTION = 2.0**-13
#: A tilt as numerator and denominator.
Tilt = tuple[Number, Number]


@dataclass(frozen=True)
class Rule:
    """A member of the family.

    ``tilt(stats, eta, noise)`` returns the tilt as ``(numerator, denominator)``, so that a rule can express one that
    would divide by zero (CB divides by the mean). The paper's scale is ``denominator * std``. ``eta`` is the default,
    ``allowed`` and ``allowed_words`` say which eta has a meaning.
    """

    name: str
    tilt: Callable[[LossStats, float, Number], Tilt]
    eta: float
    uses_noise: bool = False
    #: Whether weighting="paper" multiplies by the std; the plain rule is the plain optimizer whatever the weighting.
    scales: bool = True
    #: Whether an optimizer follows a negative weight: not where the tilt grows with the loss, because that never ends.
    climbs: bool = True
    allowed: Callable[[float], bool] = math.isfinite
    allowed_words: str = "a finite number"

    def check(self, eta: float) -> None:
        """Refuse an eta the rule has no meaning for."""
        if not self.allowed(eta):
            raise ValueError(f"Invalid eta value: {eta}; the {self.name} rule takes {self.allowed_words}")

    def weight(self, tilt: Number, z: Number) -> Number:
        """The weight of a loss without the paper's scale, ``1 + tilt * z`` within bounds; a subclass may have another.

        A weight that is not finite stays so, since such a step is skipped.
        """
        deviation = tilt * z
        if isinstance(deviation, Tensor):
            bounded = deviation.clamp(-MAX_UNIT_DEVIATION, MAX_UNIT_DEVIATION)
            return 1 + torch.where(deviation.isfinite(), bounded, deviation)
        if abs(deviation) > MAX_UNIT_DEVIATION and math.isfinite(deviation):
            deviation = math.copysign(MAX_UNIT_DEVIATION, deviation)
        return 1 + deviation


def where(condition: Number, then: Number, otherwise: Number) -> Number:
    """Choose on the host or on the device."""
    if not isinstance(condition, Tensor):
        return then if condition else otherwise
    return torch.where(condition, then, otherwise)


class Weight(NamedTuple):
    """The weight of a gradient, with the tilt and the z that it was computed from."""

    z: Number
    tilt: Number
    weight: Number


def weigh(rule: Rule, stats: LossStats, loss: Number, eta: Number, noise: Number, weighting: Weighting) -> Weight:
    """Compute z, tilt and weight of a loss from the statistics of the losses before it.

    >>> stats = LossStats(count=9.0, mean=1.0, std=0.5)
    >>> weigh(RULES["ucb"], stats, 2.0, 0.1, 0.0, "unit").weight
    1.2
    >>> weigh(RULES["ucb"], stats, 2.0, 0.1, 0.0, "paper").weight
    0.6
    """
    in_units = weighting == "unit" or not rule.scales
    size, unit = abs(stats.mean), stats.std
    if in_units:
        unit = (torch.maximum if isinstance(size, Tensor) else max)(unit, UNIT_RESOLUTION * size)
    no_spread = stats.std <= RESOLUTION * size
    # On the host there is nearly always a spread, and nothing to choose.
    if no_spread is not False:
        stats = stats._replace(std=where(no_spread, 0.0, stats.std))
    distance = loss - stats.mean
    numerator, denominator = rule.tilt(stats, eta, noise)
    tilt = numerator / (denominator + (denominator == 0))
    z = distance / unit if no_spread is False else where(no_spread, distance * 0.0, distance / (unit + no_spread))
    if in_units:
        weight = rule.weight(tilt, z)
    else:
        # This never divides by the std. Without a spread the sign of the distance means nothing: with its magnitude
        # the first step cannot climb.
        weight = denominator * stats.std + numerator * distance
        weight = weight if no_spread is False else where(no_spread, abs(weight), weight)
    return Weight(z, tilt, weight)


def _plain(stats: LossStats, eta: float, noise: Number) -> Tilt:
    return 0.0, 1.0


def _ucb(stats: LossStats, eta: float, noise: Number) -> Tilt:
    return eta, 1.0


def _cb(stats: LossStats, eta: float, noise: Number) -> Tilt:
    # Before the first loss there is no relative spread: use the tilt of the upper bound.
    first = stats.count == 0
    size = abs(stats.mean)
    return where(first, eta + 0.0 * size, stats.std - eta * size), where(first, 1.0 + 0.0 * size, size)


def _s(stats: LossStats, eta: float, noise: Number) -> Tilt:
    return eta * noise, 1.0


def _shortfall(stats: LossStats, eta: float) -> Number:
    """How far, in std, the mean lies below the best mean so far less the margin (0 before the first loss)."""
    best = where(stats.count == 0, stats.mean, stats.best)
    return (best - eta - stats.mean) / (stats.std + (stats.std == 0))


def _pi(stats: LossStats, eta: float, noise: Number) -> Tilt:
    return where(stats.std == 0, 1.0 + 0.0 * stats.mean, _shortfall(stats, eta)), 1.0


def _ei(stats: LossStats, eta: float, noise: Number) -> Tilt:
    return where(stats.std == 0, 1.0 + 0.0 * stats.mean, -_inverse_mills(_shortfall(stats, eta))), 1.0


def _cvar(stats: LossStats, eta: float, noise: Number) -> Tilt:
    if eta == 0:  # no batch is left out: the mean itself
        return 0.0, 1.0
    if torch.compiler.is_compiling():  # a graph cannot look into the standard library
        quantile = torch.special.ndtri(torch.full_like(stats.mean, eta))
        return torch.exp(-0.5 * quantile**2) / (math.sqrt(2 * math.pi) * (1 - eta)), 1.0
    normal = NormalDist()
    return normal.pdf(normal.inv_cdf(eta)) / (1 - eta), 1.0


def _inverse_mills(u: Number) -> Number:
    """pdf(u) / cdf(u), without the 0/0 far in the lower tail."""
    if isinstance(u, Tensor):
        return math.sqrt(2 / math.pi) / torch.special.erfcx(-u / math.sqrt(2))
    if u < -30:  # the asymptotic series, whose next term is below 1e-9 here; erfc would soon be zero
        v = 1 / u  # powers of u itself may overflow
        return -u - v + 2 * v**3 - 10 * v**5
    return math.exp(-0.5 * u * u) / math.sqrt(2 * math.pi) / (0.5 * math.erfc(-u / math.sqrt(2)))


def _is_deviation(eta: float) -> bool:
    return 0 <= eta < math.inf


def _is_share(eta: float) -> bool:
    return 0 <= eta < 1


RULES: dict[str, Rule] = {
    "plain": Rule("plain", _plain, eta=0.0, scales=False),
    "ucb": Rule("ucb", _ucb, eta=0.01),
    "cb": Rule("cb", _cb, eta=1e-4),
    "s": Rule("s", _s, eta=1e-4, uses_noise=True, allowed=_is_deviation,
              allowed_words="the standard deviation of its noise, a finite number that is not negative"),
    "pi": Rule("pi", _pi, eta=0.0, climbs=False),
    "ei": Rule("ei", _ei, eta=0.0, climbs=False),
    "cvar": Rule("cvar", _cvar, eta=0.5, allowed=_is_share,
                 allowed_words="the share of batches left out, at least 0 and below 1"),
}  # fmt: skip


@dataclass(frozen=True)
class ByAutograd:
    """The tilt of an objective; not a closure, so that it can be pickled where the objective can."""

    objective: Callable[[Tensor, Tensor, float], Tensor]

    def __call__(self, stats: LossStats, eta: float, noise: Number) -> Tilt:
        on_host = not isinstance(stats.mean, Tensor)
        with torch.enable_grad():
            mean, std = (
                (torch.tensor(x, dtype=torch.float64) if on_host else x.detach().clone()).requires_grad_()
                for x in (stats.mean, stats.std)
            )
            by_mean, by_std = torch.autograd.grad(
                self.objective(mean, std, eta), (mean, std), allow_unused=True, materialize_grads=True
            )
        tilt = by_std / by_mean
        # While there is no spread, some objectives (mean / std) have no slope; only the magnitude counts there anyway.
        tilt = torch.where((std == 0) & ~tilt.isfinite(), 1.0, tilt).detach()
        return (tilt.item() if on_host else tilt), 1.0


def from_objective(objective: Callable[[Tensor, Tensor, float], Tensor], *, eta: float | None = None) -> Rule:
    """Make a rule of any objective ``a(mean, std, eta)``: its tilt is ``a_std / a_mean``, by autograd.

    The objective is minimized, so it must rise with the mean of the loss. It must be computed with torch, so that
    autograd sees how it depends on the mean and the std.

    Args:
        objective: takes mean, std and eta, and returns one tensor.
        eta: the strength by default; only an objective that needs none may leave it out.

    >>> rule = from_objective(lambda mean, std, eta: mean + eta * std**2, eta=0.5)
    >>> rule.tilt(LossStats(count=9.0, mean=1.0, std=2.0), 0.5, 0.0)
    (2.0, 1.0)
    """
    rule = Rule(getattr(objective, "__name__", "objective"), ByAutograd(objective), eta=0.0 if eta is None else eta)
    try:
        slopes = [_slopes(objective, mean, std, rule.eta) for mean, std in PROBES]
    except (TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"the objective {rule.name} must take (mean, std, eta) and give one tensor that autograd can follow; with "
            f"mean 1 and std 1 it failed ({type(error).__name__}: {error})"
        ) from error
    by_mean, by_std = zip(*slopes)
    check_slopes(rule.name, by_mean, by_std, library="torch", is_flat=eta is None and not any(by_std))
    return rule


def _slopes(objective: Callable[[Tensor, Tensor, float], Tensor], *point: Any) -> list[float | None]:
    """The derivatives by mean and std, None where autograd sees no dependence."""
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's words on math.log(std): check_slopes has clearer ones
        mean, std = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in point[:2])
        slopes = torch.autograd.grad(objective(mean, std, point[2]), (mean, std), allow_unused=True)
    return [None if slope is None else slope.item() for slope in slopes]


def find_rule(rule: str | Rule) -> Rule:
    """Look a rule up by name; a Rule passes through.

    >>> find_rule("UCB").name
    'ucb'
    """
    if isinstance(rule, Rule):
        return rule
    check_is_no_objective(rule, "surefoot.rules")
    name = str(rule).lower()
    if name not in RULES:
        raise ValueError(f"Unknown rule {rule!r}; take one of {', '.join(RULES)} or a surefoot.rules.Rule")
    return RULES[name]
