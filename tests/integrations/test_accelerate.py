"""Accelerate's own wrappers against bare loops that hand over the loss by hand: equal to the last bit."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot
from surefoot.integrations.accelerate import averaged, backward
from surefoot.integrations.tracking import metrics

BATCHES, BATCH = 10, 4
INPUTS = torch.randn(BATCHES * BATCH, 3, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True).sin()
LOSS = nn.functional.mse_loss


@pytest.fixture(autouse=True)
def fresh_accelerate():
    """Accelerate keeps one state per process; every test starts its own."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def setup(optimizer=surefoot.AdamS):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=BATCH)
    return net, optimizer(net.parameters(), lr=0.01, eta=0.3), loader


def train(accelerator, net, opt, loader, epochs=1, clip=None):
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = LOSS(net(x), y)
                backward(accelerator, loss, opt)
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), clip)
                opt.step()
                opt.zero_grad()
    return net, opt


def by_hand(accumulate=1, dtype=None, epochs=1, clip=None):
    net, opt, loader = setup()
    for _ in range(epochs):
        losses = []
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                out = net(x)
            loss = LOSS(out.float(), y)
            (loss / accumulate).backward()
            losses.append(loss.detach())
            if len(losses) == accumulate or i == BATCHES - 1:
                if clip:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                opt.step(loss=torch.stack(losses).mean())
                opt.zero_grad()
                losses = []
    return net, opt


def assert_same(done, expected):
    for mine, theirs in zip(done[0].parameters(), expected[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert metrics(done[1]) == metrics(expected[1])


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accumulation_and_mixed_precision(accumulate, precision):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision)
    done = train(accelerator, *accelerator.prepare(*setup()), epochs=2, clip=0.1)
    dtype = torch.bfloat16 if precision == "bf16" else None
    assert_same(done, by_hand(accumulate, dtype, epochs=2, clip=0.1))


def test_overflow_leaves_no_trace():
    """Accelerate has no fp16 on a CPU, so its scaler is put in by hand; the first steps overflow at this scale."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-40)
    net, opt, loader = accelerator.prepare(*setup())
    fine, skipped, pair = [], 0, []
    for x, y in loader:
        with accelerator.accumulate(net):
            loss = LOSS(100 * net(x), y)
            backward(accelerator, loss, opt)
            pair.append(loss.item())
            opt.step()
            opt.zero_grad()
        if accelerator.sync_gradients:
            skipped += opt.step_was_skipped
            fine += [] if opt.step_was_skipped else [sum(pair) / 2]
            pair = []
    assert skipped >= 1
    assert len(fine) >= 2
    expected = surefoot.AdamS([nn.Parameter(torch.zeros(1))], eta=0.3)
    for loss in fine:
        expected.step(loss=loss)
    assert metrics(opt) == pytest.approx(metrics(expected), rel=1e-6)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_resume_equals_the_uninterrupted_run(tmp_path, precision):
    def start():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
        return accelerator, *accelerator.prepare(*setup())

    uninterrupted = train(*start(), epochs=3)
    accelerator, *prepared = start()
    train(accelerator, *prepared, epochs=1)
    accelerator.save_state(tmp_path / "state")
    torch.load(tmp_path / "state" / "optimizer.bin", weights_only=True)
    accelerator, net, opt, loader = start()
    for p in net.parameters():
        nn.init.zeros_(p)
    accelerator.load_state(tmp_path / "state")
    assert_same(train(accelerator, net, opt, loader, epochs=2), uninterrupted)


def test_micro_batches_may_have_their_own_weight():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net, opt, _ = accelerator.prepare(*setup())
    losses = []
    for size in (1, 3):
        with accelerator.accumulate(net):
            loss = LOSS(net(INPUTS[:size]), TARGETS[:size])
            backward(accelerator, loss, opt, weight=size)
            losses.append(loss.item())
            opt.step()
            opt.zero_grad()
    assert metrics(opt)["surefoot/mean"] == pytest.approx((losses[0] + 3 * losses[1]) / 4)


def test_keywords_reach_the_accelerator():
    accelerator = Accelerator(cpu=True)
    net, opt, _ = accelerator.prepare(*setup())
    loss = LOSS(net(INPUTS), TARGETS)
    backward(accelerator, loss, opt, retain_graph=True)
    loss.backward()  # would fail on a released graph


def test_plain_optimizers_are_left_alone():
    def adam(params, lr, eta):
        return torch.optim.Adam(params, lr=lr)

    accelerator = Accelerator(cpu=True)
    net, _ = train(accelerator, *accelerator.prepare(*setup(adam)))
    other, opt, loader = setup(adam)
    for x, y in loader:
        LOSS(other(x), y).backward()
        opt.step()
        opt.zero_grad()
    for mine, theirs in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_forgotten_loss_is_named():
    accelerator = Accelerator(cpu=True)
    net, opt, _ = accelerator.prepare(*setup())
    accelerator.backward(LOSS(net(INPUTS), TARGETS))
    with pytest.raises(RuntimeError, match=r"AdamS.step\(\) got no loss.*backward from surefoot\.integrations\.acc"):
        opt.step()


def test_the_accelerators_own_trackers_take_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("run")
    _, opt = train(accelerator, *accelerator.prepare(*setup()))
    accelerator.log(metrics(opt), step=BATCHES)
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    (mean,) = events.Scalars("surefoot/mean")
    assert mean.step == BATCHES
    assert mean.value == pytest.approx(metrics(opt)["surefoot/mean"])


def test_a_prepared_optimizer_is_taken_for_what_it_is():
    accelerator = Accelerator(cpu=True)
    net, opt, _ = setup()
    prepared = accelerator.prepare(opt)
    schedule = surefoot.EtaSchedule(prepared, lambda step: 0.5**step)
    schedule.step()
    assert opt.param_groups[0]["eta"] == 0.15
    plain = accelerator.prepare(torch.optim.SGD(net.parameters(), lr=0.1))
    weigh = surefoot.weigh(plain, "ucb", eta=0.1)
    for x in INPUTS[:3]:
        weigh(net(x).pow(2).mean()).backward()
        plain.step()
    assert weigh.confidence()[0]["mean"] > 0  # it noticed the steps
    with pytest.raises(TypeError, match=r"AcceleratedOptimizer is a wrapper around SGD; give that to LossWeighted"):
        surefoot.LossWeighted(plain)
    with pytest.raises(TypeError, match="AdamS weighs its gradients by the loss already"):
        surefoot.weigh(prepared)


def with_average(params, lr, eta):
    return surefoot.Anytime(torch.optim.AdamW(params, lr=lr), every=3)


def test_an_average_is_that_of_a_bare_loop_and_survives_a_resume(tmp_path):
    def start():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        return accelerator, *accelerator.prepare(*setup(with_average))

    def weights(net, opt):
        with averaged(opt):
            return [p.detach().clone() for p in net.parameters()]

    bare, anytime, loader = setup(with_average)
    for _ in range(3):
        for i, (x, y) in enumerate(loader):
            loss = LOSS(bare(x), y)
            (loss / 2).backward()
            anytime.record_loss(loss)
            if i % 2:
                anytime.step()
                anytime.zero_grad()
    accelerator, *prepared = start()
    train(accelerator, *prepared, epochs=1)
    accelerator.save_state(tmp_path / "state")
    accelerator, net, opt, loader = start()
    for p in net.parameters():
        nn.init.zeros_(p)
    accelerator.load_state(tmp_path / "state")
    train(accelerator, net, opt, loader, epochs=2)
    for weight, bare_weight in zip(weights(net, opt), weights(bare, anytime), strict=True):
        assert torch.equal(weight, bare_weight)
    assert not torch.equal(next(net.parameters()), weights(net, opt)[0])
    with pytest.raises(TypeError, match=r"averaged needs a surefoot.Anytime, prepared or not, but got Adam"):
        averaged(torch.optim.Adam(net.parameters()))


def test_weights_of_examples_are_those_of_a_bare_loop():
    """``weigh`` takes the prepared optimizer, whose step Accelerate skips between micro-batches."""

    def plain(parameters, **_):
        return torch.optim.Adam(parameters, lr=0.01)

    def run(accelerator):
        net, optimizer, loader = setup(plain)
        if accelerator is not None:
            net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        weigh = surefoot.weigh(optimizer, "tilted", eta=-1.0, warmup=1)
        for number, (x, y) in enumerate(loader, 1):
            losses = LOSS(net(x), y, reduction="none").squeeze(1)
            if accelerator is None:
                (weigh(losses) / 2).backward()
                if number % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            else:
                with accelerator.accumulate(net):
                    accelerator.backward(weigh(losses))
                    optimizer.step()
                    optimizer.zero_grad()
        return weigh, list(net.parameters())

    (prepared, weights), (bare, expected) = run(Accelerator(cpu=True, gradient_accumulation_steps=2)), run(None)
    assert torch.equal(prepared.seen, bare.seen)
    assert bare.seen[0] == BATCHES / 2
    assert all(torch.equal(p, q) for p, q in zip(weights, expected))
