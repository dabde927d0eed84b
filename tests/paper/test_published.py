"""The published numbers: complete, as in the paper, and what they imply."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from surefoot.paper.published import (
    EPOCHS,
    METRICS,
    OPTIMIZERS,
    Configuration,
    configurations,
    eta_of,
    find,
    rows,
)

MLP = Configuration("mnist", "mlp", 128, False)
CNN_16 = Configuration("cifar10", "cnn", 16, False)


def test_seven_configurations_four_optimizers_three_epochs_three_metrics() -> None:
    assert len(configurations()) == 7
    assert Counter(row.table for row in rows()) == {"tab:mnistlr-b128": 12, "tab:mnist-mlp": 36, "tab:cifar10": 36}
    places = {(row.configuration, row.optimizer, row.epoch) for row in rows()}
    assert places == set(itertools.product(configurations(), OPTIMIZERS, EPOCHS))
    assert all(set(row.values) == set(METRICS) for row in rows())


def test_numbers_from_each_table() -> None:
    assert find(Configuration("mnist", "lr", 128, False), "AdamCB", 3).values["train_loss"] == (0.333, 0.004)
    assert find(MLP, "AdamS", 45).values["val_acc"] == (98.353, 0.038)
    assert find(CNN_16, "Adam", 20).values["val_loss"] == (1.001, 0.057)
    assert eta_of(CNN_16, "AdamCB") == 1e-5
    assert eta_of(MLP, "Adam") is None


def test_what_was_not_published_is_refused() -> None:
    with pytest.raises(ValueError, match="the paper has no row for AdamS, MLP 128, epoch 4"):
        find(MLP, "AdamS", 4)


def fits(mean: float, std: float, freedom: int) -> bool:
    """Whether three accuracies on 10 000 images can have this mean and deviation, as printed."""
    for total in range(round(300 * mean) - 1, round(300 * mean) + 2):
        if abs(total / 300 - mean) > 0.0005001:
            continue
        reach = range(math.floor(total / 3 - 250 * std), math.ceil(total / 3 + 250 * std) + 1)
        for a, b in itertools.product(reach, reach):
            squares = sum((x - total / 3) ** 2 for x in (a, b, total - a - b))
            if abs(math.sqrt(squares / freedom) / 100 - std) <= 0.0005001:
                return True
    return False


def test_published_deviation_is_the_samples() -> None:
    small = [row.values["val_acc"] for row in rows() if row.values["val_acc"].std < 0.1]
    assert all(fits(*value, freedom=2) for value in small)
    assert [value.std for value in small if not fits(*value, freedom=3)] == [0.089, 0.056]
