"""How a claim is decided by our own paired runs.

A line is a contrast: a sum of results after an epoch, such as `AdamS - Adam`, taken seed by seed. What the paper's
tables say about the same contrast stands beside it. A line is decided by the lab's rule (Holm over the lines of a
claim, and an exact paired test that agrees), which fewer than six seeds can never pass: they lean, at most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surefoot.lab.paper.cells import Replication
from surefoot.lab.paper.published import Configuration, find
from surefoot.lab.stats import LEVEL, Paired, fewest_seeds, holm, paired, smallest_exact_p
from surefoot.lab.verdicts import count, plus_minus


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

    With a `band` the amount matters: the interval must reach into it. With `ratio` the contrast is one of logarithms,
    so that its exponential is a ratio, and so is the band.
    """

    statement: str
    metric: str
    epoch: int
    terms: tuple[Term, ...]
    wanted: int
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
        """How many runs diverged that a contrast needs."""
        return sum(
            replication.lost(one.configuration, one.optimizer, self.epoch, one.recipe(variant)) for one in self.terms
        )

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
        return f"{math.exp(value):.2f}" if self.line.ratio else f"{value:+.3f}"


@dataclass(frozen=True)
class Verdict:
    """What a claim amounts to: a word, a sentence, and its lines."""

    claim: Claim
    word: str
    sentence: str
    lines: tuple[Judged, ...]


def judge(claim: Claim, replication: Replication, variant: str = "default") -> Verdict:
    """The verdict on a claim: replicated, contradicted (in part), undecided, or not run."""
    results = [paired(list(line.ours(replication, variant).values())) for line in claim.lines]
    adjusted = holm([result.p_t for result in results])
    judged = tuple(
        Judged(line, result, lost, _decide(line, result, p, lost))
        for line, result, p in zip(claim.lines, results, adjusted)
        for lost in [line.lost(replication, variant)]
    )
    return Verdict(claim, *_summary(judged), judged)


def _decide(line: Line, result: Paired, p_holm: float | None, lost: int) -> str:
    if not result.n and not lost:
        return "not run"
    # The pairs that are left after a divergence were chosen by it: they decide nothing.
    if result.p_t is None or p_holm is None or lost:
        return "undecided"
    if line.band is not None:
        supports = _in_band(line, result)
    else:
        exact = result.n < fewest_seeds() or result.p_exact is None or result.p_exact < LEVEL
        supports = (result.difference > 0) == (line.wanted > 0) if p_holm < LEVEL and exact else None
    if supports is None:
        return "undecided"
    if result.n < fewest_seeds():
        return "leans towards" if supports else "leans against"
    return "replicated" if supports else "contradicted"


def _in_band(line: Line, result: Paired) -> bool | None:
    """Whether the interval reaches the claimed amount (or beyond); None while it also reaches no effect at all."""
    assert line.band is not None
    band = sorted(line.wanted * (math.log(edge) if line.ratio else edge) for edge in line.band)
    low, high = sorted((line.wanted * result.low, line.wanted * result.high))
    if high < band[0]:
        return False
    return True if low > 0 else None


def _summary(judged: Sequence[Judged]) -> tuple[str, str]:
    tally = Counter(one.verdict for one in judged)
    run = len(judged) - tally["not run"]
    if not run:
        return "not run", "No run decides this yet."
    if tally["replicated"] == run:
        word = "replicated"
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
    sentence = f"Of {count(len(judged), 'line')}: " + ", ".join(f"{tally[k]} {v}" for k, v in words.items() if tally[k])
    sentence += "."
    few = min((one.result.n for one in judged if one.result.n), default=0)
    if 0 < few < fewest_seeds():
        sentence += (
            f" Lines of {few} paired seeds decide nothing: their smallest exact p is {smallest_exact_p(few):.2g}."
        )
    return word, sentence
