"""What the displays of progress show."""

from __future__ import annotations

import io
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from notebooks import Shown
from surefoot.lab.run import progress
from surefoot.lab.run.pool import Event, RunJob, TaskSource
from surefoot.lab.run.progress import LiveDisplay, PlainLines, Progress, duration
from surefoot.lab.spec.config import OptimizerConfig, RunConfig, TaskConfig


def make_jobs(*labels: str, epochs: int = 4) -> list[RunJob]:
    configs = [RunConfig(TaskConfig("toy"), OptimizerConfig(label), seed=0, epochs=epochs) for label in labels]
    return [RunJob(i, config, Path("x"), TaskSource(), None) for i, config in enumerate(configs)]  # type: ignore[arg-type]


def row(epoch: int, diverged: bool = False) -> dict[str, Any]:
    loss = None if diverged else 0.5
    return {"epoch": epoch, "train_loss": loss, "valid_loss": loss, "valid_accuracy": loss, "diverged": diverged}


def follow(display: Progress) -> None:
    with display:
        for event in (
            Event("done", 2),
            Event("start", 0),
            Event("epoch", 0, row(1)),
            Event("epoch", 0, row(4)),
            Event("done", 0),
            Event("start", 1),
            Event("waiting", 1),
            Event("start", 1),
            Event("epoch", 1, row(1, diverged=True)),
            Event("done", 1),
            Event("start", 3),
            Event("failed", 3, message="no [memory]"),
        ):
            display.on_event(event)


def test_plain_lines_name_each_run_once() -> None:
    out = io.StringIO()
    follow(PlainLines(make_jobs("Adam", "AdamS", "there", "SGD"), Console(file=out, width=300)))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("[2/4] Adam, seed 0: train 0.5, valid 0.5, accuracy 0.5 (")
    assert "left" in lines[0]
    assert lines[1].startswith("[2/4] AdamS, seed 0: another command is computing it; waiting")
    assert lines[2].startswith("[3/4] AdamS, seed 0: diverged in epoch 1")
    assert lines[3] == "[4/4] SGD, seed 0: failed: no [memory]"
    assert lines[4:] == ["1 of 4 runs were there already"]


def test_the_live_display_shows_what_runs_and_what_went_wrong() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    jobs = make_jobs("Adam", "AdamS", "there", "SGD")
    display = LiveDisplay(jobs, console)
    with display:
        display.on_event(Event("start", 0))
        display.on_event(Event("epoch", 0, row(2)))
        console.print(display._bars.get_renderable())
    assert "Adam, seed 0" in out.getvalue()
    assert "train 0.5" in out.getvalue()
    assert "0 of 4 runs" in out.getvalue()
    follow(LiveDisplay(jobs, console))
    assert "SGD, seed 0 failed: no [memory]" in out.getvalue()
    assert "diverged in epoch 1" in out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_display_leaves_out_results_and_cuts_none(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    display = LiveDisplay(make_jobs("Adam", "SGD lr=0.0001"), console)
    averages = {f"loss@{name}": 0.12345 for name in ("anytime", "poly:8")}
    for index in (0, 1):
        display.on_event(Event("epoch", index, row(index + 1) | {f"valid_{k}": v for k, v in averages.items()}))
    console.print(display._bars.get_renderable())
    overall, *runs = out.getvalue().splitlines()
    assert max(map(len, (overall, *runs))) <= width
    assert overall.startswith("all epochs ")
    assert "0 s left, 0 of 2 runs" in overall
    assert [line.startswith(("Adam, seed 0 ", "SGD lr=0.0001, seed")) for line in runs] == [True, True]
    results = ["train 0.5", "valid 0.5", "accuracy 0.5", "loss@anytime 0.1235", "loss@poly:8 0.1235"]
    for line in runs:
        assert "\u2501" in line  # the bar keeps its room
        shown = line.split("/4")[1].strip().split(", ")
        assert len(shown) >= 2
        assert shown == results[: len(shown)]


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown.of_a_notebook(monkeypatch)
    follow(progress.NotebookBar(make_jobs("Adam", "<b>", "there", "SGD")))
    assert len(shown.displayed) == 1  # one bar that changes
    assert shown.texts[0].startswith('<div><progress value="0" max="16"')
    assert any("Adam, seed 0: train 0.5" in text for text in shown.texts)
    assert any("left" in text for text in shown.texts)
    assert "4 of 4 runs" in shown.texts[-1]
    assert all("<b>" not in text for text in shown.texts)


@pytest.mark.parametrize("kernel", [True, False])
def test_only_a_kernel_is_a_notebook(monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    shell = types.SimpleNamespace(kernel=1) if kernel else types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    assert progress.in_notebook() is kernel
    monkeypatch.delitem(sys.modules, "IPython")
    assert not progress.in_notebook()


def test_time_left_counts_what_was_trained_not_what_was_found() -> None:
    display = Progress(make_jobs("a", "b", "c", epochs=10))
    assert display.time_left() == ""
    display.on_event(Event("done", 0))
    assert display.time_left() == ""
    display._began -= 1000.0  # workers start slowly; that is not the speed of training
    display.on_event(Event("epoch", 1, row(1)))
    assert display.time_left() == ""
    display._began -= 40.0
    for epoch in range(2, 6):
        display.on_event(Event("epoch", 1, row(epoch)))
    assert display.time_left() == f"{duration(150)} left"  # 15 epochs at 10 s each
