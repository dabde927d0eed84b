"""The Transformers Trainer on tiny models with random weights, against bare loops and against its own reports."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, TrainingArguments

import surefoot
from surefoot.integrations.tracking import metrics
from surefoot.integrations.transformers import GathersLoss, LogConfidence, Trainer

BATCH, STEPS = 2, 6
SIZES = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ADAMS = (surefoot.AdamS, {"lr": 0.01, "eta": 0.3})


def causal(dropout=0.0):
    """Divides its loss by the number of items in all micro-batches of a step."""
    torch.manual_seed(0)
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    model = GPT2LMHeadModel(GPT2Config(n_positions=8, n_embd=8, n_layer=2, n_head=2, **SIZES, **rates))
    model.loss_type = "ForCausalLM"  # or the Trainer counts the first token of a row too
    return model


def classifier():
    """Averages over its own batch; the Trainer divides by the number of micro-batches."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = BertForSequenceClassification(BertConfig(max_position_embeddings=8, **SIZES, **sizes, **rates))
    model.accepts_loss_kwargs = False
    return model


def sentences(count=24):
    """Of different lengths, so that a mean over tokens differs from a mean over micro-batches."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for i in range(count):
        ids = torch.randint(3, 16, (8,), generator=generator)
        labels = ids.clone()
        labels[2 + i % 6 :] = -100
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def classified(count=24):
    return [{"input_ids": row["input_ids"], "labels": int(row["input_ids"][0] > 8)} for row in sentences(count)]


def trainer_for(model, data, folder, *, cls=Trainer, callbacks=None, optimizer=ADAMS, given=None, **options):
    arguments = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "per_device_train_batch_size": BATCH,
        "max_steps": STEPS,
        "train_sampling_strategy": "sequential",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    args = TrainingArguments(**{**arguments, **options})
    trainer = cls(
        model, args, train_dataset=data, optimizer_cls_and_kwargs=optimizer, callbacks=callbacks, **given or {}
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def inner(trainer):
    return trainer.optimizer.optimizer


def by_hand(model, data, folder, accumulate, steps=STEPS, items=None, autocast=False):
    """A bare loop; `items` counts what the model divides its loss by, None leaves that to the loop."""
    helper = transformers.Trainer(model, TrainingArguments(str(folder), use_cpu=True, report_to="none"))
    decayed = set(helper.get_decay_parameter_names(model))
    named = list(model.named_parameters())
    groups = [[p for n, p in named if n in decayed], [p for n, p in named if n not in decayed]]
    opt = surefoot.AdamS([{"params": g} for g in groups], **ADAMS[1])
    collate = transformers.default_data_collator
    batches = [collate(data[i : i + BATCH]) for i in range(0, len(data), BATCH)]
    for step in range(steps):
        window = batches[step * accumulate : (step + 1) * accumulate]
        total = 0.0
        for batch in window:
            extra = {} if items is None else {"num_items_in_batch": sum(items(b) for b in window)}
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(**batch, **extra).loss
            loss = loss / (accumulate if items is None else 1)
            loss.backward()
            total = total + loss.detach()
        opt.step(loss=total)
        opt.zero_grad()
    return opt


def shifted(batch):
    return (batch["labels"][:, 1:] != -100).sum()


def assert_same(model, optimizer, other, expected):
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)
    assert metrics(optimizer) == pytest.approx(metrics(expected), rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_sees_the_mean_over_all_its_tokens(tmp_path, accumulate):
    model, other = causal(), causal()
    trainer = trainer_for(model, sentences(), tmp_path, gradient_accumulation_steps=accumulate)
    trainer.train()
    assert_same(model, inner(trainer), other, by_hand(other, sentences(), tmp_path, accumulate, items=shifted))


@pytest.mark.parametrize("precision", [{}, {"bf16": True}])
def test_a_step_sees_the_mean_over_its_micro_batches(tmp_path, precision):
    model, other = classifier(), classifier()
    trainer = trainer_for(model, classified(), tmp_path, gradient_accumulation_steps=2, **precision)
    trainer.train()
    assert_same(model, inner(trainer), other, by_hand(other, classified(), tmp_path, 2, autocast=bool(precision)))


def test_a_short_last_step_of_an_epoch(tmp_path):
    """Five micro-batches in twos: the last step has one, and its loss counts whole."""
    trainer = trainer_for(classifier(), classified(10), tmp_path, gradient_accumulation_steps=2, max_steps=3)
    trainer.train()
    reported = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    expected = surefoot.AdamS([nn.Parameter(torch.zeros(1))], **ADAMS[1])
    for loss in reported:
        expected.step(loss=loss)
    mean = metrics(expected)["surefoot/mean"]
    assert metrics(inner(trainer))["surefoot/group0/mean"] == pytest.approx(mean, rel=1e-3)


def test_overflow_leaves_no_trace(tmp_path):
    """Transformers has no fp16 on a CPU, so a scaler is put in by hand; some steps overflow at this scale."""
    losses, taken = [], []

    class Watched(Trainer):
        def training_step(self, *args, **kwargs):
            losses.append(super().training_step(*args, **kwargs))
            return losses[-1]

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if not trainer.accelerator.optimizer_step_was_skipped:
                taken.append(float(losses[-2] + losses[-1]))

    options = {"cls": Watched, "gradient_accumulation_steps": 2, "callbacks": [Watch()]}
    trainer = trainer_for(classifier(), classified(), tmp_path, **options)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60)
    trainer.train()
    assert 1 <= len(taken) < STEPS
    expected = surefoot.AdamS([nn.Parameter(torch.zeros(1))], **ADAMS[1])
    for loss in taken:
        expected.step(loss=loss)
    seen = inner(trainer).param_groups[0]["seen"]
    assert int(seen[0]) == len(taken)
    assert float(seen[1]) == pytest.approx(metrics(expected)["surefoot/mean"], rel=1e-6)


def test_resume_equals_the_uninterrupted_run(tmp_path):
    options = {
        "gradient_accumulation_steps": 2,
        "train_sampling_strategy": "random",
        "max_steps": STEPS,
        "lr_scheduler_type": "linear",
        "max_grad_norm": 1.0,
        "save_steps": 2,
        "save_strategy": "steps",
    }
    whole = causal(dropout=0.2)
    uninterrupted = trainer_for(whole, sentences(), tmp_path, **options)
    uninterrupted.train()
    checkpoint = tmp_path / "checkpoint-2"
    torch.load(checkpoint / "optimizer.pt", weights_only=True)
    rest = causal(dropout=0.2)
    resumed = trainer_for(rest, sentences(), tmp_path / "again", **options)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == STEPS
    for mine, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert metrics(inner(resumed)) == metrics(inner(uninterrupted))


def test_confidence_is_part_of_the_training_logs(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "events"
    monkey = pytest.MonkeyPatch()
    monkey.setenv("TENSORBOARD_LOGGING_DIR", str(folder))
    trainer = trainer_for(classifier(), classified(), tmp_path, report_to="tensorboard", eval_strategy="no")
    trainer.train()
    trainer.evaluate(classified(4))
    monkey.undo()
    rows = [row for row in trainer.state.log_history if "surefoot/group0/mean" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all("loss" in row for row in rows)
    events = EventAccumulator(str(folder))
    events.Reload()
    written = [event.value for event in events.Scalars("train/surefoot/group0/mean")]
    assert written == pytest.approx([row["surefoot/group0/mean"] for row in rows])


def test_confidence_goes_to_a_sink_once_per_step(tmp_path, tracker):
    log = LogConfidence(tracker.sink, every_n_steps=2)
    options = {"callbacks": [log], "gradient_accumulation_steps": 2}
    trainer = trainer_for(classifier(), classified(), tmp_path, **options)
    trainer.train()
    name = "surefoot/group1/mean"
    expected = {row["step"]: row[name] for row in trainer.state.log_history if name in row}
    assert tracker.read(name) == [(step, pytest.approx(expected[step], rel=1e-6)) for step in (2, 4, 6)]
    with pytest.raises(ValueError, match="every_n_steps must be at least 1, but is 0"):
        LogConfidence(tracker.sink, every_n_steps=0)


def test_the_mixin_serves_other_trainers_and_other_optimizers(tmp_path):
    class Own(GathersLoss, transformers.Seq2SeqTrainer):
        pass

    model = classifier()
    args = transformers.Seq2SeqTrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, max_steps=3, logging_steps=1
    )
    wrapped = surefoot.LossWeighted(torch.optim.SGD(model.parameters(), lr=0.01), rule="ucb", eta=0.1)
    trainer = Own(model, args, train_dataset=classified(), optimizers=(wrapped, None))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    assert int(wrapped.param_groups[0]["seen"][0]) == 3
    assert all("surefoot/mean" in row for row in trainer.state.log_history if "loss" in row)


def test_plain_optimizers_are_left_alone(tmp_path):
    adam = (torch.optim.Adam, {"lr": 0.01})
    model, other = classifier(), classifier()
    trainer_for(model, classified(), tmp_path, optimizer=adam).train()
    trainer_for(other, classified(), tmp_path, optimizer=adam, cls=transformers.Trainer).train()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_plain_trainer_says_where_to_look(tmp_path):
    trainer = trainer_for(classifier(), classified(), tmp_path, cls=transformers.Trainer)
    with pytest.raises(RuntimeError, match=r"AdamS.step\(\) got no loss.*Transformers.*surefoot.integrations"):
        trainer.train()


def test_the_plain_words_of_the_arguments_count_as_they_do_for_adamw(tmp_path):
    options = {"learning_rate": 0.02, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.1}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*weight_decay")
        trainer = trainer_for(causal(), sentences(), tmp_path, optimizer=(surefoot.AdamS, {}), **options)
        trainer.train()
    decayed, rest = inner(trainer).param_groups
    assert (decayed["lr"], decayed["betas"], decayed["eps"]) == (0.02, (0.9, 0.95), 1e-6)
    assert decayed["decoupled_weight_decay"] is rest["decoupled_weight_decay"] is True
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)


def test_with_eta_zero_the_trainer_is_adamw_s(tmp_path):
    """The same arguments, two optimizers: the Trainer's default, and ours without any option of its own."""
    options = {"learning_rate": 0.02, "weight_decay": 0.1, "lr_scheduler_type": "cosine", "max_grad_norm": 1.0}
    options["adam_epsilon"] = 1e-3  # some gradients are zero but for rounding, which Adam would blow up
    models = [causal(), causal()]
    unit = (surefoot.AdamUCB, {"eta": 0.0, "weighting": "unit"})
    for model, optimizer in zip(models, (unit, None)):
        trainer_for(model, sentences(), tmp_path, optimizer=optimizer, **options).train()
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("cls", "given", "expected"),
    [
        (surefoot.AdamS, {"lr": 1.0, "decoupled_weight_decay": False}, {"lr": 1.0, "decoupled_weight_decay": False}),
        (surefoot.AdamWS, {}, {"lr": 5e-5, "decoupled_weight_decay": True}),
        (surefoot.AdamS, {"reference": True}, {"lr": 5e-5, "decoupled_weight_decay": False}),
        (surefoot.MomentumS, {}, {"lr": 5e-5, "decoupled_weight_decay": False}),  # as SGD
    ],
)
def test_what_is_given_wins_over_the_arguments(tmp_path, cls, given, expected):
    optimizer = trainer_for(causal(), sentences(), tmp_path, optimizer=(cls, given)).create_optimizer()
    assert {name: optimizer.param_groups[0][name] for name in expected} == expected


# -- the average of surefoot.Anytime ---------------------------------------------------------------------------------


def averaging(folder, steps=STEPS, **options):
    model = causal()
    optimizer = surefoot.Anytime(torch.optim.AdamW(model.parameters(), lr=0.01), every=2)
    arguments = {"save_strategy": "steps", "save_steps": 4, "max_steps": steps, **options}
    given = {"optimizers": (optimizer, None), "eval_dataset": sentences()}
    trainer = trainer_for(model, sentences(), folder, optimizer=None, given=given, **arguments)
    return trainer, model, optimizer


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_evaluation_and_saved_models_use_the_average(tmp_path):
    trainer, model, optimizer = averaging(tmp_path)
    trainer.train()
    trained, average = snapshot(model), optimizer.averaged_state_dict(model)
    name = "transformer.h.0.attn.c_attn.weight"
    assert not torch.equal(trained[name], average[name])
    reported = trainer.evaluate(sentences())["eval_loss"]
    trainer.save_model(tmp_path / "model")
    assert torch.equal(model.state_dict()[name], trained[name])
    saved = GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(saved.state_dict()[name], average[name])
    with optimizer.averaged():
        again = transformers.Trainer(model, trainer.args).evaluate(sentences())["eval_loss"]
        inside = trainer.evaluate(sentences())["eval_loss"]
    assert reported == pytest.approx(again) == pytest.approx(inside)
    assert reported != pytest.approx(transformers.Trainer(model, trainer.args).evaluate(sentences())["eval_loss"])


def test_resuming_goes_on_with_the_trained_weights(tmp_path):
    straight, model, optimizer = averaging(tmp_path / "straight")
    straight.train()
    short, *_ = averaging(tmp_path / "short", steps=4)
    short.train()
    resumed, other_model, other = averaging(tmp_path / "short")
    resumed.train(resume_from_checkpoint=str(tmp_path / "short" / "checkpoint-4"))
    for param, resumed_param in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(param, resumed_param)
    first, second = optimizer.averaged_state_dict(model), other.averaged_state_dict(other_model)
    assert all(torch.equal(first[name], second[name]) for name in first)
    saved = GPT2LMHeadModel.from_pretrained(tmp_path / "short" / "checkpoint-4")
    trained = torch.load(tmp_path / "short" / "checkpoint-4" / "trained_weights.pt", weights_only=True)
    name = "transformer.h.0.attn.c_attn.weight"
    assert not torch.equal(saved.state_dict()[name], trained[name])


def test_the_base_of_an_average_can_be_named_by_its_class(tmp_path):
    """It trains as the Trainer's own AdamW, with its groups, and its options may be given too."""
    options = {"learning_rate": 0.02, "weight_decay": 0.1, "adam_epsilon": 1e-3}
    models = [causal(), causal()]
    named = (surefoot.Anytime, {"base": torch.optim.AdamW, "every": 2, "fused": True})
    trainers = [
        trainer_for(model, sentences(), tmp_path, optimizer=optimizer, **options)
        for model, optimizer in zip(models, (named, None))
    ]
    for trainer in trainers:
        trainer.train()
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-6)
    anytime = inner(trainers[0])
    assert isinstance(anytime, surefoot.Anytime)
    assert (anytime.every, anytime.base.defaults["fused"]) == (2, True)
    assert [group["weight_decay"] for group in anytime.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize("given", [{}, {"base": "adamw"}, {"base": torch.nn.Linear}])
def test_an_average_without_a_base_is_refused_in_one_sentence(tmp_path, given):
    with pytest.raises(ValueError, match=r'^Anytime needs the class .*\{"base": torch.optim.AdamW\}.{0,60}$'):
        trainer_for(causal(), sentences(), tmp_path, optimizer=(surefoot.Anytime, given))


def test_the_plain_trainer_with_an_average_names_the_class_to_import(tmp_path):
    model = causal()
    optimizer = surefoot.Anytime(torch.optim.AdamW(model.parameters()))
    options = {"optimizer": None, "given": {"optimizers": (optimizer, None)}, "cls": transformers.Trainer}
    with pytest.raises(RuntimeError, match=r"got no loss.*import Trainer from surefoot\.integrations\.transformers"):
        trainer_for(model, sentences(), tmp_path, **options).train()


def test_the_best_model_is_an_average_and_is_not_averaged_again(tmp_path):
    trainer, model, optimizer = averaging(
        tmp_path,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
    )
    trainer.train()
    best = min(row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row)
    assert trainer.evaluate(sentences())["eval_loss"] == pytest.approx(best, rel=1e-5)
    plain = transformers.Trainer(model, trainer.args, eval_dataset=sentences())
    assert plain.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-5)
    best_weights = snapshot(model)
    assert all(torch.equal(value, best_weights[name]) for name, value in optimizer.averaged_state_dict(model).items())
    with optimizer.averaged():
        assert plain.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_weights_of_tokens_through_compute_loss_func(tmp_path, accumulate):
    """The Trainer of Transformers with ``compute_loss_func`` against a bare loop over the same batches."""

    def losses_of(outputs, labels):
        targets = labels[:, 1:]
        logits = outputs.logits[:, :-1].transpose(1, 2)
        return nn.functional.cross_entropy(logits, targets.clamp(min=0), reduction="none"), targets != -100

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return optimizer, surefoot.weigh(optimizer, "tilted", eta=-1.0, warmup=1)

    model, other = causal(), causal()
    optimizer, weigh = make(model)

    def compute_loss(outputs, labels, num_items_in_batch=None):
        losses, mask = losses_of(outputs, labels)
        return weigh(losses, mask=mask) / accumulate

    given = {"compute_loss_func": compute_loss, "optimizers": (optimizer, None)}
    options = {"cls": transformers.Trainer, "optimizer": None, "given": given}
    trainer_for(model, sentences(), tmp_path, gradient_accumulation_steps=accumulate, **options).train()
    optimizer, by_hand = make(other)
    batches = [transformers.default_data_collator(sentences()[i : i + BATCH]) for i in range(0, 24, BATCH)]
    for number, batch in enumerate(batches[: STEPS * accumulate], 1):
        losses, mask = losses_of(other(input_ids=batch["input_ids"]), batch["labels"])
        (by_hand(losses, mask=mask) / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(weigh.seen, by_hand.seen, rtol=1e-6, atol=1e-9)
    assert weigh.seen[0] == STEPS
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)
