"""Every warning names the line of the user's code, whatever of ours and of torch lies between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR

from surefoot import AdamS, AdamUCB, Anytime, LossAware, LossWeighted

Parameters = list[Parameter]
Make = Callable[[Parameters], Any]

MAKERS: dict[str, Make] = {
    "LossAware": AdamUCB,
    "LossWeighted": lambda params: LossWeighted(torch.optim.SGD(params, lr=0.1), "ucb"),
    "Anytime": lambda params: Anytime(AdamUCB(params)),
}
#: Losses that a warning tells of, by words of it.
LOSSES: dict[str, Callable[[int], float]] = {
    "has skipped 10 steps": lambda _: math.nan,
    "the loss of the step before": lambda _: 1.0,
    "a larger loss in each": float,
    "the same loss": lambda i: [1.0, 2.0, 3.0][i % 3] if i < 50 else 1.5,
}


def one_parameter() -> Parameters:
    return [Parameter(torch.ones(2))]


def with_hooks(optimizer: Optimizer) -> None:
    optimizer.register_step_pre_hook(lambda *_: None)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("words", LOSSES)
@pytest.mark.parametrize("attend", [lambda _: None, ConstantLR, with_hooks], ids=["alone", "scheduled", "hooked"])
def test_a_warning_of_a_step_names_the_line_that_called_it(make: Make, words: str, attend: Callable[..., Any]) -> None:
    params = one_parameter()
    optimizer = make(params)
    attend(optimizer)

    def train() -> None:
        for i in range(160):
            params[0].grad = torch.ones(2)
            optimizer.step(loss=LOSSES[words](i))

    with pytest.warns(UserWarning, match=words) as caught:
        train()
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("make", [MAKERS["LossAware"], MAKERS["LossWeighted"]], ids=["LossAware", "LossWeighted"])
def test_a_warning_of_a_closure_names_the_line_that_called_step(make: Make) -> None:
    params = one_parameter()
    params[0].grad = gradient = torch.ones(2)

    def closure() -> float:
        gradient.add_(1)
        return 1.0

    optimizer = make(params)
    with pytest.warns(UserWarning, match="the last micro-batch alone") as caught:
        optimizer.step(closure)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_warning_of_a_checkpoint_names_the_line_that_loaded_it(make: Make) -> None:
    saved = AdamS(one_parameter()).state_dict()
    optimizer = make(one_parameter())
    with pytest.warns(UserWarning, match="is of the rule 's'") as caught:
        optimizer.load_state_dict(saved)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_of_an_option_names_the_line_that_gave_it() -> None:
    optimizer: LossAware = AdamS(one_parameter())
    with pytest.warns(UserWarning, match="adds weight_decay") as caught:
        optimizer.add_param_group({"params": one_parameter(), "weight_decay": 0.1})
    assert [warning.filename for warning in caught] == [__file__]
