"""The test that may be looked at after every seed: few false claims, few seeds, and intervals that agree with it."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.lab.analyse import anytime_valid, stats
from surefoot.lab.analyse.anytime_valid import DECISIVE, Evidence, more_seeds, seeds_to_detect, support

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import anytime_valid as simulation

REPETITIONS = 1000


@pytest.mark.parametrize("name", simulation.NO_DIFFERENCE)
def test_looking_after_every_seed_makes_no_more_false_claims_than_promised(name: str) -> None:
    differences = simulation.NO_DIFFERENCE[name](np.random.default_rng(11), (REPETITIONS, simulation.LOOKS))
    assert simulation.false_claims(differences) <= 0.05
    assert simulation.false_claims_of_t_test(differences) > 0.1  # the test for one look does


def test_a_family_an_order_and_a_margin_keep_the_promise_too() -> None:
    luck = np.random.default_rng(12)
    assert simulation.false_claims_in_families(luck, REPETITIONS) <= 0.05
    assert simulation.false_claims_in_any_order(luck, 300) <= 0.05
    assert simulation.false_equality(luck, REPETITIONS) <= 0.05


@pytest.mark.parametrize("effect", simulation.EFFECTS)
def test_seeds_on_average_are_at_most_those_of_a_fixed_number_and_a_third(effect: float) -> None:
    assert simulation.seeds_with_power(effect, np.random.default_rng(13), 500)["ratio"] <= 1.3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1e-9, 0.5, 1.0, 3.0, 1e6]), min_size=1, max_size=7))
def test_no_bet_on_signs_gains_on_average(magnitudes: list[float]) -> None:
    # All patterns of signs are equally likely, so the mean capital is exactly what one began with.
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=len(magnitudes))))
    capital = anytime_valid.log_capital(signs * magnitudes)
    for capital_of_side in (capital.positive, capital.negative, capital.two_sided):
        np.testing.assert_allclose(np.exp(capital_of_side).mean(axis=0), 1.0, rtol=1e-12)


def test_the_capital_by_hand() -> None:
    differences = [0.3, -0.1, 0.4, 0.2]
    by_hand = 0.0
    for stake, share in anytime_valid.STAKES.items():
        product = share
        for n, difference in enumerate(differences, start=1):
            x = difference / np.median(np.abs(differences[:n]))
            product *= 2 / (1 + math.exp(-2 * stake * min(max(x, -2.0), 2.0)))
        by_hand += product
    capital = anytime_valid.log_capital(np.array(differences))
    assert math.exp(capital.positive[-1]) == pytest.approx(by_hand, rel=1e-12)


def test_scale_and_direction_do_not_matter_and_one_huge_value_does_not_decide() -> None:
    values = tuple(np.random.default_rng(1).normal(0.8, 1.0, 12))
    evidence = Evidence(values)
    assert Evidence(tuple(1e-7 * value for value in values)).e == pytest.approx(evidence.e)
    mirrored = Evidence(tuple(-value for value in values))
    assert (mirrored.e, mirrored.sign) == (pytest.approx(evidence.e), -evidence.sign)
    assert Evidence((*values, 1e9)).e == pytest.approx(Evidence((*values, 1e3)).e)
    assert Evidence((*values, 0.0)).n == 13
    assert Evidence(()).e == Evidence((0.0,) * 8).e == 1.0


def test_six_is_the_smallest_number_of_seeds_for_both_tests() -> None:
    assert anytime_valid.fewest_seeds() == stats.fewest_seeds() == 6
    assert Evidence((1.0,) * 5).e < DECISIVE <= Evidence((1.0,) * 6).e


@pytest.mark.parametrize("n", [6, 7, 12, 30])
def test_the_interval_has_the_shifts_that_are_not_rejected(n: int) -> None:
    values = np.random.default_rng(n).normal(0.5, 1.0, n)
    low, high = Evidence(tuple(values)).interval
    assert low < values.mean() < high
    for end, outside in ((low, -1), (high, 1)):
        shift = 1e-3 * (high - low) * outside
        assert Evidence(tuple(values - end - shift)).e >= DECISIVE
        assert Evidence(tuple(values - end + shift)).e < DECISIVE
    student = stats.paired(list(values))
    assert high - low > student.high - student.low  # the price of any number of looks


def test_an_interval_needs_six_seeds_and_moves_with_the_differences() -> None:
    assert Evidence((1.0, 2.0, 3.0, 4.0, 5.0)).interval == (-math.inf, math.inf)
    assert Evidence((0.25,) * 6).interval == (0.25, 0.25)
    values = np.random.default_rng(4).normal(0.5, 1.0, 9)
    low, high = Evidence(tuple(values)).interval
    assert Evidence(tuple(100 * values + 7)).interval == pytest.approx((100 * low + 7, 100 * high + 7))


def test_intervals_cover_the_truth_at_all_looks_together() -> None:
    luck, missed = np.random.default_rng(5), 0
    for _ in range(100):
        values = tuple(luck.normal(0.4, 1.0, 24))
        intervals = [Evidence(values[:n]).interval for n in range(6, 25, 3)]
        missed += not all(low <= 0.4 <= high for low, high in intervals)
    assert missed <= 5


def test_equality_needs_differences_well_inside_the_margin() -> None:
    small = tuple(np.random.default_rng(2).normal(0.0, 0.1, 12))
    inside, outside = Evidence(small, (1.0,) * 12), Evidence(small, (0.05,) * 12)
    assert inside.e_equal is not None
    assert outside.e_equal is not None
    assert inside.e_equal >= DECISIVE > outside.e_equal
    assert (inside.margin, Evidence(small).e_equal, Evidence(small).margin) == (1.0, None, None)
    below = anytime_valid.log_capital(1.0 - np.array(small)).positive[-1]
    above = anytime_valid.log_capital(1.0 + np.array(small)).positive[-1]
    assert inside.e_equal == pytest.approx(math.exp(min(below, above)))  # both must be sure


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=6))
def test_adjusted_e_values_are_those_of_closed_testing(e_values: list[float]) -> None:
    places = range(len(e_values))
    subsets = [s for size in range(1, len(e_values) + 1) for s in itertools.combinations(places, size)]
    closed = [min(np.mean([e_values[i] for i in s]) for s in subsets if place in s) for place in places]
    adjusted = anytime_valid.holm(e_values)
    assert adjusted == pytest.approx(closed)
    for e, decisive, threshold in zip(e_values, adjusted, anytime_valid.holm_thresholds(e_values)):
        assert (decisive >= DECISIVE) == (e >= threshold) or decisive == pytest.approx(DECISIVE)
    # Never less than what Holm's method gives for the p-values 1/e, and never more than the e-value itself.
    p_values = stats.holm([min(1.0, 1 / e) if e else 1.0 for e in e_values])
    for e, p, mine in zip(e_values, p_values, adjusted):
        assert mine <= e + 1e-9
        assert p is None or p == 1.0 or mine >= (1 / p) * (1 - 1e-9)


def test_no_comparison_does_not_count_in_a_family() -> None:
    evidence = Evidence((1.0,) * 8)
    first, nothing, second = support([evidence, None, evidence])
    assert nothing is None
    assert first == second == anytime_valid.Support(evidence.e, None, 20.0, 20.0)


def test_a_forecast_is_a_range_that_half_of_the_futures_keep_to() -> None:
    luck = np.random.default_rng(8)
    inside, decided = 0, 0
    for trial in range(60):
        values = luck.normal(1.0, 1.0, 40)
        begin = Evidence(tuple(values[:6]))
        times = simulation.claim_times(values[None])
        if times[0] <= 6 or begin.e >= DECISIVE:
            continue
        low, high = more_seeds(begin, seed=trial)
        decided += 1
        inside += (low or math.inf) <= times[0] - 6 <= (high or math.inf)
    assert 0.3 < inside / decided < 0.9


def test_a_family_and_a_small_effect_ask_for_more_seeds_and_a_hopeless_one_for_too_many() -> None:
    evidence = Evidence((0.2, 1.4, -0.9, 1.1, 0.6, -0.3, 0.8))
    alone, family = more_seeds(evidence), more_seeds(evidence, anytime_valid.Support(1.0, threshold=200.0))
    assert alone.low is not None
    assert family.low is None or family.low > alone.low
    assert more_seeds(Evidence((1.0, -1.0, 1.0, -1.001) * 10)) == (None, None)
    equal = Evidence((0.1, -0.1, 0.1, -0.101, 0.1), (1.0,) * 5)
    assert more_seeds(equal).high is not None  # it soon decides for "equal"


def test_a_plan_has_the_power_that_it_promises() -> None:
    half, most = seeds_to_detect(1.0, 1.0, pairs=1000)
    assert half is not None
    assert most is not None
    times = simulation.claim_times(np.random.default_rng(9).normal(1.0, 1.0, (2000, 60)))
    assert np.mean(times <= half) == pytest.approx(0.5, abs=0.12)
    assert np.mean(times <= most) == pytest.approx(0.8, abs=0.08)
    of_small_pilot = seeds_to_detect(1.0, 1.0, pairs=3)
    assert of_small_pilot.high is None or of_small_pilot.high > most
    assert seeds_to_detect(0.01, 1.0, pairs=10) == (None, None)
