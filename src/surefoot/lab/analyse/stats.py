"""Paired statistics for one look at a fixed number of seeds: intervals, tests, Holm's correction, sample sizes.

SciPy has the t-test and the distributions. It has no Holm correction and no solver for the power of a t-test, and its
exact permutation test visits all sign patterns one by one: these three are here.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot._extras import require

if TYPE_CHECKING:
    import numpy as np
else:
    np = require("numpy", extra="lab")

#: A claim is made below this p-value.
LEVEL = 0.05
#: The probability with which the number of seeds asked for would detect the observed effect.
POWER = 0.8
#: More seeds than this are not worth asking for.
MAX_SEEDS = 200
#: The exact test is made up to this number of pairs; with more, the t-test hardly depends on normality.
MAX_EXACT_PAIRS = 32


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation (``ddof=1``) of n values; ``nan`` where n is too small."""

    n: int
    mean: float
    std: float


def mean_std(values: Sequence[float]) -> MeanStd:
    """Mean and sample standard deviation, as the paper reports them.

    >>> mean_std([1.0, 2.0, 3.0])
    MeanStd(n=3, mean=2.0, std=1.0)
    >>> mean_std([1.0]).std
    nan
    """
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    std = float(np.std(values, ddof=1)) if n > 1 else math.nan
    return MeanStd(n, mean, std)


@dataclass(frozen=True)
class Paired:
    """The mean of paired differences, the half width of its 95% t interval, and two p-values.

    ``p_t`` is the paired t-test (it assumes normal differences), ``p_exact`` the sign-flip permutation test
    (it assumes only that a difference and its negative are equally likely if nothing differs). They are ``None``
    if n is too small for a test, and ``p_exact`` also if n is so large that the t-test suffices.
    """

    n: int
    difference: float
    std: float
    half_width: float
    p_t: float | None
    p_exact: float | None

    @property
    def low(self) -> float:
        return self.difference - self.half_width

    @property
    def high(self) -> float:
        return self.difference + self.half_width


def paired(differences: Sequence[float], level: float = LEVEL) -> Paired:
    """The paired t interval, ``mean ± t(1 - level/2, n-1) * std / sqrt(n)``, and both p-values.

    >>> result = paired([0.2, 0.3, 0.1, 0.4, 0.2, 0.3])
    >>> round(result.difference, 3), round(result.half_width, 3), round(result.p_t, 4), result.p_exact
    (0.25, 0.11, 0.0021, 0.03125)
    """
    # Student's distribution alone: to import scipy.stats takes longer than a small report.
    special = require("scipy.special", extra="lab")
    sample = mean_std(differences)
    n, mean, std = sample.n, sample.mean, sample.std
    if n < 2:
        return Paired(n, mean, math.nan, math.nan, None, None)
    p_exact = sign_flip_p(differences) if n <= MAX_EXACT_PAIRS else None
    if std <= 1e-12 * max(map(abs, differences)):  # equal up to rounding, so that t would be noise
        return Paired(n, mean, 0.0, 0.0, 1.0 if mean == 0 else 0.0, p_exact)
    error = std / math.sqrt(n)
    half_width = float(special.stdtrit(n - 1, 1 - level / 2)) * error
    p_t = 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    return Paired(n, mean, std, half_width, p_t, p_exact)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided exact p-value of the paired permutation test: the share of the ``2**n`` sign patterns whose
    sum is at least as far from zero.

    >>> sign_flip_p([1.0, 2.0, 3.0])
    0.25
    >>> sign_flip_p([1.0, -1.0])
    1.0
    """
    values = np.asarray(differences, dtype=np.float64)
    if not 1 <= len(values) <= MAX_EXACT_PAIRS:
        raise ValueError(
            f"the exact test takes 1 to {MAX_EXACT_PAIRS} differences, not {len(values)}; use the t-test instead"
        )
    scale = float(np.max(np.abs(values)))
    if scale == 0:
        return 1.0
    values = values / scale
    # All sums = (sums of one half) + (sums of the other): 2**n patterns counted in about 2**(n/2) steps. SciPy's
    # permutation_test gives the same number in 2**n steps, too many for 30 seeds.
    half = len(values) // 2
    left, right = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    observed = abs(float(values.sum())) - 1e-9  # ties differ by rounding
    if observed <= 0:
        return 1.0
    above = len(right) - np.searchsorted(right, observed - left, side="left")
    below = np.searchsorted(right, -observed - left, side="right")
    return float((int(above.sum()) + int(below.sum())) / 2 ** len(values))


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def smallest_exact_p(n: int) -> float:
    """The smallest p-value the exact paired test can give with n pairs, ``2 / 2**n``.

    >>> smallest_exact_p(3), smallest_exact_p(6)
    (0.25, 0.03125)
    """
    return min(1.0, 2.0 / 2.0**n)


def fewest_seeds(level: float = LEVEL) -> int:
    """The smallest number of pairs with which the exact paired test can reach p < level.

    >>> fewest_seeds()
    6
    """
    return next(n for n in itertools.count(1) if smallest_exact_p(n) < level)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of the p-values of one family; ``None`` (no test) stays ``None`` and does not count.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    family = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(family):
        highest = max(highest, min(1.0, p * (len(family) - rank)))
        adjusted[i] = highest
    return adjusted


def holm_levels(p_values: Sequence[float | None]) -> list[float]:
    """The level below which each p-value of a family must be under Holm's correction.

    >>> [round(level, 4) for level in holm_levels([0.01, 0.04, None, 0.03])]
    [0.0167, 0.05, 0.05, 0.025]
    """
    ranked = sorted(p for p in p_values if p is not None)
    return [LEVEL if p is None else LEVEL / (len(ranked) - ranked.index(p)) for p in p_values]


def seeds_needed(
    difference: float, std: float, level: float = LEVEL, power: float = POWER, limit: int = MAX_SEEDS
) -> int | None:
    """The smallest number of pairs with which a paired t-test detects a difference with this power.

    ``None`` if that is more than `limit`.

    >>> seeds_needed(difference=0.5, std=1.0)
    34
    >>> seeds_needed(difference=0.01, std=1.0) is None
    True
    """
    stats = require("scipy.stats", extra="lab")
    fewest = fewest_seeds()
    if difference == 0 or not math.isfinite(difference):
        return None
    if std == 0:
        return fewest
    effect = abs(difference) / std

    def is_enough(n: int) -> bool:
        critical = stats.t.ppf(1 - level / 2, n - 1)
        chance = stats.nct.sf(critical, n - 1, effect * math.sqrt(n))
        # SciPy gives nan where the chance is one up to rounding (a huge effect).
        return not math.isfinite(chance) or chance >= power

    candidates = range(fewest, limit + 1)  # the power grows with n
    place = bisect.bisect_left(candidates, True, key=is_enough)
    return candidates[place] if place < len(candidates) else None


def median(values: Sequence[float]) -> float:
    """The median, where a miss is infinite: if half of the runs or more miss, the median is infinite as well.

    >>> median([3.0, 5.0, math.inf]), median([3.0, math.inf])
    (5.0, inf)
    """
    return float(np.median(values)) if len(values) else math.nan
