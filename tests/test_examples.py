"""weigh(losses): a weight per example."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor, nn

import surefoot
from saved import through_a_file
from surefoot.weighing import Weigher

STEPS = [[3.0, 3.5, 2.5, 3.0], [2.0, 0.5, 1.0, 4.0], [0.1, 0.2, 0.3, 5.0], [0.1, 0.1, 0.2, 6.0]]


def weights_given(weigher: Weigher, values: list[float], mask: Tensor | None = None) -> Tensor:
    losses = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    returned = weigher(losses * 1, mask=mask)
    returned.backward()
    assert losses.grad is not None
    counted = len(values) if mask is None else int(mask.sum())
    return losses.grad * counted


@pytest.mark.parametrize("rule", ["plain", "ucb", "cb", "s", "pi", "ei", "cvar", "tilted", "trimmed"])
def test_every_rule_weighs_examples_with_mean_one_and_returns_the_plain_mean(rule: str) -> None:
    weigher = Weigher(rule=rule, warmup=1)
    for values in STEPS:
        losses = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        assert weigher(losses).item() == pytest.approx(sum(values) / 4)
        weights = weights_given(weigher, values)
        weigher.update()
        assert weights.mean().item() == pytest.approx(1)
        assert bool((weights >= 0).all())


def test_tilted_is_the_exponential_of_z_from_the_losses_before() -> None:
    weigher = Weigher(rule="tilted", eta=-2.0, warmup=1)
    assert weights_given(weigher, STEPS[0]).tolist() == pytest.approx([1] * 4)
    weigher.update()
    before = torch.tensor(STEPS[0], dtype=torch.float64)
    values = torch.tensor(STEPS[1], dtype=torch.float64)
    expected = torch.softmax(-2.0 * (values - before.mean()) / before.std(correction=0), 0) * 4
    torch.testing.assert_close(weights_given(weigher, STEPS[1]), expected)
    assert weigher.weighted is not None
    assert weigher.weighted.item() == pytest.approx((expected * values).mean().item())


def test_cvar_keeps_the_worst_and_trimmed_leaves_them_out() -> None:
    for rule, eta, expected in (("cvar", 0.75, [0, 0, 0, 4]), ("trimmed", 0.25, [4 / 3, 4 / 3, 4 / 3, 0])):
        weigher = Weigher(rule=rule, eta=eta, warmup=1)
        weights_given(weigher, STEPS[0])
        weigher.update()
        assert weights_given(weigher, [1.0, 2.0, 3.0, 9.0]).tolist() == pytest.approx(expected)


def test_the_strength_follows_the_fall_of_the_mean_and_never_goes_down() -> None:
    weigher = Weigher(rule="tilted", eta=-3.0)
    strengths = []
    for values in [STEPS[0], *STEPS, [9.0, 9.5, 0.0, 30.0]]:
        weights_given(weigher, values * 1000)
        weigher.update()
        strengths.append(weigher.ramp.strength)
    assert strengths[:2] == [0, 0]
    assert strengths == sorted(strengths)
    assert strengths[-1] > 0.5


def test_masked_and_unsound_losses_count_nowhere() -> None:
    weigher, other = (Weigher(rule="tilted", eta=-3.0, warmup=1) for _ in range(2))
    for values in STEPS:
        mask = torch.tensor([True] * 4 + [False, True])
        losses = torch.tensor([*values, 99.0, math.nan], dtype=torch.float64, requires_grad=True)
        weigher(losses, mask=mask).backward()
        expected = weights_given(other, values) / 4
        torch.testing.assert_close(losses.grad, torch.cat([expected, torch.zeros(2, dtype=torch.float64)]))
        weigher.update()
        other.update()
    torch.testing.assert_close(weigher.seen[:4], other.seen[:4], rtol=1e-12, atol=0)
    assert weigher.seen[4] == len(STEPS)


def test_micro_batches_have_the_statistics_of_the_whole_batch() -> None:
    whole, parts = Weigher(rule="tilted", eta=-3.0), Weigher(rule="tilted", eta=-3.0)
    for values in STEPS:
        weights_given(whole, values)
        for part in (values[:1], values[1:]):
            weights_given(parts, part)
        whole.update()
        parts.update()
    torch.testing.assert_close(whole.seen[:4], parts.seen[:4])
    assert whole.ramp == pytest.approx(parts.ramp)


def test_nothing_on_a_device_is_read_and_a_resumed_weigher_goes_on() -> None:
    p = nn.Parameter(torch.zeros(2, 3, device="meta"))
    optimizer = torch.optim.SGD([p], lr=0.1)
    weigh = surefoot.weigh(optimizer, "tilted", eta=-3.0)
    for _ in range(3):
        weigh(p * 2, mask=torch.ones(2, 3, device="meta")).backward()
        optimizer.step()
    assert weigh.ramp.strength.is_meta
    first, second = Weigher(rule="tilted", eta=-3.0), Weigher(rule="tilted", eta=-3.0)
    for values in STEPS[:3]:
        weights_given(first, values)
        first.update()
    second.load_state_dict(through_a_file(first.state_dict()))
    assert torch.equal(second.state_dict()["ramp"], first.state_dict()["ramp"])
    assert torch.equal(weights_given(first, STEPS[3]), weights_given(second, STEPS[3]))


def test_a_last_batch_of_one_example_is_weighed_as_an_example() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    weigh = surefoot.weigh(None, "ucb", eta=0.5)
    weigh(losses).backward()
    weigh.update()
    single = torch.tensor([3.0], requires_grad=True)
    weigh(single).backward()
    assert single.grad is not None
    assert single.grad.tolist() == [1.0]  # the mean weight of a batch is 1


@pytest.mark.parametrize("rule", ["tilted", "trimmed"])
def test_a_weigher_of_examples_can_be_pickled(rule: str) -> None:
    assert pickle.loads(pickle.dumps(surefoot.weigh(None, rule))).rule == surefoot.weigh(None, rule).rule


@pytest.mark.parametrize(
    "ramp", ["x", torch.zeros(2), torch.tensor([0.0, math.nan, 0.0]), torch.tensor([0.0, 0.0, 2.0])]
)
def test_a_damaged_ramp_is_refused_and_changes_nothing(ramp: object) -> None:
    weigh = surefoot.weigh(None, "tilted", eta=-3.0)
    state = {**weigh.state_dict(), "eta": -1.0, "ramp": ramp}
    with pytest.raises(ValueError, match="'ramp' in this checkpoint"):
        weigh.load_state_dict(state)
    assert weigh.eta == -3.0


def test_the_history_is_the_mean_weight_while_weights_differ() -> None:
    weigher = Weigher(rule="tilted", eta=-1.0, warmup=1)
    sums = torch.zeros(4, dtype=torch.float64)
    for step, values in enumerate(STEPS):
        losses = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        weigher(losses, ids=torch.tensor([3, 1, 0, 2])).backward()
        weigher.update()
        assert losses.grad is not None
        if step:  # all weights of the first step are 1
            sums[[3, 1, 0, 2]] += losses.grad * 4
    assert weigher.suspects(2) == sums.argsort().tolist()[:2]
    torch.testing.assert_close(weigher.state_dict()["history"][:, 0], sums)


def test_ids_need_a_meaning_and_room() -> None:
    losses = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="ids has shape"):
        Weigher(rule="tilted")(losses, ids=torch.arange(2))
    with pytest.raises(ValueError, match=r"whole numbers from 0, but got torch\.float32"):
        Weigher(rule="tilted")(losses, ids=torch.ones(3))
    on_meta = torch.ones(3, device="meta", requires_grad=True)
    with pytest.raises(ValueError, match=r"pass weigh\(\.\.\., examples=N\)"):
        Weigher(rule="tilted")(on_meta, ids=torch.arange(3, device="meta"))
    small, large = Weigher(rule="tilted", examples=2), Weigher(rule="tilted")
    large(losses, ids=torch.arange(3)).backward()
    with pytest.raises(ValueError, match="has 3 examples, but examples=2"):
        small.load_state_dict(large.state_dict())
    with pytest.raises(ValueError, match="'history' in this checkpoint"):
        large.load_state_dict({**large.state_dict(), "history": torch.zeros(3)})


def test_negative_weights_only_on_request() -> None:
    for signed in (False, True):
        weigher = Weigher(rule="ucb", eta=-1.0, warmup=1, signed=signed)
        weights_given(weigher, STEPS[1])
        weigher.update()
        weights = weights_given(weigher, [0.5, 0.6, 0.7, 9.0])
        assert bool((weights < 0).any()) is signed
        assert weights.mean().item() == pytest.approx(1)


def test_the_paper_s_scale_means_nothing_for_examples() -> None:
    with pytest.raises(ValueError, match="weighting='paper' means nothing for them"):
        Weigher(rule="ucb", weighting="paper")(torch.ones(3, requires_grad=True))


def test_a_spread_below_the_resolution_of_the_losses_is_none() -> None:
    weigher = Weigher(rule="tilted", eta=-3.0, warmup=1)
    values = [1e6, 1e6 + 1e-3, 1e6 - 1e-3, 1e6]
    weights_given(weigher, values)
    weigher.update()
    assert weights_given(weigher, values).tolist() == pytest.approx([1] * 4)


def test_confidence_has_what_examples_have_and_no_weight_of_a_batch() -> None:
    weigher = Weigher(rule="tilted", eta=-1.0, warmup=1)
    for _ in range(2):
        weights = weights_given(weigher, [float(i) for i in range(20)])
        weigher.update()
    seen = weigher.confidence()[0]
    assert list(seen) == ["mean", "std", "skipped", "strength", "lowest_tenth", "highest_tenth"]
    assert seen["lowest_tenth"].item() == pytest.approx(weights[:2].sum().item() / 20)
    assert seen["highest_tenth"].item() == pytest.approx(weights[-2:].sum().item() / 20)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_mixed_precision_and_a_scaler_give_the_same_weights(dtype: torch.dtype) -> None:
    p = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([p], lr=0.0)
    weigh, scaler = surefoot.weigh(optimizer, "tilted", eta=-1.0, warmup=1), torch.amp.GradScaler("cpu", 8.0)
    exact = Weigher(rule="tilted", eta=-1.0, warmup=1)
    for values in ([1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 2.0, 8.0]):
        optimizer.zero_grad()
        loss = weigh((p * torch.tensor(values)).to(dtype))
        assert loss.dtype == dtype
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        expected = weights_given(exact, values) / 4 * torch.tensor(values, dtype=torch.float64)
        assert p.grad is not None
        torch.testing.assert_close(p.grad.double(), expected, rtol=2e-2, atol=1e-3)
        scaler.step(optimizer)
        scaler.update()
        exact.update()


@pytest.mark.parametrize("eta", [-3.0, "auto"])
def test_a_compiled_loss_has_no_graph_break_and_the_same_weights(eta: float | str) -> None:
    torch._dynamo.reset()
    compiled, eager = Weigher(rule="tilted", eta=eta, warmup=1), Weigher(rule="tilted", eta=eta, warmup=1)

    def loss_of(weigher: Weigher, losses: Tensor) -> Tensor:
        loss = weigher(losses * 1)
        weigher.update()
        return loss

    step = torch.compile(lambda losses: loss_of(compiled, losses), backend="aot_eager", fullgraph=True)
    for values in STEPS:
        pair = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        step(pair[0]).backward()
        loss_of(eager, pair[1]).backward()
        torch.testing.assert_close(pair[0].grad, pair[1].grad)
    torch.testing.assert_close(compiled.seen, eager.seen)
