"""Reports of forks, of failures, and the commands that give a report's runs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.report import write_report
from surefoot.lab.report.figures import curve_data
from surefoot.lab.report.origin import commands
from surefoot.lab.report.panels import time_to_target_panel
from surefoot.lab.store import Run

METRIC = "valid_loss"


def text_of(groups):
    lines, note = commands(groups)
    return "\n".join([*lines, note])


@pytest.fixture
def forked(run):
    """Runs that continued from an epoch of Adam, for two epochs; AdamS kept the state when told so."""

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


def test_the_command_of_a_fork(forked):
    line = "surefoot fork digits-lr --at 2 -o adam -o adams --seeds 2 --epochs 2 --batch-size 128"
    assert line in text_of(group_runs(forked()))
    assert "fork digits-lr --at 2 --state keep -o adam" in text_of(group_runs(forked(kept=True)))
    assert "surefoot fork digits-lr --at 0 " in text_of(group_runs(forked(at=0)))


def test_the_command_names_the_folder_and_the_file(run):
    own = {"name": "odd", "batch_size": 8, "data": "d", "settings": {}, "code": "0123"}

    def html(**task: Any) -> str:
        key = "abcdef0123456789"
        folder = Path("my runs/odd/adam-s0-abcdef01")
        return text_of(group_runs([run("Adam", 0, task={**own, **task}, folder=folder, key=key, device="cuda")]))

    assert "--device cuda --out 'my runs'" in html()
    assert "surefoot compare odd " in html()
    assert "write that in its place" in html()
    tasks = [{**own, "name": name} for name in ("odd", "mnist-mlp")]
    decayed = [run("Adam", 0, task=task, kwargs={"weight_decay": 1e-4}) for task in tasks]
    assert ["--weight-decay 0.0001" in text_of(group_runs([one])) for one in decayed] == [True, False]
    assert "surefoot compare tasks/odd.py:make " in html(spec="tasks/odd.py:make")
    assert "write that in its place" not in html(spec="tasks/odd.py:make")
    assert "--out" not in text_of(group_runs([run("Adam", 0)]))  # runs from an archive lie in no such folder
