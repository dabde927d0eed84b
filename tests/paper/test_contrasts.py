"""How a claim is decided: the verdict follows from the paired runs alone, and few seeds decide nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from surefoot.lab.store import Run
from surefoot.paper.cells import Replication
from surefoot.paper.claims import CNN, CNN_16, CNN_DROPOUT, LR, MLP, MLP_16, claims
from surefoot.paper.contrasts import judge

MakeRun = Callable[..., Run]
BY_TITLE = {claim.title: claim for claim in claims()}
BEST_ON_LR = BY_TITLE["Adam is the best on logistic regression"]
RATIO = BY_TITLE["AdamS has half of Adam's training loss at epoch 20 and a third at epoch 45 on the MLP"]
SIX = BY_TITLE["The improvement on the CNN at epoch 3 is about 6% of validation accuracy"]
SAME = BY_TITLE["AdamS and Adam are about the same on the MLP in batches of 16"]
BATCH = BY_TITLE["On CIFAR-10 the gains are larger at batch size 16"]
DROPOUT = BY_TITLE["AdamS without dropout is better than Adam with it"]


def wobble(seed: int, scale: float) -> float:
    return random.Random(seed).gauss(0, scale)


def lr_runs(paper_run: MakeRun, worse: float, seeds: int, epochs: int = 45) -> list[Run]:
    return [
        paper_run(
            LR, name, seed, epochs=epochs, final=0.25 + wobble(seed, 0.02) + shift + wobble(100 + 10 * k + seed, 1e-4)
        )
        for k, (name, shift) in enumerate({"Adam": 0.0, "AdamUCB": worse, "AdamCB": worse, "AdamS": worse}.items())
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(
    ("worse", "seeds", "word", "line"),
    [
        (0.01, 8, "replicated", "replicated"),
        (-0.01, 8, "contradicted", "contradicted"),
        (0.0, 8, "undecided", "undecided"),
        (0.01, 3, "undecided", "leans towards"),
        (-0.01, 3, "undecided", "leans against"),
        (0.01, 1, "undecided", "undecided"),
    ],
)
def test_verdict(paper_run: MakeRun, worse: float, seeds: int, word: str, line: str) -> None:
    verdict = judge(BEST_ON_LR, Replication(lr_runs(paper_run, worse, seeds)))
    assert verdict.word == word
    assert {result.verdict for result in verdict.results} == {line}
    needed = {8: "", 3: "All have 3 of the 6 paired seeds that a verdict takes: 3 more seeds needed.",
              1: "All have 1 of the 6 paired seeds that a verdict takes: 5 more seeds needed."}  # fmt: skip
    assert (
        verdict.sentence.partition("lines do not count: the paper's own tables do not bear them out.")[2].strip()
        == (needed[seeds])
    )


def test_epochs_that_were_not_reached_are_named(paper_run: MakeRun) -> None:
    verdict = judge(BEST_ON_LR, Replication(lr_runs(paper_run, 0.01, 8, epochs=3)))
    assert verdict.word == "replicated so far"
    assert verdict.sentence.startswith("Of 7 lines: 3 replicated, 4 not run.")


def test_lines_that_the_papers_own_tables_do_not_bear_out_are_shown_and_do_not_count(paper_run: MakeRun) -> None:
    assert [line.in_the_tables for line in BEST_ON_LR.contrasts] == [True] * 6 + [
        False,
        True,
        False,
    ]  # ties at epoch 45
    assert sum(line.in_the_tables for line in BATCH.contrasts) == 3
    runs = lr_runs(paper_run, 0.01, 8)
    runs = [run for run in runs if run.label != "AdamS" or len(run.epochs) < 45]
    difference_at = {45: -0.01, 20: 0.01}
    for seed in range(8):
        run = paper_run(LR, "AdamS", seed, epochs=45, final=0.25)
        adam = next(run for run in runs if run.label == "Adam" and run.seed == seed)
        for row, base in zip(run.epochs, adam.epochs):
            row["train_loss"] = base["train_loss"] + difference_at.get(row["epoch"], 0.01) + wobble(300 + seed, 1e-4)
        runs.append(run)
    verdict = judge(BEST_ON_LR, Replication(runs))
    assert (verdict.results[-1].verdict, verdict.results[-1].theirs) == ("contradicted", "+0.000 (does not count)")
    assert verdict.word == "replicated"
    assert verdict.sentence == (
        "Of 7 lines: 7 replicated. 2 more lines do not count: the paper's own tables do not bear them out."
    )


def test_a_mixture_is_contradicted_in_part(paper_run: MakeRun) -> None:
    runs = lr_runs(paper_run, 0.01, 8)
    difference_at = [run for run in runs if run.label != "AdamCB"]
    difference_at += [paper_run(LR, "AdamCB", seed, epochs=45, final=0.2 + wobble(seed, 0.02)) for seed in range(8)]
    assert judge(BEST_ON_LR, Replication(difference_at)).word == "contradicted in part"


def test_pairs_left_by_a_divergence_decide_nothing(paper_run: MakeRun) -> None:
    runs = [run for run in lr_runs(paper_run, 0.01, 8) if not (run.label == "AdamS" and run.seed == 7)]
    runs.append(paper_run(LR, "AdamS", 7, epochs=2, diverged=True))
    verdict = judge(BEST_ON_LR, Replication(runs))
    assert verdict.word == "undecided"
    assert {result.verdict for result in verdict.results if "AdamS" in result.contrast.statement} == {"undecided"}
    assert "n=7, 1 diverged" in verdict.results[2].ours
    unpaired = [*lr_runs(paper_run, 0.01, 8), paper_run(LR, "Adam", 99, epochs=2, diverged=True)]
    assert judge(BEST_ON_LR, Replication(unpaired)).word == "replicated"  # a seed that no variant has is in no pair
    diverged_runs = [paper_run(LR, "AdamS", seed, epochs=2, diverged=True) for seed in range(3)]
    alone = judge(BEST_ON_LR, Replication([*lr_runs(paper_run, 0.01, 3)[:3], *diverged_runs]))
    assert alone.results[2].ours == "no pair (n=0, 3 diverged)"


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(0.47, "replicated"), (0.9, "contradicted"), (1.2, "contradicted"), (0.2, "contradicted")]
)
def test_ratio(paper_run: MakeRun, ratio: float, verdict: str) -> None:
    runs = [
        paper_run(MLP, name, seed, epochs=20, final=0.015 * factor * math.exp(wobble(100 + 10 * k + seed, 0.03)))
        for k, (name, factor) in enumerate({"Adam": 1.0, "AdamS": ratio}.items())
        for seed in range(8)
    ]
    first = judge(RATIO, Replication(runs)).results[0]
    assert first.verdict == verdict
    assert first.ours.startswith(f"{math.exp(first.paired.difference):.2f} (")
    assert first.theirs == "0.47"


@pytest.mark.parametrize(
    ("gain", "noise", "seeds", "verdict"),
    [
        (6.2, 0.005, 8, "replicated"),
        (2.0, 0.005, 8, "contradicted"),
        (0.1, 0.005, 8, "contradicted"),
        (20.0, 0.005, 8, "contradicted"),
        (6.0, 0.03, 8, "undecided"),  # the interval reaches beyond the band
        (3.0, 0.2, 8, "undecided"),
        (6.0, 0.001, 3, "leans towards"),
        (2.0, 0.001, 3, "leans against"),
        (6.0, 0.001, 1, "undecided"),
    ],
)
def test_about_six_percent(paper_run: MakeRun, gain: float, noise: float, seeds: int, verdict: str) -> None:
    runs = [
        paper_run(CNN, name, seed, accuracy=0.62 + more + wobble(100 + 10 * k + seed, noise))
        for k, (name, more) in enumerate({"Adam": 0.0, "AdamS": gain / 100}.items())
        for seed in range(seeds)
    ]
    assert judge(SIX, Replication(runs)).results[0].verdict == verdict


def test_about_the_same_is_an_amount_too(paper_run: MakeRun) -> None:
    verdicts = {}
    for difference in (0.0, 2.0):
        runs = [
            paper_run(MLP_16, name, seed, accuracy=0.96 + more / 100 + wobble(100 + 10 * k + seed, 0.001))
            for k, (name, more) in enumerate({"Adam": 0.0, "AdamS": difference}.items())
            for seed in range(8)
        ]
        verdicts[difference] = judge(SAME, Replication(runs)).results[0].verdict
    assert verdicts == {0.0: "replicated", 2.0: "contradicted"}


def test_contrasts_across_configurations_pair_the_seeds(paper_run: MakeRun) -> None:
    accuracy = {(CNN, "Adam"): 0.60, (CNN, "AdamS"): 0.62, (CNN_16, "Adam"): 0.50, (CNN_16, "AdamS"): 0.57}
    runs = [
        paper_run(configuration, name, seed, accuracy=value + wobble(seed, 0.01))
        for (configuration, name), value in accuracy.items()
        for seed in range(4)
    ]
    runs.append(paper_run(CNN_DROPOUT, "Adam", 2, accuracy=0.5 + wobble(2, 0.01)))
    replication = Replication(runs)
    results = {
        result.contrast.statement: result for claim in (BATCH, DROPOUT) for result in judge(claim, replication).results
    }
    gain = results["AdamS - Adam in CNN 16, less the same in CNN 128, validation accuracy (%), epoch 3"]
    assert (gain.paired.n, round(gain.paired.difference, 6)) == (4, 5.0)
    against = results["AdamS without dropout - Adam with dropout, CNN 128, validation accuracy (%), epoch 3"]
    assert (against.paired.n, round(against.paired.difference, 6)) == (1, 12.0)


def test_reference_runs_are_compared_with_the_same_adam(paper_run: MakeRun) -> None:
    adam = [paper_run(LR, "Adam", seed, final=0.2) for seed in range(2)]
    mine = [paper_run(LR, "AdamS", seed, final=0.3) for seed in range(2)]
    theirs = [paper_run(LR, "AdamS", seed, final=0.5, options={"reference": True}) for seed in range(2)]
    replication = Replication([*adam, *mine, *theirs])
    assert judge(BEST_ON_LR, replication).results[2].paired.difference == pytest.approx(0.1)
    assert judge(BEST_ON_LR, replication, "reference").results[2].paired.difference == pytest.approx(0.3)
