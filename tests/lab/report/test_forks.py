"""Reports of forks, of failures, and the commands that give a report's runs again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.report import write_report
from surefoot.lab.report.figures import curve_data
from surefoot.lab.report.origin import commands
from surefoot.lab.report.panels import shortened, time_to_target_panel
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
    fields = group_runs(forked())
    (data,) = curve_data(fields, [METRIC], {"Adam": 0, "AdamS": 1})
    assert data.epochs == [3, 4]
    assert [entry["step"] for entry in data.entries] == [[36, 48]] * 2
    assert all(None not in curve for entry in data.entries for curve in entry["values"][METRIC])
    panel = time_to_target_panel(fields[0], summarise(forked()).select(metric=METRIC), {"Adam": 0, "AdamS": 1})
    assert panel is not None
    assert panel.x.span is not None
    assert panel.x.span[0] == 2


def test_what_a_run_did_not_record_is_missing_at_its_own_place(run):
    long, short = run("Adam", 0, epochs=6), run("Adam", 1, epochs=6, done=3)
    late = Run(Path("nowhere"), replace(long.config, seed=2), long.epochs[4:])
    (data,) = curve_data(group_runs([long, short, late]), [METRIC], {"Adam": 0})
    assert data.epochs == [1, 2, 3, 4, 5, 6]
    found = [[value is not None for value in curve] for curve in data.entries[0]["values"][METRIC]]
    assert found == [[True] * 6, [True] * 3 + [False] * 3, [False] * 4 + [True] * 2]
    assert [len(seconds) for seconds in data.entries[0]["seconds"]] == [6, 6, 6]
    (thin,) = curve_data(group_runs([late]), [METRIC], {"Adam": 0}, budget=1)
    assert thin.epochs == [5, 6]
    assert data.to_json()["epochs"] == data.epochs


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


def test_a_run_that_ended_early_does_not_move_the_others(run):
    runs = [run("Adam", seed, epochs=4) for seed in range(2)]
    lost = run("Adam", 2, epochs=4)
    cut = {**lost.epochs[2], "diverged": True, "step": 25}
    lost = Run(lost.folder, lost.config, [*lost.epochs[:2], cut])
    (data,) = curve_data(group_runs([*runs, lost]), [METRIC], {"Adam": 0})
    assert data.entries[0]["step"] == [12, 24, 36, 48]
    (alone,) = curve_data(group_runs([lost]), [METRIC], {"Adam": 0})
    assert alone.entries[0]["step"] == [12, 24, 25]


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


@pytest.mark.parametrize(
    "error",
    [
        "Traceback (most recent call last):\n  File ...\nIndexError: Target 7 <b> is out\n",
        "IndexError: Target 7 <b> is out\n",
    ],
)
def test_when_every_run_failed_the_report_says_so(run, tmp_path, error):
    runs = []
    for label in ("Adam", "AdamS"):
        folder = tmp_path / label
        folder.mkdir()
        (folder / "error.txt").write_text(error)
        runs.append(Run(folder, run(label, 0).config, []))
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert text.count("No run ended: 2 failed.") == 2  # in short, and under divergences
    assert "Adam, seed 0: <code>IndexError: Target 7 &lt;b&gt; is out</code>" in text
    assert "nothing to compare with" not in text
    assert "No run diverged" not in text
    assert 'id="learning-curves"' not in text
    half = write_report([runs[0], run("AdamS", 0, done=2)], tmp_path / "half.html").read_text()
    assert "No run ended: 1 failed, 1 unfinished." in half


def test_shortened_labels_stay_apart():
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
