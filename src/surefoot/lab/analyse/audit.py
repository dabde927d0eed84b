"""Honesty checks: what makes a comparison unfair, incomplete or weaker than it looks."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from surefoot.lab.analyse.groups import (
    TaskGroup,
    group_runs,
    higher_is_better,
    is_number,
    recorded_metrics,
    sweeps,
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
#: The codes of all findings that there are.
CODES: tuple[Code, ...] = get_args(Code)
#: The severities, the worst first.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """Something that a reader should know: a code, its severity, and a sentence.

    An error makes the comparison unfair or incomplete, a warning weakens what may be said, a note informs.
    """

    code: Code
    severity: Severity
    sentence: str


def audit(runs: Sequence[Run], baseline: str | None = None) -> list[Finding]:
    """All findings on these runs, errors first.

    >>> audit([])
    [Finding(code='no-runs', severity='error', sentence='There is no run to report.')]
    """
    groups = group_runs(runs, baseline)
    if not groups:
        return [Finding("no-runs", "error", "There is no run to report.")]
    findings = []
    for group in groups:
        tuning = [run for run in runs if run.config.purpose == Purpose.TUNING and run.task == group.task.name]
        for check in _CHECKS:
            for finding in check(group, tuning):
                findings.append(replace(finding, sentence=f"{group.name}: {finding.sentence}"))
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


# Each check takes a group and the tuning runs of its task. Its sentences go behind the name of the group.


def _budgets(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    def first_steps(run: Run) -> int | None:
        """The steps of the first epoch; a run that diverged in it stopped early, which is no smaller budget."""
        return run.epochs[0].get("step") if run.epochs and not run.epochs[0].get("diverged") else None

    def values(read: Callable[[Run], int | None]) -> dict[str, list[int]]:
        return {
            contestant.label: sorted({value for run in contestant.runs if (value := read(run)) is not None})
            for contestant in group.contestants
        }

    def listed(budgets: Mapping[str, list[int]]) -> str:
        return _first_of([f"{label} {'/'.join(map(str, numbers))}" for label, numbers in budgets.items()])

    epochs, steps = values(lambda run: run.config.epochs), values(first_steps)
    if len(set().union(*epochs.values())) > 1:
        yield Finding("unequal-epochs", "error", f"unequal budgets, epochs: {listed(epochs)}.")
    if len(set().union(*steps.values())) > 1:
        yield Finding("unequal-steps", "error", f"unequal budgets, steps per epoch: {listed(steps)}.")


def _tuning_budgets(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    if not tuning:
        return
    settings: dict[str, set[str]] = {contestant.class_path: set() for contestant in group.contestants}
    for run in tuning:
        optimizer = run.config.optimizer
        if optimizer.class_path in settings:
            settings[optimizer.class_path].add(json.dumps(optimizer.options, sort_keys=True, default=str))
    numbers = {path.rpartition(".")[2]: len(tried) for path, tried in settings.items()}
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in numbers.items())
        yield Finding("unequal-tuning", "error", f"unequal tuning, the number of settings tried was: {listed}.")


def _tuned_on_reported_seeds(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    overlap = {run.seed for run in tuning} & {run.seed for run in group.runs}
    if overlap:
        yield Finding(
            "tuned-on-reported-seeds",
            "error",
            f"settings were tuned on {_seeds(overlap)}, which the results also use; "
            "report on seeds that tuning has not seen.",
        )


def _edges_of_grids(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    """A setting on the edge of the values that tuning tried: the optimum may be beyond it."""
    for contestant in group.contestants:
        chosen = contestant.optimizer.options
        tuned = [run.config.optimizer for run in tuning]
        options = [optimizer.options for optimizer in tuned if optimizer.class_path == contestant.class_path]
        for name in dict.fromkeys(name for option in options for name in option):
            values = sorted({float(option[name]) for option in options if is_number(option.get(name))})
            if len(values) > 1 and chosen.get(name) in (values[0], values[-1]):
                yield Finding(
                    "edge-of-grid",
                    "warning",
                    f"{contestant.label} uses {name}={chosen[name]:g}, the edge of the tuned grid "
                    f"({values[0]:g} to {values[-1]:g}); a better value may lie beyond it.",
                )


def _edges_of_sweeps(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    """The best of the values shown is on their edge."""
    metric = (recorded_metrics([group]) or ["valid_loss"])[0]
    for option, points in sweeps(group):
        means = [mean_std(contestant.final_values(metric)).mean for _, contestant in points]
        known = [mean for mean in means if math.isfinite(mean)]
        if len(known) < 3:
            continue
        best = means.index(max(known) if higher_is_better(metric, group.task) else min(known))
        if best in (0, len(means) - 1):
            value, contestant = points[best]
            yield Finding(
                "edge-of-sweep",
                "note",
                f"the best {option} shown for {contestant.class_name}, {value:g}, is the edge of what was "
                f"tried ({points[0][0]:g} to {points[-1][0]:g}).",
            )


def _unequal_chances(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    settings = Counter(contestant.class_name for contestant in group.contestants)
    if len(group.contestants) > 2 and len(set(settings.values())) > 1:
        most, least = max(settings, key=settings.__getitem__), min(settings, key=settings.__getitem__)
        yield Finding(
            "unequal-chances",
            "note",
            f"{most} is shown with {count(settings[most], 'setting')} and {least} with "
            f"{settings[least]}; picking the best one afterwards favours {most}.",
        )


def _few_seeds(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    if len(group.contestants) < 2:
        return
    baseline, *others = ({run.seed for run in runs.runs if not run.diverged} for runs in group.contestants)
    pairs = min(len(baseline & seeds) for seeds in others)
    if pairs < fewest_seeds():
        yield Finding(
            "few-seeds",
            "warning",
            f"{count(pairs, 'paired seed')} cannot support a claim, the smallest exact paired "
            f"p is {smallest_exact_p(pairs):.2g}; use at least {fewest_seeds()}.",
        )


def _timings(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    jobs = max((record.get("jobs") or 1 for run in group.runs for record in run.epochs), default=1)
    if jobs > 1:
        yield Finding(
            "parallel-timings",
            "warning",
            f"seconds were taken with up to {jobs} runs at once and are not comparable; "
            "steps and epochs are. Use --jobs 1 to compare seconds.",
        )


def _incomplete(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    """Runs that failed, are not finished, are missing, or diverged."""
    seeds = {run.seed for run in group.runs}
    for contestant in group.contestants:
        label = contestant.label
        if failed := contestant.failed:
            yield Finding("failed-runs", "error", f"{label} failed with an error on {_seeds_of(failed)}.")
        if unfinished := contestant.unfinished:
            sentence = f"{label} is not finished on {_seeds_of(unfinished)}; run the same command again."
            yield Finding("unfinished-runs", "error", sentence)
        if missing := seeds - {run.seed for run in contestant.runs}:
            yield Finding("dropped-runs", "error", f"{label} has no run for {_seeds(missing)}, which others have.")
        if diverged := contestant.diverged:
            yield Finding("diverged-runs", "note", f"{label} diverged on {_seeds_of(diverged)}.")


def _missing_values(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    """A metric that is not a number: its seed is left out of the pairs, as after a divergence."""
    for metric in recorded_metrics([group]):
        ended = [run for run in group.runs if run.state == "done"]
        if all(value_at(run, metric) is None for run in ended):
            continue  # no contestant has this metric
        for contestant in group.contestants:
            missing = [run for run in contestant.runs if run.state == "done" and value_at(run, metric) is None]
            if missing:
                yield Finding(
                    "missing-values",
                    "error",
                    f"{contestant.label} ended without a number for {metric} on {_seeds_of(missing)}; "
                    "what is said of that metric leaves them out.",
                )


def _mixtures(group: TaskGroup, tuning: Sequence[Run]) -> Iterable[Finding]:
    """Runs of one comparison should differ in the optimizer and the seed alone."""
    facts: list[tuple[Code, Severity, str, Callable[[Run], Any]]] = [
        ("mixed-numerics", "error", "numerics versions", lambda run: run.config.numerics),
        ("mixed-torch", "warning", "torch versions", lambda run: run.config.provenance.torch),
        ("mixed-threads", "warning", "thread counts", lambda run: run.config.threads),
        ("mixed-device", "warning", "devices", lambda run: run.config.device),
        ("mixed-cpu", "note", "processors", lambda run: run.config.provenance.cpu),
        ("mixed-commit", "note", "commits", lambda run: run.config.provenance.commit),
    ]
    for code, severity, name, read in facts:
        values = sorted({str(read(run)) for run in group.runs if read(run)})
        if len(values) > 1:
            yield Finding(code, severity, f"runs of different {name} are mixed: {_first_of(values)}.")


_CHECKS: list[Callable[[TaskGroup, Sequence[Run]], Iterable[Finding]]] = [
    _budgets, _tuning_budgets, _tuned_on_reported_seeds, _edges_of_grids, _edges_of_sweeps, _unequal_chances,
    _few_seeds, _timings, _incomplete, _missing_values, _mixtures,
]  # fmt: skip


def _seeds_of(runs: Sequence[Run]) -> str:
    return _seeds({run.seed for run in runs})


def _seeds(seeds: set[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + _first_of([str(seed) for seed in sorted(seeds)], 12)


def _first_of(words: Sequence[str], limit: int = 6) -> str:
    """The first few words, and how many more there are."""
    return ", ".join(words[:limit]) + (f" and {len(words) - limit} more" if len(words) > limit else "")
