"""The average of some tensors: by hand, in the tensors' place for a while, and through a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from surefoot.averaging.memory import AverageState
from surefoot.averaging.weights import WeightAverage, check_every, pack, unpack


def observed(steps: int, every: int = 1) -> tuple[Tensor, WeightAverage]:
    """A tensor that was 1, 2, 3, ... and its plain average."""
    weights = torch.zeros(2)
    mean = WeightAverage([weights], "uniform", every=every)
    for _ in range(steps):
        weights += 1
        mean.update(loss=1.0)
    return weights, mean


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_plain_average_by_hand(steps: int) -> None:
    weights, mean = observed(steps)
    with mean.averaged():
        assert weights.tolist() == pytest.approx([sum(range(1, steps + 1)) / steps] * 2)
    assert weights.tolist() == [steps] * 2


def test_the_tensors_come_back_after_an_error() -> None:
    weights, mean = observed(3)
    with pytest.raises(ZeroDivisionError), mean.averaged():
        raise ZeroDivisionError
    assert weights.tolist() == [3.0, 3.0]


def test_a_checkpoint_goes_on_as_the_original() -> None:
    weights, mean = observed(5, every=2)
    saved = mean.state_dict()
    again = weights.clone()
    resumed = WeightAverage([again], "uniform", every=2)
    resumed.load_state_dict(saved)
    for tensor, average in ((weights, mean), (again, resumed)):
        tensor += 1
        average.update(loss=0.5)
    assert torch.equal(mean.values()[0][1], resumed.values()[0][1])
    assert resumed.state == mean.state


def test_the_state_is_a_vector_of_the_same_numbers() -> None:
    _, mean = observed(3)
    assert unpack(pack(mean.state)) == mean.state
    with pytest.raises(ValueError, match=f"has 2 numbers, this version keeps {len(AverageState._fields)}"):
        unpack(torch.zeros(2))


def test_frozen_parameters_have_no_average() -> None:
    trained, frozen = Parameter(torch.ones(1)), Parameter(torch.ones(1), requires_grad=False)
    mean = WeightAverage([trained, frozen], every=1)
    mean.update(1.0)
    assert list(mean.averages) == [trained]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "10"])
def test_every_is_a_number_of_steps(every: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number of steps, at least 1"):
        check_every(every)
