"""Lightning: the loss of every micro-batch reaches the optimizer, and what it makes of it reaches the logger.

A plain Trainer needs nothing: Lightning's closure returns the loss. Add `LossGathering()` to the callbacks for gradient
accumulation and for a precision plugin with a GradScaler.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from surefoot._extras import require
from surefoot.averaging.anytime import Anytime
from surefoot.integrations.tracking import PREFIX, Sink, lazy_metrics
from surefoot.unwrap import loss_aware

Callback: Any = require("lightning.pytorch", extra="lightning").Callback


class LossGathering(Callback):
    """Hand the loss of each micro-batch to the optimizer, as ``training_step`` returned it.

    Lightning divides it by ``accumulate_grad_batches`` and a GradScaler multiplies it before backward; both are undone
    here. The step then uses the mean over its micro-batches. In manual optimization this does nothing: there you call
    ``opt.step(loss=loss)``.

    >>> from lightning.pytorch import Trainer
    >>> trainer = Trainer(accumulate_grad_batches=4, callbacks=[LossGathering()], accelerator="cpu", logger=False)
    """

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        if not pl_module.automatic_optimization:
            return
        optimizer = loss_aware(trainer.optimizers[0])
        if optimizer is None:
            return
        whole = loss.detach() * trainer.accumulate_grad_batches
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            # The scale as the scaler itself applies it: get_scale() would wait for the device.
            whole = whole / scaler.scale(torch.ones_like(whole))
        optimizer.record_loss(whole)


class LogConfidence(Callback):
    """Log the mean, std, z, tilt, weight and skipped count of the optimizers.

    Args:
        sink: where to write; None gives them to the Trainer's own loggers, at its ``log_every_n_steps``.
        every_n_steps: how often to write to the sink, in optimizer steps.
        prefix: what the names begin with in the Trainer's loggers, and for callbacks that monitor them.
    """

    def __init__(self, sink: Sink | None = None, every_n_steps: int = 1, prefix: str = PREFIX) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, but is {every_n_steps}")
        self.sink = sink
        self.every_n_steps = every_n_steps
        self.prefix = prefix
        self._written = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._written = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.sink is None:
            pl_module.log_dict(lazy_metrics(trainer.optimizers, self.prefix), on_step=True, on_epoch=False)
            return
        step = trainer.global_step
        # Micro-batches that only accumulate do not move the step; several optimizers move it by more than one.
        if trainer.is_global_zero and step // self.every_n_steps > self._written // self.every_n_steps:
            self._written = step
            self.sink.log(trainer.optimizers, step)


class AnytimeWeights(Callback):
    """Validate, save and hand over the averaged weights of `surefoot.Anytime`; training goes on with its own.

    The average is in the model during validation and from the end of training on. In a checkpoint ``state_dict`` is the
    average, and ``current_model_state`` the trained weights, as Lightning's own ``WeightAveraging`` has it; resuming
    loads the latter. Build the optimizer as ``Anytime(base, model=self)`` if the model has batch norm. With gradient
    accumulation add `LossGathering` too.

    >>> from lightning.pytorch import Trainer
    >>> trainer = Trainer(callbacks=[AnytimeWeights()], accelerator="cpu", logger=False)
    """

    def __init__(self) -> None:
        self._inside: Any = None
        self._trained: dict[str, Any] | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._trained = None

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        optimizer = self._optimizer(trainer)
        if optimizer is not None and trainer.state.fn == "fit":
            self._inside = optimizer.averaged()
            self._inside.__enter__()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._leave()

    def _leave(self) -> None:
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.__exit__(None, None, None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        optimizer = self._optimizer(trainer)
        if optimizer is not None:
            self._trained = copy.deepcopy(pl_module.state_dict())
            optimizer.hand_over()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        optimizer = self._optimizer(trainer)
        if optimizer is None:
            return
        if self._inside is not None:
            raise RuntimeError(
                "a checkpoint was asked for during validation, where the model has the averaged weights; save it after "
                "validation, as ModelCheckpoint does"
            )
        if self._trained is not None:  # after training: the model has the average
            checkpoint["current_model_state"] = self._trained
            return
        checkpoint["current_model_state"] = checkpoint["state_dict"]
        checkpoint["state_dict"] = optimizer.averaged_state_dict(pl_module)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and "current_model_state" in checkpoint:
            pl_module.load_state_dict(checkpoint["current_model_state"])

    def _optimizer(self, trainer: Any) -> Anytime | None:
        optimizers = [loss_aware(optimizer) for optimizer in trainer.optimizers]
        return next((x for x in optimizers if isinstance(x, Anytime)), None)
