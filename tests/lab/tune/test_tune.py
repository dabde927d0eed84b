"""The search for settings: budgets, grids, pruning, divergence, resuming, and what it prints."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab import compare
from surefoot.lab.spec.task import Task
from surefoot.lab.store import read_runs
from surefoot.lab.tune import Tuning, tune
from surefoot.lab.tune.search import rungs_of

pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'surefoot[tune]'")

MakeTask = Callable[..., Task]

BROKEN = """
import torch
class Touchy(torch.optim.SGD):
    def step(self, closure=None):
        if self.param_groups[0]["lr"] > 0.5:
            raise ArithmeticError("too fast")
        return super().step(closure)
"""


def search(task: Task | str, optimizers: list[str], out: Path, **options: Any) -> Tuning:
    defaults: dict[str, Any] = {"seeds": 1, "epochs": 2, "progress": False, "out": out}
    return tune(task, optimizers, **{**defaults, **options})


def test_every_optimizer_gets_the_same_budget(
    tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surefoot.lab.tune.space.STARTUP", 4)  # the sampler chooses the rest
    space = {"eta": "1e-6:1", "lr": "1e-3:1"}
    result = search(tiny_task(), ["adam", "adams", "adamcb:eta=0.1"], tmp_path, space=space, trials=7, prune=False)
    assert [len(study.trials) for study in result.studies] == [7, 7, 7]
    assert [study.epochs for study in result.studies] == [14, 14, 14]
    assert [set(study.trials[0].options) for study in result.studies] == [{"lr"}, {"eta", "lr"}, {"lr"}]
    assert "Adam has no eta: it is tuned over lr." in result.notes
    assert "AdamCB eta=0.1 sets eta itself: tuned over lr." in result.notes
    for study in result.studies:
        assert len({str(trial.options) for trial in study.trials}) == 7  # no setting twice
    runs = read_runs(tmp_path, tuning=True)
    assert {run.seed for run in runs} == {1000}
    assert {run.config.purpose for run in runs} == {"tune"}
    assert len(runs) == 21
    best = result.studies[1].best
    assert best is not None
    assert best.value == min(trial.value for trial in result.studies[1].trials)


def test_a_grid_is_tried_point_by_point_and_the_smaller_one_is_filled_up(tiny_task: MakeTask, tmp_path: Path) -> None:
    space = {"eta": "0,1e-2", "lr": "1e-3,1e-2,1e-1"}
    result = search(tiny_task(), ["adam", "adams"], tmp_path, space=space)
    adam, adams = (
        [trial.options for trial in sorted(study.trials, key=lambda trial: trial.slot)] for study in result.studies
    )
    assert adams == [{"eta": eta, "lr": lr} for eta in (0.0, 1e-2) for lr in (1e-3, 1e-2, 1e-1)]
    assert adam[:3] == [{"lr": 1e-3}, {"lr": 1e-2}, {"lr": 1e-1}]
    assert len({setting["lr"] for setting in adam}) == 6
    assert all(1e-3 <= setting["lr"] <= 1e-1 for setting in adam)
    assert any("Adam has a grid of 3 points and a budget of 6 settings" in note for note in result.notes)
    with pytest.raises(ValueError, match="the grid has 6 points, more than --trials 5"):
        search(tiny_task(), ["adams"], tmp_path, space=space, trials=5)


def test_words_are_values_too(tiny_task: MakeTask, tmp_path: Path) -> None:
    result = search(tiny_task(), ["adams"], tmp_path, space={"weighting": "paper,unit", "lr": "1e-2:1"}, trials=4)
    assert {trial.options["weighting"] for trial in result.studies[0].trials} == {"paper", "unit"}
    assert "weighting=" in result.specs[0]


def test_the_same_command_goes_on_and_does_nothing_twice(
    tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surefoot.lab.tune.space.STARTUP", 4)
    task, options = tiny_task(), {"space": {"lr": "1e-3:1"}, "prune": False}
    first = search(task, ["adams"], tmp_path, trials=3, **options)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    second = search(task, ["adams"], tmp_path, trials=7, **options)
    assert second.studies[0].trials[:3] == first.studies[0].trials
    assert len(second.studies[0].trials) == 7
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    whole = search(task, ["adams"], tmp_path / "whole", trials=7, **options)
    assert [(trial.slot, trial.options, trial.value) for trial in whole.studies[0].trials] == [
        (trial.slot, trial.options, trial.value) for trial in second.studies[0].trials
    ]


def test_divergence_is_a_result_and_counts(tiny_task: MakeTask, tmp_path: Path) -> None:
    result = search(tiny_task(), ["sgd"], tmp_path, space={"lr": "1e-2,1e-1,1e30"}, seeds=2)
    states = {trial.options["lr"]: (trial.state, trial.value) for trial in result.studies[0].trials}
    assert states[1e30] == ("diverged", math.inf)
    assert {states[lr][0] for lr in (1e-2, 1e-1)} == {"done"}
    assert result.rows()[0][3] == "3 of 3 (1 diverged)"
    nowhere = {"share": lambda outputs, targets: outputs.mean() * float("nan")}
    unknown = search(tiny_task(metrics=nowhere), ["sgd"], tmp_path / "nan", space={"lr": "1e-2"}, metric="valid_share")
    assert [(trial.state, trial.value) for trial in unknown.studies[0].trials] == [("diverged", math.inf)]
    lost = search(tiny_task(), ["sgd"], tmp_path, space={"lr": "1e30,1e31"}, metric="valid_accuracy")
    assert [trial.value for trial in lost.studies[0].trials] == [-math.inf, -math.inf]
    assert lost.best == {}
    assert "no setting was trained to the end (2 trials diverged)" in lost.warnings[0]
    lost.print()
    assert lost.report(tmp_path / "lost.html").exists()


def test_bad_trials_are_stopped_early(tiny_task: MakeTask, tmp_path: Path) -> None:
    space = {"lr": "0.05,0.1,0.2,0.15,0.25,1e-9,2e-9"}
    options: dict[str, Any] = {"space": space, "epochs": 9, "seeds": 2}
    result = search(tiny_task(), ["adam", "adam:schedule=cosine"], tmp_path, **options)
    plain, scheduled = result.studies
    assert {trial.options["lr"]: trial.epochs for trial in plain.trials if trial.state == "pruned"} == {
        1e-9: 2,
        2e-9: 2,
    }
    assert plain.best is not None
    assert plain.best.options["lr"] > 0.01
    assert scheduled.of("pruned") == 0
    assert any("its trials are not stopped early" in note for note in result.notes)
    unpruned = search(tiny_task(), ["adam"], tmp_path, prune=False, **options)
    assert {trial.epochs for trial in unpruned.studies[0].trials} == {18}
    # a trial that was stopped early goes on from its checkpoint, and whole runs are found done
    assert len([run for run in read_runs(tmp_path, tuning=True) if run.config.optimizer.schedule is None]) == 14
    assert rungs_of(1) == (1,)


def test_an_error_in_user_code_fails_its_trial_only_and_is_tried_again_by_the_next_command(
    tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("touchy.py").write_text(BROKEN)
    options: dict[str, Any] = {"space": {"lr": "0.1,0.9"}, "weight_decay": 0.0}
    for _ in range(2):
        result = search(tiny_task(), ["touchy.py:Touchy"], tmp_path / "runs", **options)
        assert not result.ok
        assert result.failures == [("Touchy", "ArithmeticError: too fast")]
        assert [trial.options for trial in result.studies[0].trials] == [{"lr": 0.1}]


def test_reported_seeds_are_refused(tiny_task: MakeTask, tmp_path: Path) -> None:
    compare(tiny_task(), ["adam"], seeds=[3, 4], epochs=1, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="on seed 4: tuning on a reported seed would flatter"):
        search(tiny_task(), ["adam"], tmp_path, seeds=[4, 5], space={"lr": "0.1"})
    assert search(tiny_task(), ["adam"], tmp_path, seeds=[5], space={"lr": "0.1"}).ok


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"space": {}}, "there is nothing to tune"),
        ({"space": {"eta": "1e-4:1"}}, r"Adam has none of the options to tune \(eta\)"),
        ({"metric": "valid_f1"}, "records no 'valid_f1'; choose valid_loss, train_loss, valid_accuracy"),
        ({"storage": "redis://somewhere"}, "cannot use the storage redis"),
        ({"storage": "sqlite://"}, "has no file"),
        ({"trials": 0}, "trials must be at least 1, got 0"),
    ],
)
def test_errors_are_one_sentence(tiny_task: MakeTask, tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        search(tiny_task(), ["adam"], tmp_path, **{"space": {"lr": "0.1"}, **options})


def test_a_missing_package_is_named(tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[tune\]'"):
        search(tiny_task(), ["adam"], tmp_path, space={"lr": "0.1"})
