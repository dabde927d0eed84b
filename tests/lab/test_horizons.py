"""`anytime`: what is trained how often, and that it goes on from what is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.experiments import compare
from surefoot.lab.horizons import HorizonResults, anytime, best_rates
from surefoot.lab.store import StoreError, read_runs

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


def test_the_checks_look_at_every_horizon_and_hide_nothing_that_is_shown(tmp_path: Path) -> None:
    results = anytime("digits-lr", SPECS, horizons=[1, 2], out=tmp_path, **SIZE)
    codes = [finding.code for finding in results.check()]
    assert codes == ["few-seeds", "untuned"]  # no unequal budgets, no hidden settings: each is shown at its horizon
    shorter = anytime("digits-lr", SPECS[:3], horizons=[1], out=tmp_path, **SIZE)
    findings = {finding.code: finding.sentence for finding in shorter.check()}
    assert "and go on to epoch 2" in findings["cut-epochs"]
    assert "schedule=cosine" in findings["unshown-settings"]
    unequal = anytime("digits-lr", ["adam", "sgd:lr=0.1"], horizons=[1, 2], out=tmp_path / "b", **SIZE)
    assert "untuned-rates" in {finding.code for finding in unequal.check()}
    page = unequal.report(tmp_path / "page.html").read_text()
    assert "Before you quote this" in page
    assert "the learning rates differ (Adam 0.001, SGD lr=0.1 0.1)" in page


def test_what_was_compared_is_read_from_the_folder(tmp_path: Path) -> None:
    results = anytime("digits-lr", SPECS, horizons=[1, 2], rates=[0.01, 0.03], tune_seeds=1, out=tmp_path, **SIZE)
    recorded = read_runs(tmp_path, tuning=True)
    read = HorizonResults.read(tmp_path, recorded)
    assert read is not None
    assert read.to_markdown() == results.to_markdown()
    assert read.rates == results.rates != ""
    assert "tuned-at-other-length" not in {finding.code for finding in results.check()}  # chosen over all horizons
    assert read.check() == results.check()
    compare("digits-lr", ["sgd"], epochs=1, out=tmp_path, **SIZE)
    assert HorizonResults.read(tmp_path, read_runs(tmp_path)) is None  # which is more than was compared
    assert HorizonResults.read(tmp_path / "digits-lr", recorded) is None  # nothing is recorded there


def test_a_comparison_of_which_runs_are_missing_is_refused(tmp_path: Path) -> None:
    anytime("digits-lr", ["adam", "sgd"], horizons=[1, 2], out=tmp_path, **SIZE)
    recorded = [run for run in read_runs(tmp_path) if run.label == "Adam"]
    with pytest.raises(StoreError, match=r"lacks 2 of the 4 runs that 'surefoot anytime' compared; run it again: sure"):
        HorizonResults.read(tmp_path, recorded)


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
