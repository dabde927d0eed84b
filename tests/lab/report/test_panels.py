"""Panels made from runs: mean curves, sensitivity, time to target, and the labels of their rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.report.panels import curves_panel, differences_panel, sensitivity, shortened


def test_shortened_labels_stay_distinct():
    long = [f"AdamUCB weighting=unit betas=(0.9, 0.99) eta={eta} weight_decay=0.0001" for eta in (0.1, 0.3, 0.5)]
    cut = shortened(["Adam", *long, long[0]])
    assert cut[0] == "Adam"
    assert len(set(cut)) == 4
    assert "eta=0.3" in cut[2]
    assert max(map(len, cut)) <= 36
    far = ["AdamS " + "a=1 " * 20 + f"b={b} " + "c=1 " * 20 + f"d={d} " + "e=1 " * 20 for b in (0, 1) for d in (0, 1)]
    assert len(set(shortened(far))) == 4
    assert max(map(len, shortened(far))) <= 39
    assert shortened([]) == []


def test_mean_curves_are_those_of_finished_runs(run):
    runs = [run("Adam", seed, epochs=4, final=0.1 * (1 + seed)) for seed in range(3)]
    [group] = group_runs([*runs, run("Adam", 3, epochs=4, done=2)])
    panel = curves_panel(group, "valid_loss", log=True)
    [line] = panel.lines
    assert (line.label, list(line.x), line.y[-1]) == ("Adam (n=3)", [1.0, 2.0, 3.0, 4.0], pytest.approx(0.2))
    assert line.band[-1] == (pytest.approx(0.1), pytest.approx(0.3))
    assert (panel.y.title, panel.y.scale) == ("validation loss", "log")
    assert curves_panel(group, "valid_loss", band=False).lines[0].band == ()


def test_a_fork_begins_where_it_was_forked(run):
    whole = run("Adam", 0, epochs=4)
    [group] = group_runs([replace(whole, epochs=whole.epochs[2:])])
    assert list(curves_panel(group, "valid_loss").lines[0].x) == [3.0, 4.0]


def test_an_option_that_contestants_differ_in_is_drawn(run):
    runs = [
        run(f"AdamS eta={eta}", seed, optimizer="surefoot.AdamS", kwargs={"eta": eta}, diverged=eta == 1 and seed == 0)
        for eta in (0.01, 0.1, 1)
        for seed in range(2)
    ]
    [group] = group_runs([run("Adam", 0), *runs])
    series = {contestant.label: i for i, contestant in enumerate(group.contestants)}
    [panel] = sensitivity(group, "valid_loss", series)
    level, sweep, width = panel.lines
    assert (width.label, width.series, width.y[0]) == ("", sweep.series, width.y[1])  # the basin, drawn as a bar
    assert "Width of the basin in eta" in panel.caption
    assert (level.label, list(level.x)) == ("Adam (baseline)", [0.01, 1])
    assert (sweep.label, list(sweep.x), sweep.markers.symbol) == (
        "AdamS",
        [0.01, 0.1, 1],
        [*["circle"] * 2, "circle-open"],
    )
    assert sweep.text[2].endswith("(n=1, 1 diverged)")
    assert (panel.x.title, panel.x.scale, list(panel.x.ticks)) == ("eta", "log", [0.01, 0.1, 1])


def test_the_differences_of_every_seed_are_drawn_with_mean_and_interval(paired_runs):
    summary = summarise(paired_runs({"Adam": 0.0, "A": -0.02, "B": 0.1}, seeds=7), metrics="valid_loss")
    panel = differences_panel(summary.comparisons, {"Adam": 0, "A": 1, "B": 2})
    seeds, interval, mean, *_ = panel.lines
    row = summary.comparisons[1]
    assert list(seeds.x) == list(row.evidence.differences)
    assert len(set(seeds.y)) == 7  # seeds of equal differences stay visible
    assert (list(interval.x), list(interval.y)) == (list(row.interval), [0, 0])
    assert list(mean.x) == [row.difference]
    assert panel.x.sides == ("better", "worse")
    assert panel.x.span[0] < min(seeds.x) < 0 < panel.x.span[1]
    assert [name for name, _ in panel.rows] == ["A", "B"]
    assert panel.rows[1][1].endswith("▼ worse")
    assert differences_panel(summary.comparisons[:1], {"Adam": 0}) is None
