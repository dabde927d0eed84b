"""A search for readers: its table, and the data of its figures."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from studies import make_study
from surefoot.lab.spec.task import Task
from surefoot.lab.tune.report import (
    best_sentence,
    best_so_far,
    heat_map,
    print_tuning,
    sensitivity,
    table_header,
    table_rows,
    tuning_sections,
    warnings,
)
from surefoot.lab.tune.study import TrialResult

MakeTask = Callable[..., Task]
TRIALS = [
    TrialResult(0, {"lr": 0.1}, 0.5, "done", 8),
    TrialResult(1, {"lr": 0.5}, 0.75, "pruned", 2),
    TrialResult(2, {"lr": 0.9}, math.inf, "diverged", 3),
    TrialResult(3, {"lr": 0.02}, 0.25, "done", 8),
    TrialResult(4, {"lr": 0.01}, 0.3, "done", 8),
]


def test_the_table_fits_80_columns_and_breaks_no_name(
    tiny_task: MakeTask, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tried = [TrialResult(0, {"lr": 0.00971, "eta": 0.0266, "weight_decay": 0.000123}, 0.5, "done", 8)]
    print_tuning([make_study(tiny_task(), "adam", tried)], [], [])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(" optimizer ") for line in lines)
    assert max(map(len, lines)) <= 80


def test_table(tiny_task: MakeTask) -> None:
    study = make_study(tiny_task(), "adam", TRIALS, failures={5: "too fast"})
    assert table_header([study])[2] == "validation loss (mean of 2 seeds)"
    assert table_rows([study]) == [["Adam", "lr=0.02", "0.25", "5 of 6 (1 pruned, 1 diverged, 1 failed)", "29"]]
    assert warnings([study]) == []


def test_the_edge_and_a_search_without_a_setting_are_warnings(tiny_task: MakeTask) -> None:
    edge = make_study(tiny_task(), "adam", TRIALS[:4])
    nothing = make_study(tiny_task(), "sgd", TRIALS[2:3])
    assert table_rows([edge])[0][1] == "lr=0.02 (edge)"
    assert table_rows([nothing])[0][1:3] == ["–", "–"]
    first, second = warnings([edge, nothing])
    assert first.startswith("Adam: the best lr (tried ")
    assert second == "SGD: no setting was trained to the end (1 trial diverged)."


def test_sensitivity_draws_every_trial(tiny_task: MakeTask) -> None:
    [panel] = sensitivity([make_study(tiny_task(), "adam", TRIALS)])
    [line] = panel.lines
    assert panel.x.scale == "log"
    assert list(line.x) == [0.1, 0.5, 0.9, 0.02, 0.01]
    assert list(line.y) == [0.5, 0.75, 0.75, 0.25, 0.3]  # the diverged one at the worst value
    assert line.markers is not None
    assert line.markers.symbol == ["circle", "circle-open", "x", "circle", "circle"]
    assert line.markers.size == [7, 7, 7, 13, 7]  # the best one is large
    assert sensitivity([make_study(tiny_task(), "adam", TRIALS[2:3])]) == []


@pytest.mark.parametrize(
    ("name", "values", "scale"),
    [
        ("eta", "0,1,2", "linear"),
        ("eta", "1,10", "log"),
        ("eta", "1e-3:1", "log"),
        ("weighting", "paper,unit", "category"),
    ],
)
def test_the_axis_fits_the_values_that_were_tried(tiny_task: MakeTask, name: str, values: str, scale: str) -> None:
    trials = [TrialResult(0, {name: 1.0}, 0.5, "done", 8)]
    [panel] = sensitivity([make_study(tiny_task(), "adams", trials, {name: values})])
    assert panel.x.scale == scale


def test_two_options_make_a_heat_map(tiny_task: MakeTask) -> None:
    trials = [
        TrialResult(number, {"eta": eta, "lr": lr}, value, state, 8)
        for number, (eta, lr, value, state) in enumerate(
            [
                (0.01, 0.1, 0.5, "done"),
                (0.1, 0.1, 0.3, "done"),
                (0.1, 0.01, 0.9, "pruned"),
                (1.0, 1.0, math.inf, "diverged"),
            ]
        )
    ]
    study = make_study(tiny_task(), "adams", trials, {"lr": "1e-3:1", "eta": "1e-3:1"})
    panel = heat_map(study)
    assert panel is not None
    [line] = panel.lines
    assert (panel.x.title, panel.y.title) == ("lr", "eta")
    assert (list(line.x), list(line.y)) == ([0.1, 0.1, 0.01], [0.01, 0.1, 0.1])  # what diverged has no value
    assert line.markers is not None
    assert (list(line.markers.values), line.markers.scale) == ([0.5, 0.3, 0.9], "validation loss")
    assert list(line.markers.symbol) == ["square", "square", "circle"]
    assert heat_map(make_study(tiny_task(), "adam", TRIALS)) is None


def test_the_best_setting_is_named_without_a_claim(tiny_task: MakeTask) -> None:
    better = make_study(tiny_task(), "adam", TRIALS)
    worse = make_study(tiny_task(), "sgd", TRIALS[:1])
    text = best_sentence([worse, better])
    assert text.startswith("Adam has the best setting, lr=0.02: validation loss 0.25, SGD's best 0.5 (50% behind).")
    assert text.endswith("since these seeds chose the setting.")
    assert best_sentence([make_study(tiny_task(), "sgd", TRIALS[2:3])]) == "No setting was trained to the end."


def test_best_so_far_counts_all_epochs_and_only_complete_trials(tiny_task: MakeTask) -> None:
    [line] = best_so_far([make_study(tiny_task(), "adam", TRIALS)]).lines
    assert (list(line.x), list(line.y)) == ([8, 21, 29], [0.5, 0.25, 0.25])
    maximized = make_study(tiny_task(), "adam", TRIALS, metric="valid_accuracy", maximize=True)
    [line] = best_so_far([maximized]).lines
    assert (list(line.x), list(line.y)) == ([8, 29], [0.5, 0.5])


def test_commands_have_a_section_if_there_are_any(tiny_task: MakeTask) -> None:
    studies = [make_study(tiny_task(), "adam", TRIALS)]
    titles = [section.title for section in tuning_sections(studies, [], [])]
    assert titles == ["Best settings", "Sensitivity", "Best so far against budget"]
    assert tuning_sections(studies, [], ["surefoot tune"])[-1].title == "How to go on"
