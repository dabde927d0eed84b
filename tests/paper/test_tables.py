"""The tables: cells and curves as CSV, the scorecard, and what the ablation answers."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Callable
from importlib import resources

import pytest

from surefoot.lab.store import Run
from surefoot.paper.ablation import (
    cnn_variants,
    runs_by_rate,
    variants,
)
from surefoot.paper.cells import (
    Replication,
    table_cells,
)
from surefoot.paper.figures import across_rates
from surefoot.paper.published import Configuration
from surefoot.paper.tables import (
    ablation_page,
    answers,
    cells_csv,
    curves_csv,
    rates_table,
    scorecard,
    tally_table,
    why_page,
    why_tables,
)
from surefoot.paper.why import ADAM, SCALE, contestants

LR = Configuration("mnist", "lr", 128, False)
MLP = Configuration("mnist", "mlp", 128, False)
MLP_DROPOUT = Configuration("mnist", "mlp", 128, True)
CNN = Configuration("cifar10", "cnn", 128, False)
MakeRun = Callable[..., Run]


def test_cells_csv_has_the_published_columns_and_leaves_what_was_not_run_empty(paper_run: MakeRun) -> None:
    runs = [paper_run(MLP, "AdamS", seed, final=0.06 + seed / 1000) for seed in range(2)]
    runs.append(paper_run(MLP, "AdamS", 0, options={"reference": True}))
    lines = list(csv.DictReader(cells_csv(Replication(runs)).splitlines()))
    text = resources.files("surefoot.paper").joinpath("published.csv").read_text()
    published = list(csv.DictReader(text.splitlines()))
    default = [line for line in lines if line["variant"] == "default"]
    for line, row in zip(default, published, strict=True):
        assert {name: line[name] for name in row} == row
    run = [line for line in lines if line["n"] != "0"]
    assert [(line["variant"], line["epoch"], line["n"]) for line in run] == [
        ("default", "3", "2"),
        ("reference", "3", "1"),
    ]
    assert float(run[0]["ours_train_loss"]) == pytest.approx(0.0605)
    assert float(run[0]["ours_train_loss_std"]) == pytest.approx(0.000707107)
    assert run[1]["ours_train_loss_std"] == ""
    idle = [line for line in lines if line["n"] == "0"]
    assert len(idle) == 83 + 2
    assert all(line["ours_val_acc"] == "" and line["val_acc_verdict"] == "not run" for line in idle)


def test_curves_of_everything_that_was_run(paper_run: MakeRun) -> None:
    runs = [paper_run(LR, seed=seed, final=0.1 + seed) for seed in range(2)]
    runs.append(paper_run(LR, epochs=2, optimizer__schedule="cosine"))
    runs.append(paper_run(LR, epochs=3, optimizer__schedule="cosine"))
    lines = list(csv.DictReader(curves_csv(runs).splitlines()))
    assert [(line["epochs"], line["epoch"], line["n"]) for line in lines] == [
        ("", "1", "2"), ("", "2", "2"), ("", "3", "2"),
        ("2", "1", "1"), ("2", "2", "1"), ("3", "1", "1"), ("3", "2", "1"), ("3", "3", "1"),
    ]  # fmt: skip
    assert float(lines[2]["train_loss"]) == pytest.approx(0.6)


def test_scorecard_counts_and_names_what_is_missing(paper_run: MakeRun) -> None:
    runs = [paper_run(LR, name, seed) for name in ("Adam", "AdamS") for seed in range(3)]
    cells = table_cells(Replication(runs))
    assert "| together | 252 | 0 | 0 | 6 | 0 | 246 | 3 |" in tally_table(cells)
    text = scorecard(Replication(runs), ["figure `eta-cnn`: no runs yet"])
    assert text.count("not run") > 246
    assert "- figure `eta-cnn`: no runs yet" in text
    assert "published recipe" not in text
    reference = paper_run(LR, "AdamS", 0, options={"reference": True})
    assert "## Claims under the published recipe" in scorecard(Replication([*runs, reference]))


def test_tables_answer_from_the_runs(variant_run: MakeRun) -> None:
    final = {
        "plain Adam": 0.022,
        "std scale alone": 0.003,
        "scaled eps alone": 0.022,
        "both: AdamS": 0.003,
        "cosine decay": 0.001,
    }
    luck = random.Random(1)
    runs = [
        variant_run(MLP, variants(MLP)[name], seed, epochs=12, final=value + 1e-4 * luck.random(), accuracy=0.98)
        for name, value in final.items()
        for seed in range(6)
    ]
    text = ablation_page(runs)
    assert "## MLP 128, 12 epochs" in text
    assert "45 epochs" not in text
    [row] = [line for line in text.splitlines() if line.startswith("| std scale alone |")]
    assert "| 0.003 ± 0.000 (6) |" in row
    [row] = [line for line in text.splitlines() if line.startswith("| Is the std scale alone better than Adam? |")]
    assert "std scale alone beats plain Adam by 0.0190" in row
    [row] = [line for line in text.splitlines() if line.startswith("| Is it eps? |")]
    assert "beats" not in row
    assert "Is it as good as schedule-free?" not in text


def test_rates_of_the_cnn(variant_run: MakeRun) -> None:
    accuracy = {("plain Adam", 1e-3): 0.616, ("plain Adam", 5e-4): 0.699, ("std scale alone", 1e-3): 0.668}
    luck = random.Random(1)
    settings = {"subset": 10_000}
    runs = [
        variant_run(
            CNN,
            cnn_variants(CNN)[name].at(lr),
            seed,
            accuracy=value + 1e-3 * luck.random(),
            settings=settings,
        )
        for (name, lr), value in accuracy.items()
        for seed in range(6)
    ]
    longer = variant_run(CNN, cnn_variants(CNN)["plain Adam"].at(2.5e-4), 0, epochs=7, settings=settings)
    unended = variant_run(CNN, cnn_variants(CNN)["both: AdamS"].at(1e-3), 0, settings=settings)
    del unended.epochs[2:]
    length, by_rate = runs_by_rate([*runs, longer, unended], CNN)
    assert length == 3  # what most runs have; the longer run was there at that time too
    assert {name: sorted(rates) for name, rates in by_rate.items()} == {
        "plain Adam": [2.5e-4, 5e-4, 1e-3], "std scale alone": [1e-3],
    }  # fmt: skip
    text = ablation_page(runs)
    assert "std scale alone, lr 0.001 beats plain Adam, lr 0.001 by 5.2" in text
    assert "plain Adam, lr 0.0005 beats plain Adam, lr 0.001 by 8.2" in text
    assert text.count("plain Adam, lr 0.0005 is better than std scale alone, lr 0.001 by 3.09") == 1  # asked once
    figure = across_rates([*runs, longer], CNN)
    assert figure is not None
    assert [line.label for line in figure.rows[0][0].lines] == [
        "plain Adam (n=6)", "plain Adam (n=1)", "std scale alone (n=6)",
    ]  # fmt: skip


def test_the_best_rate_is_one_of_those_with_the_most_seeds(variant_run: MakeRun) -> None:
    accuracy = {1e-3: [0.61, 0.62], 5e-4: [0.66, 0.64], 2.5e-4: [0.70]}
    variant = cnn_variants(CNN)["both: AdamS"]
    rates = {
        lr: [variant_run(CNN, variant.at(lr), seed, accuracy=value) for seed, value in enumerate(values)]
        for lr, values in accuracy.items()
    }
    adam = {1e-3: [variant_run(CNN, cnn_variants(CNN)["plain Adam"].at(1e-3), seed) for seed in range(2)]}
    text = rates_table({"plain Adam": adam, "both: AdamS": rates}, 3)
    [row] = [line for line in text.splitlines() if line.startswith("| Is it better, each at its best rate? |")]
    assert "| both: AdamS, lr 0.0005 against plain Adam, lr 0.001 |" in row


def test_seeds_still_needed_are_counted_at_the_level_of_the_family(variant_run: MakeRun) -> None:
    steps = {"plain Adam": [0] * 6, "std scale alone": [-1, 2, 3, -1, 4, 2], "scaled eps alone": [1, -1] * 3}
    entries = {
        name: [
            variant_run(MLP, variants(MLP)[name], seed, epochs=12, final=0.02 + 1e-4 * step)
            for seed, step in enumerate(values)
        ]
        for name, values in steps.items()
    }
    pairs = [("std scale alone", "plain Adam"), ("scaled eps alone", "plain Adam")]
    alone, among = (answers(entries, family, "train_loss", 12)[0] for family in (pairs[:1], pairs))
    needed = [int(re.findall(r"about (\d+) more", words)[0]) for words in (alone, among)]
    assert needed[0] < needed[1]


def test_an_ablation_without_runs_names_the_command() -> None:
    assert ablation_page([]).endswith("Not run yet: `surefoot paper ablation`.\n")


def test_why_is_answered_against_adam_and_against_the_scale(variant_run: MakeRun) -> None:
    accuracy = {ADAM: 0.60, SCALE: 0.64, "reciprocal of the std": 0.55, "std an epoch late": 0.64}
    luck = random.Random(1)
    runs = [
        variant_run(
            CNN, contestants(1e-3)[name], seed, accuracy=value + 1e-3 * luck.random(), settings={"subset": 10_000}
        )
        for name, value in accuracy.items()
        for seed in range(7)
    ]
    assert why_tables([run for run in runs if run.config.optimizer.class_path.startswith("torch")]) == {}
    [(title, table)] = why_tables(runs).items()
    assert title == "Learning rate 0.001, 3 epochs"
    assert "std scale alone beats plain Adam by 3.99" in table
    assert "plain Adam is better than reciprocal of the std by 5.0" in table
    assert "std scale alone is better than reciprocal of the std by 8.99" in table
    assert "std an epoch late beats plain Adam by 3.98" in table
    assert table.count("| Is this as good as the scale? |") == 2
    assert "Not run yet" in why_page([])
    assert f"## {title}" in why_page(runs)
