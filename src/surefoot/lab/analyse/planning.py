"""A plan: how many seeds and how much time a comparison will take, from a pilot."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot.lab.analyse.anytime_valid import HORIZON, SeedRange, fewest_seeds, seeds_to_detect
from surefoot.lab.analyse.comparison import Comparison, Margin, MarginOption, summarise
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.analyse.verdicts import count, number
from surefoot.lab.run.progress import duration
from surefoot.lab.store import column

if TYPE_CHECKING:
    from surefoot.lab.analyse.groups import ContestantRuns
    from surefoot.lab.store import Run


@dataclass(frozen=True)
class PlanRow:
    """What it takes to detect a difference between a contestant and the baseline.

    Args:
        label: the contestant.
        pairs: the paired seeds of the pilot.
        std: the std of their differences.
        detect: the difference to detect.
        seeds: how many seeds decide in half of all cases, and in four of five; None is more than 100.
        seconds: how long one of its runs takes.
    """

    label: str
    pairs: int
    std: float
    detect: float
    seeds: SeedRange
    seconds: float

    def __str__(self) -> str:
        half, most = (f"over {HORIZON}" if end is None else str(end) for end in self.seeds)
        spread = "any number" if self.std == 0 else number(self.detect / self.std, 2)
        return (
            f"{self.label}: {number(self.detect)} is {spread} std of {count(self.pairs, 'paired difference')}; "
            f"decided with {half} seeds in half of all cases, with {most} in four of five"
        )


@dataclass(frozen=True)
class Plan:
    """How many seeds and how much time a comparison will take; `print(plan)` says it in words.

    Args:
        metric: the metric that decides.
        baseline: the contestant that the others are compared with.
        rows: what each contestant needs.
        seconds: how long one run of the baseline takes.
        jobs: how many runs are computed at a time.
        command: the command that does it.
    """

    metric: str
    baseline: str
    rows: tuple[PlanRow, ...]
    seconds: float
    jobs: int
    command: str

    @property
    def seeds(self) -> int:
        """How many seeds decide all contestants, each in four of five cases; at most 100."""
        return max((row.seeds.high or HORIZON for row in self.rows), default=0)

    @property
    def time(self) -> float:
        """The seconds that the runs which are not there yet will take."""
        missing = [((row.seeds.high or HORIZON) - row.pairs, row.seconds) for row in self.rows]
        missing.append((self.seeds - min((row.pairs for row in self.rows), default=0), self.seconds))
        return sum(max(0, seeds) * seconds for seeds, seconds in missing) / self.jobs

    def __str__(self) -> str:
        lines = [f"To detect a difference from {self.baseline} in {self.metric}:", *(f"  {row}" for row in self.rows)]
        lines.append(f"That is at most {count(self.seeds, 'seed')} and {duration(self.time)} from now on. Begin with:")
        return "\n".join([*lines, f"  {self.command}"])


def make_plan(
    runs: Sequence[Run], labels: Sequence[str], detect: float | str, margin: MarginOption, jobs: int, words: list[str]
) -> Plan:
    """The plan of a comparison.

    Args:
        runs: the runs of the pilot, those of the baseline first.
        labels: the contestants, the baseline first.
        detect: the difference to detect, or a share of the baseline's value.
        margin: smaller differences count as equal.
        jobs: how many runs are computed at a time.
        words: the command that makes the pilot.
    """
    size = Margin.read(detect, "the difference to detect")
    summary = summarise(runs, margin=margin)
    rows = summary.select(metric=summary.metrics[0]) if summary.metrics else []
    pairs = {row.label: row.pairs for row in rows if not row.is_baseline}
    for label in labels[1:]:
        if pairs.get(label, 0) < 2:
            raise ValueError(
                f"a plan needs a pilot, and there are {pairs.get(label, 0)} paired seeds of {labels[0]} and {label}; "
                f"make one with: {shlex.join(_with_seeds(words, 3))}"
            )
    group = summary.groups[0]
    planned = [
        _row(row, contestant, size.at(rows[0].values.mean), len(labels) - 1)
        for row, contestant in zip(rows, group.contestants)
        if not row.is_baseline
    ]
    most = max(fewest_seeds(), *(row.seeds.high or HORIZON for row in planned))
    flags = ["--until-decided", "--max-seeds", str(most)]
    flags += [] if margin is None or not isinstance(margin, float | int | str) else ["--margin", str(margin)]
    return Plan(rows[0].metric, labels[0], tuple(planned), _seconds(group.baseline), jobs, shlex.join([*words, *flags]))


def _with_seeds(words: list[str], seeds: int) -> list[str]:
    place = words.index("--seeds")
    return [*words[: place + 1], str(seeds), *words[place + 2 :]]


def _row(row: Comparison, contestant: ContestantRuns, detect: float, family: int) -> PlanRow:
    assert row.paired is not None
    margin = row.evidence.margin if row.evidence else None
    seeds = seeds_to_detect(detect, row.paired.std, row.pairs, margin, family)
    return PlanRow(row.label, row.pairs, row.paired.std, detect, seeds, _seconds(contestant))


def _seconds(contestant: ContestantRuns) -> float:
    """How long a run takes, on average over those that ended."""
    times = [
        sum(seconds or 0.0 for seconds in column(run.epochs, "seconds")) for run in contestant.runs if run.finished
    ]
    return mean_std(times).mean if times else 0.0
