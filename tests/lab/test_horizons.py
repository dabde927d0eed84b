"""`anytime`: what is trained how often, and that it goes on from what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.experiments import compare
from surefoot.lab.horizons import anytime
from surefoot.lab.store import read_runs

SPECS = ["adam:average=anytime", "adam", "adam:average=poly:8", "adam:schedule=cosine", "adam:schedule=invsqrt"]
SIZE: dict[str, Any] = {"seeds": 2, "subset": 200, "progress": False}


def test_schedules_are_trained_once_per_horizon_and_all_else_once(tmp_path: Path) -> None:
    results = anytime("digits-lr", SPECS, horizons=[2, 1], out=tmp_path, **SIZE)
    assert len(list(tmp_path.glob("*/*/config.json"))) == 2 * (1 + 2 + 1)
    assert [len(entry.runs) for entry in results.groups[2].contestants] == [2] * 5
    assert "surefoot anytime digits-lr --horizons 1,2 --margin 1% -o adam:average=anytime" in results.command
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/metrics.jsonl")}
    again = anytime("digits-lr", SPECS, horizons=[1, 2], out=tmp_path, **SIZE)
    assert again.to_markdown() == results.to_markdown()
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/metrics.jsonl")}


def test_its_numbers_are_those_of_compare(tmp_path: Path) -> None:
    results = anytime("digits-lr", SPECS, horizons=[1, 2], out=tmp_path / "a", **SIZE)
    alone = compare("digits-lr", SPECS, epochs=2, out=tmp_path / "b", **SIZE)
    values = {(run.label, run.seed): run.epochs[-1]["valid_loss"] for run in alone.runs}
    group = results.groups[2]
    assert values == {
        (entry.label, run.seed): run.epochs[-1]["valid_loss"] for entry in group.contestants for run in entry.runs
    }
    assert {run.config.optimizer.average for run in read_runs(tmp_path / "a")} == {"", "anytime", "poly:8"}


@pytest.mark.parametrize(
    ("specs", "options", "message"),
    [
        (["adam"], {}, "there is no peer to compare with"),
        (["adam", "sgd"], {"horizons": [0]}, "a horizon must be at least 1, got 0"),
        (["adam", "sgd"], {"horizons": []}, "horizons must be numbers of epochs"),
        (["adam", "sgd"], {"margin": "x"}, "the margin must be a number above zero"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Path, specs: list[str], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        anytime("digits-lr", specs, out=tmp_path, **{**SIZE, **options})
