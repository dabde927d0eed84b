"""What was published: the 84 rows of the paper's three result tables, with the eta of its fourth.

The numbers are package data (`published.csv`), each row with the label of the table it stands in. The tables say
mean and standard deviation over three seeds, rounded to three decimals. The deviation is the sample's (divided by
n - 1): accuracies on 10 000 images are multiples of 0.01%, and 98.150 ± 0.089 or 96.570 ± 0.056 cannot be had from
three of them any other way.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from surefoot.lab.spec.config import TaskConfig

#: Seeds behind every published number.
SEEDS = 3
#: What the published numbers are rounded to.
QUANTUM = 0.001
EPOCHS = (3, 20, 45)
OPTIMIZERS = ("Adam", "AdamUCB", "AdamCB", "AdamS")
#: The paper's metrics, in its tables' order.
METRICS = ("train_loss", "val_loss", "val_acc")
TITLES = {"train_loss": "training loss", "val_loss": "validation loss", "val_acc": "validation accuracy (%)"}


class Configuration(NamedTuple):
    """One of the seven settings that the paper trains in.

    >>> configuration = Configuration("cifar10", "cnn", 128, True)
    >>> configuration.task, configuration.name, configuration.overrides
    ('cifar10-cnn', 'CNN 128 with dropout', {'batch_size': 128, 'dropout': True})
    """

    dataset: str
    model: str
    batch_size: int
    dropout: bool

    @property
    def task(self) -> str:
        """The lab's name of the task."""
        return f"{self.dataset}-{self.model}"

    @property
    def name(self) -> str:
        return f"{self.model.upper()} {self.batch_size}" + (" with dropout" if self.dropout else "")

    @property
    def overrides(self) -> dict[str, Any]:
        """The task's options, for `compare`."""
        return {"batch_size": self.batch_size, "dropout": self.dropout}


class Value(NamedTuple):
    """A published mean with its standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True)
class PublishedRow:
    """One row of the tables: an optimizer in a configuration after so many epochs."""

    table: str
    configuration: Configuration
    epoch: int
    optimizer: str
    eta: float | None
    values: Mapping[str, Value]


@cache
def rows() -> tuple[PublishedRow, ...]:
    """The published rows, in the order of the tables.

    >>> len(rows()), sum(len(row.values) for row in rows())
    (84, 252)
    >>> rows()[0].table, rows()[0].values["val_acc"]
    ('tab:mnistlr-b128', Value(mean=91.983, std=0.172))
    """
    text = resources.files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_row(line) for line in csv.DictReader(text.splitlines()))


def _row(line: dict[str, str]) -> PublishedRow:
    return PublishedRow(
        line["table"],
        Configuration(line["dataset"], line["model"], int(line["batch_size"]), line["dropout"] == "True"),
        int(line["epoch"]),
        line["optimizer"],
        float(line["eta"]) if line["eta"] else None,
        {name: Value(float(line[name]), float(line[f"{name}_std"])) for name in METRICS},
    )


def configurations() -> tuple[Configuration, ...]:
    """The seven configurations, in the order of the tables.

    >>> [configuration.name for configuration in configurations()][:3]
    ['LR 128', 'MLP 128', 'MLP 128 with dropout']
    """
    return tuple(dict.fromkeys(row.configuration for row in rows()))


def plain_configurations() -> dict[str, Configuration]:
    """The configurations in batches of 128 without dropout, by model.

    >>> list(plain_configurations())
    ['lr', 'mlp', 'cnn']
    """
    return {
        configuration.model: configuration
        for configuration in configurations()
        if configuration.batch_size == 128 and not configuration.dropout
    }


def configuration_of(task: TaskConfig) -> Configuration | None:
    """The configuration that a task of the lab has, whatever its other settings; None if the paper has no such."""
    wanted = task.name, task.batch_size, bool(task.settings.get("dropout", False))
    known = {(paper.task, paper.batch_size, paper.dropout): paper for paper in configurations()}
    return known.get(wanted)


@cache
def find(configuration: Configuration, optimizer: str, epoch: int) -> PublishedRow:
    """The row of one optimizer in one configuration after an epoch of the tables."""
    for row in rows():
        if (row.configuration, row.optimizer, row.epoch) == (configuration, optimizer, epoch):
            return row
    raise ValueError(f"the paper has no row for {optimizer}, {configuration.name}, epoch {epoch}")


def eta_of(configuration: Configuration, optimizer: str) -> float | None:
    """The eta the paper found best (its table of the best etas); None for Adam.

    >>> eta_of(Configuration("mnist", "mlp", 128, False), "AdamS")
    0.005
    """
    return find(configuration, optimizer, EPOCHS[0]).eta


def etas(optimizer: str) -> tuple[float, ...]:
    """All eta that the paper names for an optimizer, in order.

    >>> etas("AdamUCB")
    (0.01, 0.05, 0.1, 0.3)
    """
    return tuple(sorted({row.eta for row in rows() if row.optimizer == optimizer and row.eta is not None}))
