"""One judgement: optimizers, the wrapper and weigh() make the same of the same losses, on the host and on a device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import surefoot
from surefoot.meter import Meter, decide
from surefoot.rules import RULES, Rule, from_objective
from surefoot.statistics import LossStats, no_statistics, unpack

SEQUENCES: dict[str, list[float]] = {
    "usual": [2.0, 1.5, 2.5, 0.3, 1.1, 3.0],
    "constant": [2.0, 2.0, 2.0, 2.5, 2.0],
    "zero": [0.0, 0.0, 1.0, 0.0],
    "jumps": [1.0, 1.1, 1e6, 1.0, -1e6, 2.0],
    "not finite": [1.0, math.nan, 2.0, math.inf, 1.5, -math.inf, 0.5],
    "too large": [1.0, 2.0, 1e30, 1.5, -1e30, 1e19, 2.0],
    "not finite at first": [math.nan, 1e30, 1.0, 1.5, 0.5],
    "weights too large": [1.0, 2.0, 1e12, 3e12, 1.0],
    "alternating until it is steady": [1.0, 3.0] * 4 + [2.0] * 8 + [9.0],
}


def objective(mean: Tensor, std: Tensor, eta: float) -> Tensor:
    return mean + eta * std**2


EVERY_RULE: dict[str, Rule] = {**RULES, "of the user": from_objective(objective, eta=0.3)}
#: Makes something of one loss, and says which statistics it has then and by how much a gradient was multiplied.
Judge = Callable[[float], tuple[dict[str, float], float]]


def as_floats(confidence: list[dict[str, Tensor]]) -> dict[str, float]:
    return {name: float(value) for name, value in confidence[0].items()}


def stepping(optimizer: Any, p: Parameter, maximize: bool, as_loss: Callable[[float], Any]) -> Judge:
    """With a rate of 1 and without momentum, a gradient of 1 moves the parameter by the weight."""

    def judge(loss: float) -> tuple[dict[str, float], float]:
        with torch.no_grad():
            p.zero_()
        p.grad = torch.ones_like(p)
        optimizer.step(loss=as_loss(loss))
        return as_floats(optimizer.confidence()), p.item() * (1 if maximize else -1)

    return judge


def as_tensor(loss: float) -> Tensor:
    return torch.tensor(loss, dtype=torch.float64)


def loss_aware(rule: Rule, maximize: bool, options: dict[str, Any], as_loss: Any, **path: Any) -> Judge:
    p = Parameter(torch.zeros(1, dtype=torch.float64))
    fixed = {"lr": 1.0, "momentum": 0.0, "loss_beta": 0.9, "maximize": maximize}
    return stepping(surefoot.LossAwareMomentum([p], rule=rule, **fixed, **options, **path), p, maximize, as_loss)


def loss_weighted(rule: Rule, maximize: bool, options: dict[str, Any], as_loss: Any, **path: Any) -> Judge:
    p = Parameter(torch.zeros(1, dtype=torch.float64))
    base = torch.optim.SGD([{"params": [p], **path}], lr=1.0, maximize=maximize)
    return stepping(surefoot.LossWeighted(base, rule, **options), p, maximize, as_loss)


def weighing(rule: Rule, maximize: bool, options: dict[str, Any]) -> Judge:
    p = Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=0.0, maximize=maximize)
    weigh = surefoot.weigh(optimizer, rule, **options)

    def judge(loss: float) -> tuple[dict[str, float], float]:
        optimizer.zero_grad()
        weigh(p.sum() + loss).backward()
        optimizer.step()
        assert p.grad is not None
        return as_floats(weigh.confidence()), p.grad.item()

    return judge


#: Those whose statistics stay on the device of a loss that is a tensor, and those that compute with Python's floats.
ON_HOST = {
    "LossAware": lambda *args: loss_aware(*args, float),
    "LossAware, a tensor": lambda *args: loss_aware(*args, as_tensor),
    "LossAware, every gradient checked": lambda *args: loss_aware(*args, float, check_gradients=True),
    "LossWeighted": lambda *args: loss_weighted(*args, float),
    "LossWeighted, a tensor": lambda *args: loss_weighted(*args, as_tensor),
    "weigh": weighing,
}
ON_DEVICE = {
    "LossAware": lambda *args: loss_aware(*args, as_tensor, capturable=True),
    "LossAware, a number": lambda *args: loss_aware(*args, float, capturable=True),
    "LossWeighted": lambda *args: loss_weighted(*args, as_tensor, capturable=True),
}
CASES = [
    pytest.mark.parametrize("name", EVERY_RULE),
    pytest.mark.parametrize("weighting", ["unit", "paper"]),
    pytest.mark.parametrize("maximize", [False, True]),
]


def every_case(test: Any) -> Any:
    for mark in CASES:
        test = mark(test)
    return test


def judged(make: Any, name: str, weighting: str, maximize: bool, losses: list[float]) -> list[Any]:
    eta = EVERY_RULE[name].eta if name in ("plain", "cvar") else 0.3
    judge = make(EVERY_RULE[name], maximize, {"eta": eta, "weighting": weighting, "seed": 7})
    return [judge(loss) for loss in losses]


def is_usable(statistics: dict[str, float]) -> bool:
    return abs(statistics["weight"]) <= 1e19


def is_sane(loss: float) -> bool:
    return abs(loss) <= 1e19


@every_case
@pytest.mark.filterwarnings("ignore:.*has skipped")
def test_all_on_the_host_judge_alike(name: str, weighting: str, maximize: bool) -> None:
    for losses in SEQUENCES.values():
        expected = judged(ON_HOST["LossAware"], name, weighting, maximize, losses)
        for who, make in ON_HOST.items():
            actual = judged(make, name, weighting, maximize, losses)
            for loss, (seen, moved), (wanted, wanted_move) in zip(losses, actual, expected):
                if who == "weigh" and not (is_sane(loss) and is_usable(wanted)):
                    # The backward pass goes on, unweighted; of a weight that is not used nothing is said.
                    assert moved == 1, (loss, who)
                    seen = {**wanted, **{key: seen[key] for key in ("mean", "std", "skipped")}}
                else:
                    assert moved == wanted_move, (loss, who)
                assert seen == wanted, (loss, who)


@every_case
@pytest.mark.filterwarnings("ignore:.*has skipped")
def test_the_device_judges_as_the_host(name: str, weighting: str, maximize: bool) -> None:
    for losses in SEQUENCES.values():
        expected = judged(ON_HOST["LossAware"], name, weighting, maximize, losses)
        for who, make in ON_DEVICE.items():
            actual = judged(make, name, weighting, maximize, losses)
            for loss, (seen, moved), (wanted, wanted_move) in zip(losses, actual, expected):
                assert seen == pytest.approx(wanted, rel=1e-9, abs=1e-12), (loss, who)
                assert moved == pytest.approx(wanted_move, rel=1e-9, abs=1e-12), (loss, who)


@every_case
@pytest.mark.filterwarnings("ignore:.*has skipped")
def test_what_is_refused_is_counted_and_leaves_no_trace(name: str, weighting: str, maximize: bool) -> None:
    for make in [*ON_HOST.values(), *ON_DEVICE.values()]:
        losses = SEQUENCES["not finite"] + SEQUENCES["too large"]
        sane = [loss for loss in losses if is_sane(loss)]
        with_bad, without = (judged(make, name, weighting, maximize, xs)[-1][0] for xs in (losses, sane))
        assert with_bad.pop("skipped") - without.pop("skipped") == len(losses) - len(sane)
        assert with_bad == without


def test_some_of_these_weights_are_unusable() -> None:
    # Otherwise the tests above would show less than they seem to.
    seen = [x for x, _ in judged(ON_HOST["LossAware"], "cb", "paper", False, SEQUENCES["weights too large"])]
    assert not all(map(is_usable, seen))
    assert seen[-1]["skipped"] > 0
    assert seen[-1]["mean"] > 1e11


@pytest.mark.parametrize(
    "make", [*ON_HOST.values(), *ON_DEVICE.values()], ids=[*ON_HOST, *(f"{x}*" for x in ON_DEVICE)]
)
def test_an_eta_of_zero_with_unit_weights_changes_nothing(make: Any) -> None:
    for losses in SEQUENCES.values():
        judge = make(RULES["ucb"], False, {"eta": 0.0, "weighting": "unit"})
        for loss in filter(is_sane, losses):
            seen, moved = judge(loss)
            assert (seen["weight"], moved) == (1, 1)


# -- the meter itself ------------------------------------------------------------------------------------------------


def on_side(stats: LossStats, on_device: bool) -> LossStats:
    return unpack(torch.tensor(stats, dtype=torch.float64), on_device=on_device)


SIDES = pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
BEFORE = LossStats(count=9.0, mean=1.0, std=0.5, best=0.9, skipped=2.0, z=0.1, tilt=0.2, weight=0.3)


@SIDES
@pytest.mark.parametrize(("loss", "sound"), [(math.nan, True), (1e30, True), (2.0, False)])
def test_a_loss_that_is_not_accepted_changes_only_the_count_of_skipped_steps(
    loss: float, sound: bool, on_device: bool
) -> None:
    meter = Meter(RULES["ucb"], eta=0.1, weighting="unit", beta=0.9)
    assessment = meter.assess(on_side(BEFORE, on_device), loss, sound)
    assert not assessment.accepted
    assert not assessment.usable
    after = meter.remember(assessment, assessment.usable)
    assert [float(x) for x in after] == list(BEFORE._replace(skipped=3.0))


@SIDES
def test_a_loss_whose_weight_is_unusable_is_remembered(on_device: bool) -> None:
    meter = Meter(RULES["ucb"], eta=1e30, weighting="paper", beta=0.9)
    assessment = meter.assess(on_side(BEFORE, on_device), 2.0)
    assert assessment.accepted
    assert not assessment.usable
    after = meter.remember(assessment, assessment.usable)
    assert (float(after.count), float(after.skipped), float(after.weight)) == (10, 3, pytest.approx(1e30))


@SIDES
def test_another_groups_weight_may_stop_the_step(on_device: bool) -> None:
    usable, unusable = (
        Meter(RULES["ucb"], eta=eta, weighting="paper", beta=0.9).assess(on_side(BEFORE, on_device), 2.0)
        for eta in (0.1, 1e30)
    )
    assert [bool(x) for x in decide([usable, unusable])] == [False, False]
    assert [bool(x) for x in decide([usable, usable])] == [True, True]


def test_groups_on_the_host_and_on_a_device_decide_by_themselves() -> None:
    """One decision for both would have to wait for the device."""
    meter = Meter(RULES["ucb"], eta=0.1, weighting="unit", beta=0.9)
    here, there = (meter.assess(on_side(BEFORE, on_device), 2.0) for on_device in (False, True))
    bad = meter.assess(on_side(BEFORE, True), math.nan)
    assert decide([here, there])[0] is True
    decisions = decide([here, there, bad])
    assert decisions[0] is True
    assert [bool(x) for x in decisions[1:]] == [False, False]


@SIDES
@pytest.mark.parametrize(
    ("loss", "sound", "eta", "words"),
    [
        (math.inf, True, 0.1, "the loss is inf"),
        (2.0, False, 0.1, "a gradient is not finite"),
        (2.0, True, 1e30, r"weights the gradient by 1e\+30"),
    ],
)
def test_raise_says_what_was_wrong(loss: float, sound: bool, eta: float, words: str, on_device: bool) -> None:
    meter = Meter(RULES["ucb"], eta=eta, weighting="paper", beta=0.9, nonfinite="raise", owner="AdamS")
    with pytest.raises(FloatingPointError, match=f"AdamS: .*{words}.*nothing was changed"):
        meter.assess(on_side(BEFORE, on_device), loss, sound)


def test_a_negated_loss_keeps_a_positive_tilt_pessimistic() -> None:
    meter = Meter(RULES["ucb"], eta=0.1, weighting="unit", beta=0.9, maximize=True)
    stats = unpack(no_statistics())
    for loss in (1.0, 3.0):
        stats = meter.remember(meter.assess(stats, loss), proceed=True)
    assert stats.mean < 0
    worse, better = meter.assess(stats, 0.5).weight, meter.assess(stats, 4.0).weight
    assert better < 1 < worse


def test_a_rule_may_have_another_weight() -> None:
    class Tilted(Rule):
        def weight(self, tilt: Any, z: Any) -> Any:
            return math.exp(tilt * z)

    meter = Meter(Tilted("tilted", RULES["ucb"].tilt, eta=0.5), eta=0.5, weighting="unit", beta=0.9)
    assert meter.assess(BEFORE, 2.0).weight == pytest.approx(math.exp(0.5 * 2.0))
