"""Cells: which run belongs where, ours beside theirs, and when they match."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from surefoot.lab.analyse.stats import MeanStd
from surefoot.lab.store import Run
from surefoot.paper.cells import (
    PaperSetting,
    Replication,
    compare_means,
    pooled_error,
    setting_of,
    table_cells,
)
from surefoot.paper.published import Configuration, Value, configurations, find

LR = Configuration("mnist", "lr", 128, False)
MLP = Configuration("mnist", "mlp", 128, False)
MLP_DROPOUT = Configuration("mnist", "mlp", 128, True)
MakeRun = Callable[..., Run]


def test_every_configuration_has_its_place(paper_run: MakeRun) -> None:
    for configuration in configurations():
        assert setting_of(paper_run(configuration, "Adam").config) == PaperSetting(configuration, "Adam", None)
        assert setting_of(paper_run(configuration, "AdamCB").config).configuration == configuration  # type: ignore[union-attr]
    reference = paper_run(MLP, "AdamS", options={"reference": True})
    assert setting_of(reference.config) == PaperSetting(MLP, "AdamS", 0.005, "reference")
    assert setting_of(paper_run(MLP, "AdamS", options={"eta": 0.5}).config) == PaperSetting(MLP, "AdamS", 0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"lr": 5e-4}},
        {"options": {"weight_decay": 0.0}},
        {"options": {"weighting": "unit"}},
        {"options": {"loss_beta": 0.5}},
        {"settings": {"subset": 100}},
        {"purpose": "tune"},
        {"fork": {"epoch": 2}},
        {"optimizer__schedule": "cosine"},
        {"optimizer__class": "torch.optim.SGD"},
        {"task__batch_size": 64},
        {"task__name": "fashion-mlp"},
    ],
)
def test_other_settings_have_no_place(paper_run: MakeRun, changes: dict[str, Any]) -> None:
    assert setting_of(paper_run(MLP, "AdamS", **changes).config) is None


def test_the_newest_numbers_of_a_seed_count_then_the_longest(paper_run: MakeRun) -> None:
    old, new = paper_run(MLP, final=0.5, numerics=1, epochs=5), paper_run(MLP, final=0.3, numerics=2)
    short = paper_run(MLP, final=0.4, numerics=2, epochs=2)
    assert Replication([new, old, short]).values(MLP, "Adam", "train_loss", 3) == {0: 0.3}


def test_accuracy_is_in_percent_and_diverged_runs_have_no_value(paper_run: MakeRun) -> None:
    runs = [paper_run(LR, seed=1, accuracy=0.9), paper_run(LR, seed=0, diverged=True)]
    replication = Replication(runs)
    assert replication.values(LR, "Adam", "val_acc", 3) == {1: pytest.approx(90.0)}
    assert replication.values(LR, "Adam", "val_acc", 20) == {}
    assert (replication.diverged(LR, "Adam", 2), replication.diverged(LR, "Adam", 3)) == (set(), {0})


def test_a_cell_with_a_diverged_run_differs_however_close_the_others_are(paper_run: MakeRun) -> None:
    theirs = find(LR, "Adam", 3).values["train_loss"].mean
    close = [paper_run(LR, seed=seed, final=theirs) for seed in range(2)]
    lost = paper_run(LR, seed=2, diverged=True)
    verdicts = [
        next(cell.verdict for cell in table_cells(Replication(runs)) if cell.row == find(LR, "Adam", 3))
        for runs in (close, [*close, lost])
    ]
    assert verdicts == ["equivalent", "differs"]


def test_one_seed_is_no_match_and_no_difference(paper_run: MakeRun) -> None:
    theirs = find(LR, "Adam", 3).values["train_loss"].mean
    for final in (theirs, 10 * theirs):
        cells = table_cells(Replication([paper_run(LR, seed=0, final=final)]))
        [cell] = [cell for cell in cells if cell.row == find(LR, "Adam", 3) and cell.metric == "train_loss"]
        assert (cell.verdict, cell.difference, cell.ours.n) == ("one seed", None, 1)


def test_pooled_error_by_hand() -> None:
    error, freedom = pooled_error(MeanStd(10, 0.30, 0.01), Value(0.28, 0.02))
    pooled = (9 * 0.01**2 + 2 * (0.02**2 + 1e-6 / 12)) / 11
    assert (error, freedom) == (pytest.approx(math.sqrt(pooled * (1 / 10 + 1 / 3) + 1e-6 / 12)), 11)
    alone, freedom = pooled_error(MeanStd(1, 0.30, math.nan), Value(0.28, 0.02))
    assert (alone, freedom) == (pytest.approx(math.sqrt((0.02**2 + 1e-6 / 12) * 4 / 3 + 1e-6 / 12)), 2)


def test_rounding_keeps_a_deviation_of_zero_above_zero() -> None:
    assert 0.0002 < pooled_error(MeanStd(3, 0.2494, 0.0), Value(0.249, 0.0))[0] < 0.0004


def test_three_outcomes_by_hand() -> None:
    # Student's t of 4 degrees of freedom: 2.132 one-sided at 5%, 2.776 two-sided.
    assert compare_means(1.0, 0.1, 4, 1.0 + 0.22) == "equivalent"  # a real difference, and shown to be small
    assert compare_means(1.0, 0.1, 4, 1.0 + 0.21) == "differs"
    assert compare_means(-0.28, 0.1, 4, 0.3) == "differs"
    assert compare_means(-0.27, 0.1, 4, 0.3) == "inconclusive"


def test_a_wide_spread_is_inconclusive_and_no_match(paper_run: MakeRun) -> None:
    theirs = find(LR, "Adam", 3).values["train_loss"].mean
    runs = [paper_run(LR, "Adam", seed, final=theirs * (1 + 0.5 * (seed - 1))) for seed in range(3)]
    [cell] = [c for c in table_cells(Replication(runs)) if c.row == find(LR, "Adam", 3) and c.metric == "train_loss"]
    assert (cell.verdict, cell.difference) == ("inconclusive", pytest.approx(0.0, abs=1e-6))


def test_verdicts_of_cells(paper_run: MakeRun) -> None:
    theirs = find(LR, "Adam", 3).values["train_loss"].mean
    same = [paper_run(LR, "Adam", seed, final=theirs + 1e-4 * (seed - 1)) for seed in range(3)]
    other = [paper_run(LR, "AdamS", seed, final=0.5 + 1e-4 * seed) for seed in range(3)]
    lost = [paper_run(LR, "AdamCB", seed, diverged=True) for seed in range(3)]
    by_row = {
        (cell.row.optimizer, cell.row.epoch): cell
        for cell in table_cells(Replication([*same, *other, *lost]))
        if cell.metric == "train_loss" and cell.row.configuration == LR
    }
    verdicts = {place: cell.verdict for place, cell in by_row.items()}
    assert verdicts["Adam", 3] == "equivalent"
    assert verdicts["AdamS", 3] == "differs"
    assert verdicts["AdamUCB", 3] == verdicts["Adam", 20] == "not run"
    assert (by_row["AdamCB", 3].verdict, by_row["AdamCB", 3].diverged) == ("differs", 3)
