"""Run folders and a search that an earlier version wrote: they are read, continued and not computed again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from typer.testing import CliRunner

from surefoot.cli import app
from surefoot.lab import Contestant, read_runs
from surefoot.lab.tune import tune

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lab"
SIZE = ("--subset", 100, "--batch-size", 32, "--seeds", 1)
#: The recorded runs had no bounds on the weights; the label of their optimizer is "AdamS eta=0.1".
BOTH = ("-o", "adam", "-o", "adams:eta=0.1,gain=None")
STEPS_PER_EPOCH = 4
#: Losses computed from a checkpoint of another machine: its last bits may differ, and ours follow them.
CLOSE = 1e-5
Rows = list[dict[str, Any]]


class Steps:
    """Counts the steps of all optimizers."""

    count = 0

    def add(self, *_: object) -> None:
        self.count += 1


@pytest.fixture
def steps() -> Iterator[Steps]:
    counter = Steps()
    handle = register_optimizer_step_post_hook(counter.add)
    yield counter
    handle.remove()


def surefoot(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def copied(name: str, tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURES / name, tmp_path / name)


def metrics(root: Path) -> dict[str, list[str]]:
    """The lines of every run under a folder, by the name of its folder."""
    paths = sorted(root.rglob("metrics.jsonl"))
    return {str(path.parent.relative_to(root)): path.read_text().splitlines() for path in paths}


def by_key(lines: dict[str, list[str]]) -> dict[str, list[str]]:
    """Lines by the seed and the key of their runs: an optimizer may have another label than when it was recorded."""
    return {"-".join(name.split("-")[-2:]): rows for name, rows in lines.items()}


def numbers(lines: list[str]) -> Rows:
    """What training gave, without how long it took and the hashes, which recorded lines do not have."""
    rows = [json.loads(line) for line in lines]
    return [
        {name: value for name, value in row.items() if name not in ("seconds", "jobs", "peak_memory", "chain")}
        for row in rows
    ]


def losses(lines: list[str]) -> list[float]:
    return [row[name] for row in numbers(lines) for name in ("train_loss", "valid_loss")]


def assert_continued(before: list[str], after: list[str], fresh: list[str], kept: int) -> None:
    """The first `kept` lines stay as they were, and all are those of a run that was computed here at once."""
    assert after[:kept] == before[:kept]
    assert [row["epoch"] for row in numbers(after)] == [row["epoch"] for row in numbers(fresh)]
    assert losses(after) == pytest.approx(losses(fresh), rel=CLOSE)
    assert [row.keys() for row in numbers(after)] == [row.keys() for row in numbers(fresh)]


def test_fixtures_hold_no_paths_and_stay_small() -> None:
    files = [path for path in FIXTURES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 500_000
    assert Counter(path.name for path in files)["checkpoint.pt"] == 5  # they are in .gitignore
    for path in files:
        content = path.read_bytes()
        assert not any(word in content for word in (b"/home/", b"/tmp/", b"/root/", b"/Users/", b"/mnt/")), path


def test_recorded_checkpoints_are_plain_data_of_their_runs() -> None:
    for path in FIXTURES.rglob("checkpoint.pt"):
        saved = torch.load(path, weights_only=True)
        config = json.loads((path.parent / "config.json").read_text())
        lines = (path.parent / "metrics.jsonl").read_text().splitlines()
        assert saved.keys() == {"key", "epoch", "row", "model", "optimizer"}
        assert saved["key"] == config["key"]
        assert saved["row"] in [json.loads(line) for line in lines]
        assert saved["row"]["epoch"] == saved["epoch"]


def test_a_recorded_comparison_goes_on_from_its_checkpoints(tmp_path: Path, steps: Steps) -> None:
    out, fresh = copied("compare", tmp_path), tmp_path / "fresh"
    assert [(run.label, run.seed, run.state, len(run.epochs)) for run in read_runs(out)] == [
        ("Adam", 0, "unfinished", 3),
        ("AdamS eta=0.1", 0, "unfinished", 3),
    ]
    surefoot("compare", "digits-lr", *BOTH, *SIZE, "--epochs", 5, "--out", out, "-q")
    assert steps.count == 2 * 3 * STEPS_PER_EPOCH  # epoch 3 again, since the checkpoint is that of epoch 2
    surefoot("compare", "digits-lr", *BOTH, *SIZE, "--epochs", 5, "--out", fresh, "-q")
    before, after, whole = (by_key(metrics(root)) for root in (FIXTURES / "compare", out, fresh))
    assert before.keys() == after.keys() == whole.keys()
    for name, lines in whole.items():
        assert len(lines) == 5
        # Line 3 stays too where the numbers are the same to the bit, as on the machine that wrote it.
        assert_continued(before[name], after[name], lines, kept=2)
        repeated = numbers(before[name])[2] == numbers(after[name])[2]
        assert repeated == (before[name][2] == after[name][2])
    assert all(run.finished for run in read_runs(out))


def test_a_comparison_that_is_continued_here_has_the_same_bits(tmp_path: Path) -> None:
    for name, parts in {"parts": (2, 4), "whole": (4,)}.items():
        for epochs in parts:
            surefoot("compare", "digits-lr", *BOTH, *SIZE, "--epochs", epochs, "--out", tmp_path / name, "-q")
    parts, whole = metrics(tmp_path / "parts"), metrics(tmp_path / "whole")
    assert {name: numbers(lines) for name, lines in parts.items()} == {
        name: numbers(lines) for name, lines in whole.items()
    }
    for name in whole:
        saved = [torch.load(tmp_path / kind / name / "checkpoint.pt", weights_only=True) for kind in ("parts", "whole")]
        for weights in saved[0]["model"]:
            assert torch.equal(saved[0]["model"][weights], saved[1]["model"][weights])


def test_a_recorded_fork_goes_on_and_another_optimizer_joins_it(tmp_path: Path, steps: Steps) -> None:
    out, fresh = copied("fork", tmp_path), tmp_path / "fresh"
    joins = ("-o", "adamucb:eta=0.1")
    words = ("fork", "digits-lr", *BOTH, *joins, "--at", 1, "--state", "keep", *SIZE, "--epochs", 3)
    surefoot(*words, "--out", out, "-q")
    assert steps.count == (2 + 2 + 3) * STEPS_PER_EPOCH  # none for the epoch before the fork
    surefoot(*words, "--out", fresh, "-q")
    before, after, whole = (by_key(metrics(root)) for root in (FIXTURES / "fork", out, fresh))
    assert after.keys() == whole.keys() > before.keys()
    for name, lines in whole.items():
        assert_continued(before.get(name, []), after[name], lines, kept=len(before.get(name, [])))


def trials(database: Path) -> Counter[str]:
    connection = sqlite3.connect(database)
    try:
        return Counter(state for (state,) in connection.execute("select state from trials"))
    finally:
        connection.close()


def test_a_recorded_search_goes_on_and_is_then_found_done(
    tmp_path: Path, steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'surefoot[tune]'")
    out = copied("tune", tmp_path)
    published = Contestant.create("AdamS", "surefoot.AdamS", {"gain": None})  # as it was called then

    def search() -> None:
        space = {"eta": "0.1", "lr": "1e-3,1e-2,1e-1"}
        size = {"subset": 100, "batch_size": 32, "seeds": 1, "epochs": 2}
        tune("digits-lr", ["adam", published], space=space, out=out, progress=False, **size).print()

    assert trials(out / "tune.db") == {"COMPLETE": 2, "RUNNING": 1, "WAITING": 3}
    search()
    assert steps.count == 4 * 2 * STEPS_PER_EPOCH  # two of the six trials were done
    assert trials(out / "tune.db") == {"COMPLETE": 6, "FAIL": 1}  # its worker was killed: the trial was taken up again
    done = metrics(out)
    for name, lines in by_key(metrics(FIXTURES / "tune")).items():
        again = by_key(done)[name]
        if len(lines) == 2:  # it was done
            assert again == lines
        # Another processor rounds otherwise; a line that training gave anew then takes the place of the old one.
        assert losses(again[:1]) == pytest.approx(losses(lines[:1]), rel=CLOSE)
    assert sorted(map(len, done.values())) == [2] * 6
    capsys.readouterr()
    search()
    assert "3 of 3" in capsys.readouterr().out
    assert steps.count == 4 * 2 * STEPS_PER_EPOCH
    assert metrics(out) == done
    assert trials(out / "tune.db") == {"COMPLETE": 6, "FAIL": 1}


def test_recorded_runs_are_reported(tmp_path: Path, steps: Steps) -> None:
    for name in ("compare", "fork", "tune"):
        out = copied(name, tmp_path)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        table = surefoot("report", out, "--format", "csv")
        assert ("digits-lr" in table) == (name != "tune")  # runs of a search are no results
        assert "Adam" in surefoot("runs", out)
        page = tmp_path / f"{name}.html"
        surefoot("report", out, "-o", page)
        assert "</html>" in page.read_text()
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert steps.count == 0
