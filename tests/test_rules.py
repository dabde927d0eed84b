"""Rules: each tilt is that of its objective, on the host and on a device, and no first step climbs."""

from __future__ import annotations

import math
import pickle
import warnings
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import surefoot
from surefoot import AdamS, LossAwareAdam
from surefoot.rules import (
    MAX_UNIT_DEVIATION,
    RESOLUTION,
    RULES,
    UNIT_RESOLUTION,
    ByAutograd,
    Rule,
    find_rule,
    from_objective,
    weigh,
)
from surefoot.statistics import LossStats, no_statistics

NORMAL = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))


BEST = 0.8


STATS = LossStats(count=9.0, mean=1.2, std=0.4, best=BEST)


def _improvement(mean: Tensor, std: Tensor, eta: float) -> tuple[Tensor, Tensor]:
    return BEST - eta - mean, (BEST - eta - mean) / std


def _probability(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    return -NORMAL.cdf(_improvement(mean, std, eta)[1])


def _expected(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    gap, u = _improvement(mean, std, eta)
    return -(gap * NORMAL.cdf(u) + std * NORMAL.log_prob(u).exp())


def _worst_share(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    """The mean of the worst 1 - eta of a normal loss, by numerical integration over its quantiles."""
    n = 100_000
    levels = eta + (1 - eta) * (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return (mean + std * NORMAL.icdf(levels)).mean()


# What each rule minimizes, for autograd to differentiate.
OBJECTIVES = {
    "plain": (lambda mean, std, eta: mean, [0.0]),
    "ucb": (lambda mean, std, eta: mean + eta * std, [-0.3, 0.0, 0.01, 2.0]),
    "pi": (_probability, [0.0, 0.1, -0.2]),
    "ei": (_expected, [0.0, 0.1, -0.2]),
    "cvar": (_worst_share, [0.1, 0.5, 0.9]),
}


def tilt_of(rule: Rule, stats: LossStats, eta: float, noise: float = 0.0) -> float:
    return float(weigh(rule, stats, 2.0, eta, noise, "unit").tilt)


@pytest.mark.parametrize(("name", "eta"), [(name, eta) for name, (_, etas) in OBJECTIVES.items() for eta in etas])
def test_the_tilt_is_that_of_the_objective(name: str, eta: float) -> None:
    by_autograd = Rule(name, ByAutograd(OBJECTIVES[name][0]), eta=0.0)
    close = 1e-4 if name == "cvar" else 1e-10  # the integral is cut into finitely many quantiles
    assert tilt_of(RULES[name], STATS, eta) == pytest.approx(tilt_of(by_autograd, STATS, eta), rel=close, abs=1e-15)


def test_every_rule_is_covered_here_or_below() -> None:
    assert set(RULES) == {*OBJECTIVES, "cb", "s"}


@pytest.mark.parametrize("loss", [0.1, 1.2, 5.0, -3.0])
@pytest.mark.parametrize("mean", [1.2, -1.2])
def test_cb_is_the_papers_two_sided_bound(mean: float, loss: float) -> None:
    eta, std = 0.1, 0.4
    stats = LossStats(count=9.0, mean=mean, std=std)
    bracket = std * abs(mean) - (eta * abs(mean) - std) * (loss - mean)
    assert weigh(RULES["cb"], stats, loss, eta, 0.0, "paper").weight == pytest.approx(bracket, rel=1e-14)
    unit = weigh(RULES["cb"], stats, loss, eta, 0.0, "unit")
    assert unit.tilt == pytest.approx(std / abs(mean) - eta, rel=1e-14)
    assert unit.weight == pytest.approx(bracket / (std * abs(mean)), rel=1e-13)


def test_s_is_ucb_with_a_noisy_eta() -> None:
    for noise in (-1.7, 0.0, 0.6):
        ours = weigh(RULES["s"], STATS, 2.0, 0.3, noise, "paper")
        assert ours == weigh(RULES["ucb"], STATS, 2.0, 0.3 * noise, 0.0, "paper")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from(["paper", "unit"]),
    st.floats(-1e3, 1e3),
    st.one_of(st.just(0.0), st.floats(1e-6, 1e3)),
    st.floats(-1e3, 1e3),
    st.floats(0, 0.99),
    st.floats(-3, 3),
)
def test_host_and_device_agree(
    name: str, weighting: Any, mean: float, std: float, loss: float, eta: float, noise: float
) -> None:
    stats = LossStats(count=5.0, mean=mean, std=std, best=mean - 0.5)
    host = weigh(RULES[name], stats, loss, eta, noise, weighting)
    device = weigh(
        RULES[name],
        LossStats(*torch.tensor(stats, dtype=torch.float64).unbind()),
        torch.tensor(loss, dtype=torch.float64),
        eta,
        torch.tensor(noise, dtype=torch.float64),
        weighting,
    )
    for a, b in zip(host, device):
        assert float(b) == pytest.approx(float(a), rel=1e-9, abs=1e-12)
    in_units = weighting == "unit" or name == "plain"
    if std > RESOLUTION * abs(mean):  # the formula of the whole family, and z and tilt as they are reported
        scale = 1.0 if in_units else (std * abs(mean) if name == "cb" else std)
        unit = max(std, UNIT_RESOLUTION * abs(mean)) if in_units else std
        assert host.z == pytest.approx((loss - mean) / unit)
        if name != "cb" or abs(mean) > 1e-3:
            deviation = host.tilt * host.z
            kept = max(-MAX_UNIT_DEVIATION, min(MAX_UNIT_DEVIATION, deviation)) if weighting == "unit" else deviation
            assert host.weight == pytest.approx(scale * (1 + kept), rel=1e-9, abs=1e-9 * scale * (1 + abs(deviation)))


@pytest.mark.parametrize("u", [-1e70, -1e8, -1e4, -300.0, -40.0, -30.1, -29.9, -5.0, 0.0, 3.0, 40.0])
def test_expected_improvement_far_from_the_best(u: float) -> None:
    stats = LossStats(count=5.0, mean=0.0, std=1.0, best=u)
    host = RULES["ei"].tilt(stats, 0.0, 0.0)[0]
    device = RULES["ei"].tilt(LossStats(*torch.tensor(stats, dtype=torch.float64).unbind()), 0.0, 0.0)[0]
    assert math.isfinite(host)
    assert float(device) == pytest.approx(host, rel=1e-8, abs=1e-300)
    if u < -5:  # a gap of u standard deviations: the ratio lies between -u and -u - 1/u
        assert -u <= -host < (-u - 1 / u) * (1 + 1e-12)


@pytest.mark.parametrize("weighting", ["paper", "unit"])
@pytest.mark.parametrize("loss", [2.0, -2.0, 0.0, 1e30, 1e-30])
@pytest.mark.parametrize("name", RULES)
def test_no_first_step_climbs(name: str, loss: float, weighting: Any) -> None:
    rule = RULES[name]
    for noise in (-2.0, 2.0):
        for eta in {rule.eta, 0.3}:
            first = weigh(rule, LossStats(), loss, eta, noise, weighting)
            reading = torch.tensor(loss, dtype=torch.float64)
            device = weigh(rule, LossStats(*no_statistics().unbind()), reading, eta, noise, weighting)
            assert first.weight >= 0
            assert first.z == 0
            assert float(device.weight) == pytest.approx(first.weight, rel=1e-14)
            if weighting == "unit":
                assert first.weight == 1
            elif name in ("ucb", "cb"):
                assert first.weight == pytest.approx(abs(eta * loss), rel=1e-14)


def test_published_noise_climbs_at_first_for_about_half_of_the_seeds_ours_never() -> None:
    climbs = {True: 0, False: 0}
    for seed in range(60):
        for published in climbs:
            p = torch.zeros(1, requires_grad=True)
            optimizer = AdamS([p], seed=seed, reference=published)
            p.grad = torch.ones(1)
            optimizer.step(loss=2.0)
            climbs[published] += int(p.item() > 0)
    assert climbs[False] == 0
    assert 15 < climbs[True] < 45


def _risk(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    return mean + eta * std**2


def _sharpe(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    return mean / std


def _hopeless(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    return mean + std * float("nan")


def test_an_objective_of_ones_own() -> None:
    rule = from_objective(_risk, eta=0.5)
    assert rule.name == "_risk"
    assert tilt_of(rule, STATS, 0.5) == pytest.approx(2 * 0.5 * STATS.std)
    there = LossStats(*torch.tensor(STATS, dtype=torch.float64).unbind())
    on_device = weigh(rule, there, torch.tensor(2.0), 0.5, 0.0, "unit")
    assert float(on_device.tilt) == pytest.approx(2 * 0.5 * STATS.std)
    assert not on_device.tilt.requires_grad
    again = pickle.loads(pickle.dumps(rule))
    assert tilt_of(again, STATS, 0.5) == tilt_of(rule, STATS, 0.5)


@pytest.mark.parametrize("capturable", [False, True])
def test_an_objective_without_slope_while_there_is_no_spread(capturable: bool) -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = LossAwareAdam([p], rule=from_objective(_sharpe), capturable=capturable)
    for loss in (1.0, 1.0, 2.0, 1.5):
        p.grad = torch.ones(2)
        optimizer.step(loss=torch.tensor(loss))
        assert p.isfinite().all()
    (stats,) = optimizer.confidence()
    assert stats["skipped"] == 0
    assert p.sum() != 0


@pytest.mark.parametrize("capturable", [False, True])
def test_a_weight_that_is_not_finite_is_skipped(capturable: bool) -> None:
    p = torch.zeros(2, requires_grad=True)
    p.grad = torch.ones(2)
    optimizer = LossAwareAdam([p], rule=from_objective(_hopeless), weighting="unit", capturable=capturable)
    optimizer.param_groups[0]["seen"] = torch.tensor(STATS, dtype=torch.float64)
    optimizer.step(loss=torch.tensor(2.0))
    assert torch.equal(p.detach(), torch.zeros(2))
    stats = LossStats(*optimizer.param_groups[0]["seen"].tolist())  # the loss itself was an ordinary one
    assert (stats.count, stats.skipped) == (STATS.count + 1, 1)
    assert STATS.mean < stats.mean < 2.0
    assert math.isnan(stats.weight)
    optimizer.param_groups[0]["nonfinite"] = "raise"
    with pytest.raises(FloatingPointError, match="weights the gradient by nan"):
        optimizer.step(loss=torch.tensor(2.0))
    assert torch.equal(p.detach(), torch.zeros(2))


@pytest.mark.parametrize(
    ("name", "eta"),
    [("s", -0.1), ("s", math.inf), ("cvar", 1.0), ("cvar", -0.1), ("ucb", math.nan), ("cb", math.inf)],
)
def test_an_eta_without_meaning_is_refused(name: str, eta: float) -> None:
    with pytest.raises(ValueError, match=rf"Invalid eta value: {eta}; the {name} rule takes"):
        LossAwareAdam([torch.zeros(1)], rule=name, eta=eta)


def test_rules_are_found_by_name_or_passed_through() -> None:
    assert find_rule("CVaR") is RULES["cvar"]
    rule = from_objective(_risk, eta=0.5)
    assert find_rule(rule) is rule
    for wrong in ("sharpe", 3):
        with pytest.raises(ValueError, match=f"Unknown rule {wrong!r}; take one of plain, ucb, cb"):
            LossAwareAdam([torch.zeros(1)], rule=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build",
    [
        lambda p, rule: LossAwareAdam([p], rule=rule),
        lambda p, rule: surefoot.LossWeighted(torch.optim.SGD([p]), rule),
        lambda p, rule: surefoot.weigh(torch.optim.SGD([p]), rule),
    ],
)
def test_a_function_in_the_place_of_a_rule_is_told_how_to_become_one(build: Any) -> None:
    with pytest.raises(ValueError, match=r"got the function _risk; .*surefoot\.rules\.from_objective\(objective"):
        build(torch.nn.Parameter(torch.zeros(1)), _risk)


def test_an_objective_that_is_flat_without_eta_needs_one() -> None:
    with pytest.raises(ValueError, match=r"_risk does not .* where eta is 0.*from_objective\(_risk, eta"):
        from_objective(_risk)
    assert from_objective(_risk, eta=0.0).eta == 0.0  # it was chosen
    assert from_objective(_sharpe).eta == 0.0  # which needs none


@pytest.mark.parametrize(
    "objective", [lambda mean, std: mean, lambda mean, std, eta: 1.0, lambda mean, std, eta: float(mean)]
)
def test_an_objective_that_cannot_be_one_is_refused_at_once(objective: Any) -> None:
    with pytest.raises(ValueError, match=r"must take \(mean, std, eta\)"):
        from_objective(objective)


def _logarithm(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    return mean + eta * math.log(1 + std)


def _without_mean(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    return 0 * mean + std**2


@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (_logarithm, "_logarithm does not depend on the std .* is 0: .* compute it with torch alone"),
        (lambda mean, std, eta: mean + eta * std.item(), "does not depend on the std"),
        (lambda mean, std, eta: mean, "does not depend on the std"),
        (
            lambda mean, std, eta: std + eta,
            "does not depend on the mean .* every step would be skipped",
        ),
        (lambda mean, std, eta: math.sqrt(mean) + std, r"does not depend on the mean .*math\.log, float\(\)"),
        (_without_mean, "_without_mean does not depend on the mean"),
        (lambda mean, std, eta: -mean + eta * std, r"falls where the mean .* write mean - eta \* std"),
        (lambda mean, std, eta: std / mean, "falls where the mean"),
    ],
)
def test_an_objective_is_looked_at_when_it_becomes_a_rule(objective: Any, message: str, eta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=message):
            from_objective(objective, eta=eta)


@pytest.mark.parametrize(
    "objective",
    [
        lambda mean, std, eta: mean + eta * torch.log1p(std),
        lambda mean, std, eta: mean - eta * std,
        lambda mean, std, eta: (mean - 1) ** 2 + std**2,  # falls at one of the points, rises at another
        lambda mean, std, eta: torch.log(mean - 1.5) + std,  # exists at one of the points alone
        lambda mean, std, eta: mean + torch.relu(std - 0.5),
    ],
)
def test_objectives_that_are_sound_become_rules(objective: Any) -> None:
    for eta in (0.0, 0.5):
        assert math.isfinite(tilt_of(from_objective(objective, eta=eta), LossStats(9.0, 2.0, 0.5), eta))


def test_rules_agree_on_the_bound_on_host_and_device() -> None:
    from surefoot.rules import weigh as apply
    from surefoot.statistics import LossStats

    seen = LossStats(count=9.0, mean=1.0, std=2e-4)
    on_device = LossStats(*(torch.tensor(x, dtype=torch.float64) for x in seen))
    weights = []
    for loss in (0.0, 1.0, 1.00005, 1.3, 2.0, 100.0):
        here = apply(RULES["ucb"], seen, loss, 0.1, 0.0, "unit").weight
        there = apply(RULES["ucb"], on_device, torch.tensor(loss, dtype=torch.float64), 0.1, 0.0, "unit").weight
        assert here == pytest.approx(float(there))
        weights.append(here)
    assert weights == sorted(weights)
    assert weights[0] == 1 - MAX_UNIT_DEVIATION
    assert weights[-3:] == [1 + MAX_UNIT_DEVIATION] * 3
    assert not math.isfinite(apply(RULES["ucb"], seen, math.inf, 0.1, 0.0, "unit").weight)  # so it is skipped


@pytest.mark.parametrize("weighting", ["paper", "unit"])
def test_a_weight_has_no_jumps_but_where_there_is_no_spread(weighting: Any) -> None:
    """The farther a loss is from the mean, the farther its weight from that of the mean, up to the bound."""
    stats = LossStats(count=9.0, mean=0.01, std=0.001)
    losses = [0.01 + 0.001 * 1.1**k for k in range(60)]
    for eta in (0.01, 0.1, -0.1):
        weights = [weigh(RULES["ucb"], stats, loss, eta, 0.0, weighting).weight for loss in losses]
        assert weights == sorted(weights, reverse=eta < 0)
        assert max(abs(b - a) / max(abs(a), abs(b)) for a, b in pairwise(weights)) < 2.5


def test_a_loss_with_an_offset_keeps_a_tilt() -> None:
    seen = LossStats(count=9.0, mean=-1000.0, std=0.05)
    z = 0.05 / (1000 * UNIT_RESOLUTION)
    assert weigh(RULES["ucb"], seen, -999.95, 0.1, 0.0, "unit").weight == pytest.approx(1 + 0.1 * z)
