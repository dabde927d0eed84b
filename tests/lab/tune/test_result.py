"""What a search returns: the best settings, the failures, and the comparison to make now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from studies import make_study
from surefoot.lab.spec.options import RunOptions
from surefoot.lab.spec.task import Task
from surefoot.lab.tune.result import FRESH_SEEDS, Tuning, compare_command
from surefoot.lab.tune.study import StudyResult, TrialResult

MakeTask = Callable[..., Task]
TRIALS = [
    TrialResult(0, {"lr": 0.1}, 0.5, "done", 8),
    TrialResult(1, {"lr": 0.01}, 0.25, "done", 8),
    TrialResult(2, {"lr": 0.9}, 0.125, "pruned", 2),  # a value after fewer epochs is not the best one
]
DIVERGED = TrialResult(0, {"lr": 0.9}, float("inf"), "diverged", 3)


@pytest.fixture
def studies(tiny_task: MakeTask) -> list[StudyResult]:
    return [
        make_study(tiny_task(), "adams:eta=0.5", TRIALS),
        make_study(tiny_task(), "sgd", [DIVERGED], failures={1: "ArithmeticError: too fast"}),
    ]


def test_the_best_setting_of_each_optimizer(studies: list[StudyResult]) -> None:
    tuning = Tuning(studies, [], [])
    assert tuning.best == {"AdamS eta=0.5": {"lr": 0.01}}
    assert tuning.specs == ["adams:eta=0.5,lr=0.01"]
    assert tuning.failures == [("SGD", "ArithmeticError: too fast")]
    assert not tuning.ok
    assert Tuning(studies[:1], [], []).ok


def test_the_largest_value_is_the_best_where_higher_is_better(tiny_task: MakeTask) -> None:
    study = make_study(tiny_task(), "adam", TRIALS, metric="valid_accuracy", maximize=True)
    assert Tuning([study], [], []).best == {"Adam": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("seeds", "first"),
    [((1000, 1001), 0), ((0, 1), 2), ((FRESH_SEEDS - 1,), FRESH_SEEDS), ((FRESH_SEEDS,), 0)],
)
def test_the_comparison_is_on_seeds_that_tuning_has_not_seen(
    studies: list[StudyResult], seeds: tuple[int, ...], first: int
) -> None:
    words = compare_command("digits-lr", studies, seeds, 4, RunOptions(jobs=2))
    assert words[:5] == ["surefoot", "compare", "digits-lr", "-o", "adams:eta=0.5,lr=0.01"]
    assert words[words.index("--seeds") + 1] == str(FRESH_SEEDS)
    assert ("--first-seed" in words) == bool(first)
    assert not first or words[words.index("--first-seed") + 1] == str(first)
    assert not set(seeds) & set(range(first, first + FRESH_SEEDS))


def test_there_is_no_comparison_without_a_spec_or_a_setting(studies: list[StudyResult]) -> None:
    assert compare_command("", studies, (1000,), 4, RunOptions()) == []
    assert compare_command("digits-lr", studies[1:], (1000,), 4, RunOptions()) == []


def test_table_and_report(studies: list[StudyResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = Tuning(studies, ["A note."], ["surefoot", "compare", "my task"])
    assert [row[0] for row in tuning.rows()] == ["AdamS eta=0.5", "SGD"]
    assert len(tuning.header()) == len(tuning.rows()[0])
    tuning.print()
    printed = capsys.readouterr().out
    assert "note: A note." in printed
    assert "surefoot compare 'my task'" in printed
    page = tuning.report(tmp_path / "tune.html", "surefoot tune digits-lr").read_text()
    assert "surefoot tune digits-lr" in page
