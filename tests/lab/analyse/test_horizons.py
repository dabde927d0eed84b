"""Horizons: the best peer of each, the worst regret, and when "not inferior" may be said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup
from surefoot.lab.analyse.horizons import best_peer, compare_at_horizons, over_all_horizons
from surefoot.lab.analyse.verdicts import Outcome
from surefoot.lab.spec.config import OptimizerConfig, RunConfig, TaskConfig
from surefoot.lab.store import Run

SEEDS = range(8)


def contestant(label: str, *levels: float | None, spread: float = 1e-4) -> ContestantRuns:
    """Runs whose loss after each epoch is a level, and a little more with each seed."""
    optimizer = OptimizerConfig(label)
    runs = []
    for seed in SEEDS:
        rows = [
            {"epoch": k + 1, "valid_loss": None if level is None else level + spread * (seed % 3), "diverged": False}
            for k, level in enumerate(levels)
        ]
        runs.append(Run(Path("none"), RunConfig(TaskConfig("toy"), optimizer, seed, len(levels)), rows))
    return ContestantRuns(label, optimizer, tuple(runs))


def groups(*contestants: ContestantRuns) -> dict[int, TaskGroup]:
    return {epochs: TaskGroup("toy", TaskConfig("toy"), contestants) for epochs in (1, 2)}


def test_each_horizon_has_its_own_best_peer() -> None:
    table = compare_at_horizons(
        groups(contestant("ours", 1.0, 0.5), contestant("fast", 0.9, 0.8), contestant("slow", 2.0, 0.5)),
        "valid_loss",
        "1%",
    )
    assert [row.comparison.baseline for row in table.horizons] == ["fast", "slow"]
    assert table.worst.epochs == 1
    assert table.worst.regret == pytest.approx(0.1)
    assert table.verdict == "ours is worse than the best peer after 1 epoch (margin 1%)"


def test_within_the_margin_is_not_inferior_and_better_is_not_either() -> None:
    peer = contestant("peer", 1.0, 0.5)
    table = compare_at_horizons(groups(contestant("ours", 1.004, 0.4), peer), "valid_loss", "1%")
    assert [row.is_not_inferior for row in table.horizons] == [True, True]
    assert table.verdict == "ours is not inferior to the best peer at any horizon (margin 1%)"
    narrow = compare_at_horizons(groups(contestant("ours", 1.004, 0.4), peer), "valid_loss", "0.1%")
    assert [row.is_not_inferior for row in narrow.horizons] == [False, True]
    noisy = compare_at_horizons(groups(contestant("ours", 1.0, 0.5, spread=0.1), peer), "valid_loss", "0.1%")
    assert noisy.verdict == "undecided: ours is not shown to be within 0.1% of the best peer at any horizon"


def test_the_upper_end_of_the_worst_regret_is_that_of_all_horizons() -> None:
    ours = contestant("ours", 1.01, 0.505, spread=0.0)
    table = compare_at_horizons(groups(ours, contestant("peer", 1.0, 0.5)), "valid_loss", 0.1)
    highest = max(row.regret_interval[1] for row in table.horizons)
    assert highest >= table.worst.regret
    assert len(table.rows()) == 2


def test_a_peer_without_a_value_is_the_last_choice() -> None:
    broken, sound = contestant("broken", None, 0.1), contestant("sound", 3.0, 3.0)
    assert best_peer([broken, sound], "valid_loss", 1, higher=False) is sound
    assert best_peer([broken, sound], "valid_loss", 2, higher=True) is sound
    with pytest.raises(ValueError, match="there is no peer"):
        best_peer([], "valid_loss", 1, higher=False)


def test_over_all_horizons_each_counts_the_same() -> None:
    """Twice the loss at one horizon and half of it at the other is even, however large the losses are."""
    ours = contestant("ours", 2.0, 0.05, spread=0.0)
    even, worse = contestant("even", 1.0, 0.1, spread=0.0), contestant("worse", 2.2, 0.06)
    diverged = contestant("diverged", 1.0, None)
    rows = over_all_horizons(groups(ours, even, worse, diverged), "valid_loss")
    assert [row.peer for row in rows] == ["even", "worse", "diverged"]
    assert rows[0][2:] == ("8", Outcome.UNDECIDED)
    assert float(rows[0].difference.split()[0]) == pytest.approx(0, abs=1e-9)
    assert rows[1].outcome == Outcome.BETTER
    expected = 100 * (math.sqrt(2.0 / 2.2 * 0.05 / 0.06) - 1)  # the geometric mean of the ratios, in percent
    assert float(rows[1].difference.split()[0]) == pytest.approx(expected, abs=0.2)
    assert rows[2] == ("diverged", "", "0", Outcome.UNPAIRED)
    assert over_all_horizons(groups(ours, worse), "valid_loss", "worse")[0].outcome == Outcome.WORSE
