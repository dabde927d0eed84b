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

    What is one field and one entry goes by what decides numbers, as the runs' keys do: not by labels, and not by the
    directions of metrics, which are those of the newest run.

    Args:
        runs: any runs; those whose purpose is not "report" are left out.
        baseline: the label that goes first, where it took part.
    """
    tasks: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        if run.config.get("purpose", "report") == "report":
            tasks.setdefault(_race(run), {}).setdefault(_contestant(run), []).append(run)
    newest = [max((run for one in entries.values() for run in one), key=_computed) for entries in tasks.values()]
    names = _distinct([_name(_task(run)) for run in newest], [_variant(run) for run in newest])
    fields = [
        Field(name, _task(run), tuple(_entries(list(entries.values()))))
        for name, run, entries in zip(names, newest, tasks.values())
    ]
    return [_lead(each, baseline) for each in _with_baseline(fields, baseline)]


def _task(run: Run) -> Mapping[str, Any]:
    return run.config.get("task") or {"name": run.task}


def _race(run: Run) -> str:
    """What runs must share to be compared: the task, and for forks the training that they go on from."""
    task = {key: value for key, value in _task(run).items() if key not in ("spec", "higher_is_better")}
    fork = run.config.get("fork") or {}
    return _canonical([task, fork.get("family") or fork.get("label")])


def _contestant(run: Run) -> str:
    """What runs of several seeds must share to be one contestant's."""
    optimizer = run.config.get("optimizer") or {}
    parts = {name: optimizer.get(name) for name in ("class", "schedule", "code")}
    parts["kwargs"] = as_floats(optimizer.get("kwargs") or {})
    # A schedule depends on the length that it was made for.
    parts["epochs"] = run.config.get("epochs") if optimizer.get("schedule") else None
    parts["label"] = None if optimizer.get("class") else optimizer.get("label")
    parts["state"] = (run.config.get("fork") or {}).get("state")
    return _canonical(parts)


def as_floats(value: Any) -> Any:
    """Whole numbers as floats, so that lr=1 and lr=1.0 are the same.

    >>> as_floats({"lr": 1, "betas": [0, 0.9], "fused": True})
    {'lr': 1.0, 'betas': [0.0, 0.9], 'fused': True}
    """
    if isinstance(value, Mapping):
        return {name: as_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _computed(run: Run) -> str:
    """When a run was begun; an order of the same format sorts as text."""
    return str((run.config.get("provenance") or {}).get("time") or "")


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
    newest = [max(runs, key=_computed) for runs in groups]
    labels = _distinct([run.label for run in newest], [_options(run) for run in newest])
    entries = []
    for label, last, runs in zip(labels, newest, groups):
        by_seed: dict[int, Run] = {}
        for run in runs:
            if run.seed not in by_seed or standing(run) > standing(by_seed[run.seed]):
                by_seed[run.seed] = run
        chosen = tuple(by_seed[seed] for seed in sorted(by_seed))
        entries.append(Entry(label, last.config.get("optimizer") or {}, chosen))
    return entries


def _options(run: Run) -> dict[str, str]:
    optimizer = run.config.get("optimizer") or {}
    parts = {**(optimizer.get("kwargs") or {}), "code": str(optimizer.get("code") or "")[:8]}
    parts |= {"epochs": run.config.get("epochs") if optimizer.get("schedule") else None}
    parts |= {"state": (run.config.get("fork") or {}).get("state")}
    return {key: f"{key}={value}" for key, value in parts.items()}


def standing(run: Run) -> tuple[int, bool, int, str]:
    """Which of two runs of one seed is shown: newer numerics, then one that ended, then the longer, then the later."""
    return run.config.get("numerics", 0), run.finished or run.diverged, len(run.epochs), _computed(run)


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
    if told != names:  # what one was given may be another's own name
        return _distinct(told, details)
    return [name if told.count(name) == 1 else f"{name} #{1 + told[:k].count(name)}" for k, name in enumerate(told)]


def _name(task: Mapping[str, Any]) -> str:
    return str(task.get("name", "task"))


def _variant(run: Run) -> dict[str, str]:
    task, fork = _task(run), run.config.get("fork") or {}
    parts = {"batch": task.get("batch_size"), **(task.get("settings") or {})}
    parts |= {name: str(task.get(name) or "")[:8] for name in ("data", "code")}
    parts |= {"after": fork.get("label"), "family": str(fork.get("family") or "")[:8]}
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
