"""How a claim is decided by our own paired runs.

A contrast is a sum of results after an epoch, such as `AdamS - Adam`, taken seed by seed. The same contrast of the
published means stands beside it; one that does not have the claimed sign or size in the paper's own tables is shown,
and does not count. The number of seeds was fixed in advance, so a contrast is decided by the tests for one look
(Holm over the contrasts of a claim, and an exact paired test that agrees). Fewer than six seeds can never pass them:
they lean, at most, and the sentence on the claim says how many more it takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surefoot.lab.analyse.stats import Paired, fewest_seeds, holm, paired
from surefoot.lab.analyse.verdicts import count, plus_minus, strength
from surefoot.paper.cells import Replication
from surefoot.paper.published import QUANTUM, Configuration, find


class Term(NamedTuple):
    """A result with a sign: what is added up in a contrast."""

    sign: int
    configuration: Configuration
    optimizer: str

    def recipe(self, recipe: str) -> str:
        """Adam is the same, whichever recipe the others follow."""
        return "default" if self.optimizer == "Adam" else recipe


@dataclass(frozen=True)
class Contrast:
    """A contrast that a claim wants above zero (`sign` 1) or below (-1).

    With a `band` the amount is what is claimed: the contrast must lie inside, and `sign` does not matter. With
    `ratio` the contrast is one of logarithms, so that its exponential is a ratio, and so is the band.
    """

    statement: str
    metric: str
    epoch: int
    terms: tuple[Term, ...]
    sign: int = 0
    band: tuple[float, float] | None = None
    ratio: bool = False

    def values(self, replication: Replication, recipe: str = "default") -> dict[int, float]:
        """The contrast of our runs, by seed, over the seeds that all its terms have."""
        results = [
            replication.values(term.configuration, term.optimizer, self.metric, self.epoch, term.recipe(recipe))
            for term in self.terms
        ]
        common = sorted(set.intersection(*map(set, results)))
        return {
            seed: sum(term.sign * self._scale(result[seed]) for term, result in zip(self.terms, results))
            for seed in common
        }

    def diverged(self, replication: Replication, recipe: str = "default") -> int:
        """On how many seeds that all terms were run with one of these runs diverged."""
        places = [(term.configuration, term.optimizer, self.epoch, term.recipe(recipe)) for term in self.terms]
        diverged = [replication.diverged(*place) for place in places]
        ended = [replication.reached(*place) | seeds for place, seeds in zip(places, diverged)]
        return sum(any(seed in seeds for seeds in diverged) for seed in set.intersection(*ended))

    @property
    def claimed(self) -> str:
        """What the claim says of the contrast.

        >>> Contrast("", "val_acc", 3, (), 1).claimed, Contrast("", "val_acc", 3, (), band=(5.0, 7.0)).claimed
        ('> 0', '5 to 7')
        """
        if self.band is not None:
            return " to ".join(f"{edge:.2f}".rstrip("0").rstrip(".") for edge in sorted(self.band))
        return "> 0" if self.sign > 0 else "< 0"

    def published(self) -> float:
        """The contrast of the published means."""
        return sum(
            term.sign * self._scale(find(term.configuration, term.optimizer, self.epoch).values[self.metric].mean)
            for term in self.terms
        )

    @property
    def edges(self) -> tuple[float, float]:
        """Between what the contrast must lie, in its own scale."""
        if self.band is not None:
            low, high = sorted(self.band)
            return self._scale(low), self._scale(high)
        return (0.0, math.inf) if self.sign > 0 else (-math.inf, 0.0)

    @property
    def in_the_tables(self) -> bool:
        """Whether the published means agree with the claim; a difference within rounding does not."""
        low, high = self.edges
        least = 0.0 if self.band is not None else QUANTUM / 2
        return low + least <= self.published() <= high - least

    def _scale(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.ratio else value


@dataclass(frozen=True)
class Claim:
    """Something the paper says, where it says it, and the contrasts that decide it."""

    title: str
    source: str
    contrasts: tuple[Contrast, ...]
    note: str = ""


@dataclass(frozen=True)
class ContrastResult:
    """What our runs say of a contrast."""

    contrast: Contrast
    paired: Paired
    diverged: int
    verdict: str

    @property
    def ours(self) -> str:
        """The contrast with its 95% interval."""
        result = self.paired
        seeds = f"n={result.n}" + (f", {self.diverged} diverged" if self.diverged else "")
        if not result.n:
            return f"no pair ({seeds})" if self.diverged else "not run"
        if self.contrast.ratio:
            middle, low, high = (math.exp(x) for x in (result.difference, result.low, result.high))
            return f"{middle:.2f}" + (f" ({low:.2f} to {high:.2f}; {seeds})" if math.isfinite(high) else f" ({seeds})")
        sign = "+" if result.difference > 0 else ""
        return f"{sign}{plus_minus(result.difference, result.half_width)} ({seeds})"

    @property
    def theirs(self) -> str:
        """The published contrast."""
        value = self.contrast.published()
        text = f"{math.exp(value):.2f}" if self.contrast.ratio else f"{value:+.3f}"
        return text if self.contrast.in_the_tables else f"{text} (does not count)"

    @property
    def texts(self) -> list[str]:
        """The cells of a table: see `EVIDENCE` in `surefoot.paper.tables`."""
        return [self.contrast.statement, self.contrast.claimed, self.ours, self.theirs, self.verdict]


@dataclass(frozen=True)
class ClaimVerdict:
    """What a claim amounts to: a word, a sentence, and the results of its contrasts."""

    claim: Claim
    word: str
    sentence: str
    results: tuple[ContrastResult, ...]


def judge(claim: Claim, replication: Replication, recipe: str = "default") -> ClaimVerdict:
    """The verdict on a claim: replicated (so far), contradicted (in part), undecided, or not run."""
    values = [list(contrast.values(replication, recipe).values()) for contrast in claim.contrasts]
    paired_values = [paired(row) for row in values]
    adjusted = holm([result.p_t for result in paired_values])
    results = []
    for contrast, row, result, p_holm in zip(claim.contrasts, values, paired_values, adjusted):
        diverged = contrast.diverged(replication, recipe)
        if diverged or result.p_t is None:
            # The pairs that are left after a divergence were chosen by it: they decide nothing.
            verdict = "undecided" if diverged or result.n else "not run"
        elif contrast.band is not None:
            verdict = _verdict_on_amount(contrast, row, len(claim.contrasts))
        else:
            verdict = _verdict(strength(result, p_holm), (result.difference > 0) == (contrast.sign > 0))
        results.append(ContrastResult(contrast, result, diverged, verdict))
    return ClaimVerdict(claim, *_summary(results), tuple(results))


def _verdict(decided: str, supports: bool) -> str:
    if decided == "decided":
        return "replicated" if supports else "contradicted"
    if decided == "leaning":
        return "leans towards" if supports else "leans against"
    return "undecided"


def _verdict_on_amount(contrast: Contrast, values: Sequence[float], family: int) -> str:
    """Whether the contrast lies inside its band or outside: each edge is tested as zero is for a difference."""
    sides = []
    for edge in contrast.edges:
        result = paired([value - edge for value in values])
        p = None if result.p_t is None else min(1.0, family * result.p_t)  # Bonferroni over the contrasts of the claim
        sides.append((strength(result, p), result.difference > 0))
    (at_low, above_low), (at_high, above_high) = sides
    if not above_low or above_high:
        return _verdict(at_high if above_high else at_low, supports=False)
    weaker = "undecided" if "undecided" in (at_low, at_high) else at_low  # the same seeds, so the same strength
    return _verdict(weaker, supports=True)


#: What each verdict on a contrast is called in the sentence on a claim.
LINE_VERDICTS = {
    "replicated": "replicated",
    "contradicted": "contradicted",
    "leans towards": "leaning towards it",
    "leans against": "leaning against it",
    "undecided": "undecided",
    "not run": "not run",
}


def _summary(results: Sequence[ContrastResult]) -> tuple[str, str]:
    counting = [result for result in results if result.contrast.in_the_tables]
    tally = Counter(result.verdict for result in counting)
    run = len(counting) - tally["not run"]
    if not run:
        word = "not run"
    elif tally["replicated"] == run:
        word = "replicated" if run == len(counting) else "replicated so far"
    elif tally["contradicted"]:
        word = "contradicted in part" if tally["replicated"] or tally["leans towards"] else "contradicted"
    else:
        word = "undecided"
    counts = [f"{tally[verdict]} {name}" for verdict, name in LINE_VERDICTS.items() if tally[verdict]]
    sentence = f"Of {count(len(counting), 'line')}: {', '.join(counts)}."
    if len(counting) < len(results):
        left = len(results) - len(counting)
        verb, them = ("does", "it") if left == 1 else ("do", "them")
        sentence += f" {count(left, 'more line')} {verb} not count: the paper's own tables do not bear {them} out."
    return word, sentence + _too_few(counting)


def _too_few(results: Sequence[ContrastResult]) -> str:
    """How many seeds are missing before the lines of a claim can decide anything; empty if none is."""
    few = [result.paired.n for result in results if result.paired.n < fewest_seeds()]
    if not few:
        return ""
    which = "All" if len(few) == len(results) else str(len(few))
    have = from_to(few)
    verb, needed = ("has" if len(few) == 1 < len(results) else "have"), fewest_seeds()
    least, most = needed - max(few), needed - min(few)
    more = count(most, "more seed") if least == most else f"{least} to {most} more seeds"
    return f" {which} {verb} {have} of the {needed} paired seeds that a verdict takes: {more} needed."


def from_to(numbers: Sequence[int]) -> str:
    """The lowest and the highest of some numbers, in words.

    >>> from_to([3, 1, 2]), from_to([3, 3]), from_to([])
    ('1 to 3', '3', '')
    """
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
