"""The benchmarks' own arithmetic: ratios that a busy machine does not bend, and what state is counted."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
import time
from itertools import count
from pathlib import Path

import pytest
import torch

import surefoot

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence
import from_adamw
import gain
import optax_suite
from interleave import interleave
from step_time import BASELINE, measure

from surefoot.optim.options import GAIN
from surefoot.paper.export import filled


def test_a_machine_that_slows_down_does_not_bend_the_ratio() -> None:
    clock = count(1)
    measured = interleave(
        {"one": lambda: 1.0 * next(clock), "twin": lambda: 1.0 * next(clock), "double": lambda: 2.0 * next(clock)},
        rounds=20,
    )
    assert measured["one"]["ratio"] == 1
    assert measured["twin"]["ratio"] == pytest.approx(1, abs=0.1)
    assert measured["double"]["ratio"] == pytest.approx(2, abs=0.1)
    assert measured["double"]["rounds"] == 20


def test_noise_with_a_long_tail_leaves_a_twin_at_one() -> None:
    luck = random.Random(0)
    measured = interleave(dict.fromkeys(("one", "twin"), lambda: 1 + luck.expovariate(1) ** 3), rounds=60)
    assert measured["twin"]["low"] < 1 < measured["twin"]["high"]
    assert measured["twin"]["high"] - measured["twin"]["low"] < 0.8


@pytest.mark.parametrize("name", ["AdamUCB", "AdamCB", "AdamS"])
@pytest.mark.parametrize("tensors", [2, 200])
def test_state_beyond_adams_is_that_of_a_group_however_many_parameters(name: str, tensors: int) -> None:
    chosen = {
        BASELINE: lambda params: torch.optim.Adam(params, fused=True),
        f"surefoot {name}": lambda params: getattr(surefoot, name)(params),
    }
    measured = measure([(3, 5)] * tensors, chosen, 3, time.perf_counter)[f"surefoot {name}"]
    assert measured["extra_bytes"] <= 100
    assert measured["ratio"] > 0


def test_the_loops_that_come_from_adamw_differ_in_their_optimizer_alone() -> None:
    losses = {name: from_adamw.train(make, 3, seed=0) for name, make in from_adamw.OPTIMIZERS.items()}
    assert all(2 < loss < 6 for loss in losses.values())
    assert losses['AdamWS, weighting="unit"'] == pytest.approx(losses["torch.optim.AdamW"], rel=1e-3)
    assert from_adamw.rate(0, 100) == pytest.approx(0.2)
    assert max(from_adamw.rate(step, 100) for step in range(100)) == 1
    assert from_adamw.rate(100, 100) == pytest.approx(0.1)


def test_losses_in_the_readme_are_those_that_were_measured() -> None:
    root = Path(__file__).parents[2]
    measured = json.loads((root / "benchmarks/results/from_adamw.json").read_text())["measured"]
    means = {name: f"{sum(losses) / len(losses):.2f}" for name, losses in measured.items()}
    text = " ".join((root / "README.md").read_text().split())
    sentence = f"{means['AdamS']} where `AdamWS` and AdamW end at {means['AdamWS']} and {means['torch.optim.AdamW']}"
    assert sentence in text
    assert means['AdamWS, weighting="unit"'] == means["torch.optim.AdamW"]


def test_the_table_of_the_evidence_is_that_of_the_recorded_results() -> None:
    rows = evidence.collect()
    table = evidence.markdown(evidence.HEADER, [row.cells for row in rows])
    assert table in evidence.PAGE.read_text(), "run: python benchmarks/evidence.py --save"
    said = {"**better**", "**worse**", "undecided", "leans better", "leans worse", "too few seeds"}
    assert {row.outcome.partition(", not inferior by ")[0] for row in rows} - {"equal within 1 %"} == said
    are_transformers = ["transformer" in row.task for row in rows]
    assert are_transformers == sorted(are_transformers, reverse=True)
    assert len(evidence.main_rows(rows)) > len(evidence.MAIN)
    texts = [re.sub(r"\s", "", text) for text in re.findall(r"<!-- (.+?) -->", evidence.PICTURE.read_text())]
    for row in evidence.main_rows(rows):
        assert f"{row.contestant}against{row.peer}".replace(" ", "") in texts, "the picture is older than the table"


def test_a_row_of_the_evidence_says_who_is_better() -> None:
    high, low = dict.fromkeys(range(8), 1.0), {seed: 0.5 + seed / 100 for seed in range(8)}
    pairs = [evidence.Pairs("new", "old", low, high), evidence.Pairs("few", "old", {0: 0.5, 1: 0.6}, high)]
    rows = list(evidence.compared("task", "val_loss", pairs, "here"))
    assert [row.outcome for row in rows] == ["**better**", "too few seeds"]
    assert rows[0].n == 8
    assert rows[0].difference.startswith("-0.465 (")
    assert rows[0].relative[0] == pytest.approx(-46.5)
    [worse, _] = evidence.compared("task", "val_acc", pairs, "here")
    assert worse.outcome == "**worse**"


def test_a_row_without_a_claim_says_which_way_it_leans() -> None:
    """Six pairs that agree decide a comparison that stands alone, but not one beside four that are level."""
    high, low = dict.fromkeys(range(6), 1.0), {seed: 0.5 + seed / 100 for seed in range(6)}
    mixed = {seed: 1.0 + (-1) ** seed / 10 for seed in range(6)}
    agree, level = evidence.Pairs("new", "old", low, high), evidence.Pairs("level", "old", mixed, high)
    [alone] = evidence.compared("task", "val_loss", [agree], "here")
    assert alone.outcome == "**better**"
    outcomes = [row.outcome for row in evidence.compared("task", "val_loss", [agree, *[level] * 4], "here")]
    assert outcomes == ["leans better", *["undecided"] * 4]
    accuracy, *_ = evidence.compared("task", "val_acc", [agree, *[level] * 4], "here")
    assert accuracy.outcome == "leans worse"


@pytest.mark.parametrize(
    ("difference", "not_inferior", "verdict", "outcome"),
    [
        ("0.008 (0.006 to 0.017)", "yes", "new and old are equal within 0.02: the ...", "equal within 1 %"),
        ("0.008 (0.006 to 0.017)", "yes", "undecided: 1 more seed needed", "leans worse, not inferior by 1 %"),
        ("-0.008 (-0.017 to -0.006)", "not shown", "undecided: 1 more seed needed", "leans better"),
        ("0.008 (-0.006 to 0.017)", "not shown", "undecided: 1 more seed needed", "undecided"),
        ("0.008 (0.006 to 0.017)", "not shown", "old is better than new", "**worse**"),
    ],
)
def test_a_row_that_was_recorded_keeps_its_verdict(
    difference: str, not_inferior: str, verdict: str, outcome: str
) -> None:
    row = {"difference (95%)": difference, "n": "6", "not inferior": not_inferior, "verdict (Holm)": verdict}
    assert evidence.reported("task", "new", "old", row, "1.0", "here", "1 %").outcome == outcome


def test_the_page_on_bounds_shows_the_runs_that_were_recorded() -> None:
    path, page = gain.RESULTS / "runs.csv", (gain.RESULTS / "README.md").read_text()
    tables = gain.tables(path)
    assert set(tables) == {"tune", "fresh", "cells"}
    assert filled(page, {**tables, **gain.measured_before(page)}) == page


def test_the_default_bounds_solve_the_small_problems_and_are_inside_of_the_grid() -> None:
    low, high = GAIN
    tried = [bounds for bounds in gain.GRID if bounds is not None]
    assert min(x for x, y in tried if y == high) < low < max(x for x, y in tried if y == high)
    assert min(y for x, y in tried if x == low) < high < max(y for x, y in tried if x == low)
    page = (gain.RESULTS / "README.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| {low} to {high} ")]
    timms, optaxs, at_once = map(float, row.strip("| ").split("|")[1:])
    assert timms <= 0.71
    assert optaxs <= 0.06
    assert at_once < 1e-4


def test_a_jump_is_counted_from_the_lowest_loss_so_far() -> None:
    assert gain.jump([2.0, 1.0, 0.5, 1.5, 0.25]) == 3
    assert gain.jump([2.0]) == 1


def test_optaxs_own_tests_take_our_optimizers() -> None:
    spec = importlib.util.find_spec("optax._src.alias_test")
    assert spec is not None
    assert spec.origin is not None
    rates = optax_suite.optimizers_under_test()
    assert {name: rates[name] for name in ("adam_s", "adamw_ucb", "momentum_cb")} == {
        "adam_s": 0.01,
        "adamw_ucb": 0.01,
        "momentum_cb": 0.003,
    }
    assert "adam" not in rates
    text = optax_suite.adapted(Path(spec.origin).read_text(), rates)
    compile(text, "alias_test.py", "exec")
    assert "polyak_sgd'," in text, "an optimizer that is named elsewhere keeps its name"
    assert "opt_name == 'polyak_sgd'" not in text
    assert optax_suite.optimizers_under_test(0.1)["adam_s"] == 0.1
    with pytest.raises(SystemExit, match="look different here: 0 tables"):
        optax_suite.adapted("", rates)
