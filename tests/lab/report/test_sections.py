"""What a report says, for every state that runs can be in."""

from __future__ import annotations

import html
import itertools
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
import torch

from surefoot.lab import Results, compare
from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.report import ReportContext, Section, write_page, write_report
from surefoot.lab.report.context import Text
from surefoot.lab.report.figures import Line, Panel, curve_data
from surefoot.lab.report.panels import time_to_target_panel
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.store import Run

MEGABYTES_6 = 6_000_000


def test_a_report_that_would_be_too_big_is_thinned_and_says_so(paired_runs, tmp_path):
    tasks = [{"name": f"task {i}", "batch_size": 1, "data": "", "settings": {}} for i in range(6)]
    labels = {"Adam": 0.0} | {f"AdamS eta={i}": 0.001 * i for i in range(11)}
    runs = [made for task in tasks for made in paired_runs(labels, seeds=10, epochs=60, task=task)]
    path = write_report(runs, tmp_path / "report.html")
    assert path.stat().st_size < MEGABYTES_6
    text = path.read_text()
    assert re.search(r"curves show every \d+\w\w epoch", text)


@pytest.mark.parametrize("case", ["nothing", "one run", "unfinished", "all diverged at once", "one contestant"])
def test_every_state_of_a_comparison_has_a_report(case, run, tmp_path):
    runs = {
        "nothing": [],
        "one run": [run("Adam", 0, epochs=1)],
        "unfinished": [run("Adam", 0, done=2), run("AdamS", 0, epochs=5, done=1)],
        "all diverged at once": [run(label, s, done=1, diverged=True) for label in ("Adam", "AdamS") for s in range(2)],
        "one contestant": [run("Adam", seed) for seed in range(3)],
    }[case]
    text = write_report(runs, tmp_path / "report.html").read_text()
    expected = {
        "nothing": "There is no run to report.",
        "one run": "Only Adam ran",
        "unfinished": "AdamS is not finished on seed 0",
        "all diverged at once": "no pair of runs to compare: AdamS diverged in 2 of 2 runs",
        "one contestant": "Only Adam ran",
    }[case]
    assert expected in text


def test_sections_of_ones_own_stand_before_the_honesty_checks(paired_runs, tmp_path):
    score = Panel("Score", [Line("score", [1, 2], [1, 2])])
    extra = Section("Scorecard", "Against the paper.", [Text("Twelve of twelve.")], [score])
    path = write_report(paired_runs({"Adam": 0.0, "AdamS": -0.01}), tmp_path / "r.html", "My title", [extra])
    text = path.read_text()
    assert "<title>My title</title>" in text
    order = [text.index(f'id="{anchor}"') for anchor in ("results", "scorecard", "honesty-checks", "provenance")]
    assert order == sorted(order)
    alone = write_page(tmp_path / "deep" / "page.html", ReportContext("Forks", "Only this.", [extra]))
    assert "Twelve of twelve." in alone.read_text()
    assert sorted(path.name for path in alone.parent.iterdir()) == ["page.html"]


def test_commands_are_those_that_were_recorded(run, tmp_path):
    def text(runs, **options):
        page = write_report(runs, tmp_path / "report.html", **options).read_text()
        return html.unescape(page[page.index(">How to get it again</h2>") : page.index("<footer>")])

    def recorded(command, seed):
        made = run("Adam", seed)
        provenance = replace(made.config.provenance, command=command)
        return replace(made, config=replace(made.config, provenance=provenance))

    lines = [
        "surefoot compare digits-mlp -o adam --seeds 2",
        "surefoot compare digits-mlp --first-seed 5 --out 'my <runs>'",
    ]
    runs = [recorded(lines[0], 0), recorded(lines[0], 1), recorded(lines[1], 5), recorded("", 6)]
    assert re.findall("<pre><code>(.*?)</code></pre>", text(runs)) == lines
    assert re.findall("<pre><code>(.*?)</code></pre>", text(runs, command="make <this>")) == ["make <this>"]
    assert "No command was recorded with these runs." in text(runs[3:])
    assert "No command was recorded" not in text(runs)


def test_code_that_no_command_can_find_is_reported(tiny_task, tmp_path):
    class Mine(torch.optim.SGD):
        """Where no command finds it."""

    options = {"seeds": 1, "epochs": 1, "progress": False}
    given = Contestant.create("my own", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "schedule": "cosine"})
    for task, optimizer, is_said in (
        ("digits-lr", given, False),
        ("digits-lr", Mine, True),
        (tiny_task(), "sgd", True),
    ):
        results = compare(task, ["adam", optimizer], out=tmp_path / str(optimizer), **options)
        page = results.report(tmp_path / "report.html").read_text()
        assert ("of your own is named by its file" in page) == is_said
    [command] = {run.config.provenance.command for run in Results.read(tmp_path / str(given)).runs}
    specs = [after for word, after in itertools.pairwise(shlex.split(command)) if word == "-o"]
    assert specs == ["adam", "torch.optim.SGD:lr=0.1,momentum=0.9,schedule=cosine"]
    assert Contestant.parse(specs[1]).kwargs == given.kwargs


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
    (data,) = curve_data(groups, ["valid_loss"], {"Adam": 0, "AdamS": 1})
    assert data.epochs == [3, 4]
    assert [entry["step"] for entry in data.entries] == [[36, 48]] * 2
    assert all(None not in curve for entry in data.entries for curve in entry["values"]["valid_loss"])
    panel = time_to_target_panel(groups[0], summarise(forked()).select(metric="valid_loss"), {"Adam": 0, "AdamS": 1})
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


def test_runs_without_a_recorded_peak_memory_are_named(paired_runs, tmp_path):
    runs = paired_runs({"Adam": 0.0, "AdamS": 0.01}, epochs=2)
    older = write_report(runs, tmp_path / "older.html").read_text()
    assert "peak memory was not recorded with these runs, which are older or imported" in older
    for run in runs:
        if run.label == "Adam":
            for row in run.epochs:
                row["peak_memory"] = 3 * 2**20
    mixed = write_report(runs, tmp_path / "mixed.html").read_text()
    assert "3 MB" in mixed
    assert "peak memory was not recorded with the runs of AdamS, which" in mixed
