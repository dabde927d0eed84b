"""Your own task for the lab: the progression of a disease within a year, from ten numbers per patient.

    surefoot compare examples/my_task.py -o adam -o adamucb:eta=0.1 --seeds 6 --epochs 30 --out runs/mine

The data are embedded in scikit-learn. Run as a program, this file makes the same comparison from Python, a short one.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot import lab


def make_model() -> nn.Module:
    """A fresh model; every optimizer starts from the same weights."""
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))


def jitter(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Augmentation of a training batch; without a generator it is one to validate on, and stays as it is."""
    return inputs if generator is None else inputs + 0.1 * torch.randn(inputs.shape, generator=generator)


def within_half(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of patients that are predicted to within half a standard deviation."""
    return ((outputs - targets).abs() < 0.5).float().mean()


def task() -> lab.Task:
    """The command takes what is called `task`, be it a Task or a function that returns one."""
    x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    return lab.Task(
        "diabetes",
        make_model,
        train=(x[:342], y[:342]),
        valid=(x[342:], y[342:]),
        loss=F.mse_loss,
        metrics={"absolute_error": F.l1_loss, "within_half": within_half},
        higher_is_better={"within_half": True},  # for the others less is better
        batch_size=32,
        prepare=jitter,
    )


if __name__ == "__main__":
    results = lab.compare(task(), ["adam", "adamucb:eta=0.1"], seeds=3, epochs=5, out="runs/mine", progress=False)
    results.print()
