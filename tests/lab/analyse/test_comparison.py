"""The comparisons: paired by seed, corrected over a family, taken where both sides have values."""

from __future__ import annotations

import dataclasses
import math

import pytest

from surefoot.lab.analyse import stats
from surefoot.lab.analyse.comparison import TrainingTime, summarise
from surefoot.lab.analyse.groups import higher_is_better
from surefoot.lab.analyse.verdicts import Outcome
from surefoot.lab.report.tables import to_markdown
from surefoot.lab.spec.config import TaskConfig


def test_rows_pair_by_seed_not_by_order(run):
    luck = [0.1, 0.5, 0.3, 0.2, 0.9, 0.7]
    runs = [run("Adam", seed, final=luck[seed]) for seed in range(6)]
    runs += [run("AdamS", seed, final=luck[seed] - 0.01) for seed in reversed(range(6))]
    row = summarise(runs).select(metric="valid_loss")[1]
    assert row.difference == pytest.approx(-0.01)
    low, high = row.interval
    assert high - low < 1e-9
    assert row.verdict.outcome == Outcome.BETTER


def test_first_contestant_is_the_baseline_unless_named(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.01})
    assert summarise(runs).comparisons[0].label == "Adam"
    named = summarise(runs, baseline="adams")
    assert [row.label for row in named.select(metric="valid_loss")] == ["AdamS", "Adam"]
    assert named.select(metric="valid_loss")[1].verdict.outcome == Outcome.WORSE
    with pytest.raises(ValueError, match="no contestant is called 'Lion'; choose among: Adam, AdamS"):
        summarise(runs, baseline="Lion")
    with pytest.raises(ValueError, match="no run recorded the metric 'f1'; choose among: valid_loss"):
        summarise(runs, metrics=["f1"])


def test_higher_is_better_for_accuracy_and_as_the_task_says(paired_runs):
    rows = summarise(paired_runs({"Adam": 0.0, "AdamS": -0.01})).comparisons
    assert {row.metric: row.verdict.outcome for row in rows if not row.is_baseline} == {
        "valid_loss": "better",
        "valid_accuracy": "better",
        "train_loss": "better",
    }
    task = {"name": "mine", "batch_size": 1, "data": "", "settings": {}, "higher_is_better": {"loss": True}}
    rows = summarise(paired_runs({"Adam": 0.0, "AdamS": -0.01}, task=task), metrics=["valid_loss"]).comparisons
    assert rows[1].verdict.outcome == Outcome.WORSE


@pytest.mark.parametrize("metric", ["valid_brier_score", "valid_top1_error", "valid_f1", "valid_acc"])
def test_a_direction_is_not_guessed_from_a_name(metric):
    assert not higher_is_better(metric)
    assert higher_is_better(metric, TaskConfig("toy", higher_is_better={metric.removeprefix("valid_"): True}))


def test_holm_runs_over_all_comparisons_of_a_metric_and_over_tasks(paired_runs):
    other = {"name": "other", "batch_size": 1, "data": "", "settings": {}}
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.002, "AdamCB": 0.001}) + paired_runs(
        {"Adam": 0.0, "AdamS": 0.0}, task=other
    )
    rows = [row for row in summarise(runs, metrics=["valid_loss"]).comparisons if not row.is_baseline]
    assert [row.family for row in rows] == [3, 3, 3]
    assert [row.p_holm for row in rows] == stats.holm([row.paired.p_t for row in rows])


def test_divergences_are_counted_never_dropped_or_padded(run, paired_runs):
    runs = paired_runs({"Adam": 0.0})
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


def test_seconds_are_compared_in_pairs(run):
    def timed(label, seed, seconds, **options):
        made = run(label, seed, **options)
        return dataclasses.replace(made, epochs=[{**record, "seconds": seconds} for record in made.epochs])

    luck = [0.5, 2.0, 1.0, 0.7, 4.0, 1.5, 3.0]  # a machine that is now fast and now slow
    runs = [timed("Adam", seed, slow) for seed, slow in enumerate(luck)]
    runs += [timed("AdamS", seed, 1.1 * slow) for seed, slow in enumerate(luck)]
    runs += [timed("SGD", seed, 0.5 * slow, jobs=2) for seed, slow in enumerate(luck)]
    runs += [timed("AdamCB", seed, slow, epochs=10) for seed, slow in enumerate(luck[:3])]
    adam, adams, sgd, short = summarise(runs, metrics=["valid_loss"]).comparisons
    assert (adam.time, sgd.time) == (None, None)  # nothing to compare; other runs beside it
    assert (adams.time.n, adams.time.ratio) == (7, pytest.approx(1.1))
    assert adams.time.low == pytest.approx(1.1)
    assert (short.time.ratio, short.time.low, short.time.high) == (pytest.approx(1.0), 0.0, math.inf)
    assert adams.record()["step_time_ratio"] == pytest.approx(1.1)
    text = to_markdown(summarise(runs))
    assert text.count("Seconds per step, in pairs, over those of Adam: AdamS 1.1 (1.1 to 1.1).\n") == 1


def test_a_margin_is_for_the_leading_metric_a_share_for_all(paired_runs):
    runs = paired_runs({"Adam": 0.0, "AdamS": -0.0001}, noise=0.0005)
    plain, margin = summarise(runs), summarise(runs, margin=0.01)
    assert {row.verdict.outcome for row in plain.comparisons if not row.is_baseline} == {Outcome.UNDECIDED}
    outcomes = {row.metric: row.verdict.outcome for row in margin.comparisons if not row.is_baseline}
    assert outcomes.pop("valid_loss") == Outcome.EQUAL
    assert set(outcomes.values()) == {Outcome.UNDECIDED}
    shares = [row for row in summarise(runs, margin="20%").comparisons if not row.is_baseline]
    assert {row.verdict.outcome for row in shares} == {Outcome.EQUAL}
    loss = next(row for row in shares if row.metric == "valid_loss")
    baseline = margin.select(metric="valid_loss")[0].values.mean
    assert loss.evidence.margin == pytest.approx(0.2 * baseline)
    assert loss.record()["margin"] == loss.evidence.margin
    named = summarise(runs, margin={"train_loss": 0.01}).select(metric="train_loss")[1]
    assert named.verdict.outcome == Outcome.EQUAL
    with pytest.raises(ValueError, match="no metric is called 'f1', so it has no margin; choose among: valid_loss"):
        summarise(runs, margin={"f1": 0.1})
