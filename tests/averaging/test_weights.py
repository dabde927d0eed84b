"""The average of some tensors: by hand, in the tensors' place for a while, and through a checkpoint."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

from surefoot.averaging import weights as weights_module
from surefoot.averaging.memory import AverageState
from surefoot.averaging.weights import WeightAverage, check_every, pack, started, unpack


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


# -- an average on another device --------------------------------------------------------------------------------------


def losses_and_weights(steps: int) -> list[tuple[float, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [(1 + 0.1 * math.sin(i), torch.randn(3, generator=draw)) for i in range(steps)]


@pytest.mark.parametrize("at", [7, 8, 9])
def test_weights_on_their_way_enter_as_they_were(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands for the other device: copies are sent at an update, and used at the next one or when asked for."""
    plain, sent = torch.zeros(3), torch.zeros(3)
    expected, average = WeightAverage([plain], every=3), WeightAverage([sent], every=3, device="cpu")
    monkeypatch.setattr(weights_module, "is_elsewhere", lambda x, device: device is not None)
    on_the_way = 0
    for loss, value in losses_and_weights(at):
        for x, observer in ((plain, expected), (sent, average)):
            x.copy_(value)
            observer.update(loss)
        on_the_way += average._transfer is not None
    assert on_the_way == at - 2  # from the first update on there is always one
    saved = average.state_dict()
    assert torch.equal(saved["averages"][0], expected.averages[plain])
    assert torch.equal(average.values()[0][1], expected.values()[0][1])
    assert average._transfer is None


def test_copies_from_an_accelerator_do_not_block_and_the_average_is_on_the_host() -> None:
    """With tensors that pretend to be on a GPU: what is computed where, not how fast."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.ones(3, device="cuda")
        average = WeightAverage([x], "uniform", every=2, device="cpu")
        for _ in range(5):
            average.update(1.0)
        assert average.averages[x].device.type == "cpu"
        assert average._transfer.copies[0].device.type == "cpu"
        assert average.values()[0][1].device.type in ("cpu", "cuda")
        average.update(1.0)
        assert average.averages[x].device.type == "cpu"


def test_sharded_tensors_stay_where_they_are() -> None:
    class Sharded(Tensor):
        def to_local(self) -> Tensor:
            return self

    with pytest.raises(ValueError, match=r"device='meta' is for whole parameters.*leave device out"):
        started(torch.ones(2).as_subclass(Sharded), device=torch.device("meta"))
