"""The command: what it prints, what it writes and how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from surefoot import __version__
from surefoot.cli import app
from surefoot.lab.store import open_folder, read_metrics, read_runs

TASK = """
import torch
from torch import nn
from surefoot.lab import Task

x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()
task = Task("mine", lambda: nn.Linear(4, 2), train=(x, y), valid=(x, y), batch_size=10)
"""

QUITS = "import sys\nsys.exit(3)\n"
BROKEN = """
import torch
class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise ArithmeticError("one over zero")
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my_task.py"
    path.write_text(TASK)
    return path


def surefoot(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_it_tells_its_version() -> None:
    assert surefoot("--version").output.split() == ["surefoot", __version__]


def test_a_report_in_the_place_of_a_folder_is_refused_before_training(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot("compare", mine, "-o", "adam", "--seeds", 1, "--epochs", 1, "--out", out, "--report", tmp_path)
    assert done.exit_code == 2
    assert f"{tmp_path} is a folder" in " ".join(done.output.split())
    assert not out.exists()


def test_a_folder_without_runs_says_so(tmp_path: Path) -> None:
    done = surefoot("runs", tmp_path)
    assert done.exit_code == 2
    assert "there are no runs under" in done.output


def test_help_needs_no_torch() -> None:
    code = "import sys; from surefoot.cli import main; sys.argv = ['surefoot', '--help']\n"
    code += "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "compare" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 False"


def test_compare_prints_verdicts_and_writes_runs_and_report(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    arguments = ("compare", mine, "-o", "adam", "-o", "adams:eta=1e-4", "--seeds", 3, "--epochs", 2, "--out", out)
    done = surefoot(*arguments, "--first-seed", 5)
    assert done.exit_code == 0, done.output
    assert "AdamS eta=0.0001" in done.stdout
    assert f"report: {out / 'report.html'}" in done.stdout
    assert (out / "report.html").exists()
    runs = read_runs(out)
    assert [(run.label, run.seed) for run in runs] == [
        (label, seed) for label in ("Adam", "AdamS eta=0.0001") for seed in (5, 6, 7)
    ]
    assert all(len((run.folder / "metrics.jsonl").read_text().splitlines()) == 2 for run in runs)
    assert "6 of 6 runs were there already" in surefoot(*arguments, "--first-seed", 5).output


def test_options_reach_the_task_and_the_optimizers(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot(
        *("compare", "digits-mlp", "-o", "sgd", "--seeds", 1, "--epochs", 1, "--out", out, "--batch-size", 64),
        *("--lr", 0.25, "--weight-decay", 0.125, "--dropout", "--subset", 100, "--quiet"),
        *("--report", tmp_path / "elsewhere.html"),
    )
    assert done.exit_code == 0, done.output
    [run] = read_runs(out)
    kwargs, task = run.config.optimizer.options, run.config.task
    assert (kwargs["lr"], kwargs["weight_decay"]) == (0.25, 0.125)
    assert (task.batch_size, task.settings) == (64, {"dropout": True, "subset": 100})
    assert run.epochs[0]["step"] == 2
    assert (tmp_path / "elsewhere.html").exists()


def test_failing_code_is_exit_code_1_and_the_others_are_there(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    out = tmp_path / "runs"
    done = surefoot(
        *("compare", mine, "-o", "sgd", "-o", f"{tmp_path / 'broken.py'}:Broken"),
        *("--seeds", 1, "--epochs", 1, "--out", out),
    )
    assert done.exit_code == 1
    assert "one over zero" in done.stderr
    assert "error.txt" in done.stderr
    assert [run.finished for run in read_runs(out)] == [True, False]
    assert "failed" in surefoot("runs", out).stdout


def test_a_diverged_run_is_exit_code_0(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot("compare", mine, "-o", "sgd:lr=1e38", "--seeds", 1, "--epochs", 2, "--out", out)
    assert done.exit_code == 0, done.output
    assert surefoot("runs", out).stdout.startswith("diverged ")


def test_checkpoints_of_ended_runs_can_be_dropped(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    arguments = ("compare", mine, "-o", "sgd", "--seeds", 1, "--out", out, "-q")
    surefoot(*arguments, "--epochs", 2)
    assert len(list(out.rglob("checkpoint.pt"))) == 1
    before = next(out.rglob("metrics.jsonl")).read_text()
    assert surefoot("runs", out, "--drop-checkpoints").stdout.startswith("done ")
    assert not list(out.rglob("checkpoint.pt"))
    assert surefoot(*arguments, "--epochs", 3).exit_code == 0
    assert next(out.rglob("metrics.jsonl")).read_text().startswith(before)


def test_a_folder_that_cannot_be_written_is_exit_code_1(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    done = surefoot("compare", mine, "-o", "sgd", "--seeds", 2, "--epochs", 1, "--out", tmp_path / "out", "-q")
    assert done.exit_code == 1
    assert done.stderr.count("failed: ") == 1
    assert "choose an --out folder that is not a file" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "digits-mpl"), "there is no task 'digits-mpl'"),
        (("compare", "digits-lr", "-o", "adma"), "unknown optimizer 'adma'; did you mean"),
        (("compare", "digits-lr", "-o", "adam:lr"), "cannot read the options of 'adam:lr'; give lr a value"),
        (("compare", "digits-lr", "-o", "adams:eta=-1"), "'adams:eta=-1': Invalid eta value: -1"),
        (("compare", "digits-lr", "-o", "adam:speed=2"), "'adam:speed=2': "),
        (("compare", "digits-lr", "--lr", "-1"), "'adam': Invalid learning rate: -1"),
        (("compare", "digits-lr", "--device", "abacus"), "the device 'abacus' cannot be used here; take cpu"),
        (("tune", "digits-lr", "-o", "adams", "--eta", "abc"), "cannot read eta='abc'"),
        (("report", "no/such/folder"), "no/such/folder is not a folder"),
        (("runs", "no/such/folder"), "no/such/folder is not a folder"),
        (("fork", "digits-lr", "--at", 1, "--state", "warm"), "'keep' or 'fresh', got 'warm'"),
        (("compare", "digits-lr", "--device", "meta"), "the device 'meta' cannot be used here; take cpu"),
        (("tune", "digits-lr", "--device", "meta"), "the device 'meta' cannot be used here; take cpu"),
        (("compare", "digits-lr", "-o", "adam:lr=None"), "'adam:lr=None': lr must be a number, not None"),
        (("compare", "digits-lr", "-o", "os.path.join"), "'os.path.join' made no optimizer (TypeError: "),
        (("compare", "digits-lr", "-o", "quits.py:Mine"), "quits.py could not be imported (SystemExit: 3)"),
        (("compare", "quits.py"), "quits.py could not be imported (SystemExit: 3)"),
        (("compare", "."), ". is a folder; give a Python file with a Task in it"),
        (("compare", "notes.txt"), "notes.txt is not a .py file; give a Python file with a Task in it"),
        (("tune", "digits-lr", "--out", "notes.txt"), "notes.txt cannot be used (File exists); give another path"),
        *(
            ((command, "digits-lr", *more, "--report", place), message)
            for command, more in (("compare", ()), ("fork", ("--at", 0)), ("tune", ()))
            for place, message in (
                ("folder/", "folder is a folder, and the report is a file; name one, such as folder/report.html"),
                ("notes.txt/r.html", "notes.txt is a file, not a folder; name another place"),
                ("/proc/r.html", "the report /proc/r.html cannot be written: /proc takes no file"),
            )
        ),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quits.py").write_text(QUITS)
    (tmp_path / "notes.txt").write_text("not Python")
    (tmp_path / "folder").mkdir()
    done = surefoot(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.output
    assert not (tmp_path / "runs").exists()  # no run folder of a run that could never be


def test_an_empty_out_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = surefoot("compare", "digits-lr", "--seeds", 1, "--epochs", 1, "--out", "")
    assert done.exit_code == 2
    assert "out must be the folder for the runs, such as 'runs', got ''" in done.stderr
    assert not list(tmp_path.iterdir())


def test_report_writes_prints_and_checks(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    surefoot("compare", mine, "-o", "adam", "-o", "sgd", "--seeds", 2, "--epochs", 1, "--out", out)
    done = surefoot("report", out, "-o", tmp_path / "page.html")
    assert done.exit_code == 0
    assert "<html" in (tmp_path / "page.html").read_text()
    assert json.loads(surefoot("report", out, "--format", "json").stdout)
    assert "| Adam " in surefoot("report", out, "--format", "md").stdout
    assert r"\begin{" in surefoot("report", out, "--format", "latex").stdout
    assert "SGD" in surefoot("report", out, "--format", "csv").stdout
    weak = surefoot("report", out, "--check")
    assert weak.exit_code == 1
    assert "few-seeds" in weak.stdout
    assert surefoot("report", out, "--check", "--allow", "few-seeds").exit_code == 0
    misspelt = surefoot("report", out, "--check", "--allow", "few-seed")
    assert misspelt.exit_code == 2
    assert "there is no finding 'few-seed' to allow; take some of no-runs, " in misspelt.stderr
    surefoot("compare", mine, "-o", "adam", "--seeds", 2, "--epochs", 3, "--out", out)  # a larger budget for one
    unfair = surefoot("report", out, "--check", "--allow", "few-seeds")
    assert unfair.exit_code == 1
    assert "error: " in unfair.stdout


def test_an_empty_folder_has_no_report(tmp_path: Path) -> None:
    done = surefoot("report", tmp_path)
    assert done.exit_code == 2
    assert "there are no runs" in done.stderr


def test_an_address_wants_the_executor_that_it_is_for(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["compare", "digits-lr", "--address", "somewhere:6379", "--out", str(tmp_path)])
    assert ran.exit_code == 2
    assert "--address somewhere:6379 is for a Ray cluster; add --executor ray, or leave it out" in ran.output


def test_fork_is_a_command(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    done = surefoot(
        *("fork", mine, "--at", 2, "-o", "adam", "-o", "adams", "--epochs", 1, "--seeds", 1, "--out", out, "-q")
    )
    assert done.exit_code == 0, done.output
    assert [run.epochs[0]["epoch"] for run in read_runs(out)] == [3, 3]


def test_killed_its_workers_end_too_and_the_runs_are_free(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ["compare", str(mine), "-o", "sgd", "--seeds", "2", "--epochs", "200000", "--out", str(out)]
    program = [sys.executable, "-c", "from surefoot.cli import main; main()", *command, "--jobs", "2", "-q"]
    process = subprocess.Popen(program)
    while not all(sizes := recorded(out)) or len(sizes) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    for path in out.rglob("metrics.jsonl"):
        with open_folder(path.parent):  # waits for ever if a worker lived on
            assert read_metrics(path)[0]


def recorded(out: Path) -> list[int]:
    return [path.stat().st_size for path in out.rglob("metrics.jsonl")]


def test_interrupted_it_says_how_to_go_on_and_goes_on(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ["compare", str(mine), "-o", "sgd", "--seeds", "2", "--epochs", "200000", "--out", str(out)]
    program = [sys.executable, "-c", "from surefoot.cli import main; main()", *command, "--jobs", "2"]
    process = subprocess.Popen(
        program,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Where these tests run in the background, Ctrl-C is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while not all(sizes := recorded(out)) or len(sizes) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers alike
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "everything so far is kept. Go on with: surefoot compare" in errors
    assert "Traceback" not in errors
    before = {path: path.read_text() for path in out.rglob("metrics.jsonl")}
    fewer = ["2" if argument == "200000" else argument for argument in command]
    assert surefoot(*fewer).exit_code == 0
    assert all(path.read_text().startswith(text[: text.rindex("\n")]) for path, text in before.items())
    assert all(len(run.epochs) >= 2 for run in read_runs(out))
