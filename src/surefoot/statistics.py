"""What was seen of the loss: its running mean and spread, before the current reading.

The weights are exponential and sum to one, so the mean and the std are those of the paper's bias-corrected
``r`` and ``s``, in a form that does not cancel: a loss of 1e6 that wobbles by 1e-3 keeps its std. Every function
takes plain floats (statistics on the host) or 0-d tensors (statistics on an accelerator) and returns the same kind.
"""

from __future__ import annotations

import math
from array import array
from struct import Struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: A float on the host, or a 0-d tensor on a device.
Number = Any


class Seen(NamedTuple):
    """The statistics of one parameter group, and what they made of the last loss."""

    count: Number = 0.0
    mean: Number = 0.0
    std: Number = 0.0
    best: Number = math.inf
    skipped: Number = 0.0
    z: Number = 0.0
    tilt: Number = 0.0
    weight: Number = 1.0


def blank() -> Tensor:
    """The statistics before the first loss, as they are kept in a parameter group: one float64 vector."""
    return on_host(Seen())


def on_host(seen: Seen) -> Tensor:
    """Statistics as a vector on the host, whatever the default device is."""
    return torch.tensor(seen, dtype=torch.float64, device="cpu")


def inherited(vector: Tensor, turned: bool) -> Tensor:
    """Statistics for a group that comes later; ``turned`` when one of the two maximizes and the other does not."""
    vector = vector.clone()
    if turned:
        mean, best = Seen._fields.index("mean"), Seen._fields.index("best")
        vector[mean].neg_()
        vector[best] = vector[mean]
    return vector


class Ledger:
    """A vector of statistics on the host that Python reads and writes without calling into torch.

    >>> ledger = Ledger(blank())
    >>> ledger.write(Seen(mean=2.0))
    >>> ledger.vector[1].item(), ledger.read().mean
    (2.0, 2.0)
    """

    def __init__(self, vector: Tensor) -> None:
        self.memory = array("d", vector.tolist())
        #: Shares its memory, so checkpoints and whoever looks always find the newest numbers.
        self.vector = torch.frombuffer(self.memory, dtype=torch.float64)
        self.address = self.vector.data_ptr()

    def serves(self, vector: Tensor) -> bool:
        """Whether this is its vector, and still in the place where it was."""
        return vector is self.vector and vector.data_ptr() == self.address

    def read(self) -> Seen:
        """What was seen so far."""
        return tuple.__new__(Seen, self.memory)  # as Seen(*memory), without the detour through its defaults

    def write(self, seen: Seen) -> None:
        """Keep what is seen now."""
        _DOUBLES.pack_into(self.memory, 0, *seen)


_DOUBLES = Struct(f"{len(Seen._fields)}d")


class Cell:
    """A scalar of the host, read and written like a 0-d tensor but without calling into torch, which shares it.

    >>> cell = Cell(torch.tensor(2.0))
    >>> cell.fill_(cell.item() + 1)
    >>> cell.tensor
    tensor(3.)
    """

    __slots__ = ("memory", "tensor")
    CODES = {torch.float32: "f", torch.float64: "d"}

    def __init__(self, tensor: Tensor) -> None:
        self.memory = array(self.CODES[tensor.dtype], [tensor.item()])
        self.tensor = torch.frombuffer(self.memory, dtype=tensor.dtype).view(())

    def item(self) -> float:
        return self.memory[0]

    def fill_(self, value: float) -> None:
        self.memory[0] = value


def observe(seen: Seen, loss: Number, beta: float) -> Seen:
    """Take one more loss into the statistics.

    ``a = (1 - beta) / (1 - beta**t)``, ``mean += a*d`` with ``d = loss - mean``, and
    ``std = sqrt((1 - a) * (std**2 + a*d**2))``, where hypot squares nothing that could overflow or vanish.

    >>> seen = observe(observe(Seen(), 1.0, 0.9), 3.0, 0.9)
    >>> round(seen.mean, 4), round(seen.std, 4)
    (2.0526, 0.9986)
    """
    count = seen.count + 1
    share = (1 - beta) / (1 - beta**count)
    distance = loss - seen.mean
    mean = seen.mean + share * distance
    if isinstance(mean, Tensor):
        keep = (1 - share).clamp(min=0)
        std = keep.sqrt() * torch.hypot(seen.std, share.sqrt() * distance)
        best = torch.minimum(seen.best, mean)
    else:
        # math.sqrt of a Python float: tens of nanoseconds, in a path where a tensor operation costs microseconds.
        std = math.sqrt(max(1 - share, 0.0)) * math.hypot(seen.std, math.sqrt(share) * distance)
        best = min(seen.best, mean)
    return tuple.__new__(Seen, (count, mean, std, best, *seen[4:]))
