"""The losses of one step: how many, their mean and their spread about it, over micro-batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from surefoot.optim.engines.base import wide
from surefoot.statistics import Number


@dataclass(frozen=True)
class Tally:
    """A weighted set of readings, as floats on the host or as 0-d tensors on a device.

    ``power`` is the weighted sum of squared distances from the mean: nothing large is squared, so nothing cancels.

    >>> tally = Tally().with_reading(1.0, 1.0).with_reading(4.0, 2.0)
    >>> tally.mass, tally.mean, tally.power
    (3.0, 3.0, 6.0)
    """

    mass: Number = 0.0
    mean: Number = 0.0
    power: Number = 0.0
    bad: Number = 0.0

    def with_reading(self, value: Number, share: Number) -> Tally:
        """One more loss; a share of zero changes nothing."""
        mass = self.mass + share
        distance = value - self.mean
        mean = self.mean + distance * (share / (mass + (mass == 0)))
        return replace(self, mass=mass, mean=mean, power=self.power + share * distance * (value - mean))

    def left_out(self, count: Number) -> Tally:
        """Losses that were not finite."""
        return replace(self, bad=self.bad + count)

    def some_mass(self) -> Number:
        """The mass, or 1 when there is none to divide by."""
        return self.mass + (self.mass == 0)


def merged(tally: Tally, group: Any, like: Tensor) -> Tally:
    """The tally of all ranks: the same bits on each of them, since each adds up the same gathered numbers."""
    if group is False or not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) <= 1:
        return tally
    on_host = like.device.type == "cpu"
    home = like.device
    if on_host and "gloo" not in str(dist.get_backend(group)):  # NCCL reduces on its own device only
        home = torch.accelerator.current_accelerator() or home
    numbers = (tally.mass, tally.mean, tally.power, tally.bad)
    own = torch.stack([torch.as_tensor(x, dtype=wide(home), device=home) for x in numbers])
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    mass, mean, power, bad = torch.stack(every).unbind(1)
    total = mass.sum()
    middle = (mass * mean).sum() / (total + (total == 0))
    whole = (total, middle, (power + mass * (mean - middle) ** 2).sum(), bad.sum())
    return Tally(*(x.item() if on_host else x for x in whole))
