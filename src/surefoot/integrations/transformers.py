"""Transformers: a Trainer that hands the loss of every micro-batch to the optimizer.

Take `Trainer` from here instead of from transformers, or put `GathersLoss` before a trainer class of your own.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surefoot._extras import require
from surefoot.averaging.anytime import Anytime
from surefoot.integrations.tracking import Sink, metrics
from surefoot.optim.loss_aware import LossAware
from surefoot.unwrap import loss_aware

_transformers = require("transformers", extra="transformers")
require("accelerate", extra="transformers")
PlainTrainer: Any = _transformers.Trainer
TrainerCallback: Any = _transformers.TrainerCallback


class _FreshStep(TrainerCallback):
    """Forget losses whose step was skipped: the Trainer clears gradients on the model, which no optimizer notices."""

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        inner = loss_aware(optimizer)
        if inner is not None:
            inner.forget_losses()


#: The trained weights in the folder of a checkpoint, whose model file has the averaged ones.
TRAINED_WEIGHTS = "trained_weights.pt"


class UsesAverage:
    """The part of the mixin for `surefoot.Anytime`: evaluation and saved models use the average, training goes on.

    A checkpoint has the averaged model, as ``from_pretrained`` reads it, and the trained weights in a file of their
    own, from which ``resume_from_checkpoint`` goes on.
    """

    optimizer: Any

    def _averaged(self) -> Any:
        inner = loss_aware(self.optimizer)
        return inner.averaged() if isinstance(inner, Anytime) and not inner.is_averaged else nullcontext()

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        with self._averaged():
            return super().evaluation_loop(*args, **kwargs)  # type: ignore[misc]

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        with self._averaged():
            super().save_model(*args, **kwargs)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        if isinstance(loss_aware(self.optimizer), Anytime) and self.args.should_save:  # type: ignore[attr-defined]
            torch.save(self.model.state_dict(), Path(output_dir) / TRAINED_WEIGHTS)  # type: ignore[attr-defined]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        path = Path(resume_from_checkpoint) / TRAINED_WEIGHTS
        if path.is_file():
            model = self.model if model is None else model  # type: ignore[attr-defined]
            model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    def _load_best_model(self) -> None:
        super()._load_best_model()  # type: ignore[misc]
        inner = loss_aware(self.optimizer)
        if isinstance(inner, Anytime):
            inner.model_has_average()


class GathersLoss(UsesAverage):
    """Mixin for any ``transformers.Trainer``: gathers the losses of a step, adds `confidence()` to the training logs.

    The Trainer sums what ``training_step`` returns over the micro-batches of a step (each is already divided by their
    number, or by the number of items in all of them); the optimizer gets the same sum.

    >>> from transformers import Seq2SeqTrainer
    >>> class MyTrainer(GathersLoss, Seq2SeqTrainer): ...
    """

    args: Any
    optimizer: Any
    optimizer_cls_and_kwargs: Any
    current_gradient_accumulation_steps: int = 1
    #: Options of `surefoot.Anytime`, if it was asked for by its class.
    _anytime_options: dict[str, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.optimizer_cls_and_kwargs is not None:
            cls, options = self.optimizer_cls_and_kwargs
            averages = cls is Anytime
            if averages:
                cls, options, self._anytime_options = _split_anytime(options)
            defaults = _options_from_arguments(cls, options, self.args, of_any_class=averages)
            self.optimizer_cls_and_kwargs = (cls, {**defaults, **options})
        self.add_callback(_FreshStep())  # type: ignore[attr-defined]

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(*args, **kwargs)  # type: ignore[misc]
        if is_new and self._anytime_options is not None:
            optimizer = self.optimizer = Anytime(optimizer, **self._anytime_options)
        return optimizer

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        inner = loss_aware(self.optimizer)
        if inner is not None:
            # record_loss takes the mean over micro-batches where the Trainer takes the sum.
            inner.record_loss(loss * self.current_gradient_accumulation_steps)
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:  # of training, not of evaluation
            logs.update(metrics(self.optimizer))
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


def _options_from_arguments(
    cls: Any, given: dict[str, Any], arguments: Any, *, of_any_class: bool = False
) -> dict[str, Any]:
    """What the Trainer would give to AdamW: the learning rate, betas and eps of its arguments, and decoupled decay.

    Args:
        cls: the optimizer class; one that is not Surefoot's gets nothing, as in Transformers.
        given: the options that the user gave.
        arguments: the ``TrainingArguments``.
        of_any_class: whether a class that is not Surefoot's gets them too.
    """
    is_ours = isinstance(cls, type) and issubclass(cls, LossAware)
    if not (is_ours or of_any_class):
        return {}
    accepted = inspect.signature(cls).parameters
    options = {
        "lr": arguments.learning_rate,
        "betas": (arguments.adam_beta1, arguments.adam_beta2),
        "eps": arguments.adam_epsilon,
    }
    if is_ours and accepted["decoupled_weight_decay"].default is None and not given.get("reference"):
        options["decoupled_weight_decay"] = True  # what weight_decay means in these arguments
    return {name: value for name, value in options.items() if name in accepted}


def _split_anytime(given: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The class of the base of a `surefoot.Anytime`, the options of the base, and those of Anytime."""
    base = given.get("base")
    if not (isinstance(base, type) and issubclass(base, torch.optim.Optimizer)):
        shown = getattr(base, "__name__", type(base).__name__)
        raise ValueError(
            "Anytime needs the class of the optimizer that trains: optimizer_cls_and_kwargs=(surefoot.Anytime, "
            f'{{"base": torch.optim.AdamW}}), but "base" is {shown}'
        )
    own = inspect.signature(Anytime).parameters.keys() - {"base"}
    of_base = {name: value for name, value in given.items() if name not in own and name != "base"}
    return base, of_base, {name: value for name, value in given.items() if name in own}


class Trainer(GathersLoss, PlainTrainer):
    """``transformers.Trainer`` for optimizers that need the loss; everything else is as it was.

    Give the optimizer as ``optimizer_cls_and_kwargs=(surefoot.AdamS, {})``. What you leave out comes from the
    ``TrainingArguments``, as it does for AdamW: learning rate, betas, eps, and a weight decay that is decoupled. For an
    average of the weights name the class that trains: ``(surefoot.Anytime, {"base": torch.optim.AdamW})``.
    """


class LogConfidence(TrainerCallback):
    """Write the mean, std, z, tilt, weight and skipped count to a sink of `surefoot.integrations.tracking`.

    Args:
        sink: where to write.
        every_n_steps: how often, in optimizer steps.
    """

    def __init__(self, sink: Sink, every_n_steps: int = 1) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, but is {every_n_steps}")
        self.sink = sink
        self.every_n_steps = every_n_steps

    def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and state.global_step % self.every_n_steps == 0:
            self.sink.log(optimizer, state.global_step)
