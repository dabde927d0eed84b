"""Other people's results: tables and exports of trackers become runs; bad input is named by file, row and column."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from command_line import surefoot
from surefoot.lab import Results, Run
from surefoot.lab.imports import TableError, import_runs

SEEDS = 7


def rows(labels: dict[str, float], epochs: int = 3) -> list[dict[str, object]]:
    """A table as somebody may have made it; `labels` are the final losses."""
    return [
        {
            "Task": "mnist",
            "Optimizer": label,
            "Seed": seed,
            "Epoch": epoch,
            "val_loss": final
            + 0.01 * math.sin(5 * seed)
            + 0.001 * math.cos(7 * seed + len(label))
            + 0.1 * (epochs - epoch),
            "val_acc": 0.9 - final,
            "comment": "fast machine",
        }
        for label, final in labels.items()
        for seed in range(SEEDS)
        for epoch in range(1, epochs + 1)
    ]


def write(path: Path, table: list[dict[str, object]]) -> Path:
    pandas.DataFrame(table).to_csv(path, index=False)
    return path


def test_a_table_has_the_verdicts_tables_and_checks_of_the_lab(
    tmp_path: Path, paired_runs: Callable[..., list[Run]]
) -> None:
    """The same numbers as runs of the lab and as a table of somebody give the same comparisons."""
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    own = Results(runs, {})
    foreign = Results.read(write(tmp_path / "results.csv", own.frame.to_dict("records")))
    assert foreign.to("csv", metrics=["valid_loss", "valid_accuracy"]) == own.to(
        "csv", metrics=["valid_loss", "valid_accuracy"]
    )
    assert {finding.code for finding in foreign.check()} == {"foreign-runs"}
    for options in ({}, {"target": 0.2}, {"epoch": 3}, {"baseline": "AdamS"}):
        assert foreign.table(**options).comparisons == own.table(**options).comparisons
    page = foreign.report(tmp_path / "page.html").read_text()
    assert "AdamS beats Adam" in page
    [axes] = foreign.plot("valid_loss")
    assert [line.get_label() for line in axes.get_lines()] == ["Adam (n=10)", "AdamS (n=10)"]


def test_the_command_reports_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "results.csv", rows({"adam": 0.5, "lion": 0.4}))
    done = surefoot("report", path)
    assert done.exit_code == 0, done.output
    assert f"report: {tmp_path / 'results.html'}" in done.stdout.splitlines()
    assert "</html>" in (tmp_path / "results.html").read_text()
    assert "lion beats adam by 0.1" in surefoot("report", path, "--format", "md").stdout
    checked = surefoot("report", path, "--check")
    assert checked.exit_code == 0
    assert "[foreign-runs]" in checked.stdout


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_frames_and_files_are_the_same(tmp_path: Path, separator: str) -> None:
    frame = pandas.DataFrame(rows({"adam": 0.5, "lion": 0.4}))
    frame.to_csv(tmp_path / "table.csv", index=False, sep=separator, encoding="utf-8-sig")
    of_file, of_frame = import_runs(tmp_path / "table.csv"), import_runs(frame)
    assert [(run.config, run.epochs) for run in of_file] == [(run.config, run.epochs) for run in of_frame]
    assert [(run.label, run.seed) for run in of_frame] == [
        (label, seed) for label in ("adam", "lion") for seed in range(SEEDS)
    ]
    assert of_frame[0].epochs[0].keys() == {"epoch", "valid_accuracy", "valid_loss", "diverged"}
    assert import_runs(frame.set_index(["Optimizer", "Seed"]))[0].epochs == of_frame[0].epochs


def test_parquet_is_read_as_the_frame_it_was_written_from(tmp_path: Path) -> None:
    frame = pandas.DataFrame(rows({"adam": 0.5, "lion": 0.4}))
    frame.to_parquet(tmp_path / "table.parquet")
    of_file, of_frame = import_runs(tmp_path / "table.parquet"), import_runs(frame)
    assert [(run.label, run.seed, run.epochs) for run in of_file] == [
        (run.label, run.seed, run.epochs) for run in of_frame
    ]


def test_parquet_needs_a_package_that_pandas_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(b"")

    def missing(path: Path) -> None:
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pandas, "read_parquet", missing)
    with pytest.raises(TableError, match=r"table.parquet: .* install it with: pip install pyarrow$"):
        import_runs(path)


def test_steps_without_epochs_are_counted(tmp_path: Path) -> None:
    table = [{**row, "step": 100 * row.pop("Epoch")} for row in rows({"adam": 0.5, "lion": 0.4})]  # type: ignore[operator]
    [first, *_] = import_runs(pandas.DataFrame(table))
    assert [(record["epoch"], record["step"]) for record in first.epochs] == [(1, 100), (2, 200), (3, 300)]


def test_a_row_per_run_is_enough() -> None:
    table = [{"optimizer": o, "seed": s, "valid_loss": 0.1 * s} for o in ("adam", "sgd") for s in range(3)]
    assert [run.epochs for run in import_runs(pandas.DataFrame(table))][1] == [
        {"epoch": 1, "valid_loss": 0.1, "diverged": False}
    ]


def test_metrics_that_are_logged_at_different_steps_have_their_last_value() -> None:
    table: list[dict[str, object]] = []
    for seed in range(2):
        for step in range(10, 60, 10):
            table.append({"optimizer": "adam", "seed": seed, "step": step, "train_loss": 1 / step})
            if step == 40:
                table.append({"optimizer": "adam", "seed": seed, "step": step, "val_loss": 0.25 + seed})
    runs = import_runs(pandas.DataFrame(table))
    assert [run.epochs[-1] for run in runs] == [
        {"epoch": 5, "step": 50, "train_loss": 0.02, "valid_loss": 0.25 + seed, "diverged": False} for seed in range(2)
    ]


def test_a_value_that_one_run_lacks_at_its_end_stays_missing(tmp_path: Path) -> None:
    table = rows({"adam": 0.5, "lion": 0.4})
    table[-1]["val_loss"] = None
    results = Results.read(pandas.DataFrame(table))
    assert results.recorded[-1].epochs[-1]["valid_loss"] is None
    assert "missing-values" in {finding.code for finding in results.check()}


def test_a_loss_that_is_written_as_nan_or_inf_at_the_end_diverged(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(
        "optimizer,seed,epoch,val_loss\nadam,0,1,0.5\nadam,0,2,0.4\nsgd,0,1,nan\nadam,1,1,3\nadam,1,2,inf\n"
    )
    runs = import_runs(path)
    assert [(run.label, run.seed, run.state) for run in runs] == [
        ("adam", 0, "done"),
        ("adam", 1, "diverged"),
        ("sgd", 0, "diverged"),
    ]
    assert "unequal-epochs" not in {finding.code for finding in Results.read(path).check()}


def test_shorter_runs_are_an_unequal_budget() -> None:
    table = [row for row in rows({"adam": 0.5, "lion": 0.4}) if not (row["Optimizer"] == "lion" and row["Epoch"] == 3)]
    assert "unequal-epochs" in {finding.code for finding in Results.read(pandas.DataFrame(table)).check()}


def test_learning_rates_and_trials_of_a_table_are_checked() -> None:
    table = [
        {**row, "learning_rate": 0.1 if row["Optimizer"] == "lion" else 0.001}
        for row in rows({"adam": 0.5, "lion": 0.4})
    ]
    results = Results.read(pandas.DataFrame(table))
    assert "untuned-rates" in {finding.code for finding in results.check()}
    assert results.runs[0].config.optimizer.options == {"lr": 0.001}
    trials = [{**row, "purpose": "tune", "learning_rate": lr} for row in table for lr in (0.01, 0.1, 1.0)]
    tuned = Results.read(pandas.DataFrame([*table, *trials]))
    assert len(tuned.runs) == 2 * SEEDS
    assert {"tuned-on-reported-seeds", "tuned-elsewhere"} <= {finding.code for finding in tuned.check()}


def test_a_rate_that_a_schedule_changes_is_no_option_and_no_metric() -> None:
    table = [{**row, "lr": 0.1 / row["Epoch"]} for row in rows({"adam": 0.5})]  # type: ignore[operator]
    [run, *_] = import_runs(pandas.DataFrame(table))
    assert run.config.optimizer.options == {}
    assert "lr" not in run.epochs[0]


def test_directions_of_metrics() -> None:
    table = [{**row, "val_top1": 0.5, "Test Acc": 0.4} for row in rows({"adam": 0.5, "lion": 0.4})]
    plain = Results.read(pandas.DataFrame(table))
    directions = {row.metric: row.higher_is_better for row in plain.table().comparisons}
    assert directions == {"valid_loss": False, "valid_accuracy": True, "valid_top1": False, "test_accuracy": True}
    assert "unusual-direction" in {finding.code for finding in plain.check()}
    for name in ("top1", "val_top1", "valid_top1"):
        said = Results.read(pandas.DataFrame(table), higher_is_better={name: True})
        assert {row.metric for row in said.table().comparisons if row.higher_is_better} == {
            "valid_accuracy", "valid_top1", "test_accuracy",
        }  # fmt: skip
    with pytest.raises(
        TableError, match="higher_is_better names 'top_1', which is no metric of the table; choose among"
    ):
        Results.read(pandas.DataFrame(table), higher_is_better={"top_1": True})


def test_a_chart_of_weights_and_biases(tmp_path: Path) -> None:
    runs = [f"mnist/{label}-s{seed}" for label in ("adam", "lion") for seed in range(2)]
    head = ["Step", *(f"{run} - {kind}" for run in runs for kind in ("val/loss", "val/loss__MIN", "val/loss__MAX"))]
    lines = [[step, *(0.1 * step + place for place in range(4) for _ in range(3))] for step in (1, 2)]
    pandas.DataFrame(lines, columns=head).to_csv(tmp_path / "wandb.csv", index=False)
    assert [
        (run.task, run.label, run.seed, [row["valid_loss"] for row in run.epochs])
        for run in import_runs(tmp_path / "wandb.csv")
    ] == [
        ("mnist", label, seed, [0.1 + place, 0.2 + place])
        for place, (label, seed) in enumerate([("adam", 0), ("adam", 1), ("lion", 0), ("lion", 1)])
    ]


def test_runs_of_mlflow(tmp_path: Path) -> None:
    """`mlflow.search_runs()`, and the history of a metric."""
    table = [
        {
            "run_id": f"{number:032x}",
            "experiment_id": "0",
            "start_time": "2026-01-01",
            "metrics.valid_loss": 0.1 * number,
            "params.optimizer": label,
            "params.seed": str(seed),
            "params.lr": "0.001",
            "tags.mlflow.runName": "lucky-fox",
        }
        for number, (label, seed) in enumerate([("adam", 0), ("adam", 1), ("lion", 0), ("lion", 1)])
    ]
    runs = import_runs(pandas.DataFrame(table))
    assert [(run.label, run.seed, run.epochs[0]["valid_loss"]) for run in runs] == [
        (row["params.optimizer"], int(str(row["params.seed"])), row["metrics.valid_loss"]) for row in table
    ]
    history = [
        {"run": f"{label} seed={seed}", "key": "val_loss", "value": 1 / step, "step": step, "timestamp": 5}
        for label in ("adam", "lion")
        for seed in range(2)
        for step in (1, 2)
    ]
    [first, *_] = import_runs(pandas.DataFrame(history))
    assert (first.label, first.seed, [row["valid_loss"] for row in first.epochs]) == ("adam", 0, [1.0, 0.5])


def test_logs_of_tensorboard(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for label in ("adam", "lion"):
        for seed in range(2):
            with SummaryWriter(tmp_path / "logs" / label / f"seed_{seed}") as writer:
                for step in (10, 20):
                    writer.add_scalar("loss/valid", seed + 1 / step, step)
                    writer.add_scalar("val_loss", seed + 2 / step, step)
    results = Results.read(tmp_path / "logs")
    assert [(run.label, run.seed) for run in results.runs] == [("adam", 0), ("adam", 1), ("lion", 0), ("lion", 1)]
    assert [row["valid_loss"] for row in results.runs[1].epochs] == pytest.approx([1.2, 1.1])
    assert surefoot("report", tmp_path / "logs").exit_code == 0
    assert (tmp_path / "logs" / "report.html").exists()


def test_tags_of_tensorboard_as_csv(tmp_path: Path) -> None:
    for label in ("adam", "lion"):
        (tmp_path / f"run-{label}-s0-tag-val_loss.csv").write_text(
            "Wall time,Step,Value\n1700.5,1,0.5\n1700.9,2,0.25\n"
        )
    runs = Results.read(tmp_path).runs
    assert [(run.label, run.seed, run.epochs[-1]["valid_loss"]) for run in runs] == [
        ("adam", 0, 0.25),
        ("lion", 0, 0.25),
    ]


HEAD = "task,optimizer,seed,epoch,valid_loss\n"
OTHER = "dataset,optimiser,random_seed,Epoch,Val Loss\n"  # names that the lab has others for


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD + "a,adam,0,1,0.5\na,adam,0,2,low\n", "t.csv, row 3, column 'valid_loss': 'low' is not a number"),
        (HEAD + "a,adam,zero,1,0.5\n", "t.csv, row 2, column 'seed': 'zero' is not a whole number from 0 up"),
        (HEAD + "a,adam,-1,1,0.5\n", "t.csv, row 2, column 'seed': '-1' is not a whole number from 0 up"),
        (HEAD + f"a,adam,{'9' * 300},1,0.5\n", f"t.csv, row 2, column 'seed': '{'9' * 59}... is larger than any seed"),
        (HEAD + f"a,adam,{'9' * 400},1,0.5\n", f"t.csv, row 2, column 'seed': '{'9' * 59}... is not a whole number"),
        (OTHER + "a,adam,0,1,0.5\na,adam,0,2,low\n", "t.csv, row 3, column 'Val Loss': 'low' is not a number"),
        (OTHER + "a,adam,x,1,0.5\n", "t.csv, row 2, column 'random_seed': 'x' is not a whole number"),
        (OTHER + "a,,0,1,0.5\nb,sgd,0,1,1\n", "t.csv, row 2, column 'optimiser': there is no value"),
        (
            'run,step,key,value\nadam-s0,1,loss,0.5\nadam-s1,1,loss,"a\nb"\n',
            "t.csv, row 3, column 'value': 'a\\nb' is not",
        ),
        ("Step,adam-s0 - val_loss\n1,0.5\n2,low\n", "t.csv, row 3, column 'adam-s0 - val_loss': 'low' is not a number"),
        (HEAD + "a,adam,0,1.5,0.5\n", "t.csv, row 2, column 'epoch': '1.5' is not a whole number from 0 up"),
        (HEAD + "a,adam,1,1,0.5\na,adam,,1,0.5\n", "t.csv, row 3, column 'seed': there is no value"),
        (HEAD + "a,adam,1,1,0.5\na,,0,1,0.5\n", "t.csv, row 3, column 'optimizer': there is no value"),
        (HEAD + "a,adam,1,1,0.5\na,adam,0,,0.5\n", "t.csv, row 3, column 'epoch': there is no value"),
        (HEAD + "a,adam,0,1,0.5,7\n", "t.csv, row 2 has 6 cells and the head 5; see '7'"),
        (HEAD + "a,adam,0,1,0.5\na,adam,0,1,0.6\n", "t.csv, row 3, column 'valid_loss': 0.6, and "),
        (HEAD, "t.csv has no rows; it needs one per run and epoch"),
        ("", "t.csv is empty; its first row names the columns"),
        (
            "optimizer,epoch,valid_loss\nadam,1,0.5\n",
            "t.csv has no column 'seed'; it has: epoch, optimizer, valid_loss",
        ),
        ("seed,epoch,valid_loss\n0,1,0.5\n", "t.csv has no column 'optimizer'"),
        ("optimizer,seed,epoch\nadam,0,1\n", "t.csv has no column with numbers for a metric"),
        ("optimizer,seed,a,a\nadam,0,1,1\n", "t.csv, row 1 names the column 'a' twice"),
        ("run,step,loss\nlucky-fox,1,0.5\n", "t.csv, row 2, column 'optimizer': there is no value, and the run's name"),
        ("optimizer,seed,loss,purpose\nadam,1,0.5,fun\n", "t.csv, row 2, column 'purpose': 'fun' is neither"),
        (
            "optimizer,seed,loss,diverged\nadam,1,0.5,so\n",
            "t.csv, row 2, column 'diverged': 'so' is neither true nor false",
        ),
        ("Wall time,Step,Value\n1,1,1\n", "t.csv has no names of run and tag"),
        ("\n<!doctype html>\n<p>a, b\n", "t.csv is a web page, not a table; give a CSV or Parquet file, or a folder"),
    ],
)
def test_bad_input_is_named_by_file_row_and_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(text)
    done = surefoot("report", "t.csv")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert len(done.stderr.strip().splitlines()) == 1


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"optimizer,seed\n\xff\xfe")
    with pytest.raises(TableError, match=r"binary.csv is not UTF-8 text \(byte 15\)"):
        import_runs(tmp_path / "binary.csv")
    (tmp_path / "table.parquet").write_bytes(b"rubbish")
    with pytest.raises(TableError, match=r"table.parquet"):
        import_runs(tmp_path / "table.parquet")
    with pytest.raises(
        TableError, match=r"nothing.csv does not exist; give a CSV or Parquet file, or a folder of runs"
    ):
        Results.read(tmp_path / "nothing.csv")
    with pytest.raises(TableError, match="a pandas DataFrame, not list"):
        Results.read([1, 2])  # type: ignore[arg-type]
    with pytest.raises(TableError, match="the table, row 1, column 'seed': 'x' is not a whole number"):
        Results.read(pandas.DataFrame({"optimizer": ["a", "a"], "seed": [0, "x"], "loss": [1, 2]}))
