"""Verdicts: what the seeds of a comparison allow to say, and what they do not."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from surefoot.lab.analyse.stats import LEVEL, MAX_SEEDS, Paired, fewest_seeds, seeds_needed, smallest_exact_p


class Outcome(StrEnum):
    """What a comparison amounts to."""

    BASELINE = "baseline"
    BETTER = "better"
    WORSE = "worse"
    LEANING = "leaning"  # ahead, but the seeds are too few for a claim
    UNDECIDED = "undecided"
    SAME = "same"
    TOO_FEW = "too few"
    DIVERGED = "diverged"
    UNPAIRED = "unpaired"

    @property
    def is_claim(self) -> bool:
        """Whether one side is said to be better."""
        return self in (Outcome.BETTER, Outcome.WORSE)


@dataclass(frozen=True)
class Verdict:
    """What a comparison amounts to, as an outcome and in words.

    Args:
        outcome: the kind of verdict.
        claim: what may be said.
        remark: which runs are not part of the claim because they diverged, if any.
    """

    outcome: Outcome
    claim: str
    remark: str = ""

    @property
    def sentence(self) -> str:
        """Claim and remark together."""
        return f"{self.claim}, where both ended; {self.remark}" if self.remark else self.claim


#: The verdict on the baseline itself, which is compared with nothing.
BASELINE = Verdict(Outcome.BASELINE, "baseline")


@dataclass(frozen=True)
class Side:
    """One side of a comparison: its label, its number of runs and how many of them diverged."""

    label: str
    runs: int = 0
    diverged: int = 0


def decide(
    result: Paired,
    p_holm: float | None,
    *,
    contestant: Side,
    baseline: Side,
    higher_is_better: bool = False,
    level: float = LEVEL,
    epoch: int | None = None,
) -> Verdict:
    """The verdict on paired differences ``contestant - baseline``.

    A claim needs two things: a Holm-adjusted t-test below 0.05, and an exact paired test that agrees. With
    fewer than six pairs the exact test cannot reach 0.05, whatever the data: a lead is named, but no claim is made.

    Args:
        result: the paired statistics.
        p_holm: the t-test's p-value after Holm's correction.
        contestant: the contestant's side.
        baseline: the baseline's side.
        higher_is_better: whether a higher value of the metric is better.
        level: the level of this comparison inside its family, for the number of seeds still needed.
        epoch: the epoch that is compared, if it is not the end of all runs.

    >>> from surefoot.lab.analyse.stats import paired
    >>> result = paired([-0.004, -0.003, -0.006, -0.002, -0.005, -0.004, -0.003])
    >>> decide(result, result.p_t, contestant=Side("AdamS"), baseline=Side("Adam")).claim
    'AdamS beats Adam by 0.0039±0.0012 (n=7)'
    """
    diverged = " and ".join(
        f"{side.label} diverged in {side.diverged} of {count(side.runs, 'run')}"
        for side in (contestant, baseline)
        if side.diverged
    )
    if result.n == 0 and diverged:
        return Verdict(Outcome.DIVERGED, f"no pair of runs to compare: {diverged}")
    outcome, claim = _claim(result, p_holm, contestant.label, baseline.label, higher_is_better, level)
    if result.n and epoch is not None:
        claim = f"at epoch {epoch}: {claim}"
    return Verdict(outcome, claim, diverged)


def strength(result: Paired, p_holm: float | None) -> Literal["decided", "leaning", "undecided"]:
    """How far a difference is decided, whichever direction it has.

    >>> from surefoot.lab.analyse.stats import paired
    >>> results = paired([3.0, 3.1, 2.9]), paired([3.0, 3.1, 2.9] * 2), paired([3.0, -2.0])
    >>> [strength(result, result.p_t) for result in results]
    ['leaning', 'decided', 'undecided']
    """
    if p_holm is None or p_holm >= LEVEL:
        return "undecided"
    if result.n < fewest_seeds():
        return "leaning"
    return "decided" if result.p_exact is None or result.p_exact < LEVEL else "undecided"


def _claim(
    result: Paired, p_holm: float | None, label: str, baseline: str, higher_is_better: bool, level: float
) -> tuple[Outcome, str]:
    n = result.n
    if n == 0:
        claim = f"not compared: there is no seed on which both {label} and {baseline} ended with a number"
        return Outcome.UNPAIRED, claim
    if n == 1 or result.p_t is None or p_holm is None:
        return Outcome.TOO_FEW, f"too few seeds (n={n})"
    if result.difference == 0 and result.std == 0:
        return Outcome.SAME, f"no difference: {label} and {baseline} gave the same value in every seed (n={n})"
    is_ahead = (result.difference > 0) == higher_is_better
    amount = f"by {plus_minus(abs(result.difference), result.half_width)} (n={n})"
    match strength(result, p_holm):
        case "decided" if is_ahead:
            return Outcome.BETTER, f"{label} beats {baseline} {amount}"
        case "decided":
            return Outcome.WORSE, f"{baseline} is better than {label} {amount}"
        case "leaning":
            winner, loser = (label, baseline) if is_ahead else (baseline, label)
            return Outcome.LEANING, (
                f"{winner} is ahead of {loser} {amount}, but no claim: the smallest exact paired p of {n} seeds is "
                f"{smallest_exact_p(n):.2g}; at least {count(fewest_seeds() - n, 'more seed')} needed"
            )
    return Outcome.UNDECIDED, _seeds_still_needed(result, level)


def _seeds_still_needed(result: Paired, level: float) -> str:
    limit = max(MAX_SEEDS, 2 * result.n)
    needed = seeds_needed(result.difference, result.std, level, limit=limit)
    if needed is None:
        return f"no visible difference: even {limit} seeds would not decide (n={result.n})"
    more = max(needed - result.n, fewest_seeds() - result.n, 1)
    note = f"n={result.n}"
    if result.n < fewest_seeds():
        note += f": the smallest exact paired p is {smallest_exact_p(result.n):.2g}"
    return f"undecided: about {count(more, 'more seed')} needed ({note})"


def count(n: int, thing: str) -> str:
    """A number with its noun.

    >>> count(1, "run"), count(3, "run")
    ('1 run', '3 runs')
    """
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def span(values: Collection[int], thing: str) -> str:
    """From the smallest to the largest number, with its noun.

    >>> span([1, 1], "setting"), span([20, 1], "setting")
    ('1 setting', '1 to 20 settings')
    """
    low, high = min(values), max(values)
    return count(low, thing) if low == high else f"{low} to {high} {thing}s"


def plus_minus(value: float, spread: float) -> str:
    """A value with its spread, both to two significant digits of the spread.

    >>> plus_minus(0.07123, 0.0031), plus_minus(12.0, 3.46), plus_minus(1.23e-7, 4e-9)
    ('0.0712±0.0031', '12.0±3.5', '(1.230±0.040)e-07')
    >>> plus_minus(0.5, math.nan), plus_minus(0.5, 0.0)
    ('0.5', '0.5±0')
    """
    if not math.isfinite(value):
        return "–"
    if not math.isfinite(spread):
        return number(value)
    if spread <= 1e-6 * abs(value):
        return f"{number(value)}±{number(spread, 2)}"
    decimals = max(0, 1 - math.floor(math.log10(spread)))
    if decimals <= 6:
        value = round(value, decimals) + 0.0  # the sum drops the sign of -0.0
        return f"{value:.{decimals}f}±{spread:.{decimals}f}"
    power = math.floor(math.log10(max(abs(value), spread)))
    decimals = max(0, decimals + power)
    return f"({value / 10**power:.{decimals}f}±{spread / 10**power:.{decimals}f})e{power:+03d}"


def number(value: float | None, digits: int = 4) -> str:
    """A number to a few significant digits, as short as it gets; a dash when there is none.

    >>> number(0.071234), number(1e-05), number(None), number(math.inf)
    ('0.07123', '1e-05', '–', '∞')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}g}"
