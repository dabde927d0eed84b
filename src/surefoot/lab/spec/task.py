"""What is trained: a model, data in memory and a loss; by name, from a user's file, or as a value."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.spec import datasets as data
from surefoot.lab.spec import inputs
from surefoot.lab.spec.models import CNN, MLP, LogisticRegression

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


class _Known(NamedTuple):
    """A digest of data, whether that is a named task's, and how often they had been changed then."""

    digest: str
    named: bool
    marks: list[int]


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
        # Settled here and recorded: a report must not guess a direction from a name.
        told = {name: bool(self.higher_is_better.get(name, name == "accuracy")) for name in self.metrics}
        object.__setattr__(self, "higher_is_better", told)
        for part in ("train", "valid"):
            object.__setattr__(self, part, in_memory(getattr(self, part), f"task {self.name!r}: {part}"))

    @property
    def digest(self) -> str:
        """What identifies the data; of a copy with other data, and of data that were changed, it is another."""
        if self.data_digest:
            return self.data_digest
        if self._known is None or self._known.marks != self._marks():
            self._remember(data.digest(*self.train, *self.valid))
        assert self._known is not None
        return self._known.digest

    @property
    def has_named_data(self) -> bool:
        """Whether the data are those that the task's name and settings say, unchanged."""
        return self._known is not None and self._known.named and self._known.marks == self._marks()

    @property
    def _known(self) -> _Known | None:
        return vars(self).get("known")

    def _remember(self, digest: str, *, named: bool = False) -> Task:
        vars(self)["known"] = _Known(digest, named, self._marks())  # the class is frozen for its users
        return self

    def _marks(self) -> list[int]:
        """Numbers that rise when the data are changed in place."""
        return [0 if part.is_inference() else part._version for part in (*self.train, *self.valid)]

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._known is not None:
            vars(self)["known"] = self._known._replace(marks=self._marks())  # they count anew in another process

    def __getstate__(self) -> dict[str, Any]:
        current = self._known is not None and self._known.marks == self._marks()
        return {**vars(self), "known": self._known if current else None}

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
        chosen = inputs.choose_subset(self.train[1], size, seed)
        settings = {**self.settings, "subset": size} | ({} if seed is None else {"subset_seed": seed})
        part = dataclasses.replace(self, train=(self.train[0][chosen], self.train[1][chosen]), settings=settings)
        return part._remember(self.digest, named=True) if self.has_named_data else part


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
    # NumPy's numbers are double unless told otherwise, and weights are not.
    return tensor.float() if tensor.dtype == torch.float64 and not isinstance(part, Tensor) else tensor


@dataclass(frozen=True)
class Recipe:
    """How a named task is made: its data, its model, whether that takes dropout, and how images reach it."""

    data: str
    model: Callable[..., nn.Module]
    about: str
    dropout: bool = True
    flat: bool = True
    augment: bool = False


#: The paper's L2 penalty, for these tasks; other tasks use what each optimizer's class says.
PAPER_WEIGHT_DECAY = 1e-4
#: The paper's models on its data, and small relatives for the 8x8 digits that need no download.
NAMED: Mapping[str, Recipe] = {
    "digits-lr": Recipe("digits", partial(LogisticRegression, 64), "logistic regression, 8x8 digits", dropout=False),
    "digits-mlp": Recipe("digits", partial(MLP, 64, 128), "MLP 64-128-128-10, 8x8 digits"),
    "digits-cnn": Recipe(
        "digits",
        partial(CNN, (1, 8), (16, 16, 32), 128, pool_padding=1),
        "CNN c16-c16-c32-128, 8x8 digits",
        flat=False,
    ),
    "mnist-lr": Recipe("mnist", LogisticRegression, "logistic regression 784-10, MNIST", dropout=False),
    "mnist-mlp": Recipe("mnist", MLP, "MLP 784-1000-1000-10, MNIST"),
    "fashion-mlp": Recipe("fashion-mnist", MLP, "MLP 784-1000-1000-10, Fashion-MNIST"),
    "cifar10-cnn": Recipe(
        "cifar10",
        CNN,
        "CNN c64-c64-c128-1000, CIFAR-10 with random crops and flips",
        flat=False,
        augment=True,
    ),
}


def named_task(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    dropout: bool = False,
    batch_size: int = 128,
) -> Task:
    """Make one of the named tasks.

    Images are normalised by mean and standard deviation of the training pixels: of all pixels for grey
    images, of each channel for CIFAR-10, and of the whole training set also when only a subset is trained on.
    Without augmentation that is done once, here, so that an epoch only indexes tensors.

    Args:
        name: one of `NAMED`.
        data_dir: see `surefoot.lab.spec.datasets.load`.
        dropout: with the paper's dropout of 0.5 (not for logistic regression).
        batch_size: of training.

    >>> named_task("digits-mlp", dropout=True).settings
    {'dropout': True}
    """
    recipe = NAMED[name]
    if not isinstance(dropout, bool):
        raise TaskError(
            f"{name}: dropout is on (True, the paper's 0.5) or off (False), not {dropout!r}; "
            "for another rate write a task of your own"
        )
    if dropout and not recipe.dropout:
        raise TaskError(f"{name} has no hidden layer to drop out of; leave dropout out")
    loaded = data.load(recipe.data, data_dir)
    normalise = inputs.Normalise(*inputs.mean_and_std(loaded.train_x))
    train_x, valid_x = loaded.train_x, loaded.valid_x
    if not recipe.augment:
        train_x, valid_x = normalise(train_x), normalise(valid_x)
    if recipe.flat:
        train_x, valid_x = train_x.flatten(1), valid_x.flatten(1)
    task = Task(
        name,
        partial(recipe.model, dropout=dropout) if recipe.dropout else recipe.model,
        train=(train_x, loaded.train_y),
        valid=(valid_x, loaded.valid_y),
        batch_size=batch_size,
        prepare=inputs.CropAndFlip(normalise) if recipe.augment else None,
        settings={"dropout": dropout} if recipe.dropout else {},
    )
    return task._remember(loaded.digest, named=True)


def is_named(task: Task) -> bool:
    """Whether a task is as `named_task` makes it, so that its name and settings say all that it computes.

    >>> task = named_task("digits-lr")
    >>> is_named(task), is_named(dataclasses.replace(task, loss=F.multi_margin_loss))
    (True, False)
    """
    recipe = NAMED.get(task.name)
    if (
        recipe is None
        or not task.has_named_data
        or task.loss is not F.cross_entropy
        or dict(task.metrics) != {"accuracy": accuracy}
    ):
        return False
    dropout = {"dropout": task.settings.get("dropout")} if recipe.dropout else {}
    expected, model = partial(recipe.model, **dropout), partial(task.model)
    if (model.func, model.args, model.keywords) != (expected.func, expected.args, expected.keywords):
        return False
    if not recipe.augment:
        return task.prepare is None
    return isinstance(task.prepare, inputs.CropAndFlip) and task.prepare.padding == inputs.CropAndFlip.padding


def find_task(spec: str, data_dir: str | os.PathLike[str] | None = None, **overrides: Any) -> Task:
    """Find a task by name, in a Python file, or by import path.

    Args:
        spec: a name (`digits-mlp`), a file (`my_task.py`, or `my_task.py:name` when it has several), or a
            module (`package.module:name`). What is found is a `Task` or a function that returns one, which is
            called with `data_dir` and those overrides that it has arguments for.
        data_dir: where the data sets are; see `surefoot.lab.spec.datasets.load`.
        overrides: `dropout`, `batch_size`, `subset` (train on so many examples) and `subset_seed`; None is as
            if it were not given.

    >>> find_task("digits-lr", batch_size=16, subset=500).train[0].shape
    torch.Size([500, 64])
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    subset, subset_seed = given.pop("subset", None), given.pop("subset_seed", None)
    if subset is None and subset_seed is not None:
        raise TaskError("subset_seed chooses the examples of a subset; give subset too")
    if spec in NAMED:
        unknown = given.keys() - {"dropout", "batch_size"}
        if unknown:
            raise TaskError(
                f"{spec} has no option {', '.join(sorted(unknown))}; it has batch_size, dropout, subset and subset_seed"
            )
        task = named_task(spec, data_dir, **given)
    elif ":" in spec or "." in spec:
        from surefoot.lab.spec.user_tasks import user_task

        task = user_task(spec, data_dir, given)
    else:
        near = difflib.get_close_matches(spec, NAMED, n=3, cutoff=0.5)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise TaskError(
            f"there is no task {spec!r}{hint}; named tasks are {', '.join(NAMED)}; "
            f"your own is a file (my_task.py) or an import path (package.module:name)"
        )
    return task if subset is None else task.subset(subset, subset_seed)
