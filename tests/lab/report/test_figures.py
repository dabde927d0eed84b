"""The data of learning curves: epochs, gaps, and how many bytes they take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.report.figures import LIGHTER, curve_data, series_of
from surefoot.lab.store import Run

METRIC = "valid_loss"


def test_what_a_run_did_not_record_is_missing_at_its_own_place(run):
    long, short = run("Adam", 0, epochs=6), run("Adam", 1, epochs=6, done=3)
    late = Run(Path("nowhere"), replace(long.config, seed=2), long.epochs[4:])
    (data,) = curve_data(group_runs([long, short, late]), [METRIC], {"Adam": 0})
    assert data.epochs == [1, 2, 3, 4, 5, 6]
    recorded = [[value is not None for value in curve] for curve in data.entries[0]["values"][METRIC]]
    assert recorded == [[True] * 6, [True] * 3 + [False] * 3, [False] * 4 + [True] * 2]
    assert [len(seconds) for seconds in data.entries[0]["seconds"]] == [6, 6, 6]
    (thin,) = curve_data(group_runs([late]), [METRIC], {"Adam": 0}, budget=1)
    assert thin.epochs == [5, 6]
    assert data.to_json()["epochs"] == data.epochs


def test_a_run_that_ended_early_does_not_move_the_others(run):
    runs = [run("Adam", seed, epochs=4) for seed in range(2)]
    lost = run("Adam", 2, epochs=4)
    cut = {**lost.epochs[2], "diverged": True, "step": 25}
    lost = Run(lost.folder, lost.config, [*lost.epochs[:2], cut])
    (data,) = curve_data(group_runs([*runs, lost]), [METRIC], {"Adam": 0})
    assert data.entries[0]["step"] == [12, 24, 36, 48]
    (alone,) = curve_data(group_runs([lost]), [METRIC], {"Adam": 0})
    assert alone.entries[0]["step"] == [12, 24, 25]


def test_curves_keep_to_their_budget(paired_runs):
    groups = group_runs(paired_runs({"Adam": 0.0, "AdamS": 0.01}, seeds=4, epochs=100))
    series = {"Adam": 0, "AdamS": 1}
    (full,) = curve_data(groups, ["valid_loss"], series)
    assert (full.stride, full.epochs) == (1, list(range(1, 101)))
    assert len(json.dumps(full.to_json())) < 7.5 * 4 * 2 * 100 * 2 * 1.2
    (thin,) = curve_data(groups, ["valid_loss"], series, budget=3_000)
    assert thin.stride == 4
    assert thin.epochs[0] == 1
    assert thin.epochs[-1] == 100
    assert len(json.dumps(thin.to_json())) < 4_500
    assert thin.to_json()["entries"][1]["label"] == "AdamS"


def test_a_sweep_has_shades_of_one_colour_and_others_have_their_own(run):
    def contestant(label, name, **options):
        return run(label, 0, optimizer=f"surefoot.{name}", kwargs=options)

    sweep = [contestant(f"AdamS lr={lr}", "AdamS", lr=lr) for lr in (0.1, 0.001, 0.01)]
    runs = [contestant("Adam", "Adam"), *sweep, contestant("AdamCB", "AdamCB", eta=0.1)]
    series = series_of(group_runs(runs))
    assert [series[label] % LIGHTER for label in series] == [0, 1, 1, 1, 2]
    shades = [series[f"AdamS lr={lr}"] // LIGHTER for lr in (0.001, 0.01, 0.1)]
    assert shades == sorted(shades, reverse=True)  # the largest value has the full colour
    assert (shades[-1], series["AdamCB"] // LIGHTER) == (0, 0)


def test_a_baseline_in_a_sweep_stays_ink(run):
    runs = [run(f"Adam lr={lr}", 0, optimizer="torch.optim.Adam", kwargs={"lr": lr}) for lr in (0.001, 0.01, 0.1)]
    assert series_of(group_runs(runs))["Adam lr=0.001"] == 0
