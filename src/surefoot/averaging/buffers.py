"""Buffers of a model with averaged weights: statistics of batch norm belong to the weights they were taken with."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from surefoot.averaging.memory import Number
from surefoot.averaging.weights import averaged_now, move, started

ABOUT_BATCH_NORM = (
    "this model has batch norm, whose running statistics are those of the trained weights, not of the averaged ones: "
    "pass the model, Anytime(base, model=model), and they are averaged too, or call opt.update_bn(loader, model) "
    "before you use the average"
)


class BufferAverage:
    """The averages of the floating buffers of a model, with the shares that its weights have.

    Buffers are looked up anew each time: ``model.to(...)`` replaces them.

    >>> norm = nn.BatchNorm1d(2)
    >>> average = BufferAverage(norm)
    >>> norm.running_mean.fill_(4.0)
    tensor([4., 4.])
    >>> average.move(0.5, True)
    >>> average.vector()
    tensor([2., 2., 1., 1.])
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.averages = [started(x) for x in self.tensors()]
        #: They were recomputed for the average as of now, and the next update has not come yet.
        self.are_recomputed = False

    def tensors(self) -> list[Tensor]:
        return [x for x in self.model.buffers() if x.is_floating_point()]

    def move(self, share: Number, sound: bool | Tensor) -> None:
        """Let the buffers as they are now enter their averages."""
        self.are_recomputed = False
        move(self.averages, self.tensors(), share, sound)

    def values(self, share: Number) -> list[tuple[Tensor, Tensor]]:
        """The buffers, and for each the average as of now."""
        share = 0.0 if self.are_recomputed else share
        return [(x, averaged_now(average, x, share)) for x, average in zip(self.tensors(), self.averages, strict=True)]

    def recompute(self, loader: Iterable[object], device: torch.device | str | None) -> None:
        """Recompute the statistics of batch norm on this data, while the model has the averaged weights.

        How many batches were counted stays as it was.
        """
        counted = [(x, x.clone()) for x in self.model.buffers() if not x.is_floating_point()]
        try:
            torch.optim.swa_utils.update_bn(loader, self.model, None if device is None else torch.device(device))
            self.averages, self.are_recomputed = [started(x) for x in self.tensors()], True
        finally:
            for x, value in counted:
                x.copy_(value)

    def vector(self) -> Tensor:
        """All averages as one vector, which a parameter group stores."""
        return torch.cat([x.reshape(-1) for x in self.averages] or [torch.empty(0)])

    def load(self, vector: Tensor) -> None:
        """Take the averages out of such a vector."""
        tensors = self.tensors()
        sizes = [x.numel() for x in tensors]
        if vector.numel() != sum(sizes):
            raise ValueError(
                f"the checkpoint has averages of {vector.numel()} numbers in buffers, this model has {sum(sizes)}: it "
                "is of another model; start without it instead"
            )
        self.averages = [started(x, part.reshape(x.shape)) for x, part in zip(tensors, vector.split(sizes))]


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a model keeps statistics that averaged weights would not fit."""
    return any(isinstance(module, _BatchNorm) and module.running_mean is not None for module in model.modules())


def belong_to_batch_norm(params: Iterable[Tensor]) -> bool:
    """Whether some of these are parameters of batch norm: an optimizer does not know its model.

    So all objects are looked through, which takes as long as a garbage collection does; ask once.

    >>> norm = nn.BatchNorm1d(2)
    >>> belong_to_batch_norm(norm.parameters()), belong_to_batch_norm(nn.Linear(2, 2).parameters())
    (True, False)
    """
    ids = {id(p) for p in params if p.dim() == 1}
    if not ids:
        return False
    return any(
        issubclass(type(x), _BatchNorm) and id(x._parameters.get("weight")) in ids and x.running_mean is not None
        for x in gc.get_objects()
    )
