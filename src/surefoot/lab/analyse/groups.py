"""Groups runs by task, and within a task by optimizer; each optimizer has one run per seed."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from surefoot._extras import require
from surefoot.lab.spec.config import OptimizerConfig, Purpose, TaskConfig, as_floats
from surefoot.lab.spec.schedules import depends_on_length

if TYPE_CHECKING:
    from pandas import DataFrame

    from surefoot.lab.store import Run

#: What an optimizer reports about itself per epoch, and bookkeeping: not results.
NOT_METRICS = {"epoch", "step", "seconds", "jobs", "mean", "std", "tilt", "weight", "strength", "suspected",
               "skipped", "diverged", "gradients_per_step", "peak_memory"}  # fmt: skip
#: A value this close to an end of what was tried, as a share of the way from end to end, is on the edge.
EDGE = 0.05
_LEADING_METRICS = ["valid_loss", "valid_accuracy", "train_loss"]


@dataclass(frozen=True)
class ContestantRuns:
    """The runs of one contestant on one task, one per seed."""

    label: str
    optimizer: OptimizerConfig
    runs: tuple[Run, ...]

    @property
    def class_path(self) -> str:
        """Where the optimizer's class is found, or the label if that is not recorded."""
        return self.optimizer.class_path or self.label

    @property
    def class_name(self) -> str:
        """The name of the optimizer's class, or the label if that is not recorded."""
        if not self.optimizer.class_path:
            return self.label
        return self.class_path.rpartition(".")[2].rpartition(":")[2]

    @property
    def diverged(self) -> list[Run]:
        return [run for run in self.runs if run.diverged]

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.state == "failed"]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if run.state == "unfinished"]

    def final_values(self, metric: str) -> list[float]:
        """The metric at the end of the runs that ended without diverging."""
        return [value for run in self.runs if (value := value_at(run, metric)) is not None]


@dataclass(frozen=True)
class TaskGroup:
    """All contestants of one task with the same settings; the first one is the baseline."""

    name: str
    task: TaskConfig
    contestants: tuple[ContestantRuns, ...]

    @property
    def baseline(self) -> ContestantRuns:
        return self.contestants[0]

    @property
    def runs(self) -> list[Run]:
        return [run for contestant in self.contestants for run in contestant.runs]


class Sweep(NamedTuple):
    """Contestants that differ in one option alone: its name, and the contestants in the order of its values."""

    option: str
    points: list[tuple[float, ContestantRuns]]


def group_runs(runs: Iterable[Run], baseline: str | None = None) -> list[TaskGroup]:
    """Group the reported runs by task and contestant, in the order of their first appearance.

    Runs belong together if the settings that decide numbers agree, as in a run's key. Labels do not count, nor do
    the directions of metrics; both are taken from the newest run.

    Args:
        runs: any runs; those whose purpose is not "report" are left out.
        baseline: the label that goes first in every task where it took part.
    """
    tasks: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        if run.config.purpose == Purpose.RESULT:
            tasks.setdefault(task_identity(run), {}).setdefault(contestant_identity(run), []).append(run)
    newest = [_newest(run for runs in contestants.values() for run in runs) for contestants in tasks.values()]
    names = _distinct_names([run.task for run in newest], [_task_details(run) for run in newest])
    groups = [
        TaskGroup(name, run.config.task, tuple(_contestants(list(contestants.values()))))
        for name, run, contestants in zip(names, newest, tasks.values())
    ]
    return groups if baseline is None else _with_baseline(groups, baseline)


def preferred(runs: Iterable[Run]) -> dict[int, Run]:
    """Which run of each seed is shown: newer numerics, then one that ended, then the longer, then the later."""

    def preference(run: Run) -> tuple[int, bool, int, str]:
        return run.config.numerics, run.finished, len(run.epochs), _start_time(run)

    by_seed: dict[int, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run)
    return {seed: max(by_seed[seed], key=preference) for seed in sorted(by_seed)}


def _with_baseline(groups: list[TaskGroup], baseline: str) -> list[TaskGroup]:
    """The groups with the baseline as their first contestant."""
    labels = dict.fromkeys(contestant.label for group in groups for contestant in group.contestants)
    if groups and baseline.casefold() not in [label.casefold() for label in labels]:
        raise ValueError(f"no contestant is called {baseline!r}; choose among: {', '.join(labels)}")

    def is_other(contestant: ContestantRuns) -> bool:
        return contestant.label.casefold() != baseline.casefold()

    return [replace(group, contestants=tuple(sorted(group.contestants, key=is_other))) for group in groups]


def _contestants(runs_of_each: list[list[Run]]) -> list[ContestantRuns]:
    newest = [_newest(runs) for runs in runs_of_each]
    labels = _distinct_names([run.label for run in newest], [_optimizer_details(run) for run in newest])
    return [
        ContestantRuns(label, last.config.optimizer, tuple(preferred(runs).values()))
        for label, last, runs in zip(labels, newest, runs_of_each)
    ]


def task_identity(run: Run) -> str:
    """What runs must share to be compared: the task, and for forks the training that they continue."""
    task, fork = run.config.task, run.config.fork
    parts = [task.name, task.batch_size, task.data, task.settings, task.code]
    return _canonical([parts, (fork.family or fork.label) if fork else None])


def contestant_identity(run: Run) -> str:
    """What runs of several seeds must share to belong to one contestant."""
    optimizer, fork = run.config.optimizer, run.config.fork
    parts = [
        optimizer.class_path or optimizer.label,
        as_floats(optimizer.options),
        optimizer.lab_options,
        run.config.epochs if depends_on_length(optimizer.schedule) else None,
        optimizer.code,
        fork.state if fork else None,
    ]
    return _canonical(parts)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _start_time(run: Run) -> str:
    """When a run was begun, in a format that sorts as text."""
    return run.config.provenance.time


def _newest(runs: Iterable[Run]) -> Run:
    return max(runs, key=_start_time)


def _task_details(run: Run) -> dict[str, str]:
    """What may distinguish two tasks of one name."""
    task, fork = run.config.task, run.config.fork
    parts = {"batch": task.batch_size or None, **task.settings, "data": task.data[:8], "code": task.code[:8]}
    if fork:
        parts |= {"after": fork.label, "family": fork.family[:8]}
    return {key: f"{key}={value}" for key, value in parts.items() if value not in (None, "")}


def _optimizer_details(run: Run) -> dict[str, str]:
    """What may distinguish two contestants of one label."""
    optimizer, fork = run.config.optimizer, run.config.fork
    parts = {**optimizer.options, "code": optimizer.code[:8]}
    parts |= {"epochs": run.config.epochs if depends_on_length(optimizer.schedule) else None}
    parts |= {"state": fork.state if fork else None}
    return {key: f"{key}={value}" for key, value in parts.items()}


def _distinct_names(names: list[str], details: list[dict[str, str]]) -> list[str]:
    """The names, where a name occurs twice followed by the details in which its owners differ.

    >>> _distinct_names(["a", "a", "b"], [{"x": "x=1", "y": "y=2"}, {"x": "x=1", "y": "y=3"}, {}])
    ['a y=2', 'a y=3', 'b']
    """
    longer = []
    for name, parts in zip(names, details):
        namesakes = [other for other_name, other in zip(names, details) if other_name == name]
        differing = [text for key, text in parts.items() if any(other.get(key) != text for other in namesakes)]
        longer.append(" ".join([name, *differing]))
    if longer != names:  # a longer name may be the plain name of another
        return _distinct_names(longer, details)
    return [name if names.count(name) == 1 else f"{name} #{1 + names[:k].count(name)}" for k, name in enumerate(names)]


def sweeps(group: TaskGroup) -> list[Sweep]:
    """The contestants that differ in eta alone, or in lr alone, where there are at least three values."""
    swept = []
    for option in ("eta", "lr"):
        alike: dict[str, list[tuple[float, ContestantRuns]]] = {}
        for contestant in group.contestants:
            options = dict(contestant.optimizer.options)
            value = options.pop(option, None)
            if is_number(value):
                identity = _canonical([contestant.class_path, contestant.optimizer.lab_options, options])
                alike.setdefault(identity, []).append((float(value), contestant))
        for points in alike.values():
            if len({value for value, _ in points}) >= 3:
                swept.append(Sweep(option, sorted(points, key=lambda point: point[0])))
    return swept


def on_edge(value: float, tried: Collection[float]) -> bool:
    """Whether a value is an end of those that were tried or next to it, so that a better one may lie beyond.

    Next to it is within 5% of the way from end to end, on a logarithmic scale where all values are above zero.

    >>> on_edge(1e-4, [1e-4, 1e-3, 1e-2]), on_edge(1e-3, [1e-4, 1e-3, 1e-2]), on_edge(0.1, [0.1])
    (True, False, False)
    """
    low, high = min(tried), max(tried)
    if low == high:
        return False
    if low > 0 < value:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return not EDGE < (value - low) / (high - low) < 1 - EDGE


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether an option is a number; True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def recorded_metrics(groups: Iterable[TaskGroup]) -> list[str]:
    """The metrics that the runs recorded: validation loss and accuracy first, then the rest by name."""
    names = {
        name
        for group in groups
        for run in group.runs
        for record in run.epochs[-1:]
        for name, value in record.items()
        if name not in NOT_METRICS and (value is None or isinstance(value, (int, float)))
    }
    rank = {name: place for place, name in enumerate(_LEADING_METRICS)}
    return sorted(names, key=lambda name: (rank.get(name, len(rank)), name))


def higher_is_better(metric: str, task: TaskConfig | None = None) -> bool:
    """Whether a higher value of this metric is better, as the task records it; without a task for accuracy alone.

    >>> higher_is_better("valid_accuracy"), higher_is_better("valid_loss")
    (True, False)
    >>> higher_is_better("valid_f1", TaskConfig("toy", higher_is_better={"f1": True}))
    True
    """
    return (task or TaskConfig("")).is_higher_better(metric)


def metric_name(metric: str) -> str:
    """A metric's name in words.

    >>> metric_name("valid_loss"), metric_name("train_loss"), metric_name("valid_top5")
    ('validation loss', 'training loss', 'validation top5')
    """
    for short, word in (("valid_", "validation "), ("train_", "training ")):
        if metric.startswith(short):
            metric = word + metric.removeprefix(short)
    return metric.replace("_", " ")


def value_at(run: Run, metric: str, epoch: int | None = None) -> float | None:
    """The metric at the end of a run that ended without diverging, or after a given epoch; else ``None``."""
    if epoch is None:
        records: Sequence[Mapping[str, Any]] = run.epochs[-1:] if run.finished and not run.diverged else []
    else:
        records = [record for record in run.epochs if record["epoch"] == epoch and not record.get("diverged")]
    value = records[0].get(metric) if records else None
    return float(value) if value is not None and math.isfinite(value) else None


def to_frame(groups: Iterable[TaskGroup]) -> DataFrame:
    """The recorded epochs as a pandas DataFrame: one row per run and epoch, one column per recorded value.

    Texts: task, optimizer. Whole numbers: seed, epoch, and (with gaps) step, jobs, skipped. `diverged` is a bool.
    Everything else is a float, NaN where nothing was recorded.
    """
    pandas = require("pandas", extra="lab")
    rows = [
        {"task": group.name, "optimizer": contestant.label, "seed": run.seed, **record}
        for group in groups
        for contestant in group.contestants
        for run in contestant.runs
        for record in run.epochs
    ]
    types = {"task": "str", "optimizer": "str", "seed": "int64", "epoch": "int64"}
    types |= dict.fromkeys((name for row in rows for name in row if name not in types), "float64")
    types |= dict.fromkeys(("step", "jobs", "skipped"), "Int64") | {"diverged": "boolean"}
    types |= {"peak_memory": "Int64"} if "peak_memory" in types else {}
    table = pandas.DataFrame(rows, columns=list(types)).astype(types)
    return table.fillna({"diverged": False}).astype({"diverged": "bool"})
