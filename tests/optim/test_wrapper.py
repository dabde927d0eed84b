"""Wrapper: what any optimizer around another one has, shown with one that keeps a counter in each group."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import Parameter

from surefoot.optim.wrapper import Wrapper, check_is_optimizer


class Counting(Wrapper):
    """Counts the steps in the groups and lets the base do everything else."""

    settings = ("stride",)

    def __init__(self, base: torch.optim.Optimizer, stride: int = 1) -> None:
        self.stride, self.process_group = stride, None
        self._adopt(base)

    def _complete(self, group: dict[str, Any]) -> None:
        group.setdefault("counted", 0)

    def _completed_checkpoint(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {**state_dict, "param_groups": [{"counted": 0, **group} for group in state_dict["param_groups"]]}

    def step(self, closure: Any = None, **arguments: Any) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            group["counted"] += self.stride
        return self._step_base(closure, **arguments)


class Halving(torch.optim.SGD):
    """Has a step with an argument of its own."""

    def step(self, closure: Any = None, factor: float = 0.5) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(factor)
        return None if closure is None else closure()


def parameter() -> Parameter:
    p = Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    return p


def test_base_gets_closure_and_arguments() -> None:
    p = parameter()
    wrapper = Counting(Halving([p], lr=0.1))
    assert wrapper.step(lambda: 7.0, factor=0.25) == 7.0
    assert wrapper.step() is None
    assert p.tolist() == [0.125] * 3
    assert wrapper.base.param_groups[0]["counted"] == 2


def test_step_hooks_run_once_on_whichever_they_were_registered() -> None:
    wrapper = Counting(torch.optim.SGD([parameter()], lr=0.1))
    calls: list[str] = []
    wrapper.register_step_post_hook(lambda *_: calls.append("wrapper"))
    wrapper.base.register_step_post_hook(lambda *_: calls.append("base"))
    wrapper.step()
    assert calls == ["wrapper", "base"]


def test_new_group_is_completed() -> None:
    wrapper = Counting(torch.optim.SGD([parameter()], lr=0.1))
    wrapper.add_param_group({"params": [parameter()], "lr": 0.2})
    assert [group["counted"] for group in wrapper.param_groups] == [0, 0]


def test_copy_keeps_settings_and_its_own_base() -> None:
    wrapper = Counting(torch.optim.SGD([parameter()], lr=0.1), stride=3)
    wrapper.step()
    twin = copy.deepcopy(wrapper)
    twin.step()
    assert twin.stride == 3
    assert [x.param_groups[0]["counted"] for x in (wrapper, twin)] == [3, 6]


def test_checkpoint_of_wrapper_and_of_base_alone() -> None:
    wrapper = Counting(torch.optim.SGD([parameter()], lr=0.1, momentum=0.9), stride=2)
    plain = torch.optim.SGD([parameter()], lr=0.1, momentum=0.9).state_dict()
    wrapper.step()
    saved = wrapper.state_dict()
    assert saved["param_groups"][0]["counted"] == 2
    wrapper.load_state_dict(plain)
    assert wrapper.param_groups[0]["counted"] == 0
    assert not wrapper.state
    wrapper.load_state_dict(saved)
    assert wrapper.param_groups[0]["counted"] == 2
    assert len(wrapper.state) == 1


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Counting wraps a torch optimizer, but got int; build the"):
        check_is_optimizer(3, "Counting")
    with pytest.raises(TypeError, match=r"^.{0,150}$"):  # not every parameter is printed
        check_is_optimizer([torch.nn.Parameter(torch.ones(1000))], "Counting")
