"""Why the scale helps: each contestant of the study is what it says, and a resumed run takes the same steps."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from surefoot import AdamUCB
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.store import Run
from surefoot.paper import why
from surefoot.paper.published import plain_configurations
from surefoot.paper.steps import ratios
from surefoot.paper.why import WeightedAdam

BETAS = (0.9, 0.999)


def losses(count: int = 40) -> list[float]:
    luck = random.Random(0)
    return [1 / (1 + 0.2 * t) * (1 + 0.3 * luck.random()) for t in range(count)]


def gradients(count: int = 40) -> torch.Tensor:
    return torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def path(optimizer_class: type, steps: int = 40, **options: Any) -> tuple[torch.Tensor, list[float]]:
    """Where an optimizer goes, and its weights, when the gradients do not depend on where it is."""
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = optimizer_class([parameter], lr=0.01, weight_decay=0.1, **options)
    weights = []
    for gradient, loss in zip(gradients(steps), losses(steps)):
        parameter.grad = gradient.clone()
        optimizer.step(loss=loss)
        weights.append(float(optimizer.confidence()[0]["weight"]))
    return parameter.detach(), weights


OWN = path(AdamUCB, eta=0.0, gain=None)[1]


def weighted_adam(weights: list[float], *, first: bool = True, second: bool = True) -> torch.Tensor:
    """The definition, slowly: Adam whose moments are of the weighted or of the plain gradient."""
    parameter = torch.ones(4, dtype=torch.float64)
    m, v = torch.zeros_like(parameter), torch.zeros_like(parameter)
    mass = [0.0, 0.0]  # of plain gradients: the steps without any spread do not count
    power = 0.0
    for t, (gradient, weight) in enumerate(zip(gradients(len(weights)), weights), start=1):
        g = gradient + 0.1 * parameter
        counts = float(weight > 0)
        m = 0.9 * m + 0.1 * (weight if first else counts) * g
        v = 0.999 * v + 0.001 * ((weight if second else counts) * g) ** 2
        mass = [0.9 * mass[0] + 0.1 * counts, 0.999 * mass[1] + 0.001 * counts]
        power = 0.999 * power + 0.001 * weight**2
        if weight:
            rms = (power / (1 - 0.999**t)) ** 0.5
            m_hat = m / (1 - 0.9**t) / rms if first else m / mass[0]
            v_hat = v / (1 - 0.999**t) / rms**2 if second else v / mass[1]
            parameter = parameter - 0.01 * m_hat / (v_hat.sqrt() + (1e-8 / rms if second else 1e-8))
    return parameter


def test_own_weights_are_the_std_scale_alone() -> None:
    torch.testing.assert_close(path(WeightedAdam)[0], path(AdamUCB, eta=0.0, gain=None)[0], rtol=1e-9, atol=1e-12)
    assert path(WeightedAdam)[1] == pytest.approx(OWN)


@pytest.mark.parametrize("moments", ["both", "first", "second"])
def test_moments_are_what_they_say(moments: str) -> None:
    expected = weighted_adam(OWN, first=moments != "second", second=moments != "first")
    torch.testing.assert_close(path(WeightedAdam, moments=moments)[0], expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(expected, weighted_adam([1.0] * 40), rtol=1e-4), "and that is not Adam"


def test_weights_are_what_they_say() -> None:
    lag = 7
    made = {name: path(WeightedAdam, weights=name, lag=lag)[1] for name in ("reciprocal", "lagged", "smoothed")}
    assert made["reciprocal"] == pytest.approx([1 / weight if weight else 0.0 for weight in OWN])
    assert made["lagged"] == pytest.approx([*OWN[: 2 + lag], *OWN[2 : 40 - lag]])
    assert made["smoothed"][2:5] == pytest.approx([OWN[2], sum(OWN[2:4]) / 2, sum(OWN[2:5]) / 3])
    assert made["smoothed"][30] == pytest.approx(made["smoothed"][29] * (1 - 1 / lag) + OWN[30] / lag)


def test_random_order_takes_recent_weights_and_depends_on_the_seed() -> None:
    lag = 7
    shuffled, again, other = (path(WeightedAdam, weights="shuffled", lag=lag, seed=seed)[1] for seed in (0, 0, 1))
    assert shuffled == again != other
    for t in range(2, 40):
        assert any(shuffled[t] == pytest.approx(weight) for weight in OWN[max(2, t - lag + 1) : t + 1])


@pytest.mark.parametrize("name", ["reciprocal", "shuffled", "lagged", "smoothed"])
def test_a_resumed_run_takes_the_same_steps(name: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    optimizer = WeightedAdam([parameter], lr=0.01, weight_decay=0.1, weights=name, lag=7)
    for k, (gradient, loss) in enumerate(zip(gradients(), losses())):
        if k == 20:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = WeightedAdam([parameter], lr=0.01, weight_decay=0.1, weights=name, lag=7)
            optimizer.load_state_dict(state)
        parameter.grad = gradient.clone()
        optimizer.step(loss=loss)
    assert torch.equal(parameter.detach(), path(WeightedAdam, weights=name, lag=7)[0])


def test_a_factor_of_the_step_is_in_the_first_moment() -> None:
    """Under a constant gradient the first moment alone gives the factor, and the second alone gives Adam."""
    parameter = {name: torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for name in ("first", "second")}
    for moments, weight in parameter.items():
        optimizer = WeightedAdam([weight], lr=0.01, moments=moments)
        for loss in losses():
            weight.grad = torch.ones(1, dtype=torch.float64)
            optimizer.step(loss=loss)
    assert -parameter["first"].item() == pytest.approx(0.01 * sum(ratios(OWN)))
    assert -parameter["second"].item() == pytest.approx(0.01 * 38)  # without spread, two steps are not taken


def test_weights_of_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    donor = (0.0, 0.0, *(1.0 + 0.1 * t for t in range(38)))
    monkeypatch.setattr(why, "recorded_weights", lambda: {0.01: donor})
    recording = why.digest(0.01)
    replayed, _ = made = path(WeightedAdam, weights="replayed", recording=recording)
    assert made[1] == pytest.approx(donor)
    torch.testing.assert_close(replayed, weighted_adam(list(donor)), rtol=1e-9, atol=1e-12)
    drawn, again, other = (path(WeightedAdam, weights="drawn", recording=recording, seed=seed)[1] for seed in (0, 0, 1))
    assert drawn == again != other
    assert drawn[:2] == [0.0, 0.0]
    assert set(drawn[2:]) <= set(donor[2:])
    monkeypatch.setattr(why, "recorded_weights", lambda: {0.01: (*donor, 1.0)})
    with pytest.raises(ValueError, match=f"there is no recording '{recording}' of weights at lr 0.01"):
        path(WeightedAdam, weights="replayed", recording=recording)


def test_every_contestant_is_another_one_and_its_runs_are_found(
    variant_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why, "recorded_weights", lambda: {1e-3: (0.0, 0.0, 1.0)})
    cnn = plain_configurations()["cnn"]
    everyone = why.contestants(1e-3)
    assert len(everyone) == 11
    assert len(why.contestants(5e-4)) == 9  # without those that need a recording
    assert [Contestant.parse(variant.spec).label for variant in list(everyone.values())[: why.TELLING]][2:4] == [
        "WeightedAdam weights=reciprocal lr=0.001",
        "WeightedAdam weights=shuffled lr=0.001",
    ]
    runs = [
        variant_run(cnn, variant, seed, settings={"subset": 10_000}) for variant in everyone.values() for seed in (0, 1)
    ]
    by_name = why.runs_by_contestant(runs, cnn, 1e-3)
    assert {name: [run.seed for run in seeds] for name, seeds in by_name.items()} == {key: [0, 1] for key in everyone}
    assert why.runs_by_contestant(runs, cnn, 5e-4) == {}


def test_what_is_refused() -> None:
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    with pytest.raises(ValueError, match="unknown weights 'loud'; choose own, reciprocal"):
        WeightedAdam(parameter, weights="loud")
    with pytest.raises(ValueError, match="unknown moments 'third'; choose both"):
        WeightedAdam(parameter, moments="third")
    with pytest.raises(ValueError, match=r"there is no recording 'x' of weights at lr 0\.001"):
        WeightedAdam(parameter, weights="replayed", recording="x")
