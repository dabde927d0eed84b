"""`anytime`: what is trained how often, and that it goes on from what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.experiments import compare
from surefoot.lab.horizons import anytime, best_rates
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


def test_rates_are_chosen_on_other_seeds_and_for_each_horizon_of_a_schedule(tmp_path: Path) -> None:
    specs = ["adam:average=anytime", "adam:schedule=cosine", "sgd:lr=0.1"]
    results = anytime("digits-lr", specs, horizons=[1, 2], rates=[1e-5, 0.03, 30.0], tune_seeds=1, out=tmp_path, **SIZE)
    labels = [entry.label for entry in results.groups[2].contestants]
    assert labels == ["Adam lr=0.03 average=anytime", "Adam lr=0.03 schedule=cosine", "SGD lr=0.1"]
    assert "best of 1e-05, 0.03, 30 over the horizons, on the seeds 1000" in results.to_markdown()
    assert "At an edge of the grid: none" in results.rates
    runs = read_runs(tmp_path, tuning=True)
    assert {run.seed for run in runs if run.config.purpose == "tune"} == {1000}
    assert {run.seed for run in runs if run.config.purpose != "tune"} == {0, 1}
    assert "adam:average=anytime,lr=0.03 " in results.command  # which needs no tuning


def test_a_rate_at_which_training_diverges_is_not_chosen() -> None:
    inf = float("inf")
    assert best_rates([[0.5, 0.4], [inf, inf], [0.6, inf]], for_each=False) == [0]
    assert best_rates([[0.5, 0.4], [0.3, inf]], for_each=True) == [0, 1]
    assert best_rates([[-2.0], [-3.0]], for_each=False) == [1]
