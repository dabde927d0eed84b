"""Ours beside theirs: which runs belong to which published row, and what they say there."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from surefoot._extras import require
from surefoot.lab.analyse.groups import group_runs, preferred, value_at
from surefoot.lab.analyse.stats import LEVEL, MeanStd, mean_std
from surefoot.lab.spec.config import Purpose, RunConfig
from surefoot.lab.spec.task import PAPER_WEIGHT_DECAY
from surefoot.lab.store import Run
from surefoot.paper.published import (
    METRICS,
    OPTIMIZERS,
    QUANTUM,
    SEEDS,
    Configuration,
    Row,
    Value,
    configurations,
    eta_of,
    rows,
)

#: What the lab calls the paper's metrics, and what the paper's unit is (accuracy is in percent there).
RECORDED = {"train_loss": ("train_loss", 1.0), "val_loss": ("valid_loss", 1.0), "val_acc": ("valid_accuracy", 100.0)}
VARIANTS = ("default", "reference")


class Place(NamedTuple):
    """Where a run belongs: the configuration, the optimizer with its eta, and whose recipe it follows."""

    configuration: Configuration
    optimizer: str
    eta: float | None
    variant: str = "default"


def place_of(config: RunConfig) -> Place | None:
    """The place of a run among the paper's, or None: it must have the paper's settings and no others."""
    task, optimizer = config.task, config.optimizer
    settings, options = dict(task.settings), dict(optimizer.options)
    dropout = bool(settings.pop("dropout", False))
    found = [
        one
        for one in configurations()
        if (one.task, one.batch_size, one.dropout) == (task.name, task.batch_size, dropout)
    ]
    name = {"torch.optim.Adam": "Adam"}.get(optimizer.class_path, optimizer.class_path.removeprefix("surefoot."))
    variant = "reference" if options.pop("reference", False) else "default"
    eta = options.pop("eta", None)
    fits = (
        options.pop("lr", None) == 1e-3
        and options.pop("weight_decay", None) == PAPER_WEIGHT_DECAY
        and options.pop("weighting", "paper") == "paper"
        and options.pop("fused", True) in (True, None)
    )
    usual = config.purpose == Purpose.RESULT and not config.fork and not optimizer.schedule
    if not found or settings or options or not fits or not usual or name not in ("Adam", "AdamUCB", "AdamCB", "AdamS"):
        return None
    return Place(found[0], name, None if eta is None else float(eta), variant)


class Replication:
    """Our runs of the paper, looked up by where they belong."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        placed: dict[Place, list[Run]] = {}
        for run in self.runs:
            place = place_of(run.config)
            if place is not None:
                placed.setdefault(place, []).append(run)
        self.places = {place: preferred(runs) for place, runs in placed.items()}

    def of(self, configuration: Configuration, optimizer: str, variant: str = "default") -> dict[int, Run]:
        """The runs, by seed, of an optimizer at the published eta."""
        return self.places.get(Place(configuration, optimizer, eta_of(configuration, optimizer), variant), {})

    def of_the_tables(self) -> list[Run]:
        """The runs behind the paper's tables; those of ablations and sweeps have other lengths and numbers of seeds."""
        return [run for one in configurations() for optimizer in OPTIMIZERS for run in self.of(one, optimizer).values()]

    def values(
        self, configuration: Configuration, optimizer: str, metric: str, epoch: int, variant: str = "default"
    ) -> dict[int, float]:
        """A metric after an epoch, by seed, in the paper's unit; runs that were not so far, or diverged, have none."""
        name, unit = RECORDED[metric]
        seen = {seed: value_at(run, name, epoch) for seed, run in self.of(configuration, optimizer, variant).items()}
        return {seed: unit * value for seed, value in sorted(seen.items()) if value is not None}

    def reached(self, configuration: Configuration, optimizer: str, epoch: int, variant: str = "default") -> set[int]:
        """The seeds that have results after an epoch."""
        return set(self.values(configuration, optimizer, "train_loss", epoch, variant))

    def lost(self, configuration: Configuration, optimizer: str, epoch: int, variant: str = "default") -> set[int]:
        """The seeds that diverged by an epoch."""
        runs = self.of(configuration, optimizer, variant)
        return {seed for seed, run in runs.items() if run.diverged and run.epochs[-1]["epoch"] <= epoch}


@dataclass(frozen=True)
class Cell:
    """One published number with ours: the difference in pooled standard errors, and what it amounts to."""

    row: Row
    metric: str
    variant: str
    ours: MeanStd
    lost: int
    difference: float | None
    verdict: str

    @property
    def theirs(self) -> Value:
        return self.row.values[self.metric]


def cells(replication: Replication) -> list[Cell]:
    """Every published cell, and once more by the published recipe where that was run."""
    found = []
    for row in rows():
        for variant in VARIANTS:
            if variant == "default" or replication.of(row.configuration, row.optimizer, variant):
                found += [_cell(replication, row, metric, variant) for metric in METRICS]
    return found


def _cell(replication: Replication, row: Row, metric: str, variant: str) -> Cell:
    seen = replication.values(row.configuration, row.optimizer, metric, row.epoch, variant)
    ours = mean_std(list(seen.values()))
    lost = len(replication.lost(row.configuration, row.optimizer, row.epoch, variant))
    if not ours.n:
        return Cell(row, metric, variant, ours, lost, None, "differs" if lost else "not run")
    difference, limit = pooled_difference(ours, row.values[metric])
    # What is left after a divergence may be close; a run that diverged is not what was published.
    verdict = "matches" if abs(difference) <= limit and not lost else "differs"
    return Cell(row, metric, variant, ours, lost, difference, verdict)


def pooled_difference(ours: MeanStd, theirs: Value) -> tuple[float, float]:
    """The difference of the means in pooled standard errors, and the size that one of twenty equals would exceed.

    ``(ours - theirs) / sqrt(s**2 * (1/n + 1/3) + q**2/12)`` with the pooled variance ``s**2`` of both samples and the
    variance of the published mean's rounding to q = 0.001. A published deviation is rounded too (0.000 stands for
    anything below 0.0005), so q**2/12 is added to its square as well. The limit is Student's t at 5%, two-sided.

    >>> difference, limit = pooled_difference(MeanStd(3, 0.250, 0.001), Value(0.249, 0.0))
    >>> round(difference, 2), round(limit, 2)
    (1.5, 2.78)
    """
    stats = require("scipy.stats", extra="lab")
    rounding = QUANTUM**2 / 12
    freedom = SEEDS - 1
    squares = freedom * (theirs.std**2 + rounding)
    if ours.n > 1:
        freedom += ours.n - 1
        squares += (ours.n - 1) * ours.std**2
    error = math.sqrt(squares / freedom * (1 / ours.n + 1 / SEEDS) + rounding)
    return (ours.mean - theirs.mean) / error, float(stats.t.ppf(1 - LEVEL / 2, freedom))


def cells_csv(replication: Replication) -> str:
    """One line per published row (and per recipe that was run): theirs, n, ours, the difference and the verdict."""
    out = io.StringIO()
    head = ["table", "dataset", "model", "batch_size", "dropout", "epoch", "optimizer", "eta"]
    head += [name for metric in METRICS for name in (metric, f"{metric}_std")]
    head += ["variant", "n", "diverged"]
    head += [f"ours_{name}" for metric in METRICS for name in (metric, f"{metric}_std")]
    head += [name for metric in METRICS for name in (f"{metric}_difference", f"{metric}_verdict")]
    writer = csv.DictWriter(out, head, lineterminator="\n")
    writer.writeheader()
    every = cells(replication)
    for first in range(0, len(every), len(METRICS)):
        writer.writerow(_line(every[first : first + len(METRICS)]))
    return out.getvalue()


def _line(group: Sequence[Cell]) -> dict[str, Any]:
    row, variant = group[0].row, group[0].variant
    line: dict[str, Any] = {"table": row.table, **row.configuration._asdict(), "epoch": row.epoch}
    line |= {"optimizer": row.optimizer, "eta": "" if row.eta is None else row.eta, "variant": variant}
    line |= {"n": group[0].ours.n, "diverged": group[0].lost}
    for cell in group:
        line |= {cell.metric: cell.theirs.mean, f"{cell.metric}_std": cell.theirs.std}
        line |= {f"ours_{cell.metric}": _text(cell.ours.mean), f"ours_{cell.metric}_std": _text(cell.ours.std)}
        line |= {f"{cell.metric}_difference": _text(cell.difference, 3), f"{cell.metric}_verdict": cell.verdict}
    return line


def _text(value: float | None, digits: int = 6) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def curves_csv(runs: Sequence[Run]) -> str:
    """The mean over seeds after every epoch, for every run that ended: one line per contestant and epoch."""
    out = io.StringIO()
    head = ["task", "batch_size", "dropout", "subset", "optimizer", "epochs", "epoch", "n"]
    head += [name for metric in METRICS for name in (metric, f"{metric}_std")]
    writer = csv.DictWriter(out, head, lineterminator="\n")
    writer.writeheader()
    ended = [run for run in runs if run.finished or run.diverged]
    for group in (entry.runs for each in group_runs(ended) for entry in each.contestants):
        config = group[0].config
        settings = config.task.settings
        line = {"task": group[0].task, "batch_size": config.task.batch_size, "optimizer": group[0].label}
        line |= {"dropout": bool(settings.get("dropout", False)), "subset": settings.get("subset", "")}
        line |= {"epochs": config.epochs if config.optimizer.schedule else ""}
        for epoch in range(1, 1 + max(len(run.epochs) for run in group)):
            seen = {metric: spread_at(group, metric, epoch) for metric in METRICS}
            if seen["train_loss"].n:
                values: dict[str, Any] = {"epoch": epoch, "n": seen["train_loss"].n}
                for metric, one in seen.items():
                    values |= {metric: _text(one.mean), f"{metric}_std": _text(one.std)}
                writer.writerow(line | values)
    return out.getvalue()


def spread_at(runs: Sequence[Run], metric: str, epoch: int) -> MeanStd:
    """Mean and deviation over runs of one of the paper's metrics after an epoch."""
    name, unit = RECORDED[metric]
    values = [value_at(run, name, epoch) for run in runs]
    return mean_std([unit * value for value in values if value is not None])
