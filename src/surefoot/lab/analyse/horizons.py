"""One contestant against the best of its peers at every horizon: differences, the worst regret, non-inferiority."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from surefoot.lab.analyse.anytime_valid import DECISIVE, Evidence, support
from surefoot.lab.analyse.comparison import Comparison, Margin, compare_after
from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, higher_is_better, value_at
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.analyse.verdicts import Outcome, count, number, with_interval


@dataclass(frozen=True)
class AtHorizon:
    """The contestant and the best peer after so many epochs.

    Args:
        epochs: the horizon.
        comparison: the contestant compared with that peer, adjusted for the number of horizons.
        best: the mean of that peer.
    """

    epochs: int
    comparison: Comparison
    best: float

    @property
    def regret(self) -> float:
        """How much worse than the best peer; below zero if better."""
        difference = self.comparison.difference
        return math.nan if difference is None else self._sign * difference

    @property
    def regret_interval(self) -> tuple[float, float]:
        """Its 95% interval; unbounded with fewer than six pairs."""
        ends = [self._sign * end for end in self.comparison.interval or (-math.inf, math.inf)]
        return min(ends), max(ends)

    @property
    def is_not_inferior(self) -> bool:
        """Whether the seeds show that it is worse by less than the margin, if at all."""
        evidence = self.comparison.evidence
        return evidence is not None and evidence.e_not_inferior(self.comparison.higher_is_better) >= DECISIVE

    @property
    def _sign(self) -> float:
        return -1.0 if self.comparison.higher_is_better else 1.0


@dataclass(frozen=True)
class HorizonComparison:
    """A contestant and the best of its peers at every horizon; the peer is chosen on the same seeds.

    That makes the peer look better than it is, never worse: the comparison is hard on the contestant.
    """

    task: str
    metric: str
    label: str
    margin: str
    horizons: tuple[AtHorizon, ...]

    @property
    def worst(self) -> AtHorizon:
        """The horizon with the largest regret."""
        known = [row for row in self.horizons if not math.isnan(row.regret)]
        return max(known, key=lambda row: row.regret, default=self.horizons[0])

    @property
    def worst_regret(self) -> str:
        """The largest regret, with an upper end that holds for all horizons at once."""
        low = self.worst.regret_interval[0]
        high = max(row.regret_interval[1] for row in self.horizons)
        return with_interval(self.worst.regret, low, high, self.worst.comparison.pairs)

    @property
    def verdict(self) -> str:
        """Whether the contestant is not inferior to the best peer, at every horizon, in one sentence.

        "At every horizon" is claimed only if each horizon supports it by itself, which needs no further adjustment.
        """
        open_ = [row for row in self.horizons if not row.is_not_inferior]
        if not open_:
            return f"{self.label} is not inferior to the best peer at any horizon (margin {self.margin})"
        worse = [row for row in open_ if row.comparison.verdict.outcome == Outcome.WORSE]
        if worse:
            return f"{self.label} is worse than the best peer after {_epochs(worse)} (margin {self.margin})"
        if len(open_) == len(self.horizons):
            return f"undecided: {self.label} is not shown to be within {self.margin} of the best peer at any horizon"
        return (
            f"undecided: {self.label} is not shown to be within {self.margin} of the best peer after {_epochs(open_)}; "
            f"shown at {count(len(self.horizons) - len(open_), 'horizon')} of {len(self.horizons)}"
        )

    def rows(self) -> list[list[str]]:
        """The cells of a table, one row per horizon, as `HEAD` names them."""
        return [
            [
                str(row.epochs),
                number(row.comparison.values.mean),
                row.comparison.baseline,
                number(row.best),
                with_interval(row.comparison.difference or 0.0, *(row.comparison.interval or (-math.inf, math.inf))),
                str(row.comparison.pairs),
                "yes" if row.is_not_inferior else "not shown",
                row.comparison.verdict.sentence,
            ]
            for row in self.horizons
        ]


def _epochs(rows: Sequence[AtHorizon]) -> str:
    """Their horizons in words."""
    return f"{', '.join(str(row.epochs) for row in rows)} epoch{'s' if rows[-1].epochs > 1 else ''}"


HEAD = [
    "epochs",
    "mean",
    "best peer",
    "its mean",
    "difference (95%)",
    "n",
    "not inferior",
    "verdict (Holm over horizons)",
]


def compare_at_horizons(
    groups: Mapping[int, TaskGroup], metric: str, margin: str | float, label: str = ""
) -> HorizonComparison:
    """Compare a contestant with the best of the others after each number of epochs.

    Args:
        groups: for each horizon the contestants with the runs for it.
        metric: which metric.
        margin: what is not inferior: a number, or a share of the best peer's value such as "1%".
        label: the contestant; by default the first.
    """
    pairs: list[tuple[TaskGroup, int]] = []
    for epochs, group in sorted(groups.items()):
        subject = next((entry for entry in group.contestants if entry.label == label), group.contestants[0])
        peers = [peer for peer in group.contestants if peer is not subject]
        best = best_peer(peers, metric, epochs, higher_is_better(metric, group.task))
        name = f"{group.name}, {count(epochs, 'epoch')}"
        pairs.append((replace(group, name=name, contestants=(best, subject)), epochs))
    rows = compare_after(pairs, metric, Margin.read(margin))
    subjects, others = rows[1::2], rows[::2]
    horizons = [AtHorizon(epochs, row, other.values.mean) for (_, epochs), row, other in zip(pairs, subjects, others)]
    name = next(iter(groups.values())).name
    return HorizonComparison(name, metric, subjects[0].label, str(margin), tuple(horizons))


def best_peer(peers: Sequence[ContestantRuns], metric: str, epochs: int, higher: bool) -> ContestantRuns:
    """The peer with the best mean after so many epochs; one without a value in some seed is the last choice."""

    def rank(peer: ContestantRuns) -> tuple[int, float]:
        values = [value for run in peer.runs if (value := value_at(run, metric, epochs)) is not None]
        mean = mean_std(values).mean
        return len(peer.runs) - len(values), math.inf if math.isnan(mean) else -mean if higher else mean

    if not peers:
        raise ValueError("there is no peer to compare with; give at least two optimizers, the first one is compared")
    return min(peers, key=rank)


class OverAll(NamedTuple):
    """The contestant and one peer over all horizons together, as `OVERALL_HEAD` names the cells."""

    peer: str
    difference: str
    n: str
    outcome: Outcome


OVERALL_HEAD = ["peer", "difference over all horizons, % (95%)", "n", "verdict (Holm over peers)"]


def over_all_horizons(groups: Mapping[int, TaskGroup], metric: str, label: str = "") -> list[OverAll]:
    """A contestant against each of the others over all horizons together.

    Each seed gives one number, the mean over the horizons of ``log(own value / peer's value)``; seeds without a
    positive value at every horizon are left out. The table has the ratio less 1, for the mean of these numbers and the
    ends of its interval.

    Args:
        groups: for each horizon the contestants with the runs for it.
        metric: which metric.
        label: the contestant; by default the first.
    """
    first = next(iter(groups.values()))
    subject = next((entry.label for entry in first.contestants if entry.label == label), first.contestants[0].label)
    peers = [entry.label for entry in first.contestants if entry.label != subject]
    own = _logarithms(groups, metric, subject)
    family: list[Evidence | None] = []
    for peer in peers:
        theirs = _logarithms(groups, metric, peer)
        differences = tuple(own[seed] - theirs[seed] for seed in sorted(own.keys() & theirs.keys()))
        family.append(Evidence(differences) if differences else None)
    good = 1 if higher_is_better(metric, first.task) else -1
    rows = []
    for peer, evidence, supported in zip(peers, family, support(family)):
        if evidence is None or supported is None:
            rows.append(OverAll(peer, "", "0", Outcome.UNPAIRED))
            continue
        decided = Outcome.BETTER if evidence.sign == good else Outcome.WORSE
        mean, low, high = (100 * math.expm1(x) for x in (mean_std(evidence.differences).mean, *evidence.interval))
        outcome = decided if supported.e >= DECISIVE else Outcome.UNDECIDED
        rows.append(OverAll(peer, with_interval(mean, low, high), str(len(evidence.differences)), outcome))
    return rows


def _logarithms(groups: Mapping[int, TaskGroup], metric: str, label: str) -> dict[int, float]:
    """For each seed the mean over the horizons of the logarithm of the value."""
    by_seed: dict[int, list[float]] = {}
    for epochs, group in groups.items():
        for run in next(entry for entry in group.contestants if entry.label == label).runs:
            value = value_at(run, metric, epochs)
            if value is not None and value > 0:
                by_seed.setdefault(run.seed, []).append(math.log(value))
    return {seed: sum(values) / len(values) for seed, values in by_seed.items() if len(values) == len(groups)}
