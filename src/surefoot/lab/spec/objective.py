"""What a contestant minimises: the loss of the task or another one in its place, with or without weights of examples.

`examples=RULE:ETA` puts the weights of `surefoot.weigh` on the examples of each batch. `loss=NAME:VALUE` replaces the
cross-entropy of a task in training; validation always has the task's own loss.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.spec.task import Task
from surefoot.weighing import Weigher

#: From outputs and targets to a loss per example.
Losses = Callable[[Tensor, Tensor], Tensor]


def smoothed_cross_entropy(amount: float, labels: Tensor) -> Losses:
    """Cross-entropy with smoothed labels (Szegedy et al., 2016)."""
    return lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none", label_smoothing=amount)


def generalised_cross_entropy(q: float, labels: Tensor) -> Losses:
    """Generalised cross-entropy (Zhang and Sabuncu, 2018), ``(1 - p**q) / q``: for q towards 0 the cross-entropy.

    >>> labels = torch.tensor([1])
    >>> generalised_cross_entropy(1.0, labels)(torch.tensor([[0.0, 0.0]]), labels).item()
    0.5
    """

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return -torch.expm1(-q * F.cross_entropy(outputs, targets, reduction="none")) / q

    return losses


def balanced_cross_entropy(power: float, labels: Tensor) -> Losses:
    """Cross-entropy with a weight per class, ``1 / frequency**power``, whose mean over the training set is 1."""
    _, counts = labels.unique(return_counts=True)
    weights = counts.double() ** -power
    weights = (weights * (len(labels) / (weights * counts).sum())).float()

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none") * weights.to(outputs.device)[targets]

    return losses


#: Losses in place of the cross-entropy, by name: made of their value, for which there is a default, and all labels.
LOSSES: dict[str, tuple[Callable[[float, Tensor], Losses], float]] = {
    "smoothing": (smoothed_cross_entropy, 0.1),
    "gce": (generalised_cross_entropy, 0.7),
    "balanced": (balanced_cross_entropy, 1.0),
}


def find_loss(spec: str) -> Callable[[Tensor], Losses]:
    """What makes the loss that `loss=NAME` or `loss=NAME:VALUE` names, given all labels of the training set."""
    name, colon, text = spec.partition(":")
    make, default = LOSSES.get(name, (None, 0.0))
    try:
        value = float(text) if colon else default
    except ValueError:
        value = -1.0
    if make is None or not 0 < value <= 1:
        raise ValueError(
            f"unknown loss {spec!r}; choose smoothing:AMOUNT, gce:Q or balanced:POWER, with a number above 0 and at "
            "most 1, such as loss=gce:0.7, or leave it out"
        )
    return partial(make, value)


def find_weigher(spec: str, optimizer: torch.optim.Optimizer | None = None, seed: int = 0) -> Weigher:
    """What weighs the examples by `examples=RULE`, `examples=RULE:ETA` or `examples=tilted:auto`.

    >>> find_weigher("tilted:-3").eta, find_weigher("tilted").eta, find_weigher("trimmed:0.4").rule.name
    (-3.0, 'auto', 'trimmed')
    """
    rule, colon, text = spec.partition(":")
    try:
        eta: Any = None if not colon else text if text == "auto" else float(text)
        return Weigher(optimizer, rule, eta, seed=seed)
    except ValueError as error:
        raise ValueError(
            f"cannot read examples={spec!r} ({error}); write it like examples=tilted:-3, tilted:auto or trimmed:0.4"
        ) from error


def losses_of(task: Task, loss: str = "") -> Losses:
    """The losses of single examples: of the task, or those that `loss=` names.

    >>> task = Task("toy", lambda: nn.Linear(1, 2), *[(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))] * 2)
    >>> losses_of(task)(torch.zeros(3, 2), task.train[1]).shape
    torch.Size([3])
    """
    if loss:
        if task.loss is not F.cross_entropy and not isinstance(task.loss, nn.CrossEntropyLoss):
            raise ValueError(f"loss={loss} replaces the cross-entropy, but the task {task.name!r} has another loss")
        return find_loss(loss)(task.train[1])
    if isinstance(task.loss, nn.Module) and hasattr(task.loss, "reduction"):
        single: Any = copy.deepcopy(task.loss)
        single.reduction = "none"
        return single
    if not isinstance(task.loss, nn.Module) and "reduction" in inspect.signature(task.loss).parameters:
        mean: Any = task.loss
        return lambda outputs, targets: mean(outputs, targets, reduction="none")
    raise ValueError(
        f"examples= needs the loss of each example, but the loss of the task {task.name!r} gives their mean alone; "
        "write it as loss(outputs, targets, reduction='mean') that accepts reduction='none', like those of torch"
    )
