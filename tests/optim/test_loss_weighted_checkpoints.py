"""LossWeighted: checkpoints, copies, and state that is the base's own."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from saved import through_a_file
from surefoot import LossWeighted
from wrapped import BASES, assert_equal, every_base, make_model, params_of, train


@every_base
def test_resumed_training_is_bit_for_bit_the_same(name: str) -> None:
    model = make_model()
    optimizer = LossWeighted(BASES[name](model.parameters()), "s", eta=0.5, seed=3)
    train(model, optimizer, range(5))
    state = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    losses = train(model, optimizer, range(5, 10))
    again = make_model()
    again.load_state_dict(state["model"])
    resumed = LossWeighted(BASES[name](again.parameters()), "s", eta=0.1, seed=3)
    resumed.load_state_dict(state["optimizer"])
    assert losses == train(again, resumed, range(5, 10))
    assert_equal(params_of(model), params_of(again))


# A copy of pytorch-optimizer's Lion has lost its flags, with or without a wrapper.
@pytest.mark.parametrize("name", [name for name in BASES if name != "Lion"])
def test_copies_and_pickles_go_on_as_the_original(name: str) -> None:
    for duplicate in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        model = make_model()
        optimizer = LossWeighted(BASES[name](model.parameters()), "s", eta=0.5, process_group=False)
        train(model, optimizer, range(3))
        twin_model, twin = duplicate((model, optimizer))
        assert train(model, optimizer, range(3, 6)) == train(twin_model, twin, range(3, 6))
        assert twin.process_group is False


def test_checkpoints_of_the_base_go_in_and_out() -> None:
    model = make_model()
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, plain, range(3))
    optimizer = LossWeighted(torch.optim.AdamW(model.parameters(), lr=0.5), "ucb", eta=0.3)
    optimizer.load_state_dict(through_a_file(plain.state_dict()))
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["eta"] == 0.3
    assert optimizer.param_groups[0]["seen"][0] == 0
    train(model, optimizer, range(3))
    plain.load_state_dict(through_a_file(optimizer.state_dict()))
    assert next(iter(plain.state.values()))["step"] == 6
    cut = optimizer.state_dict()
    cut["param_groups"][0]["seen"] = torch.zeros(3)
    with pytest.raises(ValueError, match="3 entries"):
        optimizer.load_state_dict(cut)


def test_groups_and_state_are_the_base_s_own() -> None:
    model = make_model()
    base = torch.optim.AdamW(model.parameters())
    optimizer = LossWeighted(base)
    assert isinstance(optimizer, Optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    assert base.param_groups[0]["lr"] == 0.5
    train(model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups is base.param_groups
    assert optimizer.state is base.state
    assert "AdamW" not in repr(optimizer).splitlines()[0]
    optimizer.state, optimizer.param_groups = {}, []
    assert base.state == {}
    assert base.param_groups == []


def test_a_base_may_write_its_groups_in_its_own_way() -> None:
    class Terse(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            whole = super().state_dict()
            everything = [index for group in whole["param_groups"] for index in group["params"]]
            return {**whole, "param_groups": [{"lr": 0.1, "params": everything}]}

    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    saved = LossWeighted(Terse(groups, lr=0.1)).state_dict()
    assert saved["param_groups"] == [{"lr": 0.1, "params": [0, 1]}]
