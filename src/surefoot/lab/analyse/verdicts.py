"""Verdicts: what the seeds of a comparison allow to say, and what they do not."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from surefoot.lab.analyse.anytime_valid import DECISIVE, HORIZON, Evidence, Support, more_seeds
from surefoot.lab.analyse.stats import LEVEL, MAX_SEEDS, Paired, fewest_seeds, seeds_needed, smallest_exact_p


class Outcome(StrEnum):
    """What a comparison amounts to."""

    BASELINE = "baseline"
    BETTER = "better"
    WORSE = "worse"
    EQUAL = "equal"  # within the margin that was asked for
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

    @property
    def is_decided(self) -> bool:
        """Whether more seeds are not asked for."""
        return self.is_claim or self in (Outcome.EQUAL, Outcome.SAME)


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


class Strength(StrEnum):
    """How far a comparison is decided, whichever direction it has."""

    DECIDED = "decided"
    EQUAL = "equal"
    LEANING = "leaning"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """What a test says of paired differences.

    Args:
        strength: how far they are decided.
        amount: the difference in words, to follow "beats Adam" or "are equal".
        needed: what a claim still needs, in words.
    """

    strength: Strength
    amount: str
    needed: str = ""


def decide(
    result: Paired,
    evidence: Evidence,
    support: Support,
    p_holm: float | None = None,
    *,
    contestant: Side,
    baseline: Side,
    higher_is_better: bool = False,
    epoch: int | None = None,
) -> Verdict:
    """The verdict on paired differences ``contestant - baseline``, valid whenever one looks.

    A claim needs an e-value of 20 after adjustment for its family. Fewer than six pairs cannot reach that, whatever
    the data: a lead is named, but no claim is made.

    Args:
        result: the paired statistics for one look.
        evidence: the differences, with their margins if there are any.
        support: what the evidence amounts to within its family.
        p_holm: the t-test's p-value after Holm's correction, by which fewer than six pairs may lean.
        contestant: the contestant's side.
        baseline: the baseline's side.
        higher_is_better: whether a higher value of the metric is better.
        epoch: the epoch that is compared, if it is not the end of all runs.

    >>> from surefoot.lab.analyse.stats import paired
    >>> values = (-0.004, -0.003, -0.006, -0.002, -0.005, -0.004, -0.003)
    >>> result, evidence = paired(values), Evidence(values)
    >>> decide(result, evidence, Support(evidence.e), contestant=Side("AdamS"), baseline=Side("Adam")).claim
    'AdamS beats Adam by 0.0039 (0.0020 to 0.0060; n=7)'
    """
    judgement = None if _says_nothing(result) else _judge(result, evidence, support, p_holm)
    return _verdict(result, judgement, contestant, baseline, higher_is_better, epoch)


def decide_once(
    result: Paired,
    p_holm: float | None,
    *,
    contestant: Side,
    baseline: Side,
    higher_is_better: bool = False,
    level: float = LEVEL,
) -> Verdict:
    """The verdict for one look at a number of seeds that was fixed in advance.

    A claim needs two things: a Holm-adjusted t-test below 0.05, and an exact paired test that agrees. The arguments
    are those of `decide`, and `level`, the level of this comparison inside its family.

    >>> from surefoot.lab.analyse.stats import paired
    >>> result = paired([-0.004, -0.003, -0.006, -0.002, -0.005, -0.004, -0.003])
    >>> decide_once(result, result.p_t, contestant=Side("AdamS"), baseline=Side("Adam")).claim
    'AdamS beats Adam by 0.0039±0.0012 (n=7)'
    """
    judgement = None if _says_nothing(result) else _judge_once(result, p_holm, level)
    return _verdict(result, judgement, contestant, baseline, higher_is_better)


def strength(result: Paired, p_holm: float | None) -> Strength:
    """How far a difference is decided, for one look at a number of seeds that was fixed in advance.

    >>> from surefoot.lab.analyse.stats import paired
    >>> results = paired([3.0, 3.1, 2.9]), paired([3.0, 3.1, 2.9] * 2), paired([3.0, -2.0])
    >>> [strength(result, result.p_t).value for result in results]
    ['leaning', 'decided', 'undecided']
    """
    if p_holm is None or p_holm >= LEVEL:
        return Strength.UNDECIDED
    if result.n < fewest_seeds():
        return Strength.LEANING
    return Strength.DECIDED if result.p_exact is None or result.p_exact < LEVEL else Strength.UNDECIDED


def _says_nothing(result: Paired) -> bool:
    """Whether there is no spread to judge by: fewer than two pairs, or all of them without a difference."""
    return result.p_t is None or (result.difference == 0 and result.std == 0)


def _judge(result: Paired, evidence: Evidence, support: Support, p_holm: float | None) -> Judgement:
    """By the test that is valid whenever one looks."""
    low, high = evidence.interval
    if support.e_equal is not None and support.e_equal >= DECISIVE and evidence.margin is not None:
        interval = with_interval(result.difference, low, high, result.n)
        return Judgement(Strength.EQUAL, f"within {number(evidence.margin)}: the difference is {interval}")
    if result.difference < 0:
        low, high = -high, -low
    amount = f"by {with_interval(abs(result.difference), low, high, result.n)}"
    # One huge difference can pull the mean to the other side; such a mean is no amount to claim.
    if support.e >= DECISIVE and evidence.sign == math.copysign(1, result.difference):
        return Judgement(Strength.DECIDED, amount)
    if result.n < fewest_seeds() and strength(result, p_holm) == Strength.LEANING:
        return Judgement(Strength.LEANING, amount, f"{result.n} seeds can never decide; {_lacking(result.n)}")
    return Judgement(Strength.UNDECIDED, amount, _seeds_still_needed(evidence, support))


def _seeds_still_needed(evidence: Evidence, support: Support) -> str:
    n = evidence.n
    fewest, most = more_seeds(evidence, support)
    horizon = max(HORIZON, 2 * n)
    if fewest is None:
        return f"no visible difference: even {horizon} seeds would hardly decide (n={n})"
    text = f"{fewest} to over {horizon - n} more seeds" if most is None else span((fewest, most), "more seed")
    return f"undecided: {text} needed (n={n})"


def _judge_once(result: Paired, p_holm: float | None, level: float) -> Judgement:
    """By the tests for a number of seeds that was fixed in advance."""
    amount = f"by {plus_minus(abs(result.difference), result.half_width)} (n={result.n})"
    match strength(result, p_holm):
        case Strength.LEANING:
            smallest = smallest_exact_p(result.n)
            why = f"the smallest exact paired p of {result.n} seeds is {smallest:.2g}; {_lacking(result.n)}"
            return Judgement(Strength.LEANING, amount, why)
        case Strength.UNDECIDED:
            return Judgement(Strength.UNDECIDED, amount, _seeds_for_one_look(result, level))
        case decided:
            return Judgement(decided, amount)


def _seeds_for_one_look(result: Paired, level: float) -> str:
    limit = max(MAX_SEEDS, 2 * result.n)
    needed = seeds_needed(result.difference, result.std, level, limit=limit)
    if needed is None:
        return f"no visible difference: even {limit} seeds would not decide (n={result.n})"
    more = max(needed - result.n, fewest_seeds() - result.n, 1)
    note = f"n={result.n}"
    if result.n < fewest_seeds():
        note += f": the smallest exact paired p is {smallest_exact_p(result.n):.2g}"
    return f"undecided: about {count(more, 'more seed')} needed ({note})"


def _lacking(n: int) -> str:
    return f"at least {count(fewest_seeds() - n, 'more seed')} needed"


def _verdict(
    result: Paired,
    judgement: Judgement | None,
    contestant: Side,
    baseline: Side,
    higher_is_better: bool,
    epoch: int | None = None,
) -> Verdict:
    """A judgement in words, with the divergences that it does not count."""
    diverged = " and ".join(
        f"{side.label} diverged in {side.diverged} of {count(side.runs, 'run')}"
        for side in (contestant, baseline)
        if side.diverged
    )
    if result.n == 0 and diverged:
        return Verdict(Outcome.DIVERGED, f"no pair of runs to compare: {diverged}")
    is_ahead = (result.difference > 0) == higher_is_better
    outcome, claim = _claim(result.n, judgement, is_ahead, contestant.label, baseline.label)
    if result.n and epoch is not None:
        claim = f"at epoch {epoch}: {claim}"
    return Verdict(outcome, claim, diverged)


def _claim(n: int, judgement: Judgement | None, is_ahead: bool, label: str, baseline: str) -> tuple[Outcome, str]:
    if judgement is None:
        if n == 0:
            claim = f"not compared: there is no seed on which both {label} and {baseline} ended with a number"
            return Outcome.UNPAIRED, claim
        if n == 1:
            return Outcome.TOO_FEW, f"too few seeds (n={n})"
        return Outcome.SAME, f"no difference: {label} and {baseline} gave the same value in every seed (n={n})"
    match judgement.strength:
        case Strength.DECIDED if is_ahead:
            return Outcome.BETTER, f"{label} beats {baseline} {judgement.amount}"
        case Strength.DECIDED:
            return Outcome.WORSE, f"{baseline} is better than {label} {judgement.amount}"
        case Strength.EQUAL:
            return Outcome.EQUAL, f"{label} and {baseline} are equal {judgement.amount}"
        case Strength.LEANING:
            winner, loser = (label, baseline) if is_ahead else (baseline, label)
            return Outcome.LEANING, f"{winner} is ahead of {loser} {judgement.amount}, but no claim: {judgement.needed}"
    return Outcome.UNDECIDED, judgement.needed


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


def with_interval(value: float, low: float, high: float, n: int | None = None) -> str:
    """A value with its interval, to two digits of the interval's width, and with the number of pairs.

    >>> with_interval(0.07123, 0.0681, 0.0743, 9), with_interval(-1.5, -math.inf, math.inf)
    ('0.0712 (0.0681 to 0.0743; n=9)', '-1.5')
    """
    width = high - low
    decimals = 99 if not 1e-6 * abs(value) < width < math.inf else 1 - math.floor(math.log10(width))
    if 0 <= decimals <= 6:
        shown = [f"{round(x, decimals) + 0.0:.{decimals}f}" for x in (value, low, high)]  # + 0.0: no sign of -0.0
    else:
        shown = [number(x, 3) for x in (value, low, high)]
    notes = [f"{shown[1]} to {shown[2]}"] if math.isfinite(width) else []
    notes += [] if n is None else [f"n={n}"]
    return f"{shown[0]} ({'; '.join(notes)})" if notes else shown[0]


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
