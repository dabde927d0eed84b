"""The verdicts: they say what the seeds allow, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from surefoot.lab.analyse import stats, verdicts
from surefoot.lab.analyse.verdicts import Outcome


def decide(values, p_holm=None, higher=False, contestant=None, baseline=None):
    result = stats.paired(values)
    sides = {
        "contestant": contestant or verdicts.Side("AdamS"),
        "baseline": baseline or verdicts.Side("Adam"),
    }
    p = result.p_t if p_holm is None else p_holm
    return verdicts.decide(result, p, higher_is_better=higher, **sides)


CLEAR = [-0.004, -0.003, -0.006, -0.002, -0.005, -0.004, -0.003, -0.005]


def test_a_claim_names_winner_amount_interval_and_n():
    assert decide(CLEAR) == verdicts.Verdict(Outcome.BETTER, "AdamS beats Adam by 0.0040±0.0011 (n=8)")
    assert decide(CLEAR, higher=True).sentence == "Adam is better than AdamS by 0.0040±0.0011 (n=8)"
    assert decide([-d for d in CLEAR]).outcome == Outcome.WORSE


def test_a_claim_needs_holms_p():
    assert decide(CLEAR, p_holm=0.06).outcome == Outcome.UNDECIDED


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_fewer_than_six_seeds_never_make_a_claim(n):
    verdict = decide([-1.0 - 1e-6 * i for i in range(n)])
    assert verdict.outcome == Outcome.LEANING
    assert "no claim" in verdict.sentence
    assert f"smallest exact paired p of {n} seeds is {2 / 2**n:.2g}" in verdict.sentence
    assert f"at least {verdicts.count(6 - n, 'more seed')} needed" in verdict.sentence


def test_three_undecided_seeds_say_what_they_cannot_reach():
    verdict = decide([-0.004, 0.001, -0.003])
    assert verdict.outcome == Outcome.UNDECIDED
    assert "the smallest exact paired p is 0.25" in verdict.sentence


def test_the_exact_test_can_veto_the_t_test():
    # One seed against and one near zero: normal theory is sure, the sign flips are not.
    values = [-1.0] * 5 + [1e-3, 0.9]
    assert stats.paired(values).p_exact > 0.05
    assert decide(values, p_holm=0.01).outcome == Outcome.UNDECIDED


def test_undecided_estimates_the_seeds_still_needed():
    values = list(np.random.default_rng(5).normal(0.5, 1.0, 10))
    result = stats.paired(values)
    needed = stats.seeds_needed(result.difference, result.std)
    assert f"about {needed - 10} more seeds needed" in decide(values, p_holm=0.5).sentence


def test_no_visible_difference_and_no_difference():
    assert decide([1.0, -1.0, 1.0, -1.001]).sentence.startswith("no visible difference: even 200 seeds would not")
    assert decide([0.0] * 5).outcome == Outcome.SAME
    assert decide([0.1]).sentence == "too few seeds (n=1)"


def test_a_divergence_is_a_remark_and_decides_nothing_silently():
    partly = verdicts.Side("AdamS", 10, 2)
    verdict = decide(CLEAR, contestant=partly)
    assert verdict.outcome == Outcome.BETTER
    assert (verdict.claim, verdict.remark) == (decide(CLEAR).claim, "AdamS diverged in 2 of 10 runs")
    assert verdict.sentence.endswith("(n=8), where both ended; AdamS diverged in 2 of 10 runs")
    nothing = decide([], contestant=verdicts.Side("AdamS", 4, 4), baseline=verdicts.Side("Adam", 4, 1))
    assert nothing.outcome == Outcome.DIVERGED
    assert "AdamS diverged in 4 of 4 runs and Adam diverged in 1 of 4 runs" in nothing.sentence
