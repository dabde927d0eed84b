"""The results of a comparison: as tables, as a frame, as plots and as a report."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from surefoot.lab import Results, Run, Task, compare

MakeTask = Callable[..., Task]
MakeRun = Callable[..., Run]


def test_results_give_tables_and_a_report(tiny_task: MakeTask, tmp_path: Path) -> None:
    results = compare(tiny_task(), ["adam", "adams"], seeds=3, epochs=2, out=tmp_path, progress=False)
    assert {row.label for row in results.table().comparisons} == {"Adam", "AdamS"}
    assert "| Adam " in results.to_markdown()
    assert r"\begin{" in results.to_latex()
    assert "AdamS" in results.to_csv()
    assert json.loads(results.to_json())
    assert "AdamS" in results._repr_html_()
    assert "<html" in results.report(tmp_path / "report.html").read_text()
    [axes] = results.plot("valid_accuracy", log=True)
    assert [line.get_label() for line in axes.get_lines()] == ["Adam (n=3)", "AdamS (n=3)"]
    assert list(axes.get_lines()[0].get_xdata()) == [1, 2]
    assert isinstance(results.check(), list)
    with pytest.raises(ValueError, match="unknown format 'word'"):
        results.to("word")


def test_results_print_as_their_tables(tiny_task: MakeTask, tmp_path: Path) -> None:
    results = compare(tiny_task(), ["adam", "adams"], seeds=2, epochs=1, out=tmp_path, progress=False)
    assert str(results) == repr(results) == results.to_markdown().rstrip()
    assert "| AdamS |" in str(results)
    assert str(Results([], {})) == "Results: 0 runs without a recorded epoch"
    assert str(Results([], {"a": "it broke\n"})).endswith("\nfailed: it broke")


def test_frame_has_a_row_per_run_and_epoch(run: MakeRun) -> None:
    runs = [run(label, seed, final=0.1 * seed, epochs=3) for label in ("Adam", "AdamS") for seed in range(4)]
    runs += [run("AdamUCB", 0, epochs=3, done=2, diverged=True), run("AdamUCB", 1, epochs=3, done=1)]
    frame = Results(runs, {}).frame
    assert len(frame) == sum(len(run.epochs) for run in runs) == 27
    assert list(frame.columns[:4]) == ["task", "optimizer", "seed", "epoch"]
    assert set(frame.columns) == {"task", "optimizer", "seed", *runs[0].epochs[0]}
    records = [record for run in runs for record in run.epochs]
    for row, record in zip(frame.to_dict("records"), records):
        for name, value in record.items():
            assert row[name] == value if value is not None else math.isnan(row[name])
    mean = frame.groupby(["optimizer", "epoch"])["valid_loss"].mean()
    assert mean["AdamS", 3] == pytest.approx(0.15)


def test_columns_of_the_frame_have_types(run: MakeRun) -> None:
    frame = Results([run("Adam", 0), run("Adam", 1, done=1, diverged=True)], {}).frame
    types = {name: str(dtype) for name, dtype in frame.dtypes.items()}
    assert types["seed"] == types["epoch"] == "int64"
    assert types["step"] == types["jobs"] == types["skipped"] == "Int64"
    assert types["diverged"] == "bool"
    assert types["tilt"] == types["valid_loss"] == types["seconds"] == "float64"  # tilt: Adam has none
    assert {"task", "optimizer", "seed", "epoch", "diverged"} <= set(Results([], {}).frame.columns)


def test_contestants_of_one_label_are_distinct_in_the_frame(run: MakeRun) -> None:
    runs = [run("Adam", 0, kwargs={"lr": lr}) for lr in (0.1, 0.2)]
    assert set(Results(runs, {}).frame["optimizer"]) == {"Adam lr=0.1", "Adam lr=0.2"}


def test_pandas_is_needed_for_frames_alone(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["pandas"] = None  # cannot be imported: scikit-learn, which has the digits, would import it
from surefoot.lab import compare
results = compare("digits-lr", ["adam", "sgd"], seeds=2, epochs=1, out=sys.argv[1], progress=False)
results.print(), results.check(), results.to_markdown(), results.to_json(), results.report(sys.argv[1] + "/report.html")
try:
    results.frame
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=250)
    assert "pip install 'surefoot[lab]'" in done.stdout.splitlines()[-1], done.stdout + done.stderr
