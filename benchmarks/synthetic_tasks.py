"""The paper's models on random images of the shapes of MNIST and CIFAR-10, for timing where the data are missing."""

from __future__ import annotations

import torch

from surefoot.lab import Task
from surefoot.lab.spec.builtin import CNN, MLP, CropAndFlip, LogisticRegression, Normalise, mean_and_std


def _images(count: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(count)
    return (
        torch.randint(256, (count, *shape), generator=draw, dtype=torch.uint8),
        torch.randint(10, (count,), generator=draw),
    )


def _grey(name: str, model: type[torch.nn.Module]) -> Task:
    (x, y), (valid_x, valid_y) = _images(60_000, 1, 28, 28), _images(10_000, 1, 28, 28)
    normalise = Normalise(*mean_and_std(x))
    return Task(name, model, train=(normalise(x).flatten(1), y), valid=(normalise(valid_x).flatten(1), valid_y))


def lr() -> Task:
    """Logistic regression on 60000 grey images of 28x28."""
    return _grey("synthetic-lr", LogisticRegression)


def mlp() -> Task:
    """784-1000-1000-10 on the same."""
    return _grey("synthetic-mlp", MLP)


def cnn() -> Task:
    """c64-c64-c128-1000 on 50000 colour images of 32x32, with crops and flips."""
    train, valid = _images(50_000, 3, 32, 32), _images(10_000, 3, 32, 32)
    augment = CropAndFlip(Normalise(*mean_and_std(train[0])))
    return Task("synthetic-cnn", CNN, train=train, valid=valid, prepare=augment)
