"""The statistics against SciPy, against statsmodels and by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import statsmodels.stats.multitest
import statsmodels.stats.power
import statsmodels.stats.weightstats
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.lab.analyse import stats

DIFFERENCES = st.lists(st.floats(-5, 5, allow_nan=False, width=32), min_size=2, max_size=9)


def test_t_interval_and_p_are_scipys():
    values = np.random.default_rng(3).normal(0.3, 1.0, 12)
    ours, theirs = stats.paired(list(values)), scipy.stats.ttest_1samp(values, 0.0)
    interval = theirs.confidence_interval(0.95)
    assert ours.p_t == pytest.approx(theirs.pvalue, rel=1e-12)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(DIFFERENCES)
def test_sign_flips_are_counted_by_enumeration(values):
    observed = abs(sum(values)) - 1e-9 * max(map(abs, values))
    patterns = itertools.product([1, -1], repeat=len(values))
    sums = [abs(sum(s * v for s, v in zip(signs, values))) for signs in patterns]
    assert stats.sign_flip_p(values) == sum(s >= observed for s in sums) / len(sums)


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
    power = np.mean(scipy.stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05)
    assert 0.79 < power < 0.86
    assert stats.seeds_needed(effect, 1.0, level=0.05 / 10) > n
    assert stats.seeds_needed(1e6, 1.0) == stats.fewest_seeds() == 6


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_that_of_statsmodels(p_values):
    theirs = statsmodels.stats.multitest.multipletests(p_values, alpha=0.05, method="holm")[1]
    assert stats.holm(p_values) == pytest.approx(list(theirs))


@pytest.mark.parametrize("effect", [0.4, 0.7, 1.1])
@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
def test_seeds_needed_are_those_of_statsmodels(effect, power):
    exactly = statsmodels.stats.power.TTestPower().solve_power(effect, power=power, alpha=0.05)
    assert stats.seeds_needed(effect, 1.0, power=power) == max(math.ceil(exactly), stats.fewest_seeds())


def test_the_interval_is_that_of_statsmodels():
    values = np.random.default_rng(7).normal(0.3, 1.0, 9)
    theirs = statsmodels.stats.weightstats.DescrStatsW(values)
    ours = stats.paired(list(values))
    assert (ours.low, ours.high) == pytest.approx(theirs.tconfint_mean(), rel=1e-12)
    assert ours.p_t == pytest.approx(theirs.ttest_mean()[1], rel=1e-12)
