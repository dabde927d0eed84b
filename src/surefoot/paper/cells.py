"""Our runs beside the published numbers: which run belongs to which row, and what the difference amounts to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surefoot._extras import require
from surefoot.lab.analyse.groups import preferred, value_at
from surefoot.lab.analyse.stats import LEVEL, MeanStd, mean_std
from surefoot.lab.spec.builtin import PAPER_WEIGHT_DECAY
from surefoot.lab.spec.config import Purpose, RunConfig
from surefoot.lab.store import Run
from surefoot.paper.published import (
    METRICS,
    OPTIMIZERS,
    QUANTUM,
    SEEDS,
    Configuration,
    PublishedRow,
    Value,
    configuration_of,
    configurations,
    eta_of,
    rows,
)

#: What the lab calls the paper's metrics, and what the paper's unit is (accuracy is in percent there).
RECORDED = {"train_loss": ("train_loss", 1.0), "val_loss": ("valid_loss", 1.0), "val_acc": ("valid_accuracy", 100.0)}
#: Ours, and with reference=True the published one.
RECIPES = ("default", "reference")


class PaperSetting(NamedTuple):
    """What the paper would call a run: the configuration, the optimizer with its eta, and the recipe it follows."""

    configuration: Configuration
    optimizer: str
    eta: float | None
    recipe: str = "default"


def setting_of(config: RunConfig) -> PaperSetting | None:
    """The paper's setting of a run, or None if it has other options than those of the paper."""
    configuration, optimizer = configuration_of(config.task), config.optimizer
    options = dict(optimizer.options)
    name = {"torch.optim.Adam": "Adam"}.get(optimizer.class_path, optimizer.class_path.removeprefix("surefoot."))
    recipe = "reference" if options.pop("reference", False) else "default"
    eta = options.pop("eta", None)
    has_paper_options = (
        options.pop("lr", None) == 1e-3
        and options.pop("weight_decay", None) == PAPER_WEIGHT_DECAY
        and options.pop("weighting", "paper") == "paper"
        and options.pop("fused", True) in (True, None)
        and not options
        and not config.task.settings.keys() - {"dropout"}
    )
    is_plain = config.purpose == Purpose.RESULT and not config.fork and not optimizer.lab_options
    if configuration is None or not has_paper_options or not is_plain or name not in OPTIMIZERS:
        return None
    return PaperSetting(configuration, name, None if eta is None else float(eta), recipe)


class Replication:
    """Our runs of the paper, by their settings."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        by_setting: dict[PaperSetting, list[Run]] = {}
        for run in self.runs:
            setting = setting_of(run.config)
            if setting is not None:
                by_setting.setdefault(setting, []).append(run)
        self.by_setting = {setting: preferred(runs) for setting, runs in by_setting.items()}

    def of(self, configuration: Configuration, optimizer: str, recipe: str = "default") -> dict[int, Run]:
        """The runs, by seed, of an optimizer at the published eta."""
        eta = eta_of(configuration, optimizer)
        return self.by_setting.get(PaperSetting(configuration, optimizer, eta, recipe), {})

    def of_the_tables(self) -> list[Run]:
        """The runs behind the paper's tables; those of ablations and sweeps have other lengths and numbers of seeds."""
        return [
            run
            for configuration in configurations()
            for optimizer in OPTIMIZERS
            for run in self.of(configuration, optimizer).values()
        ]

    def values(
        self, configuration: Configuration, optimizer: str, metric: str, epoch: int, recipe: str = "default"
    ) -> dict[int, float]:
        """A metric after an epoch, by seed, in the paper's unit; runs that are shorter, or diverged, have none."""
        runs = self.of(configuration, optimizer, recipe)
        return {seed: value for seed in sorted(runs) for value in values_at([runs[seed]], metric, epoch)}

    def reached(self, configuration: Configuration, optimizer: str, epoch: int, recipe: str = "default") -> set[int]:
        """The seeds that have results after an epoch."""
        return set(self.values(configuration, optimizer, "train_loss", epoch, recipe))

    def diverged(self, configuration: Configuration, optimizer: str, epoch: int, recipe: str = "default") -> set[int]:
        """The seeds that diverged by an epoch."""
        runs = self.of(configuration, optimizer, recipe)
        return {seed for seed, run in runs.items() if run.diverged and run.epochs[-1]["epoch"] <= epoch}


@dataclass(frozen=True)
class TableCell:
    """One published number with ours: the difference in pooled standard errors, and what it amounts to."""

    row: PublishedRow
    metric: str
    recipe: str
    ours: MeanStd
    diverged: int
    difference: float | None
    verdict: str

    @property
    def theirs(self) -> Value:
        return self.row.values[self.metric]


def table_cells(replication: Replication) -> list[TableCell]:
    """Every published cell, and once more by the published recipe where that was run."""
    return [
        _table_cell(replication, row, metric, recipe)
        for row in rows()
        for recipe in RECIPES
        if recipe == "default" or replication.of(row.configuration, row.optimizer, recipe)
        for metric in METRICS
    ]


def by_row(cells: Sequence[TableCell]) -> list[Sequence[TableCell]]:
    """The cells of each row together, one per metric."""
    return [cells[first : first + len(METRICS)] for first in range(0, len(cells), len(METRICS))]


def _table_cell(replication: Replication, row: PublishedRow, metric: str, recipe: str) -> TableCell:
    values = replication.values(row.configuration, row.optimizer, metric, row.epoch, recipe)
    ours = mean_std(list(values.values()))
    diverged = len(replication.diverged(row.configuration, row.optimizer, row.epoch, recipe))
    if not ours.n:
        return TableCell(row, metric, recipe, ours, diverged, None, "differs" if diverged else "not run")
    if ours.n == 1 and not diverged:
        return TableCell(row, metric, recipe, ours, diverged, None, "one seed")  # it has no spread to judge by
    difference, limit = pooled_difference(ours, row.values[metric])
    # What is left after a divergence may be close; a run that diverged is not what was published.
    verdict = "matches" if abs(difference) <= limit and not diverged else "differs"
    return TableCell(row, metric, recipe, ours, diverged, difference, verdict)


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


def spread_at(runs: Sequence[Run], metric: str, epoch: int) -> MeanStd:
    """Mean and standard deviation over runs of one of the paper's metrics after an epoch."""
    return mean_std(values_at(runs, metric, epoch))


def values_at(runs: Sequence[Run], metric: str, epoch: int) -> list[float]:
    """One of the paper's metrics after an epoch, in its unit, of the runs that have it."""
    name, unit = RECORDED[metric]
    values = [value_at(run, name, epoch) for run in runs]
    return [unit * value for value in values if value is not None]
