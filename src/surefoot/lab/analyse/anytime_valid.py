"""The lab's test of paired differences: valid whenever one looks, so that seeds may be added until it decides.

If two optimizers are interchangeable, a difference and its negative are equally likely, whatever its size. So nobody
can win by betting on the signs. The test bets on each sign in turn, given the magnitudes so far: a stake b on
"positive" is multiplied by ``2 / (1 + exp(-2 * b * x))``, where x is the difference in units of the median magnitude,
cut at 2. What a capital of 1 has become is the e-value. It exceeds 20 *at any time* with a probability of at most
1/20 (Ville's inequality): a claim at e >= 20 is wrong in at most 5% of cases, however often one looked.

Nothing is assumed of the distribution but symmetry: heavy tails, ties and single huge values are allowed. The stakes
are a mixture, chosen by simulated power (``benchmarks/anytime_valid.py``). Differences are taken in the order of
seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from surefoot._extras import require
from surefoot.lab.analyse.stats import LEVEL

if TYPE_CHECKING:
    import numpy as np
else:
    np = require("numpy", extra="lab")

#: Stakes on a sign and how the capital is divided among them: small stakes for small effects, the largest one for
#: differences that all have one sign.
STAKES = {0.25: 0.1, 0.5: 0.15, 1.0: 0.15, 2.0: 0.15, 8.0: 0.45}
#: A difference counts as at most so many median magnitudes: one huge value must not decide.
CUT = 2.0
#: A claim is made from this e-value on.
DECISIVE = 1 / LEVEL
#: Forecasts end here; more seeds are not worth asking for.
HORIZON = 100
#: How many continuations a forecast simulates.
_PATHS = 100
_LARGEST_LOG = 700.0  # of a float


class LogCapital(NamedTuple):
    """The logarithm of the capital after each difference, of bets on positive and on negative differences."""

    positive: np.ndarray
    negative: np.ndarray

    @property
    def two_sided(self) -> np.ndarray:
        """Half of the capital on each."""
        return np.logaddexp(self.positive, self.negative) - math.log(2)


def log_capital(differences: np.ndarray) -> LogCapital:
    """Bet along the last axis; other axes are separate games.

    >>> capital = log_capital(np.ones(6))
    >>> round(float(np.exp(capital.two_sided[-1])), 1), round(float(np.exp(capital.positive[0])), 2)
    (21.9, 1.8)
    """
    x = _in_median_magnitudes(np.asarray(differences, dtype=np.float64))[..., None]
    stakes, shares = np.array(list(STAKES)), np.log(list(STAKES.values()))

    def bet(x: np.ndarray) -> np.ndarray:
        gains = math.log(2) - np.logaddexp(0.0, -2 * stakes * x)
        return np.logaddexp.reduce(shares + np.cumsum(gains, axis=-2), axis=-1)

    return LogCapital(bet(x), bet(-x))


def _in_median_magnitudes(differences: np.ndarray) -> np.ndarray:
    """The differences over the running median of their magnitudes, cut; the current one belongs to the median.

    Given all magnitudes the sign is still even under symmetry, so the current magnitude may be used to bet on it.
    """
    magnitudes = np.abs(differences)
    scales = np.empty_like(magnitudes)
    for n in range(1, magnitudes.shape[-1] + 1):
        scales[..., n - 1] = np.median(magnitudes[..., :n], axis=-1)
    cut = magnitudes >= CUT * scales  # also where the median is zero, because most pairs are ties
    safe = np.where(scales > 0, scales, 1.0)
    return np.where(cut, CUT * np.sign(differences), differences / safe)


def fewest_seeds() -> int:
    """The smallest number of pairs that can make a claim, if all differences are alike.

    >>> fewest_seeds()
    6
    """
    return next(n for n in itertools.count(1) if log_capital(np.ones(n)).two_sided[-1] >= math.log(DECISIVE))


@dataclass(frozen=True)
class Evidence:
    """What paired differences say, whenever one looks.

    Args:
        differences: contestant minus baseline, in the order of seeds.
        margins: for each pair, below which difference the two count as equal; empty if nobody asked.

    >>> evidence = Evidence((-0.4, -0.3, -0.6, -0.2, -0.5, -0.4, -0.3))
    >>> round(evidence.e), evidence.sign, [round(end, 2) for end in evidence.interval]
    (41, -1, [-0.6, -0.2])
    """

    differences: tuple[float, ...]
    margins: tuple[float, ...] = ()

    @property
    def n(self) -> int:
        return len(self.differences)

    @cached_property
    def _last(self) -> tuple[float, float]:
        if not self.n:
            return 0.0, 0.0
        capital = log_capital(np.array(self.differences))
        return float(capital.positive[-1]), float(capital.negative[-1])

    @property
    def e(self) -> float:
        """The e-value against "no difference"."""
        return _exp(float(np.logaddexp(*self._last)) - math.log(2))

    @property
    def sign(self) -> int:
        """Which sign the bets won on: 1, -1, or 0."""
        positive, negative = self._last
        return (positive > negative) - (positive < negative)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The shifts of the differences that the test does not reject: a 95% interval, valid whenever one looks."""
        return _interval(np.array(self.differences))

    @cached_property
    def e_equal(self) -> float | None:
        """The e-value against "the difference is as large as the margin", on either side; None without a margin."""
        if not self.margins:
            return None
        return _exp(float(_log_equal(np.array(self.differences), np.array(self.margins))[-1]))

    def e_not_inferior(self, higher_is_better: bool = False) -> float:
        """The e-value against "worse by the margin or more"; 0 without a margin.

        >>> round(Evidence((0.1, -0.1, 0.2, 0.0, -0.2, 0.1), (3.0,) * 6).e_not_inferior())
        44
        """
        if not self.margins or not self.n:
            return 0.0
        better = np.array(self.differences) * (1 if higher_is_better else -1)
        return _exp(float(log_capital(np.array(self.margins) + better).positive[-1]))

    @property
    def margin(self) -> float | None:
        """The margin, on average over the pairs."""
        return float(np.mean(self.margins)) if self.margins else None


def _log_equal(differences: np.ndarray, margins: np.ndarray) -> np.ndarray:
    """The smaller capital of two bets: that the difference is below the margin, and that it is above minus it."""
    return np.minimum(log_capital(margins - differences).positive, log_capital(margins + differences).positive)


def _exp(log: float) -> float:
    return math.exp(min(log, _LARGEST_LOG))


def _interval(differences: np.ndarray) -> tuple[float, float]:
    """From the outermost shifts that are not rejected; it contains the mean in any case."""
    if len(differences) < fewest_seeds():
        return -math.inf, math.inf
    centre = float(np.median(differences))
    radius = float(np.max(np.abs(differences - centre)))
    mean = float(np.mean(differences))
    if radius <= 1e-12 * abs(centre):  # equal up to rounding
        return mean, mean
    ends = [centre + side * radius * _reach((differences - centre) / radius, side) for side in (-1, 1)]
    return min(ends[0], mean), max(ends[1], mean)


def _reach(differences: np.ndarray, side: int) -> float:
    """How far a shift to one side can go before it is rejected for good."""
    near, far = 0.0, 1e4  # with shifts so large all differences are alike, and six of them are rejected
    steps = np.concatenate([[near], np.geomspace(1e-3, far, 60)])
    for _ in range(4):
        shifted = differences - side * steps[:, None]
        kept = np.flatnonzero(log_capital(shifted).two_sided[:, -1] < math.log(DECISIVE))
        last = int(kept[-1]) if len(kept) else 0
        near, far = steps[last], steps[min(last + 1, len(steps) - 1)]
        steps = np.linspace(near, far, 24)
    return float(far)


@dataclass(frozen=True)
class Support:
    """The e-values of a comparison after adjustment for its family, and from which own e-value it would be decided."""

    e: float
    e_equal: float | None = None
    threshold: float = DECISIVE
    equal_threshold: float = DECISIVE


def support(family: Sequence[Evidence | None]) -> list[Support | None]:
    """What the evidence of each comparison amounts to within its family; None (no comparison) does not count."""
    e_values = [evidence.e if evidence else None for evidence in family]
    equal = [evidence.e_equal if evidence else None for evidence in family]
    rows = zip(holm(e_values), holm(equal), holm_thresholds(e_values), holm_thresholds(equal))
    return [None if e is None else Support(e, e_equal, *thresholds) for e, e_equal, *thresholds in rows]


def holm(e_values: Sequence[float | None]) -> list[float | None]:
    """E-values adjusted for their family, as Holm's method adjusts p-values: no false claim in the whole family.

    By closed testing with averages of e-values, which are e-values whatever their dependence (Vovk and Wang, 2021):
    ``min over k of (e + sum of the k smallest others) / (k + 1)``. ``None`` (no test) stays ``None``.

    >>> holm([30.0, 25.0, None, 5.0])
    [17.5, 15.0, None, 5.0]
    >>> holm([25.0, 22.0, 24.0])
    [23.5, 22.0, 23.0]
    """
    adjusted: list[float | None] = []
    for i, e in enumerate(e_values):
        sums = _sums_of_smallest([*e_values[:i], *e_values[i + 1 :]])
        adjusted.append(None if e is None else min((e + total) / (k + 1) for k, total in enumerate(sums)))
    return adjusted


def holm_thresholds(e_values: Sequence[float | None]) -> list[float]:
    """The e-value from which each of a family would be decisive, given the others.

    >>> holm_thresholds([30.0, 25.0, 5.0])
    [35.0, 35.0, 20.0]
    """
    needed = []
    for i in range(len(e_values)):
        sums = _sums_of_smallest([*e_values[:i], *e_values[i + 1 :]])
        needed.append(max(DECISIVE * (k + 1) - total for k, total in enumerate(sums)))
    return needed


def _sums_of_smallest(e_values: Sequence[float | None]) -> list[float]:
    """The sums of the 0, 1, 2, ... smallest e-values."""
    return list(itertools.accumulate(sorted(e for e in e_values if e is not None), initial=0.0))


class SeedRange(NamedTuple):
    """Between how many seeds a decision is to be expected; None means more than a forecast looks at."""

    low: int | None
    high: int | None


def more_seeds(evidence: Evidence, support: Support | None = None, seed: int = 0) -> SeedRange:
    """How many more seeds until a decision, as the range in which half of the simulated continuations decide.

    The true mean and std are unknown: each continuation draws its own, as likely as the seeds so far make them.

    >>> more_seeds(Evidence((0.2, 1.4, -0.9, 1.1, 0.6, -0.3, 0.8)))
    SeedRange(low=15, high=None)
    """
    n, luck = evidence.n, np.random.default_rng(seed)
    mean, std = np.mean(evidence.differences), np.std(evidence.differences, ddof=1)
    stds = _likely_stds(float(std), n, luck)
    means = mean + stds * luck.standard_normal(_PATHS) / math.sqrt(n)
    support = support or Support(evidence.e)
    times = decision_times(means, stds, evidence, support.threshold, support.equal_threshold, luck)
    low, high = np.quantile(times - n, [0.25, 0.75], method="inverted_cdf")
    return SeedRange(*(int(end) if math.isfinite(end) else None for end in (low, high)))


def seeds_to_detect(
    difference: float, std: float, pairs: int, margin: float | None = None, family: int = 1, seed: int = 0
) -> SeedRange:
    """How many seeds detect a true difference: in half of all cases, and in four of five.

    Args:
        difference: the difference to detect.
        std: the std of paired differences in a pilot.
        pairs: how many pairs the pilot had; a small one says little of the std, which the range takes into account.
        margin: also count how soon the two are found to be equal within it.
        family: how many comparisons there will be; it counts as if the others showed nothing.

    >>> seeds_to_detect(0.01, 0.01, 10)
    SeedRange(low=13, high=25)
    """
    luck = np.random.default_rng(seed)
    nothing_yet = Evidence((), () if margin is None else (margin,))
    means, stds, threshold = np.full(_PATHS, difference), _likely_stds(std, pairs, luck), family * DECISIVE
    times = decision_times(means, stds, nothing_yet, threshold, threshold, luck)
    half, most = np.quantile(times, [0.5, 0.8], method="inverted_cdf")
    return SeedRange(*(int(end) if math.isfinite(end) else None for end in (half, most)))


def _likely_stds(std: float, n: int, luck: np.random.Generator) -> np.ndarray:
    """Values that the true std may have, if n normal differences scatter by `std`."""
    return std * np.sqrt((n - 1) / luck.chisquare(n - 1, _PATHS))


def decision_times(
    means: np.ndarray,
    stds: np.ndarray,
    evidence: Evidence,
    threshold: float = DECISIVE,
    equal_threshold: float = DECISIVE,
    luck: np.random.Generator | None = None,
) -> np.ndarray:
    """After how many seeds simulated continuations decide, infinite if not until the horizon.

    Args:
        means: the true mean difference of each continuation.
        stds: its true std.
        evidence: the pairs so far, with their margins.
        threshold: the e-value that decides.
        equal_threshold: the e-value that decides for "equal".
        luck: where the noise comes from.
    """
    luck = luck or np.random.default_rng(0)
    n, paths = evidence.n, len(means)
    horizon = max(HORIZON, 2 * n)
    future = means[:, None] + stds[:, None] * luck.standard_normal((paths, horizon - n))
    differences = np.concatenate([np.broadcast_to(evidence.differences, (paths, n)), future], axis=1)
    decided = log_capital(differences).two_sided >= math.log(threshold)
    if evidence.margin is not None:
        decided |= _log_equal(differences, np.full(horizon, evidence.margin)) >= math.log(equal_threshold)
    decided[:, : max(fewest_seeds() - 1, n)] = False
    return np.where(decided.any(axis=1), decided.argmax(axis=1) + 1.0, math.inf)
