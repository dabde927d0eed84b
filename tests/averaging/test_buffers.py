"""Batch norm beside averaged weights: buffers are averaged, or recomputed, or the user is warned once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from saved import through_a_file
from surefoot import Anytime


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def batches(n: int, start: int = 0) -> Iterator[Tensor]:
    for i in range(start, start + n):
        yield torch.randn(16, 3, generator=torch.Generator().manual_seed(i)) + 0.1 * i


def train(model: nn.Module, optimizer: Anytime, steps: int, start: int = 0) -> list[Tensor]:
    """The running means after every forward pass."""
    means = []
    for x in batches(steps, start):
        optimizer.zero_grad()
        loss = model(x).sub(x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        means.append(model[1].running_mean.clone())
        optimizer.step(loss=loss.detach() * 0 + 1)  # a constant loss: the plain average
    return means


def build(model: nn.Module, every: int = 1, give_model: bool = True) -> Anytime:
    return Anytime(torch.optim.SGD(model.parameters(), lr=0.05), every=every, model=model if give_model else None)


def test_floating_buffers_are_averaged_with_the_weights() -> None:
    model = make_model()
    optimizer = build(model)
    means = train(model, optimizer, 6)
    weights = model[1].running_mean.clone(), model[1].num_batches_tracked.clone()
    with optimizer.averaged():
        # Each average of weights goes with the statistics that the next forward pass made of them.
        expected = torch.stack([*means[1:], means[-1]]).mean(0)
        torch.testing.assert_close(model[1].running_mean, expected)
        assert model[1].num_batches_tracked == 6
    assert torch.equal(model[1].running_mean, weights[0])
    saved = optimizer.averaged_state_dict(model)
    torch.testing.assert_close(saved["1.running_mean"], expected)
    assert saved["1.num_batches_tracked"] == 6


def test_they_are_part_of_the_checkpoint() -> None:
    model, straight = make_model(), make_model()
    optimizer, other = build(model, every=2), build(straight, every=2)
    train(straight, other, 9)
    train(model, optimizer, 5)
    saved = through_a_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    model = make_model()
    optimizer = build(model, every=2)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer, 4, start=5)
    a, b = optimizer.averaged_state_dict(model), other.averaged_state_dict(straight)
    assert all(torch.equal(a[name], b[name]) for name in b)
    wide = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    wide.register_buffer("more", torch.ones(7))
    with pytest.raises(ValueError, match="averages of 8 numbers in buffers, this model has 15: it is of another model"):
        build(wide).load_state_dict(saved["optimizer"])
    build(model, give_model=False).load_state_dict(saved["optimizer"])


def test_a_checkpoint_of_an_optimizer_without_buffers_starts_from_those_of_the_model() -> None:
    model = make_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = build(model)
    train(model, optimizer, 3)
    optimizer.load_state_dict(plain.state_dict())
    with optimizer.averaged():
        inside = model[1].running_mean.clone()
    assert torch.equal(inside, model[1].running_mean)


def test_update_bn_recomputes_for_the_averaged_weights_alone() -> None:
    for give_model in (False, True):
        model = make_model()
        optimizer = build(model, give_model=give_model)
        train(model, optimizer, 6)
        before = copy.deepcopy(model.state_dict())
        by_hand = make_model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            by_hand.load_state_dict(optimizer.averaged_state_dict(model))
        torch.optim.swa_utils.update_bn(list(batches(4)), by_hand)
        optimizer.update_bn(list(batches(4)), None if give_model else model)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        saved = optimizer.averaged_state_dict(model)
        torch.testing.assert_close(saved["1.running_mean"], by_hand[1].running_mean)
        torch.testing.assert_close(saved["1.running_var"], by_hand[1].running_var)
    with pytest.raises(ValueError, match=r"update_bn needs the model: write update_bn\(loader, model\)"):
        build(make_model(), give_model=False).update_bn([])
    with optimizer.averaged(), pytest.raises(RuntimeError, match=r"update_bn\(\) was called inside averaged\(\)"):
        optimizer.update_bn([])


def test_a_model_with_batch_norm_that_did_neither_gets_one_warning() -> None:
    model = make_model()
    optimizer = build(model, give_model=False)
    train(model, optimizer, 2)
    with pytest.warns(UserWarning, match=r"batch norm.*Anytime\(base, model=model\).*update_bn"), optimizer.averaged():
        pass
    other = build(model, give_model=False)
    train(model, other, 2)
    with pytest.warns(UserWarning, match="batch norm"):
        other.averaged_state_dict(model)
    quiet = nn.Linear(2, 2)
    quiet_optimizers = [optimizer, other, build(model), Anytime(torch.optim.SGD(quiet.parameters(), lr=0.1))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for optimizer in quiet_optimizers:
            for p in optimizer.param_groups[0]["params"]:
                p.grad = torch.zeros_like(p)
            optimizer.step(loss=1.0)
            with optimizer.averaged():
                pass
            optimizer.averaged_state_dict(quiet if optimizer is quiet_optimizers[3] else model)


def test_a_model_of_other_tensors_is_refused() -> None:
    with pytest.raises(ValueError, match=r"none of the parameters of this Sequential.*not a copy of it"):
        Anytime(torch.optim.SGD(make_model().parameters(), lr=0.1), model=make_model())


def test_buffers_that_were_replaced_are_still_matched() -> None:
    model = make_model()
    optimizer = build(model)
    train(model, optimizer, 2)
    model.double().float()  # replaces the buffers, not the parameters
    train(model, optimizer, 2, start=2)
    before = model[1].running_mean.clone()
    with optimizer.averaged():
        assert not torch.equal(before, model[1].running_mean)
    assert torch.equal(before, model[1].running_mean)
