"""Memories: the recurrence against weights computed by hand, and what each kind of loss curve makes of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from surefoot.averaging.memory import AverageState, Exponential, LossDriven, Memory, Polynomial, find_memory
from surefoot.averaging.weights import WeightAverage
from surefoot.statistics import LossStats


def weights(losses: Sequence[float], memory: str | Memory = "anytime", every: int | None = 1) -> list[float]:
    """How much the weights after each step count in the average after all of them: the tensor has a place for each."""
    x = torch.zeros(len(losses), dtype=torch.float64)
    average = WeightAverage([x], memory, every=every)
    for i, loss in enumerate(losses):
        x.zero_()
        x[i] = 1
        average.update(loss)
    with average.averaged():
        return x.tolist()


def noise(n: int, level: float = 1.0, std: float = 0.1, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(level, std) for _ in range(n)]


def test_the_formula_by_hand() -> None:
    """design: forget = exp(-(fall of best) / (kappa std)), trust = exp(-(mean - best) / (kappa std))."""
    losses, kappa, beta = [3.0, 2.0, 2.5, 1.0, 1.2, 1.1], 0.3, 0.9
    stats, total, average = LossStats(), 0.0, [0.0] * len(losses)
    for i, loss in enumerate(losses):
        before, stats = stats, stats.with_loss(loss, beta)
        rise = ((stats.mean - stats.best) / (2 * stats.std)) ** 4 if stats.std else 0.0
        stats = stats._replace(best=stats.best + (1 - beta) * (stats.mean - stats.best) * rise / (1 + rise))
        unit = kappa * stats.std or 1.0
        forget = 0.0 if i == 0 else math.exp(-abs(before.best - stats.best) / unit)
        trust = math.exp(-(stats.mean - stats.best) / unit)
        total = total * forget + trust
        average = [x + trust / total * ((j == i) - x) for j, x in enumerate(average)]
    assert weights(losses, LossDriven(beta, kappa)) == pytest.approx(average)


@pytest.mark.parametrize("power", [0, 1, 8, 16])
def test_polynomial_memory_is_the_usual_formula(power: int) -> None:
    average: list[float] = [0.0] * 30
    for t in range(1, 31):
        share = (power + 1) / (t + power)
        average = [x + share * ((j == t - 1) - x) for j, x in enumerate(average)]
    assert weights(noise(30), f"poly:{power}") == pytest.approx(average)


def test_exponential_memory_sums_to_one_from_the_first_step_on() -> None:
    expected = [0.9 ** (29 - i) * 0.1 / (1 - 0.9**30) for i in range(30)]
    assert weights(noise(30), "ema:0.9") == pytest.approx(expected)
    assert weights(noise(30), "uniform") == pytest.approx([1 / 30] * 30)


def test_a_constant_loss_gives_the_plain_average() -> None:
    class DividesByTheStd(LossDriven):
        def _unit(self, std: float) -> float:
            return self.kappa * std

    assert weights([0.3] * 50) == pytest.approx([1 / 50] * 50)
    with pytest.raises(ZeroDivisionError):
        weights([0.3] * 50, DividesByTheStd())


@pytest.mark.parametrize("after", [0.3, 3.0])
def test_a_loss_that_was_constant_and_then_is_not(after: float) -> None:
    """The std was zero, or nearly: a new level is found all the same."""
    assert sum(weights([1.0] * 2000 + noise(3000, after))[2000:]) > 0.75


def test_a_falling_loss_is_followed_and_a_plateau_remembered() -> None:
    falling = weights([10.0 - 0.1 * i for i in range(100)])
    assert sum(falling[-40:]) > 0.99
    losses = [10.0 - 0.09 * i for i in range(100)] + noise(3000)
    after = weights(losses)
    assert sum(after[:150]) < 0.01  # of the fall
    size = 1 / sum(w * w for w in after)
    assert size > 1500  # a mean of 3000 with trusts that differ


@pytest.mark.parametrize("memory", ["anytime", "poly:8", "ema:0.99", "uniform"])
def test_every_tenth_step_stands_for_ten(memory: str) -> None:
    losses = [5.0 * 0.99**i for i in range(300)] + noise(700, 0.2, 0.05)
    all_steps, some = weights(losses, memory, every=1), weights(losses, memory, every=10)
    assert sum(w > 0 for w in some) <= 100
    assert sum(some) == pytest.approx(1)
    age = [sum(w * (len(losses) - i) for i, w in enumerate(ws)) for ws in (all_steps, some)]
    assert age[1] == pytest.approx(age[0], rel=0.06)


def test_between_two_updates_the_newest_weights_count_for_their_steps() -> None:
    assert weights([1.0] * 24, "uniform", every=10)[9:] == pytest.approx(
        [1 / 2.4, *[0] * 9, 1 / 2.4, *[0] * 3, 0.4 / 2.4]
    )
    assert weights([1.0] * 4, "uniform", every=10) == [0, 0, 0, 1]  # before the first update


@pytest.mark.parametrize("memory", ["anytime", "poly:8", "ema:0.99", "uniform"])
def test_left_to_itself_the_average_is_updated_often_at_first_and_then_at_every_twentieth_step(memory: str) -> None:
    losses = [5.0 * 0.99**i for i in range(300)] + noise(1700, 0.2, 0.05)
    all_steps, some = weights(losses, memory, every=1), weights(losses, memory, every=None)
    assert sum(some) == pytest.approx(1)
    age = [sum(w * (len(losses) - i) for i, w in enumerate(ws)) for ws in (all_steps, some)]
    assert age[1] == pytest.approx(age[0], rel=0.1)
    assert weights(losses[:50], memory, every=None) == pytest.approx(weights(losses[:50], memory, every=1))
    entered = [i for i, w in enumerate(weights(losses, "uniform", every=None)) if w]
    gaps = [b - a for a, b in pairwise(entered[:-1])]  # the last one counts for the steps since the last update
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (1, 20)


# -- robustness ------------------------------------------------------------------------------------------------------


class WithoutTrust(LossDriven):
    def trust(self, stats, exp):  # type: ignore[no-untyped-def]
        return 1.0


class WithoutRelaxation(LossDriven):
    def best(self, before, after):  # type: ignore[no-untyped-def]
        return after.best


class ForgetsOnlyFalls(LossDriven):
    def forget(self, before, best, std, exp):  # type: ignore[no-untyped-def]
        return super().forget(before, best, std, exp) if best <= before.best else 1.0


class ByItsOwnStd(LossDriven):
    def spread(self, before, after):  # type: ignore[no-untyped-def]
        return after.std


def test_a_loss_that_explodes_is_not_measured_by_the_std_that_it_makes() -> None:
    """At any rate of growth: the faster, the more the newest loss makes of the std, and the nearer it seems."""
    for rate in (1.03, 1.1, 1.3, 2.0):
        losses = noise(1000) + [min(rate**i, 1e15) for i in range(200)]

        def last(memory: Memory, losses: list[float] = losses) -> float:
            return sum(weights(losses, memory)[1030:])

        assert last(LossDriven()) < 1e-3
        assert last(ByItsOwnStd()) > 0.03


def test_the_spread_is_the_std_on_a_plateau_and_follows_it_within_the_memory() -> None:
    memory, state = LossDriven(), AverageState()
    for i, loss in enumerate(noise(1000) + noise(600, std=5.0)):
        state = state.with_step(memory, LossStats(*state[:4]).with_loss(loss, 0.99), math.exp)
        if 100 < i < 1000:
            assert 2 * state.spread > state.std  # so that it changes nothing
    assert state.spread > 0.9 * state.std > 3.5


def test_weights_of_a_spike_hardly_count() -> None:
    losses = noise(3000)
    losses[1500:1540] = [x + 2.0 for x in losses[1500:1540]]  # 20 std, and back again

    def share(memory: Memory) -> float:
        after = weights(losses, memory)
        assert sum(after[:1500]) > 0.2  # what was good before it is kept
        return sum(after[1520:1540]) / 20 / (sum(after[2000:]) / 1000)  # 1 for weights that count like later ones

    assert share(LossDriven()) < 0.3
    assert share(WithoutTrust()) > 0.6


def overfitted(n: int) -> list[float]:
    """The loss of a network that fits its training data: the loss and its std shrink together towards zero."""
    draw = random.Random(0)
    return [draw.gauss(1.0, 0.2) * 0.998**step for step in range(n)]


class OwnStd(LossDriven):
    """Without the usual std: distances are in units of the std of the moment."""

    def forget(self, before, best, std, exp):  # type: ignore[no-untyped-def]
        return super().forget(before, best, LossStats(*before[:4]).std, exp)

    def trust(self, stats, exp):  # type: ignore[no-untyped-def]
        return super().trust(stats._replace(usual=0.0), exp)


def test_a_loss_that_shrinks_with_its_std_is_a_plateau_in_the_end() -> None:
    """Its fall from 0.01 to 0.001 is small beside what was usual: the average remembers it all."""
    losses = overfitted(4000)
    assert sum(weights(losses, every=10)[2000:3000]) > 0.2
    assert sum(weights(losses, OwnStd(), every=10)[2000:3000]) < 0.02


def test_one_burst_does_not_raise_the_usual_std_for_long() -> None:
    losses = noise(2000) + noise(100, 50.0, 30.0, seed=1) + noise(2000, seed=2)
    average = WeightAverage([], every=10)
    for loss in losses:
        average.update(loss)
    assert 0.09 < average.state.usual < 0.2  # its plain mean would be above 1


@pytest.mark.parametrize("rise", [0.1, 0.3, 1.0, 100.0])
def test_a_loss_that_has_risen_for_good_is_a_new_plateau(rise: float) -> None:
    """By 1 to 1000 std of the loss: without the mechanism the average stays with the weights before."""
    losses = noise(4000) + noise(3000, 1.0 + rise, seed=1)
    assert sum(weights(losses)[4000:]) > 0.75
    assert sum(weights(losses, WithoutRelaxation())[4000:]) < 0.02
    assert sum(weights(losses, ForgetsOnlyFalls())[4000:]) < 0.2


def test_a_plateau_is_not_taken_for_a_rise() -> None:
    losses = noise(20_000)
    size, ideal = (
        1 / sum(w * w for w in weights(losses, memory, every=10)) for memory in (LossDriven(), WithoutRelaxation())
    )
    assert size > 0.7 * ideal


class NeverForgets(LossDriven):
    def forget(self, before, best, std, exp):  # type: ignore[no-untyped-def]
        return 1.0


def test_a_jump_of_the_learning_rate_or_the_data() -> None:
    """The loss jumps up, falls again, and ends lower than before: all that is old is forgotten."""
    losses = noise(2000) + [3.0 * 0.995**i + 0.5 + x for i, x in enumerate(noise(1500, 0.0, 0.05))]
    after = weights(losses)
    assert sum(after[:2000]) < 1e-3
    assert sum(after[-800:]) > 0.9
    assert sum(weights(losses, NeverForgets())[:2000]) > 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_a_loss_that_is_not_finite_changes_no_statistics(bad: float) -> None:
    x = torch.zeros(1)
    average = WeightAverage([x], every=1)
    for loss in (1.0, 2.0):
        average.update(loss)
    before = average.state
    average.update(bad)
    assert average.state[:4] == before[:4]
    assert average.state.skipped == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_never_enter(bad: float) -> None:
    x = torch.ones(3)
    average = WeightAverage([x], every=1)
    average.update(1.0)
    x[1] = bad
    average.update(1.0)
    with average.averaged():
        assert x.tolist() == [1, 1, 1]
    assert not x.isfinite().all()


def test_all_losses_not_finite() -> None:
    x = torch.ones(1)
    average = WeightAverage([x], every=1)
    for _ in range(3):
        average.update(math.nan)
    with average.averaged():
        assert x.item() == 1


def test_extreme_curves_stay_finite() -> None:
    for losses in (
        [1e18, 1e-18] * 50,
        [1.0] * 200 + [1e18] * 200 + [1e-9] * 200,
        [2.0**-i for i in range(400)],
        [0.0] * 5,
    ):
        after = weights(losses)
        assert all(math.isfinite(w) and w >= 0 for w in after)
        assert sum(after) == pytest.approx(1)


def test_tensors_give_what_floats_give() -> None:
    losses = [5.0 * 0.99**i for i in range(100)] + noise(200) + [math.nan] + noise(99, 2.0)
    for name in ("anytime", "poly:8", "ema:0.99", "uniform"):
        memory = find_memory(name)
        on_host, on_device = (
            AverageState(),
            AverageState(*(torch.tensor(x, dtype=torch.float64) for x in AverageState())),
        )
        stats = [LossStats(), LossStats(*(torch.tensor(x, dtype=torch.float64) for x in LossStats()))]
        for i, loss in enumerate(x for x in losses if x == x):
            stats = [LossStats(*s[:4]).with_loss(loss, 0.99) for s in (on_host, on_device)]
            on_host = on_host.with_step(memory, stats[0], math.exp)
            on_device = on_device.with_step(memory, stats[1], torch.exp)
            if i % 7 == 6:
                share, on_host = on_host.with_update(memory, 7, math.exp)
                same, on_device = on_device.with_update(memory, 7, torch.exp)
                assert float(same) == pytest.approx(share)
        assert [float(x) for x in on_device] == pytest.approx(list(on_host))


def test_names() -> None:
    assert find_memory("anytime:0.1") == LossDriven(kappa=0.1)
    assert find_memory("poly:16") == Polynomial(power=16)
    assert find_memory("ema:0.99") == Exponential(decay=0.99)
    assert find_memory(LossDriven(kappa=3.0)).kappa == 3  # type: ignore[attr-defined]
    for wrong in ("nope", "ema:1", "ema:x", "poly:-1", "poly:nan", "anytime:0", "uniform:3", "ema:", 7):
        with pytest.raises(ValueError, match=r"Invalid memory: .*; take 'anytime'"):
            find_memory(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_every_is_a_number_of_steps(every: object) -> None:
    with pytest.raises(ValueError, match=r"Invalid every: .*at least 1"):
        WeightAverage([], every=every)  # type: ignore[arg-type]


def test_trust_falls_with_the_distance_from_the_best() -> None:
    states = [AverageState(9, 1.0 + gap, 0.5, 1.0) for gap in (0.0, 0.1, 0.5)]
    trusts = [LossDriven().trust(state, math.exp) for state in states]
    assert trusts[0] == 1
    assert all(a > b for a, b in pairwise(trusts))
