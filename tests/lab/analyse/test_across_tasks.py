"""Several tasks together: the definitions of rliable, by SciPy and by hand.

rliable itself cannot be imported with the pinned pandas: it needs arch, which fails on it.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from surefoot.lab.analyse.across_tasks import across_tasks, bootstrap, performance_profile, probability_of_improvement
from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.report.sections import report_sections

LUCK = np.random.default_rng(0)
OURS, THEIRS = LUCK.normal(0.3, 1.0, (12, 5)), LUCK.normal(0.0, 1.0, (10, 5))  # runs x tasks
OURS[0] = THEIRS[0]  # ties


def tasks(scores: np.ndarray) -> list[np.ndarray]:
    return [scores[:, task] for task in range(scores.shape[1])]


def test_the_probability_of_improvement_is_the_mean_of_mann_whitneys() -> None:
    ours = probability_of_improvement(tasks(OURS), tasks(THEIRS))
    u = scipy.stats.mannwhitneyu(OURS, THEIRS, alternative="greater").statistic  # by task
    assert ours == pytest.approx(np.mean(u / (12 * 10)), rel=1e-12)
    assert ours == pytest.approx(
        0.6108333333333333, rel=1e-12
    )  # rliable.metrics.probability_of_improvement(OURS, THEIRS)


def test_the_profile_is_the_share_of_runs_above_each_threshold() -> None:
    thresholds = np.linspace(-2, 2, 9)
    by_hand = [np.mean([np.mean(OURS[:, task] > threshold) for task in range(5)]) for threshold in thresholds]
    assert performance_profile(tasks(OURS), thresholds) == pytest.approx(by_hand, rel=1e-12)


def test_the_interval_is_scipys_bootstrap_up_to_the_draws() -> None:
    ours = bootstrap([tasks(OURS[:, :1]), tasks(THEIRS[:, :1])], probability_of_improvement, np.random.default_rng(0))
    theirs = scipy.stats.bootstrap(
        (OURS[:, 0], THEIRS[:, 0]),
        lambda x, y, axis: np.sign(x[..., :, None] - y[..., None, :]).mean(axis=(-2, -1)) / 2 + 0.5,
        method="percentile",
        vectorized=True,
        rng=1,
    ).confidence_interval
    assert np.array(ours) == pytest.approx(np.array(theirs), abs=0.03)
    # Drawn within tasks: five tasks together are known better than one.
    together = bootstrap([tasks(OURS), tasks(THEIRS)], probability_of_improvement, np.random.default_rng(0))
    assert together[1] - together[0] < 0.7 * (ours[1] - ours[0])


def test_runs_are_scored_within_their_task_and_a_divergence_is_the_worst(run) -> None:
    def on(name: str, finals: dict[str, list[float]]) -> list:
        task = {"name": name, "batch_size": 1, "data": "", "settings": {}}
        return [run(label, k, final=value, task=task) for label, row in finals.items() for k, value in enumerate(row)]

    runs = on("a", {"Adam": [0.2, 0.4], "AdamS": [0.1, 0.3], "SGD": [9.0, 9.0]})
    runs += on("b", {"Adam": [20.0, 40.0], "AdamS": [10.0, 10.0]})
    together = across_tasks(group_runs(runs), "valid_loss")
    assert together is not None
    assert together.tasks == 2
    assert [profile.label for profile in together.profiles] == ["Adam", "AdamS"]  # SGD did not run on both
    [improvement] = together.improvements
    assert improvement.probability == pytest.approx((0.75 + 1.0) / 2)
    assert 0 <= improvement.low <= improvement.probability <= improvement.high <= 1
    profile = together.profiles[1]
    assert profile.shares[0] == 1.0
    assert profile.shares[-1] == 0.0
    assert all(low <= share <= high for share, (low, high) in zip(profile.shares, profile.band))
    task = {"name": "b", "batch_size": 1, "data": "", "settings": {}}
    diverged = [*runs[:-1], run("AdamS", 1, done=1, diverged=True, task=task)]
    worse = across_tasks(group_runs(diverged), "valid_loss")
    assert worse is not None
    assert worse.improvements[0].probability == pytest.approx((0.75 + 0.5) / 2)
    assert across_tasks(group_runs(runs[:6]), "valid_loss") is None  # one task
    assert across_tasks(group_runs(runs), "valid_f1") is None


def test_the_report_of_several_tasks_shows_them(paired_runs) -> None:
    other = {"name": "other", "batch_size": 1, "data": "", "settings": {}}
    offsets = {"Adam": 0.0, "AdamS": -0.05}
    runs = paired_runs(offsets) + paired_runs(offsets, task=other)
    [section] = [part for part in report_sections(summarise(runs), []) if part.title == "Across tasks"]
    [table] = section.content
    assert table.rows[0].cells[0] == "AdamS"
    assert table.rows[0].cells[1] == "1 (1 to 1)"
    [panel] = section.panels
    assert [line.label for line in panel.lines] == ["Adam", "AdamS"]
    assert not [part for part in report_sections(summarise(runs[:20]), []) if part.title == "Across tasks"]
