"""Which runs the paper needs, which of them are done, and how long the rest will take.

A plan is a list of comparisons for `surefoot.lab.compare`: the same runs, by the same keys, that `surefoot compare`
would make.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.lab.analyse.verdicts import count
from surefoot.lab.experiments import compare, prepare
from surefoot.lab.results import Results
from surefoot.lab.run.progress import duration
from surefoot.lab.spec.config import RunConfig, TaskConfig, folder_of
from surefoot.lab.spec.contestant import write_spec
from surefoot.lab.spec.options import RunOptions
from surefoot.lab.store import Run, last_epoch, read_run, read_runs
from surefoot.paper import ablation, why
from surefoot.paper.published import OPTIMIZERS, Configuration, configurations, eta_of, etas, plain_configurations

PARTS = ("lr", "mlp", "cnn", "eta", "dropout", "ablation", "why", "all")
SEEDS, EPOCHS = 3, 45
#: Beyond the etas that the paper names, one that is far too strong: where does each optimizer break?
STRONG = {"AdamUCB": 1, "AdamCB": 0.1, "AdamS": 0.5}


@dataclass(frozen=True)
class PlannedComparison:
    """One comparison of a plan: contestants, seeds and epochs on one task."""

    title: str
    task: str
    optimizers: tuple[str, ...]
    seeds: int
    epochs: int
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The same on the command line.

        >>> PlannedComparison("", "mnist-lr", ("adam", "adams:eta=0.1"), 3, 45, {"dropout": True}).command
        'surefoot compare mnist-lr -o adam -o adams:eta=0.1 --seeds 3 --epochs 45 --dropout'
        """
        options = RunOptions.read({name: value for name, value in self.overrides.items() if value})
        return shlex.join(options.command("compare", self.task, self.optimizers, range(self.seeds), self.epochs))

    @property
    def arguments(self) -> dict[str, Any]:
        """Seeds, epochs and options of the task, for `compare`."""
        return {"seeds": self.seeds, "epochs": self.epochs, **self.overrides}


def spec_of(optimizer: str, eta: float | None, *, reference: bool = False) -> str:
    """How the lab writes one of the paper's optimizers.

    The published method bounds no weight; its code, ``reference=True``, does not know of bounds.

    >>> spec_of("Adam", None), spec_of("AdamCB", 5e-5), spec_of("AdamCB", 5e-5, reference=True)
    ('adam', 'adamcb:eta=5e-05,gain=None', 'adamcb:eta=5e-05,reference=True')
    """
    options = {} if eta is None else {"eta": eta, **({"reference": True} if reference else {"gain": None})}
    return write_spec(optimizer.lower(), options)


def planned(
    part: str, *, seeds: int | None = None, epochs: int | None = None, model: str | None = None, reference: bool = False
) -> list[PlannedComparison]:
    """The comparisons of one part of the paper.

    Args:
        part: one of `PARTS`.
        seeds: how many; by default 3 as in the paper, 5 in the ablation, 10 in `why`.
        epochs: by default 45 as in the paper; 12 and 45 in the ablation (20 on its CNN); 3, 7 and 20 in `why`.
        model: lr, mlp or cnn, to run only that model's share; `eta` is the CNN's otherwise, as in the paper.
        reference: also run the published recipe (reference=True) of each optimizer.

    >>> [(comparison.title, len(comparison.optimizers), comparison.epochs) for comparison in planned("lr")]
    [('LR 128', 4, 45)]
    """
    if part not in PARTS:
        raise ValueError(f"the paper has no part {part!r}; choose {', '.join(PARTS)}")
    if model not in (None, "lr", "mlp", "cnn"):
        raise ValueError(f"the paper has no model {model!r}; choose lr, mlp or cnn")
    size = seeds or SEEDS, epochs or EPOCHS
    comparisons: list[PlannedComparison] = []
    if part in ("lr", "mlp", "cnn", "all"):
        chosen = [configuration for configuration in _by_urgency() if part in ("all", configuration.model)]
        comparisons += [_of_tables(configuration, OPTIMIZERS, *size, reference) for configuration in chosen]
    if part == "dropout":
        cnn = [configuration for configuration in configurations() if configuration.name.startswith("CNN 128")]
        comparisons += [_of_tables(configuration, ("Adam", "AdamS"), *size, reference) for configuration in cnn]
    if part in ("eta", "all"):
        comparisons += [_sweep(model or "cnn", *size)]
    if part in ("ablation", "all"):
        comparisons += _ablation(seeds, epochs)
    if part in ("why", "all"):
        comparisons += _why(seeds, epochs)
    return [comparison for comparison in comparisons if model in (None, comparison.task.split("-")[-1])]


def _by_urgency() -> list[Configuration]:
    """What is worth most per hour first: batches of 128 before those of 16, no dropout before dropout."""
    return sorted(configurations(), key=lambda configuration: (configuration.batch_size != 128, configuration.dropout))


def _of_tables(
    configuration: Configuration, optimizers: Iterable[str], seeds: int, epochs: int, reference: bool
) -> PlannedComparison:
    specs = []
    for optimizer in optimizers:
        eta = eta_of(configuration, optimizer)
        specs.append(spec_of(optimizer, eta))
        if reference and eta is not None:
            specs.append(spec_of(optimizer, eta, reference=True))
    return planned_comparison(configuration.name, configuration, specs, seeds, epochs)


def _sweep(model: str, seeds: int, epochs: int) -> PlannedComparison:
    plain = plain_configurations()[model]
    specs = ["adam"]
    for optimizer in OPTIMIZERS[1:]:
        specs += [spec_of(optimizer, eta) for eta in (*etas(optimizer), STRONG[optimizer])]
    return planned_comparison(f"{plain.name} across eta", plain, specs, seeds, epochs)


def _ablation(seeds: int | None, epochs: int | None) -> list[PlannedComparison]:
    seeds = seeds or ablation.SEEDS
    comparisons = []
    plain = plain_configurations()
    for model in ("lr", "mlp"):
        specs = [variant.spec for variant in ablation.installed(ablation.variants(plain[model]))]
        for horizon in [epochs] if epochs else ablation.HORIZONS:
            title = f"ablation on {model.upper()}, {horizon} epochs"
            comparisons.append(planned_comparison(title, plain[model], specs, seeds, horizon))
    variants = ablation.installed(ablation.cnn_variants(plain["cnn"]))
    specs = [variant.at(lr).spec for lr in ablation.RATES for variant in variants]
    length = epochs or ablation.CNN_EPOCHS
    title = f"ablation on CNN, {ablation.IMAGES} images, {length} epochs"
    return [*comparisons, planned_comparison(title, plain["cnn"], specs, seeds, length, subset=ablation.IMAGES)]


def _why(seeds: int | None, epochs: int | None) -> list[PlannedComparison]:
    """The most telling contestants at the paper's rate first, at every length; then all of them at every rate."""
    cnn, seeds = plain_configurations()["cnn"], seeds or why.SEEDS
    lengths = [epochs] if epochs else list(why.HORIZONS)
    first = [(why.RATES[0], length, why.TELLING) for length in lengths]
    comparisons = []
    for lr, length, most in (*first, *((lr, lengths[-1], None) for lr in why.RATES)):
        specs = [variant.spec for variant in why.contestants(lr).values()][:most]
        title = f"why the scale helps, {len(specs)} contestants at lr {lr:g}, {length} epochs"
        comparisons.append(planned_comparison(title, cnn, specs, seeds, length, subset=ablation.IMAGES))
    return comparisons


def planned_comparison(
    title: str, configuration: Configuration, specs: Iterable[str], seeds: int, epochs: int, **options: Any
) -> PlannedComparison:
    """A comparison in one of the paper's configurations, with more options of the task."""
    return PlannedComparison(
        title, configuration.task, tuple(specs), seeds, epochs, {**configuration.overrides, **options}
    )


def run_plan(plan: Sequence[PlannedComparison], **options: Any) -> list[Results]:
    """Compute what is missing of a plan, one comparison after the other; the options are those of `compare`."""
    return [
        compare(comparison.task, comparison.optimizers, **{**options, **comparison.arguments}) for comparison in plan
    ]


@dataclass(frozen=True)
class PlanStatus:
    """How far a comparison is: runs done by contestant, epochs still to train, and seconds an epoch took so far."""

    comparison: PlannedComparison
    done: Mapping[str, int]
    epochs_left: int
    seconds: float | None

    @property
    def time_left(self) -> float | None:
        """Seconds of one worker; None as long as no run of the task shows the speed."""
        return 0.0 if not self.epochs_left else None if self.seconds is None else self.epochs_left * self.seconds


def plan_status(plan: Sequence[PlannedComparison], *, out: Path, data_dir: Path | None = None) -> list[PlanStatus]:
    """How far each comparison of a plan is; epochs that two of them share are counted as left in the first only."""
    runs = read_runs(out) if out.is_dir() else []
    counted: dict[str, int] = {}
    statuses = []
    for comparison in plan:
        setup = prepare(comparison.task, comparison.optimizers, data_dir=data_dir, **comparison.arguments)
        done = dict.fromkeys(comparison.optimizers, 0)
        left = 0
        task = TaskConfig(comparison.task)
        for spec, contestant in zip(comparison.optimizers, setup.contestants):
            for seed in setup.seeds:
                config = setup.config(contestant, seed, comparison.epochs)
                task = config.task
                missing = _epochs_missing(folder_of(out, config), config)
                done[spec] += not missing
                before = counted.get(config.key, 0)
                left += max(0, missing - before)
                counted[config.key] = max(missing, before)
        statuses.append(PlanStatus(comparison, done, left, seconds_per_epoch(runs, task)))
    return statuses


def _epochs_missing(folder: Path, config: RunConfig) -> int:
    if not (folder / "config.json").exists():
        return config.epochs
    run = read_run(folder)
    return 0 if run.diverged else max(0, config.epochs - last_epoch(run.epochs))


def seconds_per_epoch(runs: Sequence[Run], task: TaskConfig) -> float | None:
    """The median training time of an epoch over the runs of the same task; None if there is no such run."""

    def kind(task: TaskConfig) -> tuple[Any, ...]:
        return task.name, task.batch_size, task.settings

    seconds = [
        row["seconds"]
        for run in runs
        if kind(run.config.task) == kind(task)
        for row in run.epochs
        if row.get("seconds") is not None
    ]
    return statistics.median(seconds) if seconds else None


def describe(plan: Sequence[PlanStatus], jobs: int = 1) -> str:
    """A plan in words: each comparison with its runs, what is done, and the time left."""
    lines = []
    for status in plan:
        comparison = status.comparison
        total = len(comparison.optimizers) * comparison.seeds
        speed = f", {status.seconds:.3g} s per epoch" if status.seconds else ""
        left = _time_left(status.time_left, jobs) if status.epochs_left else "done"
        lines.append(
            f"{comparison.title} ({comparison.task}): {sum(status.done.values())} of {count(total, 'run')} done, "
            f"{comparison.epochs} epochs each{speed}; {left}"
        )
        lines += [f"  {done:>2} of {comparison.seeds}  {spec}" for spec, done in status.done.items()]
    runs = sum(len(status.done) * status.comparison.seeds for status in plan)
    done = sum(sum(status.done.values()) for status in plan)
    times = [status.time_left for status in plan]
    total_left = sum(time for time in times if time is not None)
    words = _time_left(total_left, jobs)
    if None in times:
        unknown = f"{count(times.count(None), 'comparison')} that no run tells the speed of yet"
        words = f"{words}, beside {unknown}" if total_left else f"time left unknown: {unknown}"
    lines.append(f"together: {done} of {count(runs, 'run')} done; {words}")
    return "\n".join(lines)


def _time_left(seconds: float | None, jobs: int) -> str:
    if seconds is None:
        return "time left unknown: no run of this task is there to tell the speed"
    return f"about {duration(seconds / jobs)} left with {count(jobs, 'job')}"
