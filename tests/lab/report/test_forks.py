"""Reports of forks, of failures, and the commands that give a report's runs again."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.report import write_report
from surefoot.lab.report.figures import curve_data
from surefoot.lab.report.panels import time_to_target_panel
from surefoot.lab.store import Run

METRIC = "valid_loss"


@pytest.fixture
def forked(run):
    """Runs that continued from an epoch of Adam, for two epochs; AdamS kept the state if asked to."""

    def make(at: int = 2, kept: bool = False, **more: Any) -> list[Run]:
        runs = []
        for label in ("Adam", "AdamS"):
            for seed in range(2):
                task = {"name": "digits-lr", "batch_size": 128, "data": "d", "settings": {"fork_at": at}}
                state = "kept" if kept and label == "AdamS" else "fresh"
                fork = {"base": "b", "label": "Adam", "epoch": at, "state": state}
                whole = run(label, seed, epochs=at + 2, final=0.1 + 0.01 * seed, task=task, fork=fork, **more)
                runs.append(Run(whole.folder, whole.config, whole.epochs[at:]))
        return runs

    return make


def test_a_fork_is_drawn_at_its_own_epochs(forked):
    groups = group_runs(forked())
    (data,) = curve_data(groups, [METRIC], {"Adam": 0, "AdamS": 1})
    assert data.epochs == [3, 4]
    assert [entry["step"] for entry in data.entries] == [[36, 48]] * 2
    assert all(None not in curve for entry in data.entries for curve in entry["values"][METRIC])
    panel = time_to_target_panel(groups[0], summarise(forked()).select(metric=METRIC), {"Adam": 0, "AdamS": 1})
    assert panel is not None
    assert panel.x.span is not None
    assert panel.x.span[0] == 2


def test_a_fork_says_that_it_is_one(forked, tmp_path):
    text = write_report(forked(), tmp_path / "report.html").read_text()
    assert "<h1>Optimizers on digits-lr, continued from epoch 2 of Adam</h1>" in text
    assert "A fork: every optimizer continued from epoch 2 of Adam" in text
    assert "with a fresh state" in text
    assert "2 optimizers · 2 seeds · 2 epochs · 4 runs" in text
    kept = write_report(forked(kept=True), tmp_path / "kept.html").read_text()
    assert "AdamS with the state that it had there, the others with a fresh one" in kept
    start = write_report(forked(at=0), tmp_path / "start.html").read_text()
    assert "Optimizers on digits-lr, forked at the initial weights of Adam" in start
    assert "A fork" not in write_report([], tmp_path / "none.html").read_text()
