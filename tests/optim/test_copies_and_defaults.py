"""What users do around an optimizer: copies, default devices, integers of other kinds, and help()."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Parameter

from surefoot import AdamS, AdamUCB, EtaSchedule, LossWeighted, NAdamUCB, weigh
from surefoot.optim.named import OPTIMIZERS
from surefoot.rules import from_objective


def one_step(optimizer: Any, loss: Any = 1.0) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p, device=p.device)
    optimizer.step(loss=loss)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copied_weigher_follows_its_optimizer(copied: Any) -> None:
    p = Parameter(torch.ones(1))
    weigher = copied(weigh(torch.optim.SGD([p], lr=0.1), "ucb", eta=0.1))
    for _ in range(3):
        q = weigher.optimizer.param_groups[0]["params"][0]
        weigher.optimizer.zero_grad()
        weigher((q * 3).sum()).backward()
        weigher.optimizer.step()
    assert weigher.seen[0] == 3


def test_what_is_no_checkpoint_of_weigh_is_told() -> None:
    with pytest.raises(ValueError, match="has seen and eta"):
        weigh().load_state_dict({"state": {}})
    with pytest.raises(ValueError, match="eta"):
        weigh(rule="s").load_state_dict({"seen": torch.zeros(8), "eta": -1.0})


@pytest.mark.parametrize(
    "make",
    [lambda p: AdamUCB([p]), lambda p: LossWeighted(torch.optim.SGD([p], lr=0.1))],
    ids=["AdamUCB", "LossWeighted"],
)
def test_statistics_of_the_host_stay_there_whatever_the_default_device(make: Any) -> None:
    p = Parameter(torch.ones(1, device="cpu"))
    with torch.device("meta"):
        optimizer = make(p)
        for loss in (1.0, 2.0, 3.0):
            p.grad = torch.ones(1, device="cpu")
            optimizer.step(loss=loss)
        resumed = make(p)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        resumed.step(loss=2.0)
    assert resumed.param_groups[0]["seen"].device.type == "cpu"
    assert resumed.confidence()[0]["mean"] > 1


@pytest.mark.parametrize("seed", [np.int32(3), np.uint8(3), np.int64(3)])
def test_seeds_of_every_kind_give_the_same_noise(seed: Any) -> None:
    weights = []
    for each in (3, seed):
        p = Parameter(torch.ones(1))
        optimizer = AdamS([p], eta=0.5, seed=each)
        for loss in (1.0, 2.0, 1.5):
            one_step(optimizer, loss)
        weights.append(float(optimizer.confidence()[0]["weight"]))
    assert weights[0] == weights[1]


def test_nadam_refuses_a_checkpoint_without_its_product() -> None:
    p = Parameter(torch.ones(1))
    for other in (torch.optim.Adam([p]), AdamUCB([p])):
        p.grad = torch.ones(1)
        other.step(**({"loss": 1.0} if isinstance(other, AdamUCB) else {}))
        with pytest.raises(ValueError, match="has no mu_product"):
            NAdamUCB([p]).load_state_dict(other.state_dict())


def test_an_eta_that_the_rule_has_no_meaning_for_is_refused_when_it_is_loaded() -> None:
    p = Parameter(torch.ones(1))
    saved = AdamUCB([p], eta=-0.1).state_dict()
    with pytest.raises(ValueError, match=r"Invalid eta value: -0\.1; the s rule takes"):
        AdamS([p]).load_state_dict(saved)


def test_an_eta_changed_later_is_checked_by_the_wrapper_too() -> None:
    p = Parameter(torch.ones(1))
    optimizer = LossWeighted(torch.optim.SGD([p], lr=0.1), "s", eta=0.1)
    one_step(optimizer)
    for bad in (-3.0, float("nan"), "strong"):
        optimizer.param_groups[0]["eta"] = bad
        with pytest.raises(ValueError, match="Invalid eta value"):
            one_step(optimizer)
    with pytest.raises(ValueError, match="Invalid eta value"):
        optimizer.add_param_group({"params": [Parameter(torch.ones(1))], "eta": "strong"})


def test_a_schedule_of_eta_takes_groups_in_that_come_later() -> None:
    optimizer = AdamUCB([Parameter(torch.ones(1))], eta=0.1)
    schedule = EtaSchedule(optimizer, lambda step: 0.5**step)
    schedule.step()
    optimizer.add_param_group({"params": [Parameter(torch.ones(1))], "eta": 0.4})
    schedule.step()
    assert [group["eta"] for group in optimizer.param_groups] == pytest.approx([0.025, 0.1])
    each = EtaSchedule(optimizer, [lambda step: 1.0, lambda step: 0.5])
    optimizer.add_param_group({"params": [Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match="2 factors for 3 parameter groups"):
        each.step()


@pytest.mark.parametrize(
    ("what", "factor", "message"),
    [
        (lambda: weigh(), lambda step: 1.0, "Weigher has no eta to schedule"),
        (lambda: AdamUCB([Parameter(torch.ones(1))]), 0.5, "takes a function from the step to a factor"),
        (lambda: AdamUCB([Parameter(torch.ones(1))]), [0.5], "takes a function from the step to a factor"),
    ],
)
def test_what_cannot_be_scheduled_is_told(what: Any, factor: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        EtaSchedule(what(), factor)


@pytest.mark.parametrize(
    "objective", [lambda mean, std: mean, lambda mean, std, eta: 1.0, lambda mean, std, eta: float(mean)]
)
def test_an_objective_that_cannot_be_one_is_refused_at_once(objective: Any) -> None:
    with pytest.raises(ValueError, match=r"must take \(mean, std, eta\)"):
        from_objective(objective)


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_help_of_a_named_optimizer_tells_its_arguments(cls: type) -> None:
    assert cls.__doc__ is not None
    assert "args" in cls.__doc__.lower()
