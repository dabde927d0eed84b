"""Which runs the paper needs, what of them is there, and how long the rest will take.

A plan is a list of comparisons for `surefoot.lab.compare`, and nothing else: the same runs, by the same keys,
that `surefoot compare` would make.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.lab.analyse.verdicts import count
from surefoot.lab.experiments import compare, prepare
from surefoot.lab.results import Results
from surefoot.lab.run.pool import MakePool
from surefoot.lab.run.progress import duration
from surefoot.lab.spec.config import RunConfig, TaskConfig, folder_of
from surefoot.lab.store import Run, last_epoch, read_run, read_runs
from surefoot.paper import ablation
from surefoot.paper.published import OPTIMIZERS, Configuration, configurations, eta_of, etas

PARTS = ("lr", "mlp", "cnn", "eta", "dropout", "ablation", "all")
SEEDS, EPOCHS = 3, 45
#: Beyond the etas that the paper names, one that is far too strong: where does each variant break?
STRONG = {"AdamUCB": 1.0, "AdamCB": 0.1, "AdamS": 0.5}


@dataclass(frozen=True)
class Block:
    """One comparison of a plan: contestants, seeds and epochs on one task."""

    title: str
    task: str
    optimizers: tuple[str, ...]
    seeds: int
    epochs: int
    overrides: Mapping[str, Any] = field(default_factory=dict)


def spec_of(optimizer: str, eta: float | None, *, reference: bool = False) -> str:
    """How the lab writes one of the paper's optimizers.

    >>> spec_of("Adam", None), spec_of("AdamCB", 5e-5, reference=True)
    ('adam', 'adamcb:eta=5e-05,reference=True')
    """
    if eta is None:
        return optimizer.lower()
    return f"{optimizer.lower()}:eta={eta:g}" + (",reference=True" if reference else "")


def blocks(
    part: str,
    *,
    seeds: int | None = None,
    epochs: int | None = None,
    model: str | None = None,
    reference: bool = False,
) -> list[Block]:
    """The comparisons of one part of the paper.

    Args:
        part: one of `PARTS`.
        seeds: how many; by default 3 as in the paper, 5 in the ablation.
        epochs: by default 45 as in the paper; 12 and 45 in the ablation (20 on its CNN).
        model: lr, mlp or cnn, to run only that model's share; `eta` is the CNN's otherwise, as in the paper.
        reference: also run the published recipe (reference=True) of each variant.

    >>> [(one.title, len(one.optimizers), one.seeds, one.epochs) for one in blocks("lr")]
    [('LR 128', 4, 3, 45)]
    """
    if part not in PARTS:
        raise ValueError(f"the paper has no part {part!r}; choose {', '.join(PARTS)}")
    if model not in (None, "lr", "mlp", "cnn"):
        raise ValueError(f"the paper has no model {model!r}; choose lr, mlp or cnn")
    wanted = seeds or SEEDS, epochs or EPOCHS
    found: list[Block] = []
    if part in ("lr", "mlp", "cnn", "all"):
        chosen = [one for one in _by_urgency() if part in ("all", one.model)]
        found += [_tables(one, *wanted, reference) for one in chosen]
    if part == "dropout":
        found += [
            Block(one.name, one.task, _specs(one, ("Adam", "AdamS"), reference), *wanted, one.overrides)
            for one in configurations()
            if one.model == "cnn" and one.batch_size == 128
        ]
    if part in ("eta", "all"):
        found += [_sweep(model or "cnn", *wanted)]
    if part in ("ablation", "all"):
        found += _ablation(seeds, epochs)
    return [one for one in found if model in (None, one.task.split("-")[-1])]


def _by_urgency() -> list[Configuration]:
    """What tells most per hour first: batches of 128 before those of 16, no dropout before dropout."""
    return sorted(configurations(), key=lambda one: (one.batch_size != 128, one.dropout))


def _specs(one: Configuration, optimizers: Iterable[str] = OPTIMIZERS, reference: bool = False) -> tuple[str, ...]:
    found = []
    for optimizer in optimizers:
        eta = eta_of(one, optimizer)
        found.append(spec_of(optimizer, eta))
        if reference and eta is not None:
            found.append(spec_of(optimizer, eta, reference=True))
    return tuple(found)


def _tables(one: Configuration, seeds: int, epochs: int, reference: bool) -> Block:
    return Block(one.name, one.task, _specs(one, reference=reference), seeds, epochs, one.overrides)


def _sweep(model: str, seeds: int, epochs: int) -> Block:
    one = next(one for one in configurations() if one.model == model)  # batches of 128, no dropout
    specs = ["adam"]
    for optimizer in OPTIMIZERS[1:]:
        specs += [spec_of(optimizer, eta) for eta in (*etas(optimizer), STRONG[optimizer])]
    return Block(f"{one.name} across eta", one.task, tuple(specs), seeds, epochs, one.overrides)


def _ablation(seeds: int | None, epochs: int | None) -> list[Block]:
    found = []
    plain = {one.model: one for one in configurations() if one.batch_size == 128 and not one.dropout}
    for name in ("lr", "mlp"):
        specs = tuple(piece.spec for piece in ablation.installed(ablation.pieces(plain[name])))
        for horizon in [epochs] if epochs else ablation.HORIZONS:
            title = f"ablation on {name.upper()}, {horizon} epochs"
            found.append(Block(title, plain[name].task, specs, seeds or ablation.SEEDS, horizon, plain[name].overrides))
    cnn = ablation.installed(ablation.cnn_pieces(plain["cnn"]))
    specs = tuple(piece.at(lr).spec for lr in ablation.RATES for piece in cnn)
    overrides = {**plain["cnn"].overrides, "subset": ablation.IMAGES}
    length = epochs or ablation.CNN_EPOCHS
    title = f"ablation on CNN, {ablation.IMAGES} images, {length} epochs"
    return [*found, Block(title, plain["cnn"].task, specs, seeds or ablation.SEEDS, length, overrides)]


def run_blocks(
    plan: Sequence[Block],
    *,
    out: Path,
    jobs: int = 1,
    data_dir: Path | None = None,
    progress: bool = True,
    executor: MakePool | None = None,
) -> list[Results]:
    """Compute what is missing of a plan, one comparison after the other; the options are those of `compare`."""
    return [
        compare(
            one.task,
            one.optimizers,
            seeds=one.seeds,
            epochs=one.epochs,
            out=out,
            jobs=jobs,
            data_dir=data_dir,
            progress=progress,
            executor=executor,
            **one.overrides,
        )
        for one in plan
    ]


@dataclass(frozen=True)
class Standing:
    """How far a comparison is: runs done by contestant, epochs still to train, and seconds an epoch took so far."""

    block: Block
    done: Mapping[str, int]
    epochs_left: int
    seconds: float | None

    @property
    def time_left(self) -> float | None:
        """Seconds of one worker; None when no run of the task is there to tell the speed."""
        return 0.0 if not self.epochs_left else None if self.seconds is None else self.epochs_left * self.seconds


def standings(plan: Sequence[Block], *, out: Path, data_dir: Path | None = None) -> list[Standing]:
    """How far each comparison of a plan is; epochs that two of them share are counted as left in the first only."""
    there = read_runs(out) if out.is_dir() else []
    counted: dict[str, int] = {}
    found = []
    for one in plan:
        setup = prepare(
            one.task, one.optimizers, seeds=one.seeds, epochs=one.epochs, data_dir=data_dir, **one.overrides
        )
        done = dict.fromkeys(one.optimizers, 0)
        left = 0
        task = TaskConfig(one.task)
        for spec, contestant in zip(one.optimizers, setup.contestants):
            for seed in setup.seeds:
                config = setup.config(contestant, seed, one.epochs)
                task = config.task
                missing = _epochs_missing(folder_of(out, config), config)
                done[spec] += not missing
                before = counted.get(config.key, 0)
                left += max(0, missing - before)
                counted[config.key] = max(missing, before)
        found.append(Standing(one, done, left, seconds_per_epoch(there, task)))
    return found


def _epochs_missing(folder: Path, config: RunConfig) -> int:
    if not (folder / "config.json").exists():
        return config.epochs
    run = read_run(folder)
    return 0 if run.diverged else max(0, config.epochs - last_epoch(run.epochs))


def seconds_per_epoch(runs: Sequence[Run], task: TaskConfig) -> float | None:
    """The median training time of an epoch over the runs of the same task; None when there is none."""

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


def describe(plan: Sequence[Standing], jobs: int = 1) -> str:
    """A plan in words: each comparison with its runs, what is done, and the time left."""
    lines = []
    for one in plan:
        block = one.block
        total = len(block.optimizers) * block.seeds
        speed = f", {one.seconds:.3g} s per epoch" if one.seconds else ""
        left = _left(one.time_left, jobs) if one.epochs_left else "done"
        lines.append(
            f"{block.title} ({block.task}): {sum(one.done.values())} of {count(total, 'run')} done, "
            f"{block.epochs} epochs each{speed}; {left}"
        )
        lines += [f"  {done:>2} of {block.seeds}  {spec}" for spec, done in one.done.items()]
    runs, done = sum(len(one.done) * one.block.seeds for one in plan), sum(sum(one.done.values()) for one in plan)
    times = [one.time_left for one in plan]
    total_left = sum(time for time in times if time is not None)
    words = _left(total_left, jobs)
    if None in times:
        unknown = f"{count(times.count(None), 'comparison')} that no run tells the speed of yet"
        words = f"{words}, beside {unknown}" if total_left else f"time left unknown: {unknown}"
    lines.append(f"together: {done} of {count(runs, 'run')} done; {words}")
    return "\n".join(lines)


def _left(seconds: float | None, jobs: int) -> str:
    if seconds is None:
        return "time left unknown: no run of this task is there to tell the speed"
    return f"about {duration(seconds / jobs)} left with {count(jobs, 'job')}"
