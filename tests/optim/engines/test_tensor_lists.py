"""The list operations: multi-tensor kernels and the loop compute the same, and autograd follows the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from surefoot.optim.engines.tensor_lists import Foreach, ForLoop, add_scaled, square_into

OPERATIONS = pytest.mark.parametrize("ops", [Foreach, ForLoop])


def lists() -> tuple[list[Tensor], list[Tensor]]:
    return [torch.tensor([1.0, -4.0]), torch.tensor([9.0])], [torch.tensor([2.0, 3.0]), torch.tensor([-5.0])]


def values(xs: Any) -> list[list[float]]:
    return [x.tolist() for x in xs]


@OPERATIONS
def test_new_lists(ops: Any) -> None:
    xs, ys = lists()
    assert values(ops.mul(xs, ys)) == [[2.0, -12.0], [-45.0]]
    assert values(ops.mul(xs, 0.5)) == values(ops.mul(xs, torch.tensor(0.5))) == [[0.5, -2.0], [4.5]]
    assert values(ops.div(xs, ys))[0] == pytest.approx([0.5, -4 / 3])
    assert values(ops.neg(xs)) == [[-1.0, 4.0], [-9.0]]
    assert values(ops.abs(xs)) == [[1.0, 4.0], [9.0]]
    assert values(ops.sqrt(ops.abs(xs))) == [[1.0, 2.0], [3.0]]
    assert values(xs) == values(lists()[0])


@OPERATIONS
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mul_", [[2.0, -12.0], [-45.0]]),
        ("add_", [[3.0, -1.0], [4.0]]),
        ("sub_", [[-1.0, -7.0], [14.0]]),
        ("maximum_", [[2.0, 3.0], [9.0]]),
    ],
)
def test_in_place(ops: Any, name: str, expected: list[list[float]]) -> None:
    xs, ys = lists()
    getattr(ops, name)(xs, ys)
    assert values(xs) == expected


@OPERATIONS
@pytest.mark.parametrize("as_gain", [float, torch.tensor])
def test_scaled_sums(ops: Any, as_gain: Any) -> None:
    xs, ys = lists()
    add_scaled(ops, xs, ys, as_gain(0.5))
    assert values(xs) == [[2.0, -2.5], [6.5]]
    xs, ys = lists()
    square_into(ops, xs, ys, as_gain(0.5))
    assert values(xs) == [[3.0, 0.5], [21.5]]


def test_autograd_follows_the_loop_through_state_that_changes_later() -> None:
    state = [torch.tensor([2.0])]
    x = torch.tensor([3.0], requires_grad=True)
    [quotient] = ForLoop.div([x], state)
    ForLoop.mul_(state, 10.0)  # the next step
    quotient.backward()
    assert x.grad is not None
    assert x.grad.item() == 0.5
