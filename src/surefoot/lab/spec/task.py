"""What is trained: a model, data in memory and a loss."""

from __future__ import annotations

import dataclasses
import difflib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.spec.datasets import digest
from surefoot.lab.spec.label_noise import LabelNoise

Loss = Callable[[Tensor, Tensor], Tensor]
Prepare = Callable[[Tensor, "torch.Generator | None"], Tensor]


class TaskError(ValueError):
    """A task that does not exist or does not hold together; the message says what to do."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Fraction of rows whose largest output is the target class.

    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor(0.5000)
    """
    return (outputs.argmax(-1) == targets).float().mean()


@dataclass(frozen=True, eq=False)
class Task:
    """A model, its training and validation data in memory, a loss and the metrics to report.

    Args:
        name: what the runs are filed under.
        model: makes a fresh model; called right after the run's seed is set, so that every optimizer starts
            from the same weights.
        train: inputs and targets, as a pair of tensors or arrays or as a torch `Dataset` of such pairs, which is read
            into memory once (random transforms inside it are drawn once; put augmentation into `prepare`); NumPy's
            doubles become float32.
        valid: the same for validation.
        loss: `loss(outputs, targets)`, the mean over the batch.
        metrics: name -> `metric(outputs, targets)`, a mean over the batch too; reported as `valid_<name>`. The loss is
            reported anyway, so none is called `loss`.
        batch_size: of training.
        prepare: `prepare(inputs, generator)`, applied to each batch; it may augment when a generator is given
            (training) and must not when it is None (validation).
        data_digest: identifies the data in the run's key; computed from the tensors when empty.
        settings: what else distinguishes runs of this task, such as `{"dropout": True}`.
        higher_is_better: for each metric whether more is better; for those not named less is, save for `accuracy`.
        label_noise: wrong labels in the training set; `with_label_noise` checks them and adds them to the settings.

    >>> x, y = torch.randn(20, 3), torch.randint(2, (20,))
    >>> task = Task("toy", lambda: nn.Linear(3, 2), train=(x, y), valid=(x, y), batch_size=5)
    >>> task.loss(task.model()(x), y).ndim
    0
    """

    name: str
    model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    loss: Loss = F.cross_entropy
    metrics: Mapping[str, Loss] = field(default_factory=lambda: {"accuracy": accuracy})
    batch_size: int = 128
    prepare: Prepare | None = None
    data_digest: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    higher_is_better: Mapping[str, bool] = field(default_factory=lambda: {"accuracy": True})
    label_noise: LabelNoise | None = None
    #: For a built-in task the digest of its data files, and the checksum of the tensors made of them.
    _built_in: tuple[str, int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise TaskError(f"a task's name must be a text that is not empty, not {self.name!r}; give it one")
        for name in ("model", "loss", *(() if self.prepare is None else ("prepare",))):
            if not callable(getattr(self, name)):
                raise TaskError(
                    f"task {self.name!r}: {name} must be a function, not {type(getattr(self, name)).__name__}"
                )
        if isinstance(self.model, nn.Module):
            raise TaskError(
                f"task {self.name!r}: model must be a function that makes a fresh model, "
                f"not a finished {type(self.model).__name__}; write model=lambda: ..."
            )
        self._check_metrics()
        if not isinstance(self.batch_size, int) or isinstance(self.batch_size, bool) or self.batch_size < 1:
            raise TaskError(f"task {self.name!r}: batch_size must be a whole number from 1 up, not {self.batch_size!r}")
        self._check_directions()
        # Decided here and recorded: a report must not guess a direction from a name.
        directions = {name: bool(self.higher_is_better.get(name, name == "accuracy")) for name in self.metrics}
        object.__setattr__(self, "higher_is_better", directions)
        for part in ("train", "valid"):
            object.__setattr__(self, part, in_memory(getattr(self, part), f"task {self.name!r}: {part}"))

    @property
    def is_built_in(self) -> bool:
        """Whether the task is as a built-in recipe made it, so that its name and settings say all that it computes."""
        return self._built_in is not None and self._built_in[1] == self._checksum()

    @property
    def digest(self) -> str:
        """What identifies the data in the run's key."""
        if self.data_digest:
            return self.data_digest
        if self._built_in is not None and self.is_built_in:
            return self._built_in[0]
        return digest(*self.train, *self.valid)

    def as_built_in(self, files_digest: str) -> Task:
        """Mark a task that a recipe made; `dataclasses.replace` makes a copy without the mark."""
        object.__setattr__(self, "_built_in", (files_digest, self._checksum()))
        return self

    def _checksum(self) -> int:
        """A quick checksum of the data, which tells whether tensors were changed in place."""
        total = 0
        for part in (*self.train, *self.valid):
            total = zlib.crc32(part.contiguous().view(-1).view(torch.uint8).numpy().data, total)
        return total

    def _check_metrics(self) -> None:
        begin = f"task {self.name!r}: "
        for field_name, example in (("metrics", "{'f1': f1}"), ("higher_is_better", "{'f1': True}")):
            given = getattr(self, field_name)
            if not isinstance(given, Mapping):
                raise TaskError(f"{begin}{field_name} must be a dict such as {example}, not {given!r}")
        for name, function in self.metrics.items():
            if not isinstance(name, str) or not name.strip():
                raise TaskError(f"{begin}a metric's name must be a text that is not empty, not {name!r}; rename it")
            if name == "loss":
                raise TaskError(
                    f"{begin}the metric 'loss' would hide the validation loss, which is reported anyway; rename it"
                )
            if not callable(function):
                raise TaskError(
                    f"{begin}the metric {name!r} must be a function of outputs and targets, not {function!r}"
                )

    def _check_directions(self) -> None:
        """Refuse directions of metrics that there are not: a misspelt name would reverse a verdict."""
        for name, higher in self.higher_is_better.items():
            if name in self.metrics or name == "accuracy" or (name == "loss" and not higher):
                continue  # accuracy is there by default
            close = difflib.get_close_matches(str(name), self.metrics, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"its metrics are {', '.join(self.metrics) or 'none'}"
            raise TaskError(f"task {self.name!r}: higher_is_better names {name!r}, which is no metric of it; {hint}")

    def fresh_model(self) -> nn.Module:
        """A new model with weights from torch's random numbers."""
        model = self.model()
        if not isinstance(model, nn.Module):
            raise TaskError(
                f"task {self.name!r}: model must return a torch.nn.Module, not {type(model).__name__}; "
                "let the function end with `return` and the model"
            )
        return model

    def subset(self, size: int, seed: int | None = None) -> Task:
        """The same task on a part of the training set (validation stays whole).

        Args:
            size: how many training examples to keep; every class keeps its share.
            seed: None takes the first ones of each class; a number draws them at random, always the same.
        """
        whole = len(self.train[0])
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= whole:
            raise TaskError(f"subset must be a whole number from 1 to {whole}, not {size!r}")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise TaskError(f"subset_seed must be a whole number, not {seed!r}; leave it out for the first examples")
        chosen = choose_subset(self.train[1], size, seed)
        settings = {**self.settings, "subset": size} | ({} if seed is None else {"subset_seed": seed})
        part = dataclasses.replace(self, train=(self.train[0][chosen], self.train[1][chosen]), settings=settings)
        return part.as_built_in(self.digest) if self.is_built_in else part

    def with_label_noise(self, share: float, kind: str = "symmetric") -> Task:
        """The same task with wrong labels in the training set (validation stays as it is).

        Each run draws them by its seed: all optimizers of a seed are given the same, and other seeds other ones.

        Args:
            share: how many of the labels are wrong, such as 0.2.
            kind: "symmetric" (any other class) or "asymmetric" (the next class).
        """
        try:
            noise = LabelNoise(share, kind)
        except ValueError as error:
            raise TaskError(str(error)) from error
        labels = self.train[1]
        if labels.dim() != 1 or labels.is_floating_point() or len(labels.unique()) < 2:
            raise TaskError(
                f"label noise is for tasks with a class per example; the targets of {self.name!r} have the shape "
                f"{tuple(labels.shape)} and the type {labels.dtype}; leave it out"
            )
        noisy = dataclasses.replace(self, label_noise=noise, settings={**self.settings, **noise.settings()})
        return noisy.as_built_in(self.digest) if self.is_built_in else noisy


def in_memory(examples: Any, where: str = "the data") -> tuple[Tensor, Tensor]:
    """Inputs and targets as two tensors, from a pair of tensors or NumPy arrays or from a torch `Dataset` of pairs.

    Args:
        examples: the pair or the `Dataset`.
        where: how to begin an error's sentence.

    >>> in_memory([(torch.zeros(2), 1), (torch.ones(2), 0)])
    (tensor([[0., 0.],
            [1., 1.]]), tensor([1, 0]))
    """
    if isinstance(examples, torch.utils.data.TensorDataset):
        examples = examples.tensors
    elif _are_arrays(examples):
        examples = [_as_tensor(part, where) for part in examples]
    elif not (isinstance(examples, (tuple, list)) and len(examples) == 2 and isinstance(examples[0], Tensor)):
        try:
            sized = hasattr(examples, "__len__")
            items = [examples[index] for index in range(len(examples))] if sized else list(examples)
            examples = torch.utils.data.default_collate(items)
        except (TypeError, IndexError, KeyError, RuntimeError) as error:
            raise TaskError(
                f"{where} must be a pair of tensors (inputs, targets) or a torch Dataset of such pairs, "
                f"all of one shape; {type(examples).__name__} could not be read into memory ({error})"
            ) from error
    if len(examples) != 2 or not all(isinstance(tensor, Tensor) for tensor in examples):
        raise TaskError(f"{where} must be pairs (inputs, targets) of tensors, not {len(examples)} parts of any kind")
    x, y = examples
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y) or len(x) == 0:
        raise TaskError(
            f"{where} must have as many targets as inputs and at least one, "
            f"not inputs of shape {tuple(x.shape)} and targets of shape {tuple(y.shape)}"
        )
    return x.detach(), y.detach()


def _are_arrays(examples: Any) -> bool:
    """Whether this is a pair of which one is a NumPy array and the other that or a tensor."""
    if not isinstance(examples, (tuple, list)) or len(examples) != 2:
        return False
    arrays = [type(part).__module__ == "numpy" and hasattr(part, "shape") for part in examples]
    return any(arrays) and all(array or isinstance(part, Tensor) for array, part in zip(arrays, examples))


def _as_tensor(part: Any, where: str) -> Tensor:
    try:
        # A copy: what is trained on must not change with the user's array.
        tensor = torch.as_tensor(part).clone()
    except TypeError as error:
        raise TaskError(f"{where} has an array of {part.dtype}, which torch does not hold; convert it first") from error
    # NumPy's numbers are double by default, and weights are not.
    return tensor.float() if tensor.dtype == torch.float64 and not isinstance(part, Tensor) else tensor


def choose_subset(targets: Tensor, size: int, seed: int | None = None) -> Tensor:
    """Indices (ascending) of a part of the training set in which every class keeps its share.

    Targets that are not class labels have no classes to keep: the first examples are taken then, or any of
    them with a seed.

    Args:
        targets: the labels of the whole set.
        size, seed: as in `Task.subset`.

    >>> choose_subset(torch.tensor([0, 0, 0, 0, 1, 1]), 3)
    tensor([0, 1, 4])
    """
    order = torch.arange(len(targets))
    if seed is not None:
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    if targets.dim() != 1 or targets.is_floating_point():
        return order[:size].sort().values
    _, labels, counts = targets[order].unique(return_inverse=True, return_counts=True)
    # Largest remainders: the shares are whole numbers and add up to the size.
    exact = counts.double() * size / len(targets)
    share = exact.floor().long()
    extra = (exact - share).argsort(descending=True, stable=True)[: size - int(share.sum())]
    share[extra] += 1
    chosen = [order[(labels == label).nonzero().squeeze(1)[:take]] for label, take in enumerate(share.tolist())]
    return torch.cat(chosen).sort().values
