"""Who won: the contestants of a task in order, and which of them the seeds cannot separate from the best one.

There are two families of comparisons, and in each of them a false claim has a probability below 5%: every contestant
against the baseline, which are the verdicts, and all pairs without the baseline, where another one leads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from surefoot.lab.analyse.anytime_valid import Support, fewest_seeds, support
from surefoot.lab.analyse.comparison import Comparison, Summary, compare_pair, pair_evidence
from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, metric_name
from surefoot.lab.analyse.verdicts import Outcome, Side, Verdict, count, decide, number, with_interval

#: Names in a sentence at most.
_NAMES = 4


@dataclass(frozen=True)
class Gap:
    """How far a contestant is behind the leader.

    Args:
        label: the contestant.
        amount: how far, in the metric; above zero is worse than the leader.
        interval: its 95% interval, valid whenever one looks; None with fewer than six pairs.
        pairs: the seeds on which both ended.
        mean: the contestant's mean.
        outcome: WORSE if it is surely behind, EQUAL if the difference is surely below the margin.
        e: the adjusted e-value.
        margin: which difference counts as negligible, if that was asked for.
        needed: what a decision still needs, in words.
    """

    label: str
    amount: float
    interval: tuple[float, float] | None
    pairs: int
    mean: float
    outcome: Outcome
    e: float
    margin: float | None = None
    needed: str = ""

    @property
    def is_compared(self) -> bool:
        return self.outcome not in (Outcome.DIVERGED, Outcome.UNPAIRED)

    @property
    def percent(self) -> str:
        """The amount as a share of the contestant's mean; empty if that is no measure."""
        return percent(self.amount, self.mean)


@dataclass(frozen=True)
class Ranking:
    """The contestants of one task on one metric, the best mean first.

    Args:
        rows: every contestant against the baseline.
        gaps: every contestant but the first against the first.
    """

    rows: tuple[Comparison, ...]
    gaps: tuple[Gap, ...]

    @property
    def leader(self) -> str:
        return self.rows[0].label

    @property
    def metric(self) -> str:
        return self.rows[0].metric

    @property
    def tied(self) -> list[Gap]:
        """The others that are not shown to be behind the leader."""
        return [gap for gap in self.gaps if gap.is_compared and gap.outcome != Outcome.WORSE]

    @property
    def winner(self) -> str | None:
        """The leader, if all others are surely behind."""
        compared = [gap for gap in self.gaps if gap.is_compared]
        return self.leader if compared and not self.tied else None

    @property
    def headline(self) -> str:
        """Who won, in a few words."""
        if self.winner:
            who = f"{self.winner} wins"
        elif not self.tied:
            who = f"Only {self.leader} can be judged"
        elif self._undecided and (self._undecided[0].interval or (1.0,))[0] > 0:
            who = "No winner yet"
        else:
            close = [gap.label for gap in self.tied if gap not in self._behind]
            who = f"A tie between {listed([self.leader, *close])}"
        return f"{who} on {metric_name(self.metric)}"

    @property
    def sentence(self) -> str:
        """Who won, by how much and how sure that is."""
        return f"{self.headline}: {self.reason}." + (f" {self.lost}" if self.lost else "")

    @property
    def lost(self) -> str:
        """Which runs diverged, as a sentence; empty if none did."""
        diverged = [
            f"{row.label} in {row.counts.diverged} of {count(row.counts.runs, 'run')}"
            for row in self.rows
            if row.counts.diverged
        ]
        return f"Diverged: {listed(diverged)}." if diverged else ""

    @property
    def _undecided(self) -> list[Gap]:
        return [gap for gap in self.tied if gap.outcome not in (Outcome.EQUAL, Outcome.SAME)]

    @property
    def _behind(self) -> list[Gap]:
        """Those whose own interval lies behind the leader, but who are not decided among so many comparisons."""
        return [gap for gap in self._undecided if gap.interval is not None and gap.interval[0] > 0]

    @property
    def reason(self) -> str:
        """By how much, and how sure that is."""
        if self.winner:
            gap = next(gap for gap in self.gaps if gap.is_compared)
            direction = "higher" if self.rows[0].higher_is_better else "lower"
            rank = ", the next best" if len(self.gaps) > 1 else ""
            return f"{_amount(gap)} {direction} than {gap.label}{rank} ({_certainty(gap)})"
        if not self.tied:
            return "no other one ended on the same seeds"
        if not self._undecided:
            gap = max(self.tied, key=lambda gap: abs(gap.amount))
            if gap.outcome == Outcome.SAME:
                return f"the same value in every seed ({count(gap.pairs, 'paired seed')})"
            return f"{_amount(gap)} is negligible, surely less than the margin {number(gap.margin)} ({_certainty(gap)})"
        gap = self._undecided[0]
        lead = f"{self.leader} leads {gap.label} by {_amount(gap)}"
        if gap.interval is None:
            return f"{lead}, but {count(gap.pairs, 'paired seed')} cannot decide; {fewest_seeds()} are needed"
        certainty = f"({'; '.join(filter(None, [_certainty(gap), gap.needed]))})"
        if gap in self._behind:
            return f"{lead}, but that is no claim yet {certainty}"
        rest = ""
        if behind := [other.label for other in self._behind]:
            rest = f"; {listed(behind)} {'is' if len(behind) == 1 else 'are'} behind, which is no claim yet"
        return f"{lead}, which may be luck {certainty}{rest}"


def rank(summary: Summary, task: str, metric: str | None = None) -> Ranking | None:
    """The ranking of a task on a metric, by default the leading one; None if fewer than two contestants ended.

    Args:
        summary: what `summarise` returns.
        task: the name of a group of it.
        metric: the metric.
    """
    metric = metric or (*summary.metrics, "")[0]
    group = next(group for group in summary.groups if group.name == task)
    rows = [row for row in summary.select(metric=metric, task=task) if row.values.n]
    if len(rows) < 2:
        return None
    sign = -1.0 if rows[0].higher_is_better else 1.0
    rows.sort(key=lambda row: sign * row.values.mean)
    leader = rows[0]
    if leader.is_baseline:
        return Ranking(tuple(rows), tuple(_gap(row, sign, row.values.mean) for row in rows[1:]))
    compared = _against(leader.label, group, metric, summary)
    gaps = [
        # the verdict on the leader against the baseline holds for the baseline against the leader
        _gap(leader, -sign, row.values.mean, row.label)
        if row.is_baseline
        else _gap(compared[row.label], sign, row.values.mean)
        for row in rows[1:]
    ]
    return Ranking(tuple(rows), tuple(gaps))


def rankings(summary: Summary) -> list[Ranking]:
    """The ranking of every task that has one, on the leading metric."""
    by_task = [rank(summary, group.name) for group in summary.groups]
    return [ranking for ranking in by_task if ranking is not None]


def ranked(summary: Summary, rows: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one table in the order of their task's ranking; those without a value are last."""
    ranking = rank(summary, rows[0].task) if rows else None
    order = {row.label: place for place, row in enumerate(ranking.rows)} if ranking else {}
    return sorted(rows, key=lambda row: order.get(row.label, len(order)) if order else 0)


def _against(leader: str, group: TaskGroup, metric: str, summary: Summary) -> dict[str, Comparison]:
    """Every contestant but the baseline against the leader, adjusted for all pairs without the baseline."""
    margin, epoch = summary.margins.get(metric), summary.epoch
    contestants = {contestant.label: contestant for contestant in group.contestants[1:]}
    first = contestants.pop(leader)
    rows = [compare_pair(group, (first, other), metric, epoch, margin) for other in contestants.values()]
    pairs = combinations(contestants.values(), 2)
    evidence = [row.evidence for row in rows] + [pair_evidence(a, b, metric, epoch, margin) for a, b in pairs]
    supports = support([pair if pair and pair.n > 1 else None for pair in evidence])
    decided: dict[str, Comparison] = {}
    for row, adjusted in zip(rows, supports):
        verdict = _verdict(row, adjusted, first, contestants[row.label])
        decided[row.label] = Comparison(**{**vars(row), "support": adjusted, "verdict": verdict})
    return decided


def _verdict(row: Comparison, adjusted: Support | None, leader: ContestantRuns, other: ContestantRuns) -> Verdict:
    assert row.paired is not None
    assert row.evidence is not None
    return decide(
        row.paired,
        row.evidence,
        adjusted or Support(row.evidence.e),
        row.paired.p_t,
        contestant=Side(other.label, len(other.runs), len(other.diverged)),
        baseline=Side(leader.label, len(leader.runs), len(leader.diverged)),
        higher_is_better=row.higher_is_better,
        epoch=row.epoch,
    )


def _gap(row: Comparison, sign: float, mean: float, label: str = "") -> Gap:
    """A comparison as a distance from the leader; `label` is the baseline's where the row is the leader's."""
    outcome = row.verdict.outcome
    if label and outcome in (Outcome.BETTER, Outcome.WORSE):
        outcome = Outcome.WORSE if outcome == Outcome.BETTER else Outcome.BETTER
    ends = sorted(sign * end for end in row.interval) if row.interval else None
    return Gap(
        label or row.label,
        sign * (row.difference or 0.0),
        (ends[0], ends[1]) if ends else None,
        row.pairs,
        mean,
        outcome,
        row.support.e if row.support else math.nan,
        row.evidence.margin if row.evidence else None,
        row.verdict.claim.rpartition(": ")[2].partition(" (n=")[0] if outcome == Outcome.UNDECIDED else "",
    )


def percent(amount: float, value: float) -> str:
    """An amount as a share of a value, to two digits; empty where the value is no measure.

    >>> percent(0.0284, 0.1115), percent(-0.003, 0.97), percent(0.1, 0.0)
    ('25%', '0.31%', '')
    """
    if not (math.isfinite(amount) and math.isfinite(value)) or value == 0:
        return ""
    share = 100 * abs(amount / value)
    return f"{share:.0f}%" if share >= 9.5 else f"{share:.2g}%"


def _amount(gap: Gap) -> str:
    low, high = gap.interval or (-math.inf, math.inf)
    shown = with_interval(abs(gap.amount), low, high).partition(" ")[0]
    return f"{shown} ({gap.percent})" if gap.percent else shown


def _certainty(gap: Gap) -> str:
    seeds = count(gap.pairs, "paired seed")
    if gap.interval is None:
        return seeds
    _, _, interval = with_interval(abs(gap.amount), *gap.interval).partition(" (")
    return f"95%: {interval.removesuffix(')')}; {seeds}" if interval else seeds


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b"]), listed(["a", "b", "c"]), listed(list("abcdef"))
    ('a and b', 'a, b and c', 'a, b, c and 3 more')
    """
    shown = list(names) if len(names) <= _NAMES else [*names[: _NAMES - 1], f"{len(names) - _NAMES + 1} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
