"""Compares every contestant with the baseline, metric by metric and seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from surefoot.lab.analyse.anytime_valid import Evidence, Support, support
from surefoot.lab.analyse.groups import (
    ContestantRuns,
    TaskGroup,
    group_runs,
    higher_is_better,
    is_number,
    recorded_metrics,
    value_at,
)
from surefoot.lab.analyse.stats import MeanStd, Paired, holm, mean_std, median, paired
from surefoot.lab.analyse.verdicts import BASELINE, Side, Verdict, count, decide
from surefoot.lab.store import column, last_epoch

if TYPE_CHECKING:
    from surefoot.lab.store import Run


class TrainingTime(NamedTuple):
    """How much training something took; infinite if it never happened."""

    steps: float
    epochs: float
    seconds: float


@dataclass(frozen=True)
class RunCounts:
    """How many runs a contestant made, and how many of them diverged, are unfinished or failed."""

    runs: int
    diverged: int
    unfinished: int
    failed: int

    @property
    def ended(self) -> int:
        """The runs that came to an end, including those that diverged."""
        return self.runs - self.unfinished - self.failed


@dataclass(frozen=True)
class TimeToTarget:
    """How many runs reached a value, and the median training that it took; a run that missed it counts as infinite."""

    value: float
    reached: int = 0
    median: TrainingTime | None = None


@dataclass(frozen=True)
class TimeRatio:
    """The seconds of a step over those of the baseline on the same seed: the geometric mean over pairs.

    Its 95% interval is valid whenever one looks; it is unbounded with fewer than six pairs.
    """

    n: int
    ratio: float
    low: float
    high: float


#: What may be given as a margin: a number for the leading metric, "1%" for every metric, or one of them per metric.
MarginOption = float | str | Mapping[str, float | str] | None


@dataclass(frozen=True)
class Margin:
    """Differences below it count as equal; with `is_share` it is that share of the baseline's value.

    >>> Margin.read(0.002).at(0.5), Margin.read("1 %").at(-0.5)
    (0.002, 0.005)
    """

    amount: float
    is_share: bool = False

    @classmethod
    def read(cls, given: float | str, name: str = "the margin") -> Margin:
        """A number, or a text such as "0.002" or "1%"; an error names it by `name`."""
        text = str(given).strip()
        is_share = text.endswith("%")
        try:
            amount = float(text.removesuffix("%")) / (100 if is_share else 1)
        except ValueError:
            amount = math.nan
        if isinstance(given, bool) or not 0 < amount < math.inf:
            raise ValueError(
                f"{name} must be a number above zero, such as 0.002, or a share, such as '1%', got {given!r:.60}"
            )
        return cls(amount, is_share)

    def at(self, baseline: float) -> float:
        """The margin for a pair with this value of the baseline."""
        return self.amount * abs(baseline) if self.is_share else self.amount


@dataclass(frozen=True)
class Comparison:
    """One contestant and one metric, compared with the baseline.

    Args:
        task: the name of the task group.
        metric: the name of the metric, as recorded.
        label: the contestant.
        baseline: the contestant that it is compared with.
        higher_is_better: whether a higher value of the metric is better.
        values: mean and std over the contestant's runs.
        counts: how the contestant's runs ended.
        paired: the differences ``contestant - baseline`` over the seeds where both ended, with the tests that are valid
            for one look at a number of seeds fixed in advance; None for the baseline.
        evidence: the same differences with the test that is valid whenever one looks.
        support: the evidence after adjustment for the `family` comparisons of the metric.
        p_holm: the p-value of the paired t-test after Holm's correction, for one look.
        family: the number of comparisons that share the adjustment.
        verdict: what may be said.
        target: the time to the target value, if there is one.
        time: how long a step takes compared with the baseline; None if runs shared the machine.
        epoch: where runs are of different length, the last epoch that all runs of both sides reached. Values and
            differences are taken there; the time to the target is not affected.
    """

    task: str
    metric: str
    label: str
    baseline: str
    higher_is_better: bool
    values: MeanStd
    counts: RunCounts
    paired: Paired | None = None
    evidence: Evidence | None = None
    support: Support | None = None
    p_holm: float | None = None
    family: int = 0
    verdict: Verdict = BASELINE
    target: TimeToTarget | None = None
    time: TimeRatio | None = None
    epoch: int | None = None

    @property
    def is_baseline(self) -> bool:
        return self.paired is None

    @property
    def pairs(self) -> int:
        """The number of seeds on which both sides ended."""
        return self.paired.n if self.paired else 0

    @property
    def difference(self) -> float | None:
        """The mean difference from the baseline, None without a pair."""
        return self.paired.difference if self.paired and self.paired.n else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the difference, valid whenever one looks; None with fewer than six pairs."""
        interval = self.evidence.interval if self.evidence else (-math.inf, math.inf)
        return interval if all(map(math.isfinite, interval)) else None

    def record(self) -> dict[str, Any]:
        """Everything as one flat row, for a table of all comparisons."""
        low, high = self.interval or (None, None)
        once = self.paired if self.pairs > 1 else None
        steps, epochs, seconds = (self.target and self.target.median) or (None, None, None)
        return {
            "task": self.task,
            "metric": self.metric,
            "label": self.label,
            "is_baseline": self.is_baseline,
            "higher_is_better": self.higher_is_better,
            **asdict(self.values),
            **asdict(self.counts),
            "pairs": self.pairs,
            "difference": self.difference,
            "low": low,
            "high": high,
            "e": self.evidence and self.evidence.e,
            "e_holm": self.support and self.support.e,
            "margin": self.evidence and self.evidence.margin,
            "e_equal": self.evidence and self.evidence.e_equal,
            "e_equal_holm": self.support and self.support.e_equal,
            "one_look_low": once and once.low,
            "one_look_high": once and once.high,
            "p_t": self.paired and self.paired.p_t,
            "p_exact": self.paired and self.paired.p_exact,
            "p_holm": self.p_holm,
            "family": self.family,
            "outcome": self.verdict.outcome.value,
            "verdict": self.verdict.sentence,
            "target": self.target and self.target.value,
            "reached": self.target.reached if self.target else 0,
            "steps_to_target": steps,
            "epochs_to_target": epochs,
            "seconds_to_target": seconds,
            "step_time_ratio": self.time and self.time.ratio,
            "step_time_low": self.time and self.time.low,
            "step_time_high": self.time and self.time.high,
            "epoch": self.epoch,
        }


#: The columns of a table of records, which may have no rows.
RECORD_COLUMNS = tuple(Comparison("", "", "", "", False, mean_std([]), RunCounts(0, 0, 0, 0)).record())


@dataclass(frozen=True, repr=False)
class Summary:
    """The comparisons of every task and metric, and the groups of runs that they were made from.

    Args:
        groups: the runs by task.
        comparisons: every contestant and metric against the baseline.
        metrics: the metrics, the leading one first.
        margins: by metric, which differences count as equal.
        epoch: the epoch that was asked for, if not the end of the runs.
    """

    groups: tuple[TaskGroup, ...]
    comparisons: tuple[Comparison, ...]
    metrics: tuple[str, ...]
    margins: Mapping[str, Margin] = field(default_factory=dict)
    epoch: int | None = None

    def __repr__(self) -> str:
        """One line; the tables are for `print`, or for a notebook."""
        runs = [run for group in self.groups for run in group.runs]
        labels = {contestant.label for group in self.groups for contestant in group.contestants}
        seeds = {run.seed for run in runs}
        tasks = ", ".join(group.name for group in self.groups[:4]) + (", ..." if len(self.groups) > 4 else "")
        size = [count(len(labels), "optimizer"), count(len(seeds), "seed"), count(len(runs), "run")]
        return f"<{type(self).__name__}: {', '.join(size)}{f' on {tasks}' if tasks else ''}>"

    def select(self, *, metric: str | None = None, task: str | None = None) -> list[Comparison]:
        """The comparisons of one metric, of one task, or of both."""
        return [row for row in self.comparisons if metric in (None, row.metric) and task in (None, row.task)]

    def tables(self) -> Iterator[list[Comparison]]:
        """The comparisons that belong into one table: those of one task and metric."""
        for group in self.groups:
            for metric in self.metrics:
                if rows := self.select(metric=metric, task=group.name):
                    yield rows


def summarise(
    runs: Sequence[Run],
    *,
    metrics: str | Sequence[str] | None = None,
    baseline: str | None = None,
    target: float | Mapping[str, float] | None = None,
    epoch: int | None = None,
    margin: MarginOption = None,
) -> Summary:
    """Compare every contestant with the baseline, on every metric, seed by seed.

    The adjustment for many comparisons is made over all of one metric, those of several tasks together.

    Args:
        runs: what `read_runs` returns; tuning runs are left out.
        metrics: which metrics, the leading one first; by default all that were recorded.
        baseline: the label to compare with; by default the first contestant.
        target: the value to reach, of the leading metric or per metric; by default the worst final value of the
            baseline's runs, which is the level that all of them reached.
        epoch: compare after this epoch instead of at the end (or at the last epoch that both sides reached).
        margin: differences below it count as equal: a number for the leading metric, a share of the baseline's value
            such as "1%" for every metric, or one of them per metric.

    >>> summarise([]).comparisons
    ()
    """
    groups = group_runs(runs, baseline)
    recorded = recorded_metrics(groups)
    if metrics is not None and not isinstance(metrics, str | Sequence):
        raise ValueError(f"metrics must be the name of a metric or a list of names, got {metrics!r:.60}")
    chosen = ([metrics] if isinstance(metrics, str) else list(metrics)) if metrics else recorded
    for metric in chosen:
        if groups and metric not in recorded:
            raise ValueError(f"no run recorded the metric {metric!r}; choose among: {', '.join(recorded)}")
    targets = target if isinstance(target, Mapping) else dict.fromkeys(chosen[:1], target)
    for metric, value in targets.items():
        if metric not in chosen:
            raise ValueError(f"the target names the metric {metric!r}; choose among: {', '.join(chosen)}")
        if value is not None and not (is_number(value) and math.isfinite(value)):
            raise ValueError(f"a target must be a finite number or a dict such as {{{metric!r}: 0.1}}, got {value!r}")
    if epoch is not None and (not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 1):
        raise ValueError(f"epoch must be a whole number from 1 up, got {epoch!r}")
    margins = _margins(margin, chosen)
    comparisons: list[Comparison] = []
    for metric in chosen:
        family = [
            comparison
            for group in groups
            if metric in recorded_metrics([group])
            for comparison in _compare(group, metric, targets.get(metric), epoch, margins.get(metric))
        ]
        comparisons += _with_verdicts(family)
    return Summary(tuple(groups), tuple(comparisons), tuple(chosen), margins, epoch)


def time_to_target(run: Run, metric: str, target: float, higher: bool) -> TrainingTime:
    """Steps, epochs and seconds of training until the target was reached; infinite if it never was."""
    seconds = 0.0
    columns = (column(run.epochs, name) for name in ("seconds", metric, "diverged"))
    for place, (taken, value, diverged) in enumerate(zip(*columns)):
        seconds += math.nan if taken is None else taken
        if value is None or diverged:
            continue
        if value >= target if higher else value <= target:
            record = run.epochs[place]
            return TrainingTime(float(record.get("step", math.nan)), float(record["epoch"]), seconds)
    return TrainingTime(math.inf, math.inf, math.inf)


def _compare(
    group: TaskGroup, metric: str, target: float | None, epoch: int | None, margin: Margin | None
) -> list[Comparison]:
    """The comparisons of one task, before adjustment for their family and without verdicts."""
    higher = higher_is_better(metric, group.task)
    final = _values_by_seed(group.baseline, metric, epoch)
    if target is None and final:
        target = min(final.values()) if higher else max(final.values())
    comparisons = []
    for contestant in group.contestants:
        common = None if epoch is not None else _last_common_epoch(contestant, group.baseline)
        values = _values_by_seed(contestant, metric, epoch, common)
        is_baseline = contestant is group.baseline
        evidence = None if is_baseline else pair_evidence(contestant, group.baseline, metric, epoch, margin)
        comparisons.append(
            Comparison(
                task=group.name,
                metric=metric,
                label=contestant.label,
                baseline=group.baseline.label,
                higher_is_better=higher,
                values=mean_std(list(values.values())),
                counts=_count(contestant, epoch),
                paired=None if evidence is None else paired(evidence.differences),
                evidence=evidence,
                target=None if target is None else _median_time(contestant, metric, target, higher),
                time=None if is_baseline else _time_ratio(contestant, group.baseline),
                epoch=common,
            )
        )
    return comparisons


def pair_evidence(
    contestant: ContestantRuns, other: ContestantRuns, metric: str, epoch: int | None, margin: Margin | None
) -> Evidence:
    """The differences of a contestant from another one, over the seeds where both ended."""
    common = None if epoch is not None else _last_common_epoch(contestant, other)
    values, reference = (_values_by_seed(side, metric, epoch, common) for side in (contestant, other))
    seeds = sorted(values.keys() & reference.keys())
    margins = [margin.at(reference[seed]) for seed in seeds] if margin else ()
    return Evidence(tuple(values[seed] - reference[seed] for seed in seeds), tuple(margins))


def compare_pair(
    group: TaskGroup, pair: tuple[ContestantRuns, ContestantRuns], metric: str, epoch: int | None, margin: Margin | None
) -> Comparison:
    """The second of two contestants of a task against the first, before adjustment and without a verdict."""
    return _compare(replace(group, contestants=pair), metric, None, epoch, margin)[1]


def compare_after(pairs: Sequence[tuple[TaskGroup, int]], metric: str, margin: Margin) -> list[Comparison]:
    """The comparisons of groups, each after its own number of epochs, with verdicts adjusted for all of them."""
    return _with_verdicts([row for group, epoch in pairs for row in _compare(group, metric, None, epoch, margin)])


def check_margin(given: MarginOption) -> None:
    """Refuse what is no margin, before hours of training."""
    for margin in given.values() if isinstance(given, Mapping) else [given]:
        if margin is not None:
            Margin.read(margin)


def _margins(given: MarginOption, metrics: Sequence[str]) -> dict[str, Margin]:
    """The margin of each metric that has one."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        unknown = [metric for metric in given if metric not in metrics]
        if unknown and metrics:
            raise ValueError(
                f"no metric is called {unknown[0]!r}, so it has no margin; choose among: {', '.join(metrics)}"
            )
        return {metric: Margin.read(margin) for metric, margin in given.items()}
    margin = Margin.read(given)
    return dict.fromkeys(metrics if margin.is_share else metrics[:1], margin)


def _with_verdicts(family: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of one metric with the adjustment for their number, and with their verdicts."""
    p_values = [row.paired.p_t if row.paired else None for row in family]
    supports = support([row.evidence if row.pairs > 1 else None for row in family])
    size = sum(p is not None for p in p_values)
    sides = {(row.task, row.label): Side(row.label, row.counts.runs, row.counts.diverged) for row in family}
    decided = []
    for row, p_holm, adjusted in zip(family, holm(p_values), supports):
        if row.paired is None or row.evidence is None:
            decided.append(row)
            continue
        verdict = decide(
            row.paired,
            row.evidence,
            adjusted or Support(row.evidence.e),
            p_holm,
            contestant=sides[row.task, row.label],
            baseline=sides[row.task, row.baseline],
            higher_is_better=row.higher_is_better,
            epoch=row.epoch,
        )
        decided.append(replace(row, support=adjusted, p_holm=p_holm, family=size, verdict=verdict))
    return decided


def _last_common_epoch(*contestants: ContestantRuns) -> int | None:
    """The last epoch that all runs which ended well have reached; None if they are of one length."""
    lengths = {last_epoch(run.epochs) for contestant in contestants for run in contestant.runs if run.state == "done"}
    return min(lengths) if len(lengths) > 1 else None


def _values_by_seed(
    contestant: ContestantRuns, metric: str, epoch: int | None, common: int | None = None
) -> dict[int, float]:
    """The value of each seed after the epoch asked for; else at the end, or at the last common epoch."""
    if common is not None:
        values = {run.seed: value_at(run, metric, common) for run in contestant.runs if run.state == "done"}
    else:
        values = {run.seed: value_at(run, metric, epoch) for run in contestant.runs}
    return {seed: value for seed, value in values.items() if value is not None}


def _count(contestant: ContestantRuns, epoch: int | None) -> RunCounts:
    """How the runs ended; with an epoch, only divergences until then count."""
    diverged = [run for run in contestant.diverged if epoch is None or last_epoch(run.epochs) <= epoch]
    return RunCounts(len(contestant.runs), len(diverged), len(contestant.unfinished), len(contestant.failed))


def _time_ratio(contestant: ContestantRuns, baseline: ContestantRuns) -> TimeRatio | None:
    """The seconds per step in pairs, of runs that had the machine for themselves."""
    times, others = _seconds_per_step(contestant), _seconds_per_step(baseline)
    ratios = [math.log(times[seed] / others[seed]) for seed in sorted(times.keys() & others.keys())]
    if not ratios:
        return None
    middle, ends = mean_std(ratios).mean, Evidence(tuple(ratios)).interval
    low, high = (math.exp(end) if math.isfinite(end) else max(0.0, end) for end in ends)
    return TimeRatio(len(ratios), math.exp(middle), low, high)


def _seconds_per_step(contestant: ContestantRuns) -> dict[int, float]:
    """By seed, for runs that ended, with all of their epochs timed and no other run beside them."""
    times = {}
    for run in contestant.runs:
        seconds = [seconds or 0.0 for seconds in column(run.epochs, "seconds")]
        alone = all((jobs or 1) == 1 for jobs in column(run.epochs, "jobs"))
        steps = run.epochs[-1].get("step") if run.state == "done" and run.epochs else None
        if alone and steps and all(seconds):
            times[run.seed] = sum(seconds) / steps
    return times


def _median_time(contestant: ContestantRuns, metric: str, target: float, higher: bool) -> TimeToTarget:
    times = [time_to_target(run, metric, target, higher) for run in contestant.runs if run.finished]
    if not times:
        return TimeToTarget(target)
    reached = sum(math.isfinite(time.epochs) for time in times)
    return TimeToTarget(target, reached, TrainingTime(*(median(column) for column in zip(*times))))
