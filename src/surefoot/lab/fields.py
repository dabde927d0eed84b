"""Who ran on what: runs grouped into fields (one task) of entries (one contestant, all its seeds)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.lab.store import Run

#: What the optimizer itself reports per epoch, and bookkeeping: not results.
NOT_METRICS = {"epoch", "step", "seconds", "jobs", "mean", "std", "tilt", "weight", "skipped", "diverged"}
_FIRST = ["valid_loss", "valid_accuracy", "train_loss"]


@dataclass(frozen=True)
class Entry:
    """One contestant on one task: its runs, one per seed."""

    label: str
    optimizer: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def diverged(self) -> list[Run]:
        return [run for run in self.runs if run.diverged]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if _error(run) and not run.finished and not run.diverged]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if not run.finished and not run.diverged and not _error(run)]


@dataclass(frozen=True)
class Field:
    """Everybody who ran on one task with the same settings; the first entry is the baseline."""

    name: str
    task: Mapping[str, Any]
    entries: tuple[Entry, ...]

    @property
    def baseline(self) -> Entry:
        return self.entries[0]

    @property
    def runs(self) -> list[Run]:
        return [run for entry in self.entries for run in entry.runs]


def fields_of(runs: Sequence[Run], baseline: str | None = None) -> list[Field]:
    """Group the reported runs by task and contestant, in the order of their first appearance.

    Args:
        runs: any runs; those whose purpose is not "report" are left out.
        baseline: the label that goes first, where it took part.
    """
    tasks: dict[str, tuple[Mapping[str, Any], dict[str, list[Run]]]] = {}
    for run in runs:
        if run.config.get("purpose", "report") != "report":
            continue
        task = run.config.get("task") or {"name": run.task}
        optimizer = run.config.get("optimizer") or {}
        # position and spec are how it was asked for, not what it is
        entries = tasks.setdefault(_canonical({key: task[key] for key in task if key != "spec"}), (task, {}))[1]
        identity = _canonical({key: optimizer[key] for key in optimizer if key not in ("position", "spec")})
        entries.setdefault(identity, []).append(run)
    settings = [task for task, _ in tasks.values()]
    names = _distinct([_name(task) for task in settings], [_variant(task) for task in settings])
    fields = [
        Field(name, task, tuple(_entries(list(entries.values()))))
        for name, (task, entries) in zip(names, tasks.values())
    ]
    return [_lead(each, baseline) for each in _with_baseline(fields, baseline)]


def _with_baseline(fields: list[Field], baseline: str | None) -> list[Field]:
    labels = list(dict.fromkeys(entry.label for each in fields for entry in each.entries))
    if baseline is not None and fields and baseline.casefold() not in [label.casefold() for label in labels]:
        raise ValueError(f"no contestant is called {baseline!r}; choose among: {', '.join(labels)}")
    return fields


def _lead(each: Field, baseline: str | None) -> Field:
    if baseline is None:
        return each
    entries = sorted(each.entries, key=lambda entry: entry.label.casefold() != baseline.casefold())
    return replace(each, entries=tuple(entries))


def _entries(groups: list[list[Run]]) -> list[Entry]:
    labels = _distinct(
        [runs[0].label for runs in groups],
        [_options(runs[0].config.get("optimizer") or {}) for runs in groups],
    )
    entries = []
    for label, runs in zip(labels, groups):
        by_seed: dict[int, Run] = {}
        for run in runs:
            if run.seed not in by_seed or standing(run) > standing(by_seed[run.seed]):
                by_seed[run.seed] = run
        chosen = tuple(by_seed[seed] for seed in sorted(by_seed))
        entries.append(Entry(label, runs[0].config.get("optimizer") or {}, chosen))
    return entries


def _options(optimizer: Mapping[str, Any]) -> dict[str, str]:
    parts = {**(optimizer.get("kwargs") or {}), "code": str(optimizer.get("code") or "")[:8]}
    return {key: f"{key}={value}" for key, value in parts.items()}


def standing(run: Run) -> tuple[int, bool, int]:
    """Which of two runs of one seed is shown: newer numerics first, then one that ended, then the longer."""
    return run.config.get("numerics", 0), run.finished or run.diverged, len(run.epochs)


def _distinct(names: list[str], details: list[dict[str, str]]) -> list[str]:
    """Names, and behind those that occur twice what tells them apart.

    >>> _distinct(["a", "a", "b"], [{"x": "x=1", "y": "y=2"}, {"x": "x=1", "y": "y=3"}, {}])
    ['a y=2', 'a y=3', 'b']
    """
    told = []
    for name, own in zip(names, details):
        same = [each for other, each in zip(names, details) if other == name]
        parts = [text for key, text in own.items() if any(each.get(key) != text for each in same)]
        told.append(" ".join([name, *parts]) if len(same) > 1 else name)
    return told


def _name(task: Mapping[str, Any]) -> str:
    return str(task.get("name", "task"))


def _variant(task: Mapping[str, Any]) -> dict[str, str]:
    parts = {"batch": task.get("batch_size"), **(task.get("settings") or {})}
    parts |= {name: str(task.get(name) or "")[:8] for name in ("data", "code")}
    return {key: f"{key}={value}" for key, value in parts.items() if value not in (None, "")}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _error(run: Run) -> bool:
    return bool(getattr(run, "error", None))


def recorded_metrics(fields: Sequence[Field]) -> list[str]:
    """The metrics that the runs recorded: validation loss and accuracy first, then the rest by name."""
    names = {
        name
        for each in fields
        for run in each.runs
        for record in run.epochs[-1:]
        for name, value in record.items()
        if name not in NOT_METRICS and (value is None or isinstance(value, (int, float)))
    }
    return sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))


def grows(metric: str, task: Mapping[str, Any] | None = None) -> bool:
    """Whether a larger value of this metric is the better one: as the task says, which records it for every metric.

    Where it does not (losses, and runs of the first versions), only accuracy grows.

    >>> grows("valid_accuracy"), grows("valid_loss"), grows("valid_f1", {"higher_is_better": {"f1": True}})
    (True, False, True)
    """
    plain = metric.removeprefix("valid_").removeprefix("train_")
    told = (task or {}).get("higher_is_better") or {}
    for name in (metric, plain):
        if name in told:
            return bool(told[name])
    return plain == "accuracy"


def value_at(run: Run, metric: str, epoch: int | None = None) -> float | None:
    """The metric at the end of a run that ended without diverging, or after a given epoch; else ``None``."""
    if epoch is None:
        records = run.epochs[-1:] if run.finished and not run.diverged else []
    else:
        records = [record for record in run.epochs if record["epoch"] == epoch and not record.get("diverged")]
    value = records[0].get(metric) if records else None
    return float(value) if value is not None and math.isfinite(value) else None
