"""One model, one optimizer, one seed: trains and validates an epoch at a time.

The order of the batches, the augmentation and the dropout of an epoch depend on (seed, epoch) alone. So they are the
same for every optimizer, and a checkpoint need not store random states. As in the paper's PyTorch code every sample is
used in every epoch: the last batch may be smaller.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import surefoot
from surefoot.averaging.weights import WeightAverage
from surefoot.lab.run.averages import Averages
from surefoot.lab.spec.code import FAULTS, error_text
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.objective import find_weigher, losses_of
from surefoot.lab.spec.schedules import ANYTIME, factor
from surefoot.lab.spec.task import accuracy

if TYPE_CHECKING:
    from surefoot.lab.spec.config import RunConfig
    from surefoot.lab.spec.task import Task

#: A run whose loss exceeds this has diverged: its squares overflow single precision in the next steps anyway.
MAX_LOSS = 1e30
_VALID_BATCH = 1024
_VALID_CACHE_BYTES = 256 * 2**20


class Trainer:
    """Trains a contestant on a task from the weights that its seed draws."""

    def __init__(self, config: RunConfig, task: Task, contestant: Contestant) -> None:
        self.task, self.seed, self.epochs = task, config.seed, config.epochs
        self.device = torch.device(config.device)
        torch.manual_seed(self.seed)
        self.model = task.fresh_model().to(self.device)
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        options = {name: lists_to_tuples(value) for name, value in config.optimizer.options.items()}
        options.update(contestant.kwargs)  # values that JSON cannot hold, such as functions
        self.optimizer = contestant.build(self.params, seed=self.seed, **options)
        self.schedule, self.warmup = contestant.schedule, contestant.warmup
        self._moves_lr = bool(self.schedule or self.warmup)
        self._base_lrs = [group["lr"] for group in self.optimizer.param_groups] if self._moves_lr else []
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        self.averages = Averages([*self.params, *buffers], contestant.average, contestant.riders)
        # What it spans is all that the schedule asks of it, so it averages nothing.
        self._memory = WeightAverage([]) if self.schedule == ANYTIME else None
        self.weigh = find_weigher(contestant.examples, self.optimizer, self.seed) if contestant.examples else None
        self._loss = self._objective(contestant.loss)
        self._step = _stepper(self.optimizer)
        inputs, targets = task.train
        if task.label_noise is not None:
            targets = task.label_noise.apply(targets, stream(self.seed, 0, "label noise"))
        self._inputs, self._targets = inputs.to(self.device), targets.to(self.device)
        self.steps_per_epoch = math.ceil(len(self._inputs) / task.batch_size)
        self._valid = self._valid_batches()

    def _objective(self, loss: str) -> Callable[[Tensor, Tensor], Tensor]:
        """What is minimised: the task's loss unless the contestant has another one or weighs the examples."""
        if self.weigh is None and not loss:
            return self.task.loss
        losses, reduce = losses_of(self.task, loss), self.weigh or torch.mean
        return lambda outputs, targets: reduce(losses(outputs, targets))

    def run_epoch(self, epoch: int) -> dict[str, Any]:
        """Train epoch number `epoch` (from 1) and validate: the row of `metrics.jsonl`."""
        self._mode("train")
        started = time.perf_counter()
        train_loss, steps, gradients = self._train(epoch)
        seconds = time.perf_counter() - started
        diverged = train_loss is None or not all(bool(torch.isfinite(p).all()) for p in self.params)
        row: dict[str, Any] = {
            "epoch": epoch,
            "step": (epoch - 1) * self.steps_per_epoch + steps,
            "train_loss": train_loss,
            "valid_loss": None,
            **{f"valid_{name}": None for name in self.task.metrics},
            "seconds": seconds,
        }
        if not diverged:
            self._mode("eval")
            row.update(self.averages.validate(self._validate) if self.averages else self._validate())
            diverged = row["valid_loss"] is None
            self._mode("train")
        row.update(self._confidence())
        if gradients != steps:  # such as of LBFGS: its steps cost more than those of others
            row["gradients_per_step"] = gradients / steps
        row["diverged"] = diverged
        return row

    def _train(self, epoch: int) -> tuple[float | None, int, int]:
        """Mean of the mini-batch losses as training proceeds, None when one is not finite; steps and gradients."""
        generator = torch.Generator().manual_seed(stream(self.seed, epoch, "batches"))
        order = torch.randperm(len(self._inputs), generator=generator).to(self.device)
        torch.manual_seed(stream(self.seed, epoch, "dropout"))
        inputs, targets, prepare = self._inputs, self._targets, self.task.prepare
        model, loss_of, step, zero_grad = self.model, self._loss, self._step, self.optimizer.zero_grad
        averages, on_cpu = self.averages, self.device.type == "cpu"
        total: Any = 0.0
        done = gradients = 0
        for index in order.split(self.task.batch_size):
            if self._moves_lr:
                self._set_lr((epoch - 1) * self.steps_per_epoch + done)
            batch, target = inputs.index_select(0, index), targets.index_select(0, index)
            if prepare is not None:
                batch = prepare(batch, generator)

            def closure(batch: Tensor = batch, target: Tensor = target) -> Tensor:
                nonlocal gradients
                gradients += 1
                zero_grad()
                loss: Tensor = one_number("loss", loss_of(model(batch), target))
                loss.backward()
                return loss

            loss = step(closure)
            done += 1
            # Reading the value is free on the CPU; an accelerator is not made to wait for it.
            value = loss.item() if on_cpu else loss.detach()
            if averages or self._memory:
                minimised = value if self.weigh is None else self.weigh.weighted
                averages.update(minimised)
                if self._memory:
                    self._memory.update(minimised)
            if on_cpu and not value < MAX_LOSS:
                return None, done, gradients
            total += value * len(index)
        total = float(total) / len(inputs)
        return (total if abs(total) < MAX_LOSS else None), done, gradients

    def _validate(self) -> dict[str, float | None]:
        """Loss and metrics over the validation set: means over batches, weighted by their size."""
        functions = {"loss": self.task.loss, **self.task.metrics}
        sums: dict[str, Any] = dict.fromkeys(functions, 0.0)
        with torch.inference_mode():
            for batch, target in self._valid():
                outputs = self.model(batch)
                for name, function in functions.items():
                    sums[name] = sums[name] + one_number(name, function(outputs, target)) * len(target)
        count = len(self.task.valid[0])
        return {f"valid_{name}": finite(total / count) for name, total in sums.items()}

    def _valid_batches(self) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
        """The validation batches; if they are small enough they are prepared once."""
        inputs, targets = (part.to(self.device) for part in self.task.valid)
        prepare = self.task.prepare

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch, target in zip(inputs.split(_VALID_BATCH), targets.split(_VALID_BATCH)):
                yield (prepare(batch, None) if prepare else batch), target

        if prepare is None or inputs.numel() * 4 > _VALID_CACHE_BYTES:
            return batches
        prepared = list(batches())
        return lambda: iter(prepared)

    def _confidence(self) -> dict[str, float | None]:
        """The statistics of the loss after the epoch, of the optimizer or of the examples; None where none are kept."""
        names = ("mean", "std", "tilt", "weight", *(("strength", "suspected") if self.weigh else ()))
        confidence = getattr(self.weigh or self.optimizer, "confidence", None)
        if confidence is None:
            return {**dict.fromkeys(names), "skipped": 0}
        groups = confidence()
        return {
            **{name: finite(groups[0].get(name)) for name in names},
            "skipped": int(sum(float(group.get("skipped", 0)) for group in groups)),
        }

    def _mode(self, mode: str) -> None:
        """Train or eval mode of the model, and of optimizers that average weights (schedule-free ones)."""
        getattr(self.model, mode)()
        if hasattr(self.optimizer, "train") and hasattr(self.optimizer, "eval"):
            getattr(self.optimizer, mode)()

    def _set_lr(self, step: int) -> None:
        span = float(self._memory.span) if self._memory else 0.0
        now = factor(self.schedule, self.warmup, step, self.epochs * self.steps_per_epoch, span)
        for group, lr in zip(self.optimizer.param_groups, self._base_lrs):
            group["lr"] = lr * now

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of this trainer."""
        averages = {"averages": self.averages.state_dict()} if self.averages else {}
        weigh = {"weigh": self.weigh.state_dict()} if self.weigh else {}
        memory = {"memory": self._memory.state_dict()} if self._memory else {}
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        return {"model": model, "optimizer": optimizer, **averages, **weigh, **memory}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averages.load_state_dict(state.get("averages", {}))
        if self.weigh:
            self.weigh.load_state_dict(state["weigh"])
        if self._memory:
            self._memory.load_state_dict(state["memory"])


def task_fault(task: Task, config: RunConfig) -> str:
    """What of a task fails by itself, at the initial weights and whatever the optimizer; empty if nothing does."""
    what = "its model"
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = task.fresh_model().to(config.device)
            for data, size in ((task.train, task.batch_size), (task.valid, _VALID_BATCH)):
                inputs, targets = (part[:size].to(config.device) for part in data)
                what = "its function prepare"
                batch = task.prepare(inputs, None) if task.prepare else inputs
                what = "its model"
                outputs = model(batch)
                what = "its loss"
                one_number("loss", task.loss(outputs, targets)).backward()
            for name, metric in task.metrics.items():
                what = f"its metric {name!r}" + (", the default one for class labels," if metric is accuracy else "")
                one_number(name, metric(outputs, targets))
    except FAULTS as error:
        return f"the task {task.name!r} fails: {what} raises {error_text(error)}{_place(error)}"
    return ""


def _place(error: BaseException) -> str:
    """The line of the user's code that an error came from; empty if it is all in installed packages."""
    installed = (
        str(Path(str(surefoot.__file__)).parent),
        *(sysconfig.get_path(part) for part in ("stdlib", "purelib", "platlib")),
    )
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(installed)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def stream(seed: int, epoch: int, what: str) -> int:
    """The seed of one random stream of one epoch.

    >>> stream(0, 1, "batches") != stream(0, 2, "batches") != stream(1, 2, "batches")
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{what}".encode()).digest()[:8]) >> 1


def finite(value: Any) -> float | None:
    """A number as JSON can hold it: None when it is missing or not finite.

    >>> finite(torch.tensor(0.5)), finite(float("nan")), finite(None)
    (0.5, None, None)
    """
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def one_number(name: str, value: Any) -> Any:
    """The value of the loss or of a metric, refused if it is not one number."""
    if value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, Real):
        return value
    given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    what = "the loss" if name == "loss" else f"the metric {name!r}"
    raise ValueError(f"{what} must give one number for a batch, its mean, not {given}; end it with .mean()")


@contextmanager
def pinned_arithmetic(threads: int) -> Iterator[None]:
    """Compute with this many threads and without subnormal numbers; restores both and the random state afterwards.

    L2 decay shrinks the weights of dead units without end, and a CPU computes many times slower with numbers below
    1e-38 than with zero: plain Adam on the paper's MLP takes twice the time per epoch after ten epochs. So these
    numbers are set to zero.
    """
    before, flushed = torch.get_num_threads(), flushes_subnormals()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(before)


def flushes_subnormals() -> bool:
    """Whether this thread sets subnormal numbers to zero; torch has no function that says so."""
    return (torch.tensor([1e-38]) * 1e-2).item() == 0


def _stepper(optimizer: torch.optim.Optimizer) -> Callable[[Callable[[], Tensor]], Tensor]:
    """How this optimizer takes a step: with `loss=` if it accepts that, with a closure if it requires one."""
    take: Any = optimizer.step
    parameters = inspect.signature(take).parameters
    takes_loss = "loss" in parameters
    if not takes_loss and "closure" in parameters and parameters["closure"].default is inspect.Parameter.empty:
        return torch.enable_grad()(lambda closure: torch.as_tensor(take(closure)))

    def step(closure: Callable[[], Tensor]) -> Tensor:
        loss = closure()
        if takes_loss:
            take(loss=loss)
        else:
            take()
        return loss

    return step


def lists_to_tuples(value: Any) -> Any:
    """A value with tuples again where JSON has lists."""
    return tuple(lists_to_tuples(item) for item in value) if isinstance(value, list) else value
