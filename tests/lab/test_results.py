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
    assert str(results) == results.to_markdown().rstrip()
    assert "| AdamS |" in str(results)
    assert str(Results([], {})) == "Results: 0 runs without a recorded epoch"
    assert str(Results([], {"a": "it broke\n"})).endswith("\nfailed: it broke")


def test_results_and_tables_are_short_at_a_prompt(paired_runs: Callable[..., list[Run]]) -> None:
    results = Results(paired_runs({"Adam": 0.0, "AdamS": -0.01}, epochs=50), {"a": "it broke\n"})
    assert repr(results).splitlines() == [
        "<Results: 2 optimizers, 10 seeds, 20 runs on digits-mlp>",
        f"  digits-mlp, validation loss: {results.table().comparisons[1].verdict.sentence}",
        "failed: it broke",
    ]
    assert repr(results.table()) == "<Tables: 2 optimizers, 10 seeds, 20 runs on digits-mlp>"
    labels = {f"AdamS eta={k}": -0.01 * k for k in range(40)}
    many = Results(paired_runs({"Adam": 0.0, **labels}, seeds=2), {str(k): "x" * 1000 for k in range(40)})
    assert len(repr(many)) < 4000
    assert "... and 32 more" in repr(many)
    assert repr(Results([], {})) == "<Results: 0 optimizers, 0 seeds, 0 runs>"


def test_tables_take_the_name_of_one_metric(paired_runs: Callable[..., list[Run]]) -> None:
    results = Results(paired_runs({"Adam": 0.0, "AdamS": -0.01}), {})
    assert results.table(metrics="valid_accuracy").metrics == ("valid_accuracy",)
    assert results.to_latex(metrics="valid_accuracy") == results.to_latex(metrics=["valid_accuracy"])
    assert results.to_latex(metrics="valid_accuracy").count(r"\begin{table}") == 1
    assert results.to_latex().count(r"\begin{table}") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "x"}, r"a target must be a finite number or a dict such as \{'valid_loss': 0.1\}, got 'x'"),
        ({"target": math.nan}, "a target must be a finite number"),
        ({"target": {"valid_los": 0.1}}, "the target names the metric 'valid_los'; choose among: valid_loss,"),
        ({"epoch": "last"}, "epoch must be a whole number from 1 up, got 'last'"),
        ({"metrics": "valid_f1"}, "no run recorded the metric 'valid_f1'"),
        ({"metrics": 5}, "metrics must be the name of a metric or a list of names, got 5"),
    ],
)
def test_wrong_options_of_tables_are_refused(
    paired_runs: Callable[..., list[Run]], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Results(paired_runs({"Adam": 0.0, "AdamS": -0.01}), {}).table(**options)


def test_the_whole_folder_is_checked(tiny_task: MakeTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def codes(results: Results) -> set[str]:
        return {finding.code for finding in results.check()}

    arguments = {"epochs": 2, "out": tmp_path, "progress": False}
    compare(tiny_task(), ["adam"], seeds=range(1000, 1001), purpose="tune", **arguments)
    fair = compare(tiny_task(), ["adam", "adams"], seeds=6, **arguments)
    assert "unequal-tuning" in codes(fair)  # the search of another command, in the same folder
    assert codes(fair) == codes(Results.read(tmp_path))
    fair.print()
    printed = capsys.readouterr().out
    assert all(str(finding) in printed.splitlines() for finding in fair.check())
    compare(tiny_task(), ["adams:lr=0.1"], seeds=6, **arguments)
    few = compare(tiny_task(), ["adam", "adams"], seeds=[0, 1, 2, 3, 5], **{**arguments, "epochs": 1})
    assert {"picked-seeds", "unshown-settings", "cut-epochs"} <= codes(few)
    page = few.report(tmp_path / "page.html").read_text()
    assert all(f"{finding.sentence}".split(":")[1].strip()[:30] in page for finding in few.check())


def test_a_folder_that_cannot_be_read_as_a_whole_is_a_finding(tiny_task: MakeTask, tmp_path: Path) -> None:
    arguments = {"seeds": 1, "epochs": 1, "out": tmp_path, "progress": False}
    [other] = compare(tiny_task(), ["sgd"], **arguments).runs
    (other.folder / "metrics.jsonl").write_text("rubbish\n")
    [finding] = [f for f in compare(tiny_task(), ["adam"], **arguments).check() if f.severity == "error"]
    assert finding.code == "unreadable-runs"
    assert "is damaged at line 1" in finding.sentence


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
    assert "pip install '.[lab]'" in done.stdout.splitlines()[-1], done.stdout + done.stderr
