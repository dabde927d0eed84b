"""Tasks for the study of examples: Fashion-MNIST, 8 000 images, and a small MLP; balanced, or with rare classes.

    surefoot compare benchmarks/small_fashion.py --label-noise 0.4 -o adam -o adam:examples=tilted:-3
    surefoot compare benchmarks/small_fashion.py:imbalanced -o adam -o adam:examples=cvar:0.5 -o adam:loss=balanced

The model has two hidden layers of 128 units, so that a run of 20 epochs takes three seconds of one core.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from surefoot.lab import Task
from surefoot.lab.spec.builtin import MLP
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import accuracy

IMAGES, HIDDEN, CLASSES = 8_000, 128, 10


def task(data_dir: str | None = None) -> Task:
    """As many images of each class."""
    whole = find_task("fashion-mlp", data_dir, subset=IMAGES)
    return Task("fashion-small", partial(MLP, hidden=HIDDEN), whole.train, whole.valid)


def imbalanced(data_dir: str | None = None, ratio: int = 100, largest: int = 3000) -> Task:
    """Each class has fewer images than the one before it: the last one has 1/ratio of those of the first."""
    whole = find_task("fashion-mlp", data_dir)
    images, labels = whole.train
    sizes = [round(largest * ratio ** (-label / (CLASSES - 1))) for label in range(CLASSES)]
    kept = torch.cat([(labels == label).nonzero().flatten()[:size] for label, size in enumerate(sizes)])
    metrics = {"accuracy": accuracy} | {f"class_{label}": partial(recall, label) for label in range(CLASSES)}
    return Task(
        "fashion-rare",
        partial(MLP, hidden=HIDDEN),
        (images[kept], labels[kept]),
        whole.valid,
        metrics=metrics,
        higher_is_better=dict.fromkeys(metrics, True),
    )


def recall(label: int, outputs: Tensor, targets: Tensor) -> Tensor:
    """The accuracy on one class as a mean over all images: each class has a tenth of the test images."""
    return CLASSES * ((outputs.argmax(-1) == label) & (targets == label)).float().mean()
