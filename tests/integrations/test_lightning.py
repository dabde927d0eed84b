"""Lightning's own Trainer against bare loops that hand over the loss by hand: equal to the last bit."""

from __future__ import annotations

import itertools
import logging
import re
import warnings
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot
from surefoot.integrations.lightning import AnytimeWeights, LogConfidence, LossGathering

pytestmark = pytest.mark.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BATCHES, BATCH = 10, 4
INPUTS = torch.randn(BATCHES * BATCH, 3, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True).sin()


def batches() -> DataLoader:
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=BATCH)


class Module(pl.LightningModule):
    def __init__(self, optimizer=surefoot.AdamS, skip=()):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        self.build = optimizer
        self.skip = skip

    def loss(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x).float(), y)

    def training_step(self, batch, batch_idx):
        return None if batch_idx in self.skip else self.loss(batch)

    def configure_optimizers(self):
        return self.build(self.parameters(), lr=0.01, eta=0.3)


class Manual(Module):
    def __init__(self, pass_loss=True):
        super().__init__()
        self.automatic_optimization = False
        self.pass_loss = pass_loss

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        if self.pass_loss:
            opt.step(loss=loss)
        else:
            self.manual_backward(0 * self.loss(batch) + 7)  # not every backward is one of a loss that counts
            opt.record_loss(loss)
            opt.step()


def fit(module, *callbacks, ckpt_path=None, max_epochs=1, loader=batches, **kwargs):
    options = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(
        max_epochs=max_epochs, accelerator="cpu", devices=1, callbacks=list(callbacks), **{**options, **kwargs}
    )
    trainer.fit(module, loader(), ckpt_path=ckpt_path, weights_only=True)
    return trainer


def wrapped_sgd(params, lr, eta):
    return surefoot.LossWeighted(torch.optim.SGD(params, lr=lr, momentum=0.9), rule="s", eta=eta)


def by_hand(accumulate=1, clip=None, dtype=None, epochs=1, optimizer=surefoot.AdamS):
    """The same training as a bare loop; a short last group is divided by `accumulate` too, as Lightning does."""
    module = Module(optimizer)
    opt = module.configure_optimizers()
    for _ in range(epochs):
        losses = []
        for i, batch in enumerate(batches()):
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False):
                loss = module.loss(batch)
            (loss / accumulate).backward()
            losses.append(loss.detach())
            if len(losses) == accumulate or i == BATCHES - 1:
                if clip:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                opt.step(loss=torch.stack(losses).mean())
                opt.zero_grad()
                losses = []
    return module, opt


def assert_same(module, trainer, expected):
    other, opt = expected
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert metrics(trainer) == [float(v) for group in opt.confidence() for v in group.values()]


def metrics(trainer):
    return [float(v) for group in trainer.optimizers[0].confidence() for v in group.values()]


def seen(trainer):
    return trainer.optimizers[0].param_groups[0]["seen"]


def test_plain_steps_need_no_callback():
    module = Module()
    assert_same(module, fit(module), by_hand())


@pytest.mark.parametrize("optimizer", [surefoot.AdamS, wrapped_sgd])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_all_micro_batches_are_gathered(accumulate, optimizer):
    module = Module(optimizer)
    trainer = fit(module, LossGathering(), accumulate_grad_batches=accumulate)
    assert trainer.global_step == -(-BATCHES // accumulate)
    assert_same(module, trainer, by_hand(accumulate, optimizer=optimizer))


def test_without_the_callback_only_a_share_of_the_last_micro_batch_is_seen():
    with_callback, without = Module(), Module()
    whole = seen(fit(with_callback, LossGathering(), accumulate_grad_batches=4))
    share = seen(fit(without, accumulate_grad_batches=4))
    assert float(share[1]) < 0.5 * float(whole[1])


PARTIAL = r"\w+: the closure of step\(closure\) added its gradients .*record_loss.*LossGathering\(\) does it"
TAKERS = {
    "AdamS": surefoot.AdamS,
    "LossWeighted": wrapped_sgd,
    "Anytime": lambda params, **_: surefoot.Anytime(torch.optim.SGD(params, lr=0.05)),
    "Anytime of AdamS": lambda params, **_: surefoot.Anytime(surefoot.AdamS(params)),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("optimizer", TAKERS)
def test_accumulation_without_the_callback_is_noticed_once(optimizer):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Module(TAKERS[optimizer]), accumulate_grad_batches=4)
    said = [str(warning.message) for warning in caught if re.match(PARTIAL, str(warning.message))]
    assert [words.split(":")[0] for words in said] == [optimizer.split()[0]]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("clear_in_place", [False, True])
@pytest.mark.parametrize(("callbacks", "accumulate"), [((), 1), ((LossGathering(),), 1), ((LossGathering(),), 4)])
@pytest.mark.parametrize("optimizer", TAKERS)
def test_nothing_is_noticed_where_the_loss_is_that_of_the_step(callbacks, accumulate, clear_in_place, optimizer):
    class Clearing(Module):
        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            optimizer.zero_grad(set_to_none=not clear_in_place)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Clearing(TAKERS[optimizer]), *callbacks, accumulate_grad_batches=accumulate)
    assert not [warning for warning in caught if re.match(PARTIAL, str(warning.message))]


def test_the_accumulation_may_change_between_epochs():
    schedule = pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 2})
    module = Module()
    trainer = fit(module, schedule, LossGathering(), max_epochs=2)
    assert trainer.global_step == BATCHES + BATCHES // 2
    other, opt = by_hand()
    losses = []
    for batch in batches():
        losses.append(other.loss(batch))
        (losses[-1] / 2).backward()
        if len(losses) == 2:
            opt.step(loss=sum(losses) / 2)
            opt.zero_grad()
            losses = []
    assert_same(module, trainer, (other, opt))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_bf16_and_clipping(accumulate):
    module = Module()
    options = {"precision": "bf16-mixed", "gradient_clip_val": 0.1, "accumulate_grad_batches": accumulate}
    trainer = fit(module, LossGathering(), **options)
    assert_same(module, trainer, by_hand(accumulate, clip=0.1, dtype=torch.bfloat16))


def test_parameters_in_bf16():
    trainer = fit(Module(), LossGathering(), precision="bf16-true", accumulate_grad_batches=2)
    assert int(seen(trainer)[0]) == BATCHES // 2
    assert 0 < float(seen(trainer)[1]) < 2


@pytest.mark.parametrize("pass_loss", [True, False])
def test_manual_optimization(pass_loss):
    module = Manual(pass_loss)
    # The callback stays out of it: it cannot know which loss belongs to which step.
    assert_same(module, fit(module, LossGathering()), by_hand())


def test_manual_optimization_without_the_loss_says_what_to_do():
    class Forgetful(Manual):
        def training_step(self, batch, batch_idx):
            self.manual_backward(self.loss(batch))
            self.optimizers().step()

    with pytest.raises(RuntimeError, match=r"AdamS.step\(\) got no loss: pass it as step\(loss=loss\)"):
        fit(Forgetful())


def scaled(init_scale=2.0**10, **options):
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, **options)
    return MixedPrecision("16-mixed", device="cpu", scaler=scaler)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scaler_hands_over_the_unscaled_loss(accumulate):
    module = Module()
    trainer = fit(module, LossGathering(), plugins=[scaled()], accumulate_grad_batches=accumulate)
    assert_same(module, trainer, by_hand(accumulate, dtype=torch.float16))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_overflow_leaves_no_trace(accumulate):
    """The first steps overflow at this scale; what follows equals training on the rest of the batches alone."""
    plugin = scaled(2.0**26, backoff_factor=2.0**-8)
    module, losses = Module(), []

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            losses.append((float(outputs["loss"]) * accumulate, int(seen(trainer)[0])))

    trainer = fit(module, LossGathering(), Watch(), plugins=[plugin], accumulate_grad_batches=accumulate)
    skipped_batches = sum(count == 0 for _, count in losses)
    skipped = skipped_batches // accumulate
    assert 1 <= skipped < BATCHES // accumulate
    assert int(seen(trainer)[0]) == BATCHES // accumulate - skipped
    opt = surefoot.AdamS([nn.Parameter(torch.zeros(1))], eta=0.3)
    rest = [loss for loss, _ in losses[skipped * accumulate :]]
    for i in range(0, len(rest), accumulate):
        opt.step(loss=sum(rest[i : i + accumulate]) / accumulate)
    assert metrics(trainer) == pytest.approx([float(v) for v in opt.confidence()[0].values()], rel=1e-6)


def test_manual_optimization_with_a_scaler():
    module = Manual()
    assert_same(module, fit(module, plugins=[scaled()]), by_hand(dtype=torch.float16))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_left_out_by_training_step(accumulate):
    """`training_step` returns None: nothing is learnt from that batch, and nothing breaks."""
    module = Module(skip=(0, 3))
    trainer = fit(module, LossGathering(), accumulate_grad_batches=accumulate)
    expected = BATCHES - 2 if accumulate == 1 else BATCHES // 2
    assert int(seen(trainer)[0]) == expected


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "scaler"])
def test_resume_equals_the_uninterrupted_run(tmp_path, precision):
    def options():
        precision_options = {"plugins": [scaled(2.0**18)]} if precision == "scaler" else {"precision": precision}
        return dict(**precision_options, accumulate_grad_batches=2, default_root_dir=tmp_path)

    whole = Module()
    uninterrupted = fit(whole, LossGathering(), max_epochs=3, **options())
    half = Module()
    fit(half, LossGathering(), max_epochs=1, **options()).save_checkpoint(tmp_path / "half.ckpt")
    rest = Module()
    for p in rest.parameters():
        nn.init.zeros_(p)
    resumed = fit(rest, LossGathering(), max_epochs=3, ckpt_path=tmp_path / "half.ckpt", **options())
    assert metrics(resumed) == metrics(uninterrupted)
    for mine, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class Resumable:
    """Batches in order, from where a checkpoint left off."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        self.at %= BATCHES
        for i in range(self.at, BATCHES):
            self.at = i + 1
            yield INPUTS[i * BATCH : (i + 1) * BATCH], TARGETS[i * BATCH : (i + 1) * BATCH]

    def __len__(self):
        return BATCHES

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_resume_within_an_epoch(tmp_path):
    options = {"max_epochs": 2, "accumulate_grad_batches": 2, "loader": Resumable}
    whole = Module()
    uninterrupted = fit(whole, LossGathering(), **options)
    keep = pl.callbacks.ModelCheckpoint(tmp_path, filename="mid", every_n_train_steps=3, save_top_k=-1)
    fit(Module(), LossGathering(), keep, max_steps=4, enable_checkpointing=True, **options)
    rest = Module()
    resumed = fit(rest, LossGathering(), ckpt_path=tmp_path / "mid.ckpt", **options)
    assert resumed.global_step == uninterrupted.global_step == BATCHES
    assert metrics(resumed) == metrics(uninterrupted)
    for mine, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_plain_optimizers_are_left_alone():
    def adam(params, lr, eta):
        return torch.optim.Adam(params, lr=lr)

    module, other = Module(adam), Module(adam)
    fit(module, LossGathering(), LogConfidence(), accumulate_grad_batches=2)
    fit(other, accumulate_grad_batches=2)
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_confidence_goes_to_the_trainers_logger(tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    module = Module()
    trainer = fit(module, LossGathering(), LogConfidence(), logger=logger, log_every_n_steps=1)
    rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    assert len(rows) == BATCHES + 1
    last = dict(zip(rows[0].split(","), rows[-1].split(",")))
    for name, value in trainer.optimizers[0].confidence()[0].items():
        assert float(last[f"surefoot/{name}"]) == pytest.approx(float(value))
        assert float(trainer.callback_metrics[f"surefoot/{name}"]) == pytest.approx(float(value))


def test_confidence_goes_to_a_sink_once_per_step(tracker):
    means = []

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step > len(means):
                means.append(pytest.approx(float(seen(trainer)[1]), rel=1e-6))

    log = LogConfidence(tracker.sink, every_n_steps=2)
    trainer = fit(Module(), LossGathering(), Watch(), log, accumulate_grad_batches=2)
    assert trainer.global_step == len(means) == 5
    assert tracker.read("surefoot/mean") == [(2, means[1]), (4, means[3])]


def test_every_n_steps_is_checked():
    with pytest.raises(ValueError, match="every_n_steps must be at least 1, but is 0"):
        LogConfidence(every_n_steps=0)


def test_fabric_hands_over_the_loss_by_record_loss():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lightning.fabric import Fabric
    fabric = Fabric(accelerator="cpu", devices=1)
    module = Module()
    net, opt = fabric.setup(module.net, module.configure_optimizers())
    for x, y in batches():
        loss = nn.functional.mse_loss(net(x), y)
        fabric.backward(loss)
        opt.record_loss(loss)
        opt.step()
        opt.zero_grad()
    other, expected = by_hand()
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert float(opt.confidence()[0]["mean"]) == float(expected.confidence()[0]["mean"])


@pytest.mark.parametrize(
    ("every_n_steps", "moves"), [(10, [1] + [2] * 59), (3, [1, 1, 0, 0, 2, 3, 1]), (1, [2, 2, 0, 1])]
)
def test_several_optimizers_move_the_step_past_multiples(every_n_steps, moves):
    steps = []
    sink = SimpleNamespace(log=lambda optimizers, step: steps.append(step))
    trainer = SimpleNamespace(global_step=0, is_global_zero=True, optimizers=[])
    log = LogConfidence(sink, every_n_steps=every_n_steps)
    log.on_train_start(trainer, None)
    for move in moves:
        trainer.global_step += move
        log.on_train_batch_end(trainer, None, None, None, 0)
    ends = list(itertools.accumulate(moves))
    passed = [now for before, now in itertools.pairwise([0, *ends]) if now // every_n_steps > before // every_n_steps]
    assert steps == passed != []


# -- the average of surefoot.Anytime ---------------------------------------------------------------------------------


class Averaging(Module):
    """Notes the weights that validation sees."""

    def __init__(self, batch_norm=False):
        super().__init__()
        self.validated = []
        if batch_norm:
            self.net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))

    def configure_optimizers(self):
        return surefoot.Anytime(torch.optim.AdamW(self.parameters(), lr=0.01), every=3, model=self)

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.net[0].weight.detach().clone())
        self.log("valid", self.loss(batch))


def fit_average(module, *callbacks, epochs=2, ckpt_path=None, **options):
    options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, **options}
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, callbacks=[AnytimeWeights(), *callbacks], **options
    )
    trainer.fit(module, batches(), batches(), ckpt_path=ckpt_path, weights_only=True)
    return trainer


def by_hand_average(epochs=2):
    module = Averaging()
    optimizer, validated = module.configure_optimizers(), []
    for _ in range(epochs):
        for batch in batches():
            optimizer.zero_grad()
            loss = module.loss(batch)
            loss.backward()
            optimizer.step(loss=loss)
        with optimizer.averaged():
            validated.append(module.net[0].weight.detach().clone())
    return module, optimizer, validated


def test_validation_and_the_end_of_training_have_the_average(tmp_path):
    module = Averaging()
    trainer = fit_average(module, enable_checkpointing=False, num_sanity_val_steps=0)
    bare, optimizer, validated = by_hand_average()
    assert torch.equal(module.validated[0], validated[0])
    assert torch.equal(module.validated[-1], validated[1])
    averaged = optimizer.averaged_state_dict(bare)
    assert all(torch.equal(value, averaged[name]) for name, value in module.state_dict().items())
    [its_own] = trainer.optimizers
    assert its_own.is_averaged
    assert all(torch.equal(value, averaged[name]) for name, value in its_own.averaged_state_dict(module).items())
    with its_own.averaged():
        assert all(torch.equal(value, averaged[name]) for name, value in module.state_dict().items())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    saved = torch.load(tmp_path / "end.ckpt", weights_only=True)
    assert all(torch.equal(value, averaged[name]) for name, value in saved["state_dict"].items())
    trained = bare.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in saved["current_model_state"].items())


@pytest.mark.parametrize("batch_norm", [False, True])
def test_checkpoints_have_the_average_and_resuming_goes_on_with_the_trained_weights(tmp_path, batch_norm):
    straight = Averaging(batch_norm)
    fit_average(straight, enable_checkpointing=False, num_sanity_val_steps=0, epochs=3)
    checkpoints = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    torch.manual_seed(0)
    fit_average(Averaging(batch_norm), checkpoints, num_sanity_val_steps=0, epochs=1)
    path = tmp_path / "epoch=0.ckpt"
    saved = torch.load(path, weights_only=True)
    name = "net.0.weight"
    assert torch.equal(saved["state_dict"][name], straight.validated[0])
    assert not torch.equal(saved["current_model_state"][name], saved["state_dict"][name])
    resumed = Averaging(batch_norm)
    trainer = fit_average(resumed, checkpoints, num_sanity_val_steps=0, epochs=3, ckpt_path=path)
    assert torch.equal(resumed.validated[-1], straight.validated[-1])
    state = straight.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in resumed.state_dict().items())
    before = len(resumed.validated)
    trainer.validate(resumed, batches(), ckpt_path=path, verbose=False, weights_only=True)
    assert torch.equal(resumed.validated[before], saved["state_dict"][name])  # as it was saved, not the last average


def test_an_exception_in_validation_brings_the_trained_weights_back():
    class Failing(Averaging):
        def validation_step(self, batch, batch_idx):
            raise KeyError("out of luck")

    module = Failing()
    with pytest.raises(KeyError, match="out of luck"):
        fit_average(module, enable_checkpointing=False, num_sanity_val_steps=0)
    bare, *_ = by_hand_average(epochs=1)
    assert torch.equal(module.net[0].weight, bare.net[0].weight)


def test_accumulation_records_every_micro_batch():
    module = Averaging()
    trainer = fit_average(
        module, LossGathering(), enable_checkpointing=False, num_sanity_val_steps=0, accumulate_grad_batches=2, epochs=1
    )
    assert trainer.optimizers[0].state_dict()["param_groups"][0]["average_numbers"][0] == BATCHES / 2


def test_weights_of_examples_in_a_training_step_are_those_of_a_bare_loop():
    """``weigh`` needs nothing of Lightning: it follows the optimizer's step, also with micro-batches."""

    class Weighed(Module):
        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            self.weigh = surefoot.weigh(optimizer, "tilted", eta=-1.0, warmup=1)
            return optimizer

        def training_step(self, batch, batch_idx):
            x, y = batch
            return self.weigh(nn.functional.mse_loss(self.net(x), y, reduction="none").squeeze(1))

    module = Weighed()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    pl.Trainer(max_epochs=2, accumulate_grad_batches=2, enable_model_summary=False, **quiet).fit(module, batches())
    bare = Module()
    optimizer = torch.optim.Adam(bare.parameters(), lr=0.01)
    weigh = surefoot.weigh(optimizer, "tilted", eta=-1.0, warmup=1)
    for _ in range(2):
        for number, (x, y) in enumerate(batches(), 1):
            losses = nn.functional.mse_loss(bare.net(x), y, reduction="none").squeeze(1)
            (weigh(losses) / 2).backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert torch.equal(module.weigh.seen, weigh.seen)
    assert weigh.seen[0] == BATCHES
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), bare.parameters()))
    assert weigh.confidence()[0]["highest_tenth"] < 0.2
