"""From runs to rows: how every contestant ended, and how it compares with the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from surefoot.lab.analyse import stats, verdicts
from surefoot.lab.analyse.groups import (
    ContestantRuns,
    TaskGroup,
    group_runs,
    higher_is_better,
    recorded_metrics,
    value_at,
)
from surefoot.lab.store import last_epoch

if TYPE_CHECKING:
    from surefoot.lab.store import Run


@dataclass(frozen=True)
class Row:
    """One contestant, one metric: mean and std, the comparison with the baseline, and the time to target.

    Differences are ``contestant - baseline`` over the ``pairs`` where both ended. Times to target are medians
    over runs; a run that missed the target counts as infinite. Where runs are of different length, all but the times
    are at ``epoch``, the last one that all runs of the contestant and the baseline reached.
    """

    task: str
    metric: str
    label: str
    is_baseline: bool
    higher_is_better: bool
    n: int
    mean: float
    std: float
    runs: int
    diverged: int
    unfinished: int
    failed: int
    pairs: int = 0
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_t: float | None = None
    p_exact: float | None = None
    p_holm: float | None = None
    family: int = 0
    outcome: str = "baseline"
    verdict: str = "baseline"
    target: float | None = None
    reached: int = 0
    steps_to_target: float | None = None
    epochs_to_target: float | None = None
    seconds_to_target: float | None = None
    epoch: int | None = None

    @property
    def ended(self) -> int:
        """How many runs came to an end, diverged ones among them."""
        return self.runs - self.unfinished - self.failed


@dataclass(frozen=True)
class Summary:
    """The rows of every metric and task, and the fields they came from."""

    fields: tuple[TaskGroup, ...]
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]

    def select(self, *, metric: str | None = None, task: str | None = None) -> list[Row]:
        """The rows of one metric, of one task, or of both."""
        return [row for row in self.rows if metric in (None, row.metric) and task in (None, row.task)]

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        from surefoot.lab.report.tables import to_markdown

        return to_markdown(self)


def summarise(
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] | None = None,
    baseline: str | None = None,
    target: float | Mapping[str, float] | None = None,
    epoch: int | None = None,
) -> Summary:
    """Compare every contestant with the baseline, on every metric, seed by seed.

    Holm's correction runs over all comparisons of one metric, those of several tasks together.

    Args:
        runs: what `read_runs` gives; tuning runs are left out.
        metrics: which metrics, the first one leading; all that were recorded when not given.
        baseline: the label to compare with; the first contestant when not given.
        target: the value whose time is taken, of the leading metric or per metric; when not given, the worst
            final value of the baseline's runs, which is the level that every one of them reached.
        epoch: compare after this epoch instead of at the end (or at the last epoch that both sides reached).

    >>> summarise([]).rows
    ()
    """
    fields = group_runs(runs, baseline)
    recorded = recorded_metrics(fields)
    chosen = list(metrics) if metrics else recorded
    for metric in chosen:
        if fields and metric not in recorded:
            raise ValueError(f"no run recorded the metric {metric!r}; choose among: {', '.join(recorded)}")
    targets = target if isinstance(target, Mapping) else dict.fromkeys(chosen[:1], target)
    rows: list[Row] = []
    for metric in chosen:
        results: list[tuple[Row, stats.Paired | None, verdicts.Side]] = []
        for each in fields:
            if metric in recorded_metrics([each]):
                results += _compare(each, metric, targets.get(metric), epoch)
        rows += _judge(results)
    return Summary(tuple(fields), tuple(rows), tuple(chosen))


def time_to_target(run: Run, metric: str, target: float, higher: bool) -> tuple[float, float, float]:
    """Steps, epochs and seconds of training until the target was reached; infinite when it never was."""
    seconds = 0.0
    for record in run.epochs:
        seconds += record.get("seconds") or 0.0
        value = record.get(metric)
        if value is None or record.get("diverged"):
            continue
        if value >= target if higher else value <= target:
            return float(record.get("step", math.nan)), float(record["epoch"]), seconds
    return math.inf, math.inf, math.inf


def _compare(
    each: TaskGroup, metric: str, target: float | None, epoch: int | None
) -> list[tuple[Row, stats.Paired | None, verdicts.Side]]:
    higher = higher_is_better(metric, each.task)
    final = _by_seed(each.baseline, metric, epoch)
    if target is None and final:
        target = min(final.values()) if higher else max(final.values())
    side = verdicts.Side(each.baseline.label, len(each.baseline.runs), len(_lost(each.baseline, epoch)))
    results: list[tuple[Row, stats.Paired | None, verdicts.Side]] = []
    for entry in each.contestants:
        first = entry is each.baseline
        common = None if epoch is not None else _last_common(entry, each.baseline)
        seen, base = (_by_seed(one, metric, epoch, common) for one in (entry, each.baseline))
        pairs = [seen[seed] - base[seed] for seed in sorted(seen.keys() & base.keys())]
        result = None if first else stats.paired(pairs)
        measured = stats.mean_std(list(seen.values()))
        row = Row(
            each.name, metric, entry.label, first, higher, measured.n, measured.mean, measured.std,
            len(entry.runs), len(_lost(entry, epoch)), len(entry.unfinished), len(entry.failed), epoch=common,
        )  # fmt: skip
        results.append((_timed(row, entry, target), result, side))
    return results


def _last_common(*entries: ContestantRuns) -> int | None:
    """The last epoch that all runs which ended well have reached; None when they are of one length."""
    lengths = {last_epoch(run.epochs) for entry in entries for run in entry.runs if _ended_well(run)}
    return min(lengths) if len(lengths) > 1 else None


def _ended_well(run: Run) -> bool:
    return run.finished and not run.diverged


def _by_seed(entry: ContestantRuns, metric: str, epoch: int | None, common: int | None = None) -> dict[int, float]:
    """The value of each seed after an epoch that was asked for; else at the end, or at the last common epoch."""
    if common is not None:
        seen = {run.seed: value_at(run, metric, common) for run in entry.runs if _ended_well(run)}
    else:
        seen = {run.seed: value_at(run, metric, epoch) for run in entry.runs}
    return {seed: value for seed, value in seen.items() if value is not None}


def _lost(entry: ContestantRuns, epoch: int | None) -> list[Run]:
    """The runs that diverged, by the epoch asked about."""
    if epoch is None:
        return entry.diverged
    return [run for run in entry.diverged if run.epochs and run.epochs[-1]["epoch"] <= epoch]


def _timed(row: Row, entry: ContestantRuns, target: float | None) -> Row:
    ended = [run for run in entry.runs if run.finished or run.diverged]
    if target is None or not ended:
        return replace(row, target=target)
    times = [time_to_target(run, row.metric, target, row.higher_is_better) for run in ended]
    steps, epochs, seconds = (stats.median(column) for column in zip(*times))
    return replace(
        row,
        target=target,
        reached=sum(math.isfinite(time[1]) for time in times),
        steps_to_target=steps,
        epochs_to_target=epochs,
        seconds_to_target=seconds,
    )


def _judge(results: list[tuple[Row, stats.Paired | None, verdicts.Side]]) -> list[Row]:
    """Holm's correction over the family, then a verdict for each comparison."""
    tested = [result.p_t if result else None for _, result, _ in results]
    adjusted = stats.holm(tested)
    family = sum(p is not None for p in tested)
    rows = []
    for (row, result, side), p_holm, level in zip(results, adjusted, stats.holm_levels(tested)):
        if result is None:
            rows.append(row)
            continue
        verdict = verdicts.decide(
            result,
            p_holm,
            contestant=verdicts.Side(row.label, row.runs, row.diverged),
            baseline=side,
            higher_is_better=row.higher_is_better,
            level=level,
            epoch=row.epoch,
        )
        rows.append(
            replace(
                row,
                pairs=result.n,
                difference=_finite(result.difference),
                low=_finite(result.low),
                high=_finite(result.high),
                p_t=result.p_t,
                p_exact=result.p_exact,
                p_holm=p_holm,
                family=family,
                outcome=verdict.outcome,
                verdict=verdict.sentence,
            )
        )
    return rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
