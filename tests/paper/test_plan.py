"""The plan: the paper's runs under the lab's own keys, what is done, and the time left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.lab import compare, read_runs
from surefoot.lab.store import Run
from surefoot.paper import ablation
from surefoot.paper.command import paper
from surefoot.paper.plan import PlannedComparison, describe, plan_status, planned, seconds_per_epoch
from surefoot.paper.published import Configuration

LR = Configuration("mnist", "lr", 128, False)
PAPER_LR = ("adam", "adamucb:eta=0.01,gain=None", "adamcb:eta=0.001,gain=None", "adams:eta=0.0001,gain=None")


def test_tables_and_their_etas() -> None:
    assert [comparison.title for comparison in planned("mlp")] == ["MLP 128", "MLP 128 with dropout", "MLP 16"]
    assert planned("lr") == [PlannedComparison("LR 128", "mnist-lr", PAPER_LR, 3, 45, LR.overrides)]
    assert [comparison.optimizers[3] for comparison in planned("cnn")] == [
        "adams:eta=0.0001,gain=None",
        "adams:eta=0.0001,gain=None",
        "adams:eta=0.005,gain=None",
    ]
    assert planned("cnn")[0].optimizers[2] == "adamcb:eta=5e-05,gain=None"


def test_dropout_is_part_of_the_cnn() -> None:
    for whole, part in zip(planned("cnn"), planned("dropout")):
        assert set(part.optimizers) < set(whole.optimizers)
        assert part.overrides == whole.overrides


def test_eta_is_the_cnns_unless_another_model_is_asked_for() -> None:
    [sweep] = planned("eta", seeds=2, epochs=1)
    assert (sweep.task, sweep.seeds, sweep.epochs, len(sweep.optimizers)) == ("cifar10-cnn", 2, 1, 16)
    assert len(set(sweep.optimizers)) == 16
    assert planned("eta", model="mlp")[0].task == "mnist-mlp"


def test_ablation_has_two_lengths_and_a_sweep_of_rates() -> None:
    comparisons = planned("ablation")
    assert [(comparison.task, comparison.epochs, comparison.seeds) for comparison in comparisons] == [
        ("mnist-lr", 12, 5), ("mnist-lr", 45, 5), ("mnist-mlp", 12, 5), ("mnist-mlp", 45, 5), ("cifar10-cnn", 20, 5),
    ]  # fmt: skip
    assert comparisons[-1].overrides["subset"] == 10_000
    assert len(comparisons[-1].optimizers) == 3 * len(
        ablation.cnn_variants(LR._replace(dataset="cifar10", model="cnn"))
    )
    assert [comparison.epochs for comparison in planned("ablation", epochs=2, model="lr")] == [2]


def test_why_begins_with_the_most_telling_and_ends_with_everybody() -> None:
    lengths = [(len(comparison.optimizers), comparison.epochs, comparison.seeds) for comparison in planned("why")]
    assert lengths[:3] == [(7, 3, 10), (7, 7, 10), (7, 20, 10)]
    assert [(epochs, seeds) for _, epochs, seeds in lengths[3:]] == [(20, 10), (20, 10)]
    assert all(comparison.overrides["subset"] == 10_000 for comparison in planned("why"))
    assert [comparison.epochs for comparison in planned("why", epochs=3)] == [3, 3, 3]


def test_reference_runs_stand_beside_the_defaults() -> None:
    [comparison] = planned("lr", reference=True)
    assert [spec for spec in comparison.optimizers if "reference" in spec] == [
        f"{spec.removesuffix(',gain=None')},reference=True" for spec in PAPER_LR[1:]
    ]


def test_all_holds_every_configuration_once() -> None:
    titles = [comparison.title for comparison in planned("all")]
    assert titles[:7] == [
        "LR 128",
        "MLP 128",
        "CNN 128",
        "MLP 128 with dropout",
        "CNN 128 with dropout",
        "MLP 16",
        "CNN 16",
    ]
    assert len(titles) == len(set(titles)) == 18


@pytest.mark.parametrize(
    ("options", "message"),
    [({"part": "rnn"}, "no part 'rnn'; choose lr"), ({"part": "lr", "model": "rnn"}, "no model 'rnn'; choose lr")],
)
def test_unknown_names(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(**options)  # type: ignore[arg-type]


def test_runs_of_a_plain_comparison_are_found_done(mnist: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    compare("mnist-lr", PAPER_LR, seeds=2, epochs=2, out=out, data_dir=mnist, progress=False)
    [status] = plan_status(planned("lr", seeds=3, epochs=2), out=out, data_dir=mnist)
    assert status.done == dict.fromkeys(PAPER_LR, 2)
    assert status.epochs_left == 8
    [longer] = plan_status(planned("lr", seeds=2, epochs=5), out=out, data_dir=mnist)
    assert longer.epochs_left == 2 * 4 * 3
    lines: list[str] = []
    assert paper("lr", seeds=3, epochs=2, out=out, data_dir=mnist, progress=False, print_line=lines.append)
    assert len(read_runs(out)) == 12
    paper("lr", seeds=3, epochs=2, out=out, data_dir=mnist, plan=True, print_line=lines.append)
    assert lines[-1].endswith("together: 12 of 12 runs done; about 0 s left with 1 job")


def test_epochs_that_two_comparisons_share_are_counted_once(mnist: Path, tmp_path: Path) -> None:
    plan = [PlannedComparison("", "mnist-lr", ("adam",), 1, epochs) for epochs in (3, 5, 4)]
    assert [comparison.epochs_left for comparison in plan_status(plan, out=tmp_path / "none", data_dir=mnist)] == [
        3,
        2,
        0,
    ]


def test_time_left_is_that_of_the_same_task(paper_run: Callable[..., Run]) -> None:
    runs = [paper_run(LR, seed=seed) for seed in range(2)]
    task = runs[0].config.task
    assert seconds_per_epoch(runs, task) == 2.0004
    assert seconds_per_epoch(runs, replace(task, batch_size=16)) is None


def test_description_says_what_it_does_not_know(mnist: Path, tmp_path: Path) -> None:
    text = describe(plan_status(planned("lr", seeds=1, epochs=2), out=tmp_path / "none", data_dir=mnist), jobs=2)
    assert "LR 128 (mnist-lr): 0 of 4 runs done, 2 epochs each; time left unknown" in text
    assert "   0 of 1  adamcb:eta=0.001,gain=None" in text
    assert "time left unknown: 1 comparison that no run tells the speed of yet" in text
