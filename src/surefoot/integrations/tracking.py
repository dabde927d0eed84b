"""What an optimizer makes of the loss, written to TensorBoard, Weights & Biases or MLflow.

A sink writes `confidence()` of an optimizer at a step. In a bare loop call `sink.log(optimizer, step)`; in Lightning
and Transformers give the sink to the `LogConfidence` callback of that integration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from surefoot._extras import require
from surefoot.unwrap import loss_aware

PREFIX = "surefoot"


def lazy_metrics(optimizers: Any, prefix: str = PREFIX) -> dict[str, Any]:
    """The same as `metrics`, as 0-d tensors where the statistics live, so that nothing waits for a device."""
    listed = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
    values_by_name: dict[str, Any] = {}
    for i, wrapped in enumerate(listed):
        optimizer = wrapped if hasattr(wrapped, "confidence") else loss_aware(wrapped)  # surefoot.weigh has it too
        groups = [] if optimizer is None else optimizer.confidence()
        for j, values in enumerate(groups):
            where = [prefix] + [f"optimizer{i}"] * (len(listed) > 1) + [f"group{j}"] * (len(groups) > 1)
            values_by_name.update({"/".join([*where, name]): value for name, value in values.items()})
    return values_by_name


def metrics(optimizers: Any, prefix: str = PREFIX) -> dict[str, float]:
    """The mean, std, z, tilt, weight and skipped count of an optimizer, by name, as floats for any tracker.

    Args:
        optimizers: one optimizer or a list of them, wrapped by a framework or not; a plain one has no statistics.
        prefix: what the names begin with; several groups are named ``prefix/group0/mean``, several optimizers
            ``prefix/optimizer0/mean``.

    >>> import surefoot
    >>> optimizer = surefoot.AdamUCB([torch.nn.Parameter(torch.ones(2))])
    >>> optimizer.step(loss=3.0)
    >>> metrics(optimizer)["surefoot/mean"]
    3.0
    """
    tensors = lazy_metrics(optimizers, prefix)
    if not tensors:
        return {}
    home = next((v.device for v in tensors.values() if isinstance(v, torch.Tensor)), torch.device("cpu"))
    # One read for all of them: each would wait for an accelerator on its own.
    values = torch.stack([torch.as_tensor(value, device=home) for value in tensors.values()]).tolist()
    return dict(zip(tensors, values))


class Sink(ABC):
    """Somewhere to write an optimizer's confidence; a subclass of your own needs `write` alone."""

    prefix = PREFIX

    def log(self, optimizers: Any, step: int) -> None:
        """Write what these optimizers made of the loss at this step."""
        values = metrics(optimizers, self.prefix)
        if values:
            self.write(values, step)

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None:
        """Write named numbers."""

    def close(self) -> None:  # noqa: B027 (most sinks own nothing that must be closed)
        """Finish what this sink opened itself; what it was given stays open."""

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TensorBoard(Sink):
    """Scalars in a TensorBoard event file.

    Args:
        target: a folder to write to, or a ``SummaryWriter`` that you have.
    """

    def __init__(self, target: str | Path | Any, prefix: str = PREFIX) -> None:
        self.prefix = prefix
        self._own = isinstance(target, (str, Path))
        if self._own:
            require("tensorboard", extra="tracking")
            from torch.utils.tensorboard import SummaryWriter

            target = SummaryWriter(str(target))
        self.writer: Any = target

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._own:
            self.writer.close()
        else:
            self.writer.flush()


class WandB(Sink):
    """History of a Weights & Biases run.

    Args:
        run: a run; None takes the one that ``wandb.init()`` started.
        with_next: leave the numbers for your own next ``run.log(...)``, which then gives the step. Take this where you
            log without ``step=``, since W&B counts those calls itself.
    """

    def __init__(self, run: Any = None, prefix: str = PREFIX, *, with_next: bool = False) -> None:
        self.prefix = prefix
        self.with_next = with_next
        self.run = require("wandb", extra="tracking").run if run is None else run
        if self.run is None:
            raise RuntimeError("there is no Weights & Biases run to write to; call wandb.init() first, or pass run=...")

    def write(self, values: Mapping[str, float], step: int) -> None:
        if self.with_next:
            self.run.log(dict(values), commit=False)
        else:
            self.run.log(dict(values), step=step)


class MLflow(Sink):
    """Metrics of an MLflow run.

    Args:
        run_id: a run; None takes the one that ``mlflow.start_run()`` started.
    """

    def __init__(self, run_id: str | None = None, prefix: str = PREFIX) -> None:
        self.prefix = prefix
        self._mlflow = require("mlflow", extra="tracking")
        active = self._mlflow.active_run() if run_id is None else None
        if run_id is None and active is None:
            raise RuntimeError("there is no MLflow run to write to; call mlflow.start_run() first, or pass run_id=...")
        self.run_id = run_id if active is None else active.info.run_id

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step, run_id=self.run_id)
