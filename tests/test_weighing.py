"""weigh(loss): one weight per backward pass, one update of the statistics per step."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import Parameter

import surefoot
from saved import through_a_file
from surefoot import weigh
from surefoot.noise import standard_normal
from surefoot.weighing import Weigher


class OnDevice(Weigher):
    """Takes the path of an accelerator with tensors on the CPU."""

    def _reads(self, values: Tensor) -> bool:
        return False


def loss_of(value: float) -> tuple[Tensor, Tensor]:
    """A leaf and a loss with this value, whose gradient is 1."""
    x = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    return x, x * 1


def weight_given(weigher: Weigher, value: float, share: float = 1) -> float:
    x, loss = loss_of(value)
    weighed = weigher(loss, share)
    assert weighed.item() == value
    weighed.backward()
    assert x.grad is not None
    return x.grad.item()


def mixture(steps: list[list[tuple[float, float]]], beta: float = 0.9) -> tuple[float, float]:
    """Mean and std of all readings: a step counts ``beta**age``, spread over its readings by their shares."""
    weights, values = [], []
    for age, step in enumerate(reversed(steps)):
        for value, share in step:
            weights.append(beta**age * share / sum(s for _, s in step))
            values.append(value)
    mean = math.fsum(w * v for w, v in zip(weights, values)) / math.fsum(weights)
    variance = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, values)) / math.fsum(weights)
    return mean, math.sqrt(variance)


@pytest.mark.parametrize("kind", [Weigher, OnDevice])
def test_micro_batches_of_a_step_are_weighed_by_what_was_seen_before_it(kind: type[Weigher]) -> None:
    weigher = kind(rule="ucb", eta=0.3)
    steps: list[list[tuple[float, float]]] = []
    for step in ([(1.0, 1)], [(2.0, 1), (4.0, 3)], [(0.5, 2), (3.0, 1), (9.0, 1)], [(2.0, 1), (2.5, 1)]):
        mean, std = mixture(steps) if steps else (0.0, 0.0)
        for value, share in step:
            expected = 1 + 0.3 * (value - mean) / std if std else 1.0
            assert weight_given(weigher, value, share) == pytest.approx(expected, rel=1e-12)
        weigher.update()
        steps.append(step)
    seen = weigher.confidence()[0]
    assert (float(seen["mean"]), float(seen["std"])) == pytest.approx(mixture(steps), rel=1e-12)
    assert weigher.seen[0] == len(steps)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.1, 10)), min_size=1, max_size=4), min_size=1, max_size=6
    ),
    st.sampled_from([0.0, 1e6]),
)
def test_statistics_are_those_of_all_readings(steps: list[list[tuple[float, float]]], offset: float) -> None:
    steps = [[(value + offset, share) for value, share in step] for step in steps]
    weigher = Weigher()
    for step in steps:
        for value, share in step:
            weigher(loss_of(value)[1], share)
        weigher.update()
    mean, std = mixture(steps)
    assert float(weigher.seen[1]) == pytest.approx(mean, rel=1e-9, abs=1e-9)
    assert float(weigher.seen[2]) == pytest.approx(std, rel=1e-6, abs=1e-6)


def test_a_large_loss_keeps_its_small_spread() -> None:
    weigher = Weigher()
    for _ in range(3):
        for value in (1e6 - 1e-3, 1e6 + 1e-3):
            weigher(loss_of(value)[1])
        weigher.update()
    assert float(weigher.seen[2]) == pytest.approx(1e-3, rel=1e-6)


def test_all_micro_batches_of_a_step_share_one_draw() -> None:
    weigher = Weigher(rule="s", eta=0.5, seed=11)
    for step in range(4):
        weights = [weight_given(weigher, value) for value in (1.0, 2.0)]
        if step:
            tilt = 0.5 * standard_normal(11, step)
            mean, std = weigher.seen[1].item(), weigher.seen[2].item()
            assert weights == pytest.approx([1 + tilt * (value - mean) / std for value in (1.0, 2.0)])
        weigher.update()


@pytest.mark.parametrize("rule", ["ucb", "cb", "s"])
def test_one_backward_per_step_is_what_loss_weighted_does(rule: str) -> None:
    def run(weighs_loss: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if weighs_loss:
            weigh = surefoot.weigh(optimizer, rule, eta=0.3, weighting="paper", seed=2)
        else:
            optimizer = surefoot.LossWeighted(optimizer, rule, eta=0.3, weighting="paper", seed=2)
        for step in range(10):
            optimizer.zero_grad()
            x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step)).double()
            loss = model(x).sub(1).pow(2).mean()
            if weighs_loss:
                weigh(loss).backward()
                optimizer.step()
            else:
                loss.backward()
                optimizer.step(loss=loss)
        return model.weight.detach()

    torch.testing.assert_close(run(weighs_loss=True), run(weighs_loss=False), rtol=1e-10, atol=0)


def test_the_optimizer_s_step_ends_the_step() -> None:
    p = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=0.0)
    weigh = surefoot.weigh(optimizer)
    for count in range(3):
        assert weigh.seen[0] == count
        weigh((p + 1).sum()).backward()
        weigh((p + 2).sum()).backward()
        assert weigh.seen[0] == count
        optimizer.step()
    optimizer.step()  # without a loss: nothing to take in
    assert weigh.seen[0] == 3


def test_losses_before_a_skipped_step_count_as_readings_of_the_next() -> None:
    """Nothing moved in between, so they are readings at the same parameters."""
    p = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.1)
    weigh = surefoot.weigh(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for factor, spoilt in ((1.0, True), (3.0, False)):
        optimizer.zero_grad()
        loss = (p * factor).sum()
        scaler.scale(weigh(loss)).backward()
        if spoilt:
            p.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
    assert weigh.seen[0] == 1
    assert weigh.seen[1] == 2
    assert weigh.seen[2] == 1


def test_the_weight_goes_through_scaling_and_division() -> None:
    weigh = Weigher(rule="ucb", eta=0.5)
    for value in (1.0, 3.0):
        weight_given(weigh, value)
        weigh.update()
    x, loss = loss_of(4.0)
    plain_weight = 1 + 0.5 * (4.0 - weigh.seen[1].item()) / weigh.seen[2].item()
    (weigh(loss) / 4 * 1024).backward()
    assert x.grad.item() == pytest.approx(256 * plain_weight)


def test_second_derivatives_carry_the_weight_too() -> None:
    weigh = Weigher(rule="ucb", eta=0.5)
    for value in (1.0, 3.0):
        weight_given(weigh, value)
        weigh.update()
    x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(weigh(x**3), x, create_graph=True)
    weight = float(weigh.confidence()[0]["weight"])
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == pytest.approx((weight * 12, weight * 12))


def test_a_loss_without_a_graph_passes_through_unseen() -> None:
    weigh = Weigher()
    evaluated = torch.tensor(7.0)
    assert weigh(evaluated) is evaluated
    weigh.update()
    assert weigh.seen[0] == 0


@pytest.mark.parametrize("kind", [Weigher, OnDevice])
def test_a_loss_that_is_not_finite_is_left_out_and_counted(kind: type[Weigher]) -> None:
    weigher, undisturbed = kind(rule="ucb", eta=0.3), kind(rule="ucb", eta=0.3)
    for value in (1.0, 3.0, math.nan, 2.0, math.inf):
        if math.isfinite(value):
            assert weight_given(weigher, value) == weight_given(undisturbed, value)
            undisturbed.update()
        else:
            x = torch.ones((), requires_grad=True)
            (weigher(x * value)).backward()
            assert not x.grad.isfinite()
        weigher.update()
    assert torch.equal(weigher.seen[:4], undisturbed.seen[:4])
    assert weigher.seen[4] == 2
    strict = kind(nonfinite="raise")
    with pytest.raises(FloatingPointError, match="nonfinite='raise'"):
        strict(loss_of(math.nan)[1])


@pytest.mark.parametrize("rule", ["ucb", "cb", "s", "pi", "ei", "cvar"])
@pytest.mark.parametrize("weighting", ["unit", "paper"])
def test_device_path_equals_host_path(rule: str, weighting: Any) -> None:
    eta = {"cvar": 0.5}.get(rule, 0.3)
    on_host, on_device = (kind(rule=rule, eta=eta, weighting=weighting) for kind in (Weigher, OnDevice))
    for step in ((1.0, 2.0), (3.0,), (math.nan, 0.5), (2.0, 2.5)):
        for value in step:
            if math.isfinite(value):
                assert weight_given(on_host, value) == pytest.approx(weight_given(on_device, value), rel=1e-9)
            else:
                on_host(loss_of(value)[1]), on_device(loss_of(value)[1])
        on_host.update()
        on_device.update()
        torch.testing.assert_close(on_host.seen, on_device.seen, rtol=1e-9, atol=1e-12)


def test_nothing_on_a_device_is_read() -> None:
    """A meta tensor has no value to read."""
    p = nn.Parameter(torch.zeros(2, device="meta"))
    optimizer = torch.optim.SGD([p], lr=0.1)
    weigh = surefoot.weigh(optimizer, "s")
    for _ in range(3):
        weigh(p.sum()).backward()
        optimizer.step()
    assert weigh.confidence()[0]["mean"].is_meta


def test_resumed_weights_are_bit_for_bit_the_same() -> None:
    weigher = Weigher(rule="s", eta=0.4, seed=5)
    for value in (1.0, 3.0, 2.0):
        weight_given(weigher, value)
        weigher.update()
    resumed = Weigher(rule="s", eta=0.1, seed=5)
    resumed.load_state_dict(through_a_file(weigher.state_dict()))
    for value in (2.0, 5.0):
        assert weight_given(weigher, value) == weight_given(resumed, value)
        weigher.update()
        resumed.update()
    assert torch.equal(weigher.seen, resumed.seen)
    with pytest.raises(ValueError, match="2 entries"):
        resumed.load_state_dict({"seen": torch.zeros(2), "eta": 0.1})


def test_maximizing_optimizers_see_the_negated_loss() -> None:
    p = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.0, maximize=True)
    weigh = surefoot.weigh(optimizer)
    weigh((p * 2).sum()).backward()
    optimizer.step()
    assert weigh.seen[1] == -2


def test_lbfgs_weighs_inside_its_closure() -> None:
    p = nn.Parameter(torch.tensor([3.0]))
    optimizer = torch.optim.LBFGS([p], lr=0.5)
    weigh = surefoot.weigh(optimizer, "ucb", eta=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (p - 1).pow(2).sum()
        weigh(loss).backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert p.item() == pytest.approx(1, abs=1e-3)
    assert weigh.seen[0] == 3


def test_refusals_name_the_way_out() -> None:
    params = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(TypeError, match=r"make one first: weigh = surefoot\.weigh\(optimizer"):
        surefoot.weigh(torch.tensor(1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AdamUCB weighs its gradients by the loss already"):
        surefoot.weigh(surefoot.AdamUCB(params))
    with pytest.raises(TypeError, match="needs a torch optimizer, or None, but got str"):
        surefoot.weigh("ucb")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'coast'; take one of 'skip', 'raise'"):
        surefoot.weigh(nonfinite="coast")
    with pytest.raises(ValueError, match="Invalid eta value: -1"):
        surefoot.weigh(rule="s", eta=-1)
    weigh = surefoot.weigh()
    with pytest.raises(TypeError, match=r"as a tensor with a graph, but got float: 1\.0"):
        weigh(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask has shape"):
        weigh(torch.zeros(3, requires_grad=True), mask=torch.ones(2))
    with pytest.raises(ValueError, match="weighs examples, but got one loss"):
        surefoot.weigh(rule="tilted")(torch.zeros((), requires_grad=True))
    with pytest.raises(ValueError, match="positive, finite share, but got 0"):
        weigh(torch.zeros((), requires_grad=True), share=0)


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


def test_what_is_no_checkpoint_of_weigh_is_refused() -> None:
    with pytest.raises(ValueError, match="has seen and eta"):
        weigh().load_state_dict({"state": {}})
    with pytest.raises(ValueError, match="eta"):
        weigh(rule="s").load_state_dict({"seen": torch.zeros(8), "eta": -1.0})


def test_weigh_leaves_out_a_loss_that_is_too_large() -> None:
    weigher = weigh(rule="ucb", eta=0.1)
    for value in (1.0, 3.0, 1e30, 2.0):
        loss = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        weigher(loss).backward()
        weigher.update()
        assert isinstance(loss.grad, Tensor)
        assert value < 1e19 or loss.grad == 1
    seen = weigher.confidence()[0]
    assert (seen["skipped"], bool(seen["mean"] < 4)) == (1, True)
