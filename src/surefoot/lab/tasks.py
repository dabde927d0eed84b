"""What is trained: a model, data in memory and a loss, by name, from a file or as a value."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]
Prepare = Callable[[Tensor, "torch.Generator | None"], Tensor]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Fraction of rows whose largest output is the target class.

    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor(0.5000)
    """
    return (outputs.argmax(-1) == targets).float().mean()


@dataclass(frozen=True)
class Task:
    """A model, its training and validation data in memory, a loss and the metrics to report."""

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
        if not self.data_digest:
            object.__setattr__(self, "data_digest", digest(*self.train, *self.valid))


def digest(*tensors: Tensor) -> str:
    """SHA-256 of the tensors' types, shapes and bytes.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)) != digest(torch.zeros(3))
    True
    """
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return hasher.hexdigest()
