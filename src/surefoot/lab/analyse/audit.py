"""Honesty checks: what makes a comparison unfair, incomplete or weaker than it looks."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from surefoot.lab.analyse.groups import (
    ContestantRuns,
    TaskGroup,
    group_runs,
    higher_is_better,
    recorded_metrics,
    value_at,
)
from surefoot.lab.analyse.stats import fewest_seeds, mean_std, smallest_exact_p
from surefoot.lab.analyse.verdicts import count
from surefoot.lab.spec.config import Purpose

if TYPE_CHECKING:
    from surefoot.lab.store import Run

Severity = Literal["error", "warning", "note"]
Code = Literal[
    "no-runs", "unequal-epochs", "unequal-steps", "unequal-tuning", "unequal-chances", "tuned-on-reported-seeds",
    "edge-of-grid", "edge-of-sweep", "few-seeds", "parallel-timings", "failed-runs", "unfinished-runs",
    "dropped-runs", "missing-values", "diverged-runs", "mixed-numerics", "mixed-torch", "mixed-threads",
    "mixed-device", "mixed-cpu", "mixed-commit",
]  # fmt: skip
#: What a finding may be called.
CODES: tuple[Code, ...] = get_args(Code)


@dataclass(frozen=True)
class Finding:
    """One thing a reader should know: a code, how bad it is, and a sentence.

    An error makes the comparison unfair or incomplete, a warning weakens what may be said, a note informs.
    """

    code: Code
    severity: Severity
    sentence: str


def check(runs: Sequence[Run], baseline: str | None = None) -> list[Finding]:
    """All findings on these runs, errors first.

    >>> check([])
    [Finding(code='no-runs', severity='error', sentence='There is no run to report.')]
    """
    fields = group_runs(runs, baseline)
    if not fields:
        return [Finding("no-runs", "error", "There is no run to report.")]
    findings: list[Finding] = []
    for each in fields:
        tuning = [run for run in runs if run.config.purpose == Purpose.TUNING and run.task == each.task.name]
        for found in _CHECKS:
            findings += found(each, tuning)
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: order[finding.severity])


def _budgets(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    epochs = _values_by_entry(each, lambda run: run.config.epochs)
    if _differ(epochs):
        yield Finding("unequal-epochs", "error", f"{each.name}: unequal budgets, {_list(epochs, 'epochs')}.")
    # Steps of the first epoch, which everybody did; where a run diverged in it, it stopped early: no smaller budget.
    steps = _values_by_entry(
        each, lambda run: run.epochs[0].get("step") if run.epochs and not run.epochs[0].get("diverged") else None
    )
    if _differ(steps):
        yield Finding("unequal-steps", "error", f"{each.name}: unequal budgets, {_list(steps, 'steps per epoch')}.")


def _tuning_budgets(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    if not tuning:
        return
    tried: dict[str, set[str]] = {_class(entry): set() for entry in each.contestants}
    for run in tuning:
        optimizer = run.config.optimizer
        if optimizer.class_path in tried:
            tried[optimizer.class_path].add(json.dumps(optimizer.options, sort_keys=True, default=str))
    numbers = {name.rpartition(".")[2]: len(settings) for name, settings in tried.items()}
    if len(set(numbers.values())) > 1:
        words = ", ".join(f"{name} {number}" for name, number in numbers.items())
        yield Finding(
            "unequal-tuning",
            "error",
            f"{each.name}: unequal tuning, the number of settings tried was: {words}.",
        )


def _tuned_on_reported_seeds(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    overlap = sorted({run.seed for run in tuning} & {run.seed for run in each.runs})
    if overlap:
        yield Finding(
            "tuned-on-reported-seeds",
            "error",
            f"{each.name}: settings were tuned on {_seeds(overlap)}, which the results also use; "
            "report on seeds that tuning has not seen.",
        )


def _grid_edges(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    """An optimum on the edge of what was tried may lie beyond it."""
    metric = (recorded_metrics([each]) or ["valid_loss"])[0]
    for entry in each.contestants:
        tuned = [run for run in tuning if run.config.optimizer.class_path == _class(entry)]
        chosen = entry.optimizer.options
        for name, values in _grid(run.config.optimizer.options for run in tuned).items():
            if chosen.get(name) in (values[0], values[-1]):
                yield Finding(
                    "edge-of-grid",
                    "warning",
                    f"{each.name}: {entry.label} uses {name}={chosen[name]:g}, the edge of the tuned grid "
                    f"({values[0]:g} to {values[-1]:g}); a better value may lie beyond it.",
                )
    for name, entries in sweeps(each):
        scores = [_mean(entry, metric) for _, entry in entries]
        known = [score for score in scores if score is not None]
        if len(known) < 3:
            continue
        best = max(known) if higher_is_better(metric, each.task) else min(known)
        if scores.index(best) in (0, len(scores) - 1):
            value, entry = entries[scores.index(best)]
            yield Finding(
                "edge-of-sweep",
                "note",
                f"{each.name}: the best {name} shown for {_short(entry)}, {value:g}, is the edge of what was "
                f"tried ({entries[0][0]:g} to {entries[-1][0]:g}).",
            )


def _chances(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    settings: dict[str, int] = defaultdict(int)
    for entry in each.contestants:
        settings[_short(entry)] += 1
    if len(each.contestants) > 2 and len(set(settings.values())) > 1:
        most = max(settings, key=lambda name: settings[name])
        least = min(settings, key=lambda name: settings[name])
        yield Finding(
            "unequal-chances",
            "note",
            f"{each.name}: {most} is shown with {count(settings[most], 'setting')} and {least} with "
            f"{settings[least]}; picking the best one afterwards favours {most}.",
        )


def _few_seeds(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    if len(each.contestants) < 2:
        return
    base, *others = ({run.seed for run in entry.runs if not run.diverged} for entry in each.contestants)
    fewest = min(len(base & seeds) for seeds in others)
    if fewest < fewest_seeds():
        yield Finding(
            "few-seeds",
            "warning",
            f"{each.name}: {count(fewest, 'paired seed')} cannot support a claim, the smallest exact paired "
            f"p is {smallest_exact_p(fewest):.2g}; use at least {fewest_seeds()}.",
        )


def _timings(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    jobs = {record.get("jobs") or 1 for run in each.runs for record in run.epochs}
    if jobs and max(jobs) > 1:
        yield Finding(
            "parallel-timings",
            "warning",
            f"{each.name}: seconds were taken with up to {max(jobs)} runs at once and are not comparable; "
            "steps and epochs are. Use --jobs 1 to compare seconds.",
        )


def _dropped(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    seeds = sorted({run.seed for run in each.runs})
    for entry in each.contestants:
        if entry.failed:
            failed = _seeds([run.seed for run in entry.failed])
            yield Finding("failed-runs", "error", f"{each.name}: {entry.label} failed with an error on {failed}.")
        if entry.unfinished:
            left = _seeds([run.seed for run in entry.unfinished])
            yield Finding(
                "unfinished-runs",
                "error",
                f"{each.name}: {entry.label} is not finished on {left}; run the same command again.",
            )
        missing = [seed for seed in seeds if seed not in {run.seed for run in entry.runs}]
        if missing:
            yield Finding(
                "dropped-runs",
                "error",
                f"{each.name}: {entry.label} has no run for {_seeds(missing)}, which others have.",
            )
        if entry.diverged:
            lost = _seeds([run.seed for run in entry.diverged])
            yield Finding("diverged-runs", "note", f"{each.name}: {entry.label} diverged on {lost}.")


def _missing_values(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    """A metric that is not a number leaves its seed out of the pairs, as a divergence does, but says nothing."""
    ended = [(entry, run) for entry in each.contestants for run in entry.runs if run.finished and not run.diverged]
    for metric in recorded_metrics([each]):
        without = [(entry, run) for entry, run in ended if value_at(run, metric) is None]
        if len(without) == len(ended):
            continue  # nobody has it
        for entry in each.contestants:
            seeds = [run.seed for owner, run in without if owner is entry]
            if seeds:
                yield Finding(
                    "missing-values",
                    "error",
                    f"{each.name}: {entry.label} ended without a number for {metric} on {_seeds(seeds)}; "
                    "what is said of that metric leaves them out.",
                )


def _mixtures(each: TaskGroup, tuning: list[Run]) -> Iterable[Finding]:
    """Runs of one comparison should differ in the optimizer and the seed alone."""
    known: list[tuple[Code, Severity, str, Callable[[Run], Any]]] = [
        ("mixed-numerics", "error", "numerics versions", lambda run: run.config.numerics),
        ("mixed-torch", "warning", "torch versions", lambda run: run.config.provenance.torch),
        ("mixed-threads", "warning", "thread counts", lambda run: run.config.threads),
        ("mixed-device", "warning", "devices", lambda run: run.config.device),
        ("mixed-cpu", "note", "processors", lambda run: run.config.provenance.cpu),
        ("mixed-commit", "note", "commits", lambda run: run.config.provenance.commit),
    ]
    for code, severity, what, read in known:
        values = sorted({str(read(run)) for run in each.runs if read(run)})
        if len(values) > 1:
            yield Finding(code, severity, f"{each.name}: runs of different {what} are mixed: {_some(values)}.")


_CHECKS: list[Callable[[TaskGroup, list[Run]], Iterable[Finding]]] = [
    _budgets, _tuning_budgets, _tuned_on_reported_seeds, _grid_edges, _chances, _few_seeds, _timings,
    _dropped, _missing_values, _mixtures,
]  # fmt: skip


def sweeps(each: TaskGroup) -> list[tuple[str, list[tuple[float, ContestantRuns]]]]:
    """Contestants that differ in eta or lr alone: the name of the option, and (value, entry) in its order.

    Only sweeps of at least three values count.
    """
    found = []
    for name in ("eta", "lr"):
        groups: dict[str, list[tuple[float, ContestantRuns]]] = defaultdict(list)
        for entry in each.contestants:
            kwargs = entry.optimizer.options
            value = kwargs.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                others = {key: kwargs[key] for key in kwargs if key != name}
                alike = [_class(entry), entry.optimizer.schedule, others]
                groups[json.dumps(alike, sort_keys=True, default=str)].append((float(value), entry))
        for entries in groups.values():
            if len({value for value, _ in entries}) >= 3:
                found.append((name, sorted(entries, key=lambda pair: pair[0])))
    return found


def _grid(settings: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The numeric options that tuning varied, with the values tried, in order."""
    tried: dict[str, set[float]] = defaultdict(set)
    for kwargs in settings:
        for name, value in kwargs.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                tried[name].add(float(value))
    return {name: sorted(values) for name, values in tried.items() if len(values) > 1}


def _values_by_entry(each: TaskGroup, read: Callable[[Run], Any]) -> dict[str, set[Any]]:
    return {entry.label: {read(run) for run in entry.runs} - {None} for entry in each.contestants}


def _differ(values: dict[str, set[Any]]) -> bool:
    return len(set().union(*values.values())) > 1


def _list(values: dict[str, set[Any]], what: str) -> str:
    return f"{what}: " + _some([f"{label} {'/'.join(map(str, sorted(seen)))}" for label, seen in values.items()])


def _some(words: Sequence[str], most: int = 6) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _seeds(seeds: Sequence[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + _some([str(seed) for seed in sorted(seeds)], 12)


def _class(entry: ContestantRuns) -> str:
    return entry.optimizer.class_path or entry.label


def _short(entry: ContestantRuns) -> str:
    return _class(entry).rpartition(".")[2].rpartition(":")[2]


def _mean(entry: ContestantRuns, metric: str) -> float | None:
    values = [value for run in entry.runs if (value := value_at(run, metric)) is not None]
    return mean_std(values).mean if values else None
