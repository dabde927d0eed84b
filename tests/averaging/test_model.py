"""AnytimeModel: the average of a WeightAverage in a second model, with the interface of torch's AveragedModel."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn, update_bn

from saved import through_a_file
from surefoot import AnytimeModel, WeightAverage


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def train(model: nn.Module, *averages: AnytimeModel, steps: range) -> None:
    """SGD whose steps depend on their number alone; the average gets the loss before each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dtype = next(model.parameters()).dtype
    for i in steps:
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(i)).to(dtype)
        optimizer.zero_grad()
        loss = model(x).sub(x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        for average in averages:
            average.update_parameters(model, loss=loss)


def same(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        if isinstance(x, Tensor):
            assert torch.equal(x, y), name


def test_it_is_the_average_of_the_observer() -> None:
    model = make_model()
    average = AnytimeModel(model, every=3)
    observer = WeightAverage(model.parameters(), "anytime", every=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for i in range(12):  # the last is one of those at which the average is updated
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        observer.update(loss)
        average.update_parameters(model, loss=loss)
    with observer.averaged():
        for p, mean in zip(model.parameters(), average.module.parameters(), strict=True):
            torch.testing.assert_close(p, mean)
    assert not torch.equal(model[0].weight, average.module[0].weight)


def test_with_a_uniform_memory_it_is_torchs_averaged_model() -> None:
    model = make_model()
    ours = AnytimeModel(model, memory="uniform", every=1)
    torchs = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn(), use_buffers=False)
    for i in range(7):
        train(model, ours, steps=range(i, i + 1))
        torchs.update_parameters(model)
    for a, b in zip(ours.module.parameters(), torchs.module.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert ours.n_averaged == torchs.n_averaged == 7
    assert isinstance(ours, AveragedModel)


@pytest.mark.parametrize("use_buffers", [True, False])
def test_buffers_are_averaged_or_those_of_the_last_update(use_buffers: bool) -> None:
    model, means = make_model(), []
    average = AnytimeModel(model, memory="uniform", every=1, use_buffers=use_buffers)
    for i in range(5):
        train(model, average, steps=range(i, i + 1))
        means.append(model[1].running_mean.clone())
    expected = torch.stack(means).mean(0) if use_buffers else means[-1]
    torch.testing.assert_close(average.module[1].running_mean, expected)
    assert average.module[1].num_batches_tracked == 5
    update_bn([torch.randn(64, 3)], average)
    assert average.module[1].num_batches_tracked == 1


def test_before_the_first_update_it_is_the_newest_weights() -> None:
    model = make_model()
    average = AnytimeModel(model, every=10)
    for i in range(4):
        train(model, average, steps=range(i, i + 1))
        for a, b in zip(average.module.parameters(), model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_killed_and_resumed_bit_for_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = make_model().to(dtype)
        average = AnytimeModel(model, every=3)
        train(model, average, steps=range(8))
        saved = through_a_file({"model": model.state_dict(), "average": average.state_dict()})
        other = make_model().to(dtype)
        other.load_state_dict(saved["model"])
        resumed = AnytimeModel(other, every=3)
        resumed.load_state_dict(saved["average"])
        copied = copy.deepcopy(average)
        train(model, average, copied, steps=range(8, 14))
        train(other, resumed, steps=range(8, 14))
        same(average, resumed)
        same(average, copied)


def test_half_precision_is_averaged_in_single_precision() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    average = AnytimeModel(model, memory="uniform", every=1)
    for i in range(300):
        nn.init.constant_(model.weight, 1.0 if i < 100 else 1.5)
        average.update_parameters(model, loss=1.0)
    assert average.module.weight.item() == pytest.approx(4 / 3, rel=0.005)  # in bfloat16 a share of 1/300 is lost


def test_compiled_models_are_taken_and_others_refused() -> None:
    model = make_model()
    average = AnytimeModel(model)
    average.update_parameters(torch.compile(model, backend="eager"), loss=1.0)
    with pytest.raises(ValueError, match="this Linear has other parameters than the model that was copied"):
        average.update_parameters(nn.Linear(2, 2), loss=1.0)
    with pytest.raises(TypeError, match=r"needs the loss of the step: update_parameters\(model, loss=loss\)"):
        average.update_parameters(model)


@pytest.mark.parametrize("every", [1, 4])
def test_what_is_not_finite_never_enters(every: int) -> None:
    model = make_model()
    average = AnytimeModel(model, every=every)
    train(model, average, steps=range(2))
    nn.init.constant_(model[0].weight, math.nan)
    for _ in range(5):
        average.update_parameters(model, loss=math.nan)
    assert all(p.isfinite().all() for p in average.module.parameters())


def test_the_model_keeps_its_gradients_and_the_copy_needs_none() -> None:
    model = make_model()
    average = AnytimeModel(model, "cpu")
    assert all(p.requires_grad for p in model.parameters())
    assert not any(p.requires_grad for p in average.parameters())
