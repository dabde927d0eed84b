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
#: Closer than this to the published mean is the same for all that the tables are read for: half a point of accuracy, a
#: tenth of a loss (and no less than its rounding).
ACCURACY_MARGIN, LOSS_MARGIN = 0.5, 0.1
#: What a cell can amount to.
VERDICTS = ("equivalent", "inconclusive", "differs", "one seed", "not run")
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
    theirs = row.values[metric]
    error, freedom = pooled_error(ours, theirs)
    # What is left after a divergence may be close; a run that diverged is not what was published.
    verdict = "differs" if diverged else compare_means(ours.mean - theirs.mean, error, freedom, margin(metric, theirs))
    return TableCell(row, metric, recipe, ours, diverged, (ours.mean - theirs.mean) / error, verdict)


def margin(metric: str, theirs: Value) -> float:
    """The largest difference from a published mean that counts as none.

    >>> margin("val_acc", Value(91.983, 0.172)), margin("val_loss", Value(0.25, 0.002)), margin("val_loss", Value(0, 0))
    (0.5, 0.025, 0.001)
    """
    return ACCURACY_MARGIN if metric == "val_acc" else max(LOSS_MARGIN * theirs.mean, QUANTUM)


def compare_means(difference: float, error: float, freedom: int, margin: float) -> str:
    """Equivalent (shown to be within the margin), differs (shown to be no zero, and not shown to be so small), or open.

    Two one-sided t-tests, each at 5%, decide on equivalence; a two-sided one at 5% on a difference.

    >>> compare_means(0.25, 0.1, 10, margin=0.5), compare_means(0.4, 0.1, 10, 0.5), compare_means(0.0, 0.4, 10, 0.5)
    ('equivalent', 'differs', 'inconclusive')
    """
    student = require("scipy.stats", extra="lab").t
    if abs(difference) + student.ppf(1 - LEVEL, freedom) * error < margin:
        return "equivalent"
    return "differs" if abs(difference) > student.ppf(1 - LEVEL / 2, freedom) * error else "inconclusive"


def pooled_error(ours: MeanStd, theirs: Value) -> tuple[float, int]:
    """The standard error of the difference of the means, and its degrees of freedom.

    ``sqrt(s**2 * (1/n + 1/3) + q**2/12)`` with the pooled variance ``s**2`` of both samples and the variance of the
    published mean's rounding to q = 0.001. A published deviation is rounded too (0.000 stands for anything below
    0.0005), so q**2/12 is added to its square as well.

    >>> error, freedom = pooled_error(MeanStd(3, 0.250, 0.001), Value(0.249, 0.0))
    >>> round(error, 5), freedom
    (0.00067, 4)
    """
    rounding = QUANTUM**2 / 12
    freedom = SEEDS - 1
    squares = freedom * (theirs.std**2 + rounding)
    if ours.n > 1:
        freedom += ours.n - 1
        squares += (ours.n - 1) * ours.std**2
    return math.sqrt(squares / freedom * (1 / ours.n + 1 / SEEDS) + rounding), freedom


def spread_at(runs: Sequence[Run], metric: str, epoch: int) -> MeanStd:
    """Mean and standard deviation over runs of one of the paper's metrics after an epoch."""
    return mean_std(values_at(runs, metric, epoch))


def values_at(runs: Sequence[Run], metric: str, epoch: int) -> list[float]:
    """One of the paper's metrics after an epoch, in its unit, of the runs that have it."""
    name, unit = RECORDED[metric]
    values = [value_at(run, name, epoch) for run in runs]
    return [unit * value for value in values if value is not None]


def paired_differences(runs: Sequence[Run], others: Sequence[Run], metric: str, epoch: int) -> list[float]:
    """One of the paper's metrics after an epoch, in its unit, less that of others, over the seeds that both have."""
    name, unit = RECORDED[metric]
    values, other_values = ({run.seed: value_at(run, name, epoch) for run in side} for side in (runs, others))
    pairs = [(values[seed], other_values[seed]) for seed in sorted(values.keys() & other_values.keys())]
    return [unit * (a - b) for a, b in pairs if a is not None and b is not None]
