"""Numbers against SciPy and by hand, verdicts against what the seeds allow."""

from __future__ import annotations

import doctest
import importlib
import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.lab.analyse import stats, verdicts
from surefoot.lab.analyse.comparison import TrainingTime, summarise
from surefoot.lab.analyse.groups import higher_is_better
from surefoot.lab.report.tables import to_markdown
from surefoot.lab.spec.config import TaskConfig

DIFFERENCES = st.lists(st.floats(-5, 5, allow_nan=False, width=32), min_size=2, max_size=9)


MODULES = ["analyse.stats", "analyse.verdicts", "analyse.groups", "analyse.comparison", "analyse.audit"]


@pytest.mark.parametrize("module", [*MODULES, "report.tables", "report.page"])
def test_examples(module):
    result = doctest.testmod(importlib.import_module(f"surefoot.lab.{module}"))
    assert result.attempted > 0 or module == "analyse.groups"
    assert result.failed == 0


def test_t_interval_and_p_are_scipys():
    values = np.random.default_rng(3).normal(0.3, 1.0, 12)
    ours, theirs = stats.paired(list(values)), scipy.stats.ttest_1samp(values, 0.0)
    interval = theirs.confidence_interval(0.95)
    assert ours.p_t == pytest.approx(theirs.pvalue, rel=1e-12)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(DIFFERENCES)
def test_sign_flips_are_counted_one_by_one(values):
    reach = abs(sum(values)) - 1e-9 * max(map(abs, values))
    patterns = itertools.product([1, -1], repeat=len(values))
    sums = [abs(sum(s * v for s, v in zip(signs, values))) for signs in patterns]
    assert stats.sign_flip_p(values) == sum(s >= reach for s in sums) / len(sums)


def test_sign_flips_of_many_seeds_are_still_exact():
    assert stats.sign_flip_p([1.0] * 30) == stats.smallest_exact_p(30) == 2 / 2**30
    values = list(np.random.default_rng(0).normal(0.4, 1.0, 16))
    reference = scipy.stats.permutation_test(
        (np.array(values),),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=math.inf,
        vectorized=True,
    )
    assert stats.sign_flip_p(values) == pytest.approx(reference.pvalue, rel=1e-12)


def test_differences_that_do_not_scatter():
    assert (stats.paired([0.1] * 6).p_t, stats.paired([0.1] * 6).half_width) == (0.0, 0.0)
    assert stats.paired([0.0] * 6).p_t == stats.paired([0.0] * 6).p_exact == 1.0


def test_too_many_differences_for_enumeration_is_a_clear_error():
    with pytest.raises(ValueError, match="1 to 32 differences, not 33"):
        stats.sign_flip_p([1.0] * 33)
    assert stats.paired([1.0, 2.0] * 20).p_exact is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_monotone_and_between_plain_and_bonferroni(p_values):
    adjusted = stats.holm(p_values)
    for p, q in zip(p_values, adjusted):
        assert p <= q <= min(1.0, p * len(p_values)) + 1e-15
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(adjusted)[order]) >= 0)


def test_holm_by_hand():
    assert stats.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert stats.holm([None, 0.04]) == [None, 0.04]


def test_seeds_needed_have_the_power_they_promise():
    effect = 0.8
    n = stats.seeds_needed(effect, 1.0)
    draws = np.random.default_rng(1).normal(effect, 1.0, (20_000, n))
    found = np.mean(scipy.stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05)
    assert 0.79 < found < 0.86
    assert stats.seeds_needed(effect, 1.0, level=0.05 / 10) > n
    assert stats.seeds_needed(1e6, 1.0) == stats.fewest_seeds() == 6


def judge(values, p_holm=None, higher=False, contestant=None, baseline=None):
    result = stats.paired(values)
    sides = {
        "contestant": contestant or verdicts.Side("AdamS"),
        "baseline": baseline or verdicts.Side("Adam"),
    }
    p = result.p_t if p_holm is None else p_holm
    return verdicts.decide(result, p, higher_is_better=higher, **sides)


CLEAR = [-0.004, -0.003, -0.006, -0.002, -0.005, -0.004, -0.003, -0.005]


def test_a_claim_names_winner_amount_interval_and_n():
    assert judge(CLEAR) == verdicts.Verdict(verdicts.Outcome.BETTER, "AdamS beats Adam by 0.0040±0.0011 (n=8)")
    assert judge(CLEAR, higher=True).sentence == "Adam is better than AdamS by 0.0040±0.0011 (n=8)"
    assert judge([-d for d in CLEAR]).outcome == "worse"


def test_a_claim_needs_holms_p():
    assert judge(CLEAR, p_holm=0.06).outcome == "undecided"


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_fewer_than_six_seeds_never_make_a_claim(n):
    verdict = judge([-1.0 - 1e-6 * i for i in range(n)])
    assert verdict.outcome == "leaning"
    assert "no claim" in verdict.sentence
    assert f"smallest exact paired p of {n} seeds is {2 / 2**n:.2g}" in verdict.sentence
    assert f"at least {verdicts.count(6 - n, 'more seed')} needed" in verdict.sentence


def test_three_undecided_seeds_say_what_they_cannot_reach():
    verdict = judge([-0.004, 0.001, -0.003])
    assert verdict.outcome == "undecided"
    assert "the smallest exact paired p is 0.25" in verdict.sentence


def test_the_exact_test_can_veto_the_t_test():
    # One seed against and one near zero: normal theory is sure, the sign flips are not.
    values = [-1.0] * 5 + [1e-3, 0.9]
    assert stats.paired(values).p_exact > 0.05
    assert judge(values, p_holm=0.01).outcome == "undecided"


def test_undecided_estimates_the_seeds_still_needed():
    values = list(np.random.default_rng(5).normal(0.5, 1.0, 10))
    result = stats.paired(values)
    needed = stats.seeds_needed(result.difference, result.std)
    assert f"about {needed - 10} more seeds needed" in judge(values, p_holm=0.5).sentence


def test_no_visible_difference_and_no_difference():
    assert judge([1.0, -1.0, 1.0, -1.001]).sentence.startswith("no visible difference: even 200 seeds would not")
    assert judge([0.0] * 5).outcome == "same"
    assert judge([0.1]).sentence == "too few seeds (n=1)"


def test_divergence_is_told_and_decides_nothing_silently():
    lost = verdicts.Side("AdamS", 10, 2)
    verdict = judge(CLEAR, contestant=lost)
    assert verdict.outcome == "better"
    assert (verdict.claim, verdict.remark) == (judge(CLEAR).claim, "AdamS diverged in 2 of 10 runs")
    assert verdict.sentence.endswith("(n=8), where both ended; AdamS diverged in 2 of 10 runs")
    gone = judge([], contestant=verdicts.Side("AdamS", 4, 4), baseline=verdicts.Side("Adam", 4, 1))
    assert gone.outcome == "diverged"
    assert "AdamS diverged in 4 of 4 runs and Adam diverged in 1 of 4 runs" in gone.sentence


def test_rows_pair_by_seed_not_by_order(run):
    luck = [0.1, 0.5, 0.3, 0.2, 0.9, 0.7]
    runs = [run("Adam", seed, final=luck[seed]) for seed in range(6)]
    runs += [run("AdamS", seed, final=luck[seed] - 0.01) for seed in reversed(range(6))]
    row = summarise(runs).select(metric="valid_loss")[1]
    assert row.difference == pytest.approx(-0.01)
    low, high = row.interval
    assert high - low < 1e-9
    assert row.verdict.outcome == "better"


def test_first_contestant_is_the_baseline_unless_named(field):
    runs = field({"Adam": 0.0, "AdamS": -0.01})
    assert summarise(runs).comparisons[0].label == "Adam"
    named = summarise(runs, baseline="adams")
    assert [row.label for row in named.select(metric="valid_loss")] == ["AdamS", "Adam"]
    assert named.select(metric="valid_loss")[1].verdict.outcome == "worse"
    with pytest.raises(ValueError, match="no contestant is called 'Lion'; choose among: Adam, AdamS"):
        summarise(runs, baseline="Lion")
    with pytest.raises(ValueError, match="no run recorded the metric 'f1'; choose among: valid_loss"):
        summarise(runs, metrics=["f1"])


def test_higher_is_better_for_accuracy_and_as_the_task_says(field):
    rows = summarise(field({"Adam": 0.0, "AdamS": -0.01})).comparisons
    assert {row.metric: row.verdict.outcome for row in rows if not row.is_baseline} == {
        "valid_loss": "better",
        "valid_accuracy": "better",
        "train_loss": "better",
    }
    told = {"name": "mine", "batch_size": 1, "data": "", "settings": {}, "higher_is_better": {"loss": True}}
    rows = summarise(field({"Adam": 0.0, "AdamS": -0.01}, task=told), metrics=["valid_loss"]).comparisons
    assert rows[1].verdict.outcome == "worse"


@pytest.mark.parametrize("metric", ["valid_brier_score", "valid_top1_error", "valid_f1", "valid_acc"])
def test_a_direction_is_not_guessed_from_a_name(metric):
    assert not higher_is_better(metric)
    assert higher_is_better(metric, TaskConfig("toy", higher_is_better={metric.removeprefix("valid_"): True}))


def test_holm_runs_over_all_comparisons_of_a_metric_and_over_tasks(field):
    other = {"name": "other", "batch_size": 1, "data": "", "settings": {}}
    runs = field({"Adam": 0.0, "AdamS": -0.002, "AdamCB": 0.001}) + field({"Adam": 0.0, "AdamS": 0.0}, task=other)
    rows = [row for row in summarise(runs, metrics=["valid_loss"]).comparisons if not row.is_baseline]
    assert [row.family for row in rows] == [3, 3, 3]
    assert [row.p_holm for row in rows] == stats.holm([row.paired.p_t for row in rows])


def test_divergences_are_counted_never_dropped_or_padded(run, field):
    runs = field({"Adam": 0.0})
    runs += [run("AdamS", seed, final=0.05, done=2 if seed < 3 else None, diverged=seed < 3) for seed in range(10)]
    base, row = summarise(runs).select(metric="valid_loss")
    assert (row.counts.runs, row.values.n, row.counts.diverged, row.pairs) == (10, 7, 3, 7)
    assert row.values.mean == pytest.approx(0.05)
    assert "AdamS diverged in 3 of 10 runs" in row.verdict.sentence
    assert row.target.reached == 7
    assert (base.counts.runs, base.values.n, base.counts.diverged) == (10, 10, 0)


def test_time_to_target_counts_a_miss_as_infinite(run):
    runs = [run("Adam", seed, final=0.1) for seed in range(3)]
    runs += [run("AdamS", seed, final=0.1 if seed == 0 else 0.5) for seed in range(3)]
    base, row = summarise(runs, target=0.2).select(metric="valid_loss")
    assert base.target.median == TrainingTime(steps=36, epochs=3, seconds=1.5)
    assert (row.target.reached, row.counts.ended, row.target.median.epochs) == (1, 3, math.inf)


def test_default_target_is_what_every_baseline_run_reached(run):
    runs = [run("Adam", seed, final=final) for seed, final in enumerate([0.1, 0.3, 0.2])]
    row = summarise(runs).select(metric="valid_loss")[0]
    assert row.target.value == pytest.approx(0.3)
    assert row.target.reached == 3


def test_values_after_an_epoch(run):
    runs = [
        run("Adam", 0, final=0.1),
        run("Adam", 1, final=0.1, done=3),
        run("Adam", 2, done=2, diverged=True),
    ]
    early = summarise(runs, epoch=2, metrics=["valid_loss"]).comparisons[0]
    assert early.values.n == 2
    assert early.counts.diverged == 1
    assert summarise(runs, epoch=1, metrics=["valid_loss"]).comparisons[0].counts.diverged == 0
    end = summarise(runs, metrics=["valid_loss"]).comparisons[0]
    assert (end.values.n, end.counts.unfinished, end.counts.diverged) == (1, 1, 1)


def test_runs_of_different_length_are_compared_where_all_have_been(run):
    # At epoch 2 of 6 AdamS is ahead; Adam is lower at its end only because it trained on.
    runs = [run("Adam", seed, final=0.1 + 0.001 * seed, epochs=6) for seed in range(7)]
    runs += [run("AdamS", seed, final=0.2 + 0.0011 * seed, epochs=2) for seed in range(7)]
    runs += [run("SGD", seed, final=0.3 + 0.0011 * seed, epochs=6) for seed in range(7)]
    summary = summarise(runs, metrics=["valid_loss"])
    base, short, equal = summary.comparisons
    assert to_markdown(summary).count(" (epoch 2) |") == 1
    at_two = runs[0].epochs[1]["valid_loss"]
    assert at_two > 0.3
    assert short.difference == pytest.approx(0.2 - at_two + 0.0001 * 3, abs=1e-9)
    assert (short.epoch, short.verdict.outcome) == (2, "better")
    assert short.verdict.claim.startswith("at epoch 2: AdamS beats Adam by ")
    assert (base.epoch, equal.epoch) == (None, None)
    assert base.values.mean == pytest.approx(0.103)
    assert equal.verdict.claim.startswith("Adam is better than SGD by 0.2")


def test_diverged_runs_do_not_shorten_a_comparison(run):
    runs = [run("Adam", seed, final=0.1 + 0.01 * seed) for seed in range(4)]
    runs += [run("AdamS", seed, final=0.2, done=1 if seed == 0 else None, diverged=seed == 0) for seed in range(4)]
    _, row = summarise(runs, metrics=["valid_loss"]).comparisons
    assert (row.epoch, row.counts.diverged, row.pairs) == (None, 1, 3)
    longer = [run("Adam", seed, final=0.1, epochs=9) for seed in range(4)]
    _, row = summarise(longer + runs[4:], metrics=["valid_loss"]).comparisons
    assert (row.epoch, row.counts.diverged, row.pairs) == (5, 1, 3)
    assert row.verdict.claim.startswith("at epoch 5: ")
    assert row.verdict.remark == "AdamS diverged in 1 of 4 runs"


def test_tuning_runs_are_not_results_and_settings_are_not_mixed(run):
    runs = [run("Adam", seed) for seed in range(2)] + [run("Adam", 7, purpose="tune", final=9.0)]
    runs += [run("Adam", seed, kwargs={"lr": 0.1}) for seed in range(2)]
    small = {"name": "digits-mlp", "batch_size": 16, "data": "d1", "settings": {}}
    runs += [run("Adam", seed, task=small) for seed in range(2)]
    rows = summarise(runs, metrics=["valid_loss"]).comparisons
    assert [(row.task, row.label, row.counts.runs) for row in rows] == [
        ("digits-mlp batch=128", "Adam lr=0.001", 2),
        ("digits-mlp batch=128", "Adam lr=0.1", 2),
        ("digits-mlp batch=16", "Adam", 2),
    ]
