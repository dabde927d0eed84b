"""The verdicts: they say what the seeds allow, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.lab.analyse import anytime_valid, stats, verdicts
from surefoot.lab.analyse.anytime_valid import Evidence, Support
from surefoot.lab.analyse.verdicts import Outcome

CLEAR = [-0.004, -0.003, -0.006, -0.002, -0.005, -0.004, -0.003, -0.005]


def sides(contestant=None, baseline=None):
    return {"contestant": contestant or verdicts.Side("AdamS"), "baseline": baseline or verdicts.Side("Adam")}


def decide(values, support=None, higher=False, margin=None, **named):
    """The verdict whenever one looks."""
    result, evidence = stats.paired(values), Evidence(tuple(values), (margin,) * len(values) if margin else ())
    support = support or Support(evidence.e, evidence.e_equal)
    return verdicts.decide(result, evidence, support, result.p_t, higher_is_better=higher, **sides(**named))


def decide_once(values, p_holm=None, higher=False, **named):
    """The verdict for one look at a number of seeds that was fixed in advance."""
    result = stats.paired(values)
    p = result.p_t if p_holm is None else p_holm
    return verdicts.decide_once(result, p, higher_is_better=higher, **sides(**named))


def test_a_claim_names_winner_amount_interval_and_n():
    verdict = decide(CLEAR)
    low, high = Evidence(tuple(CLEAR)).interval
    assert verdict == verdicts.Verdict(Outcome.BETTER, f"AdamS beats Adam by 0.0040 ({-high:.4f} to {-low:.4f}; n=8)")
    assert decide(CLEAR, higher=True).sentence.startswith("Adam is better than AdamS by 0.0040 (")
    assert decide([-d for d in CLEAR]).outcome == Outcome.WORSE
    assert decide_once(CLEAR) == verdicts.Verdict(Outcome.BETTER, "AdamS beats Adam by 0.0040±0.0011 (n=8)")


def test_a_claim_needs_the_adjustment_for_its_family():
    assert decide(CLEAR, Support(19.9)).outcome == Outcome.UNDECIDED
    assert decide(CLEAR, Support(20.0)).outcome == Outcome.BETTER
    assert decide_once(CLEAR, p_holm=0.06).outcome == Outcome.UNDECIDED


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_fewer_than_six_seeds_never_make_a_claim(n):
    values = [-1.0 - 1e-6 * i for i in range(n)]
    verdict, once = decide(values), decide_once(values)
    assert verdict.outcome == once.outcome == Outcome.LEANING
    assert (
        f"but no claim: {n} seeds can never decide; at least {verdicts.count(6 - n, 'more seed')}" in verdict.sentence
    )
    assert f"smallest exact paired p of {n} seeds is {2 / 2**n:.2g}" in once.sentence
    assert f"at least {verdicts.count(6 - n, 'more seed')} needed" in once.sentence


def test_three_undecided_seeds_say_what_they_cannot_reach():
    verdict = decide_once([-0.004, 0.001, -0.003])
    assert verdict.outcome == Outcome.UNDECIDED
    assert "the smallest exact paired p is 0.25" in verdict.sentence
    assert decide([-0.004, 0.001, -0.003]).sentence.startswith("undecided: ")


def test_the_exact_test_can_veto_the_t_test_in_one_look():
    # One seed against and one near zero: normal theory is sure, the sign flips are not.
    values = [-1.0] * 5 + [1e-3, 0.9]
    assert stats.paired(values).p_exact > 0.05
    assert decide_once(values, p_holm=0.01).outcome == Outcome.UNDECIDED
    assert decide(values).outcome == Outcome.UNDECIDED


def test_one_huge_difference_makes_no_claim_for_its_own_side():
    values = [1000.0, *np.random.default_rng(0).normal(-1.0, 0.3, 30)]
    assert Evidence(tuple(values)).e > 20
    assert stats.paired(values).difference > 0
    assert decide(values).outcome == Outcome.UNDECIDED


def test_undecided_says_the_seeds_still_needed_as_a_range():
    values = list(np.random.default_rng(5).normal(0.5, 1.0, 10))
    low, high = anytime_valid.more_seeds(Evidence(tuple(values)))
    end = f"{high} more" if high else "over 90 more"
    assert decide(values).sentence == f"undecided: {low} to {end} seeds needed (n=10)"
    result = stats.paired(values)
    needed = stats.seeds_needed(result.difference, result.std)
    assert f"about {needed - 10} more seeds needed" in decide_once(values, p_holm=0.5).sentence


def test_no_visible_difference_and_no_difference():
    flat = [1.0, -1.0, 1.0, -1.001] * 10
    assert decide(flat).sentence == "no visible difference: even 100 seeds would hardly decide (n=40)"
    assert decide_once([1.0, -1.0, 1.0, -1.001]).sentence.startswith("no visible difference: even 200 seeds would not")
    assert decide([0.0] * 5).outcome == decide_once([0.0] * 5).outcome == Outcome.SAME
    assert decide([0.1]).sentence == "too few seeds (n=1)"
    assert decide([]).outcome == Outcome.UNPAIRED


def test_equal_within_a_margin_is_a_verdict_of_its_own():
    small = [0.001, -0.002, 0.0015, -0.001, 0.0005, -0.0005, 0.001, -0.001]
    assert decide(small).outcome == Outcome.UNDECIDED
    equal = decide(small, margin=0.02)
    assert equal.outcome == Outcome.EQUAL
    assert equal.claim.startswith("AdamS and Adam are equal within 0.02: the difference is -0.0001 (-0.00")
    assert equal.outcome.is_decided
    assert not equal.outcome.is_claim
    assert decide(small, margin=0.0005).outcome == Outcome.UNDECIDED
    assert decide(CLEAR, margin=0.002).outcome == Outcome.BETTER
    assert decide(CLEAR, margin=0.002, higher=True).outcome == Outcome.WORSE
    # A difference that is surely there, and surely too small to matter.
    assert decide(CLEAR, margin=0.05).outcome == Outcome.EQUAL


def test_a_divergence_is_a_remark_and_decides_nothing_silently():
    partly = verdicts.Side("AdamS", 10, 2)
    verdict = decide(CLEAR, contestant=partly)
    assert verdict.outcome == Outcome.BETTER
    assert (verdict.claim, verdict.remark) == (decide(CLEAR).claim, "AdamS diverged in 2 of 10 runs")
    assert verdict.sentence.endswith("n=8), where both ended; AdamS diverged in 2 of 10 runs")
    nothing = decide([], contestant=verdicts.Side("AdamS", 4, 4), baseline=verdicts.Side("Adam", 4, 1))
    assert nothing.outcome == Outcome.DIVERGED
    assert "AdamS diverged in 4 of 4 runs and Adam diverged in 1 of 4 runs" in nothing.sentence
