"""How a claim is decided by our own paired runs.

A line is a contrast: a sum of results after an epoch, such as `AdamS - Adam`, taken seed by seed. What the paper's
tables say about the same contrast stands beside it; a line that they do not bear out themselves is shown, and does not
count. A line is decided by the lab's rule (Holm over the lines of a claim, and an exact paired test that agrees), which
fewer than six seeds can never pass: they lean, at most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surefoot.lab.analyse.stats import Paired, fewest_seeds, holm, paired, smallest_exact_p
from surefoot.lab.analyse.verdicts import count, plus_minus, strength
from surefoot.paper.cells import Replication
from surefoot.paper.published import QUANTUM, Configuration, find


class Term(NamedTuple):
    """A result with a sign: what is added up in a contrast."""

    sign: int
    configuration: Configuration
    optimizer: str

    def recipe(self, variant: str) -> str:
        """Adam is the same whoever's recipe the others follow."""
        return "default" if self.optimizer == "Adam" else variant


@dataclass(frozen=True)
class Line:
    """A contrast that a claim wants above zero (`wanted` 1) or below (-1).

    With a `band` the amount is what is claimed: the contrast must lie inside, and `wanted` does not matter. With
    `ratio` the contrast is one of logarithms, so that its exponential is a ratio, and so is the band.
    """

    statement: str
    metric: str
    epoch: int
    terms: tuple[Term, ...]
    wanted: int = 0
    band: tuple[float, float] | None = None
    ratio: bool = False

    def ours(self, replication: Replication, variant: str = "default") -> dict[int, float]:
        """The contrast, by seed, over the seeds that all its terms have."""
        parts = [
            replication.values(one.configuration, one.optimizer, self.metric, self.epoch, one.recipe(variant))
            for one in self.terms
        ]
        common = sorted(set.intersection(*(set(part) for part in parts)))
        return {
            seed: sum(one.sign * self._scale(part[seed]) for one, part in zip(self.terms, parts)) for seed in common
        }

    def lost(self, replication: Replication, variant: str = "default") -> int:
        """How many seeds that all terms have lost one of their runs, which diverged."""
        places = [(one.configuration, one.optimizer, self.epoch, one.recipe(variant)) for one in self.terms]
        gone = [replication.lost(*place) for place in places]
        had = [replication.reached(*place) | lost for place, lost in zip(places, gone)]
        return sum(any(seed in lost for lost in gone) for seed in set.intersection(*had))

    @property
    def wish(self) -> str:
        """What the claim wants of the contrast.

        >>> Line("", "val_acc", 3, (), 1).wish, Line("", "val_acc", 3, (), 1, band=(5.0, 7.0)).wish
        ('> 0', '5 to 7')
        """
        if self.band is not None:
            return " to ".join(f"{edge:.2f}".rstrip("0").rstrip(".") for edge in sorted(self.band))
        return "> 0" if self.wanted > 0 else "< 0"

    def published(self) -> float:
        """The contrast of the published means."""
        return sum(
            one.sign * self._scale(find(one.configuration, one.optimizer, self.epoch).values[self.metric].mean)
            for one in self.terms
        )

    @property
    def edges(self) -> tuple[float, float]:
        """Between what the contrast must lie, in its own scale."""
        if self.band is not None:
            low, high = sorted(self.band)
            return self._scale(low), self._scale(high)
        return (0.0, math.inf) if self.wanted > 0 else (-math.inf, 0.0)

    @property
    def in_the_tables(self) -> bool:
        """Whether the published means bear the claim out; a difference of nothing but rounding does not."""
        low, high = self.edges
        least = 0.0 if self.band is not None else QUANTUM / 2
        return low + least <= self.published() <= high - least

    def _scale(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.ratio else value


@dataclass(frozen=True)
class Claim:
    """Something the paper says, where it says it, and the lines that decide it."""

    title: str
    source: str
    lines: tuple[Line, ...]
    note: str = ""


@dataclass(frozen=True)
class Judged:
    """A line with what our runs say of it."""

    line: Line
    result: Paired
    lost: int
    verdict: str

    @property
    def ours(self) -> str:
        """The contrast with its 95% interval."""
        seen = f"n={self.result.n}" + (f", {self.lost} diverged" if self.lost else "")
        if not self.result.n:
            return f"no pair ({seen})" if self.lost else "not run"
        if self.line.ratio:
            middle, low, high = (math.exp(x) for x in (self.result.difference, self.result.low, self.result.high))
            return f"{middle:.2f}" + (f" ({low:.2f} to {high:.2f}; {seen})" if math.isfinite(high) else f" ({seen})")
        sign = "+" if self.result.difference > 0 else ""
        return f"{sign}{plus_minus(self.result.difference, self.result.half_width)} ({seen})"

    @property
    def theirs(self) -> str:
        value = self.line.published()
        told = f"{math.exp(value):.2f}" if self.line.ratio else f"{value:+.3f}"
        return told if self.line.in_the_tables else f"{told} (does not count)"


@dataclass(frozen=True)
class Verdict:
    """What a claim amounts to: a word, a sentence, and its lines."""

    claim: Claim
    word: str
    sentence: str
    lines: tuple[Judged, ...]


def judge(claim: Claim, replication: Replication, variant: str = "default") -> Verdict:
    """The verdict on a claim: replicated (so far), contradicted (in part), undecided, or not run."""
    seen = [list(line.ours(replication, variant).values()) for line in claim.lines]
    results = [paired(values) for values in seen]
    adjusted = holm([result.p_t for result in results])
    judged = []
    for line, values, result, p_holm in zip(claim.lines, seen, results, adjusted):
        lost = line.lost(replication, variant)
        if lost or result.p_t is None:
            # The pairs that are left after a divergence were chosen by it: they decide nothing.
            verdict = "undecided" if lost or result.n else "not run"
        elif line.band is not None:
            verdict = _amount(line, values, len(claim.lines))
        else:
            verdict = _verdict(strength(result, p_holm), (result.difference > 0) == (line.wanted > 0))
        judged.append(Judged(line, result, lost, verdict))
    return Verdict(claim, *_summary(judged), tuple(judged))


def _verdict(found: str, supports: bool) -> str:
    if found == "decided":
        return "replicated" if supports else "contradicted"
    if found == "leaning":
        return "leans towards" if supports else "leans against"
    return "undecided"


def _amount(line: Line, values: Sequence[float], family: int) -> str:
    """Whether the contrast lies inside its band or outside, decided at both edges as a difference from nothing is."""
    low, high = line.edges
    sides = []
    for edge in (low, high):
        result = paired([value - edge for value in values])
        p = None if result.p_t is None else min(1.0, family * result.p_t)  # Bonferroni over the lines of the claim
        sides.append((strength(result, p), result.difference > 0))
    (at_low, above_low), (at_high, above_high) = sides
    if not above_low or above_high:
        return _verdict(at_high if above_high else at_low, supports=False)
    weaker = "undecided" if "undecided" in (at_low, at_high) else at_low  # one number of seeds, one strength
    return _verdict(weaker, supports=True)


def _summary(judged: Sequence[Judged]) -> tuple[str, str]:
    counting = [one for one in judged if one.line.in_the_tables]
    tally = Counter(one.verdict for one in counting)
    run = len(counting) - tally["not run"]
    if not run:
        word = "not run"
    elif tally["replicated"] == run:
        word = "replicated" if run == len(counting) else "replicated so far"
    elif tally["contradicted"]:
        word = "contradicted in part" if tally["replicated"] or tally["leans towards"] else "contradicted"
    else:
        word = "undecided"
    words = {
        "replicated": "replicated",
        "contradicted": "contradicted",
        "leans towards": "leaning towards it",
        "leans against": "leaning against it",
        "undecided": "undecided",
        "not run": "not run",
    }
    told = [f"{tally[key]} {said}" for key, said in words.items() if tally[key]]
    sentence = f"Of {count(len(counting), 'line')}: {', '.join(told)}."
    if len(counting) < len(judged):
        left = len(judged) - len(counting)
        verb, them = ("does", "it") if left == 1 else ("do", "them")
        sentence += f" {count(left, 'more line')} {verb} not count: the paper's own tables do not bear {them} out."
    few = min((one.result.n for one in counting if one.result.n), default=0)
    if 0 < few < fewest_seeds():
        sentence += (
            f" Lines of {few} paired seeds decide nothing: their smallest exact p is {smallest_exact_p(few):.2g}."
        )
    return word, sentence
