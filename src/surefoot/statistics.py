"""Statistics of the loss: its running mean and std over the steps so far, and those of the losses of one step.

The running weights are exponential and sum to one, so the mean and the std are those of the paper's bias-corrected
``r`` and ``s``, in a form that does not cancel: a loss of 1e6 that varies by 1e-3 keeps its std. Every function takes
plain floats (statistics on the host) or 0-d tensors (statistics on a device) and returns the same kind.

A parameter group stores the eight numbers of `LossStats` as one vector under the key ``"seen"``; this is the format of
checkpoints.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

#: A float on the host, or a 0-d tensor on a device.
Number = Any


class LossStats(NamedTuple):
    """Statistics of the losses before the current one, and the z, tilt and weight that the last loss was given."""

    count: Number = 0.0
    mean: Number = 0.0
    std: Number = 0.0
    best: Number = math.inf
    skipped: Number = 0.0
    z: Number = 0.0
    tilt: Number = 0.0
    weight: Number = 1.0

    def with_loss(self, loss: Number, beta: Number, given: tuple[Number, ...] = ()) -> LossStats:
        """Add a loss, and the z, tilt and weight that it was given.

        ``share = (1 - beta) / (1 - beta**t)``, ``mean += share * d`` with ``d = loss - mean``, and
        ``std = sqrt((1 - share) * (std**2 + share * d**2))``, by hypot, whose squares cannot overflow or underflow.

        >>> stats = LossStats().with_loss(1.0, 0.9).with_loss(3.0, 0.9)
        >>> round(stats.mean, 4), round(stats.std, 4)
        (2.0526, 0.9986)
        """
        count = self.count + 1
        share = (1 - beta) / (1 - beta**count)
        distance = loss - self.mean
        mean = self.mean + share * distance
        if isinstance(mean, Tensor):
            std: Number = _root((1 - share).clamp(min=0)) * _hypot(self.std, share.sqrt() * distance)
            return LossStats(count, mean, std, torch.minimum(self.best, mean), self.skipped, *(given or self[5:]))
        std = math.sqrt(max(1 - share, 0.0)) * math.hypot(self.std, math.sqrt(share) * distance)
        best = min(self.best, mean)
        # Without the call of the constructor, which shows in the steps of tiny models.
        return tuple.__new__(LossStats, (count, mean, std, best, self.skipped, *(given or self[5:])))

    def with_sample(self, sample: LossSample, beta: float) -> LossStats:
        """Add several losses as one step: their mean moves the mean, and their spread about it enters the std.

        A sample without weight changes nothing.

        >>> stats = LossStats().with_sample(LossSample().with_loss(1.0).with_loss(3.0), 0.9)
        >>> stats.count, stats.mean, stats.std
        (1.0, 2.0, 1.0)
        """
        after = self.with_loss(sample.mean, beta)
        # The losses are a mixture: the earlier ones, and this step's, whose variance has the share that its mean has.
        share = (1 - beta) / (1 - beta**after.count)
        within = share * sample.deviation / (sample.weight + (sample.weight == 0))
        if isinstance(within, Tensor):
            std: Number = torch.hypot(after.std, within.sqrt())
        else:
            std = math.hypot(after.std, math.sqrt(within))
        return choose(sample.weight > 0, after._replace(std=std), self)


def _root(x: Tensor) -> Tensor:
    """The square root, whose derivative at 0 is 0 here: autograd makes it infinite, and the product with 0 NaN."""
    if not x.requires_grad:
        return x.sqrt()
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """The length of (x, y), whose derivative at the origin is 0 here, and NaN by autograd."""
    if not (x.requires_grad or y.requires_grad):
        return torch.hypot(x, y)
    away = (x != 0) | (y != 0)
    return torch.where(away, torch.hypot(x, torch.where(away, y, 1.0)), 0.0)


class LossSample(NamedTuple):
    """Losses of one step, each with a weight: the total weight, the mean, and how many were left out.

    ``deviation`` is the weighted sum of squared distances from the mean. Nothing large is squared, so nothing cancels.

    >>> sample = LossSample().with_loss(1.0, 1.0).with_loss(4.0, 2.0)
    >>> sample.weight, sample.mean, sample.deviation
    (3.0, 3.0, 6.0)
    """

    weight: Number = 0.0
    mean: Number = 0.0
    deviation: Number = 0.0
    left_out: Number = 0.0

    def with_loss(self, loss: Number, share: Number = 1.0) -> LossSample:
        """Add a loss; a share of zero changes nothing."""
        weight = self.weight + share
        distance = loss - self.mean
        mean = self.mean + distance * (share / (weight + (weight == 0)))
        return LossSample(weight, mean, self.deviation + share * distance * (loss - mean), self.left_out)

    def over_ranks(self, group: Any, device: torch.device) -> LossSample:
        """The losses of all ranks: the same bits on each of them, since each adds up the same gathered numbers."""
        if not is_distributed(group):
            return self
        on_host = device.type == "cpu"
        if on_host and "gloo" not in str(dist.get_backend(group)):  # NCCL gathers on its own device only
            device = torch.accelerator.current_accelerator() or device
        own_sample = torch.stack([scalar_on(device, x) for x in self])
        samples = [torch.empty_like(own_sample) for _ in range(dist.get_world_size(group))]
        dist.all_gather(samples, own_sample, group=group)
        weights, means, deviations, left_out = torch.stack(samples).unbind(1)
        total = weights.sum()
        mean = (weights * means).sum() / (total + (total == 0))
        merged = (total, mean, (deviations + weights * (means - mean) ** 2).sum(), left_out.sum())
        return LossSample(*(x.item() if on_host else x for x in merged))


_DISTRIBUTED_IS_BUILT_IN = dist.is_available()


def is_distributed(group: Any) -> bool:
    """Whether losses are to be averaged over ranks: ``group=False`` says no, None means the default group."""
    if group is False or not (_DISTRIBUTED_IS_BUILT_IN and dist.is_initialized()):
        return False
    return dist.get_world_size(group) > 1


def pack(stats: LossStats, device: torch.device) -> Tensor:
    """The statistics as the vector that a parameter group stores.

    >>> pack(LossStats(mean=2.0), torch.device("cpu"))[1].item()
    2.0
    """
    if isinstance(stats.mean, Tensor):
        return torch.stack([scalar_on(device, x) for x in stats])
    return torch.tensor(stats, dtype=widest_float(device), device=device)


def unpack(vector: Tensor, *, on_device: bool = False) -> LossStats:
    """The statistics in a stored vector, as floats or, ``on_device``, as 0-d tensors that later steps leave alone.

    >>> unpack(no_statistics()).best
    inf
    """
    return LossStats(*(vector.clone().unbind() if on_device else vector.tolist()))


def no_statistics() -> Tensor:
    """The stored vector before the first loss: on the host, whatever the default device is."""
    return pack(LossStats(), torch.device("cpu"))


def stats_for_new_group(first: Tensor | None, negated: bool) -> Tensor:
    """A new group's vector: a copy of the first group's, if there is one; ``negated`` if one of the two maximizes."""
    if first is None:
        return no_statistics()
    vector = first.clone()
    if negated:
        count, mean, best = map(LossStats._fields.index, ("count", "mean", "best"))
        vector[mean].neg_()
        vector[best] = torch.where(vector[count] == 0, math.inf, vector[mean])
    return vector


def by_name(vector: Tensor) -> dict[str, Tensor]:
    """The numbers of a stored vector that users look at, as copies that later steps leave alone.

    >>> list(by_name(no_statistics()))
    ['mean', 'std', 'z', 'tilt', 'weight', 'skipped']
    """
    stats = unpack(vector, on_device=True)
    return {name: getattr(stats, name) for name in ("mean", "std", "z", "tilt", "weight", "skipped")}


def choose(condition: bool | Tensor, then: LossStats, otherwise: LossStats) -> LossStats:
    """One of two sets of statistics; which one, only the device may know."""
    if not isinstance(condition, Tensor):
        return then if condition else otherwise
    device = condition.device
    return LossStats(*torch.where(condition, pack(then, device), pack(otherwise, device)).unbind())


def scalar_on(device: torch.device, value: Number) -> Tensor:
    """A number as a 0-d tensor on a device: a float is filled in there, because copying it over would wait."""
    if isinstance(value, Tensor):
        return value.to(device, widest_float(device), non_blocking=True).reshape(())
    return torch.full((), value, dtype=widest_float(device), device=device)


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise float of a device."""
    return torch.float32 if device.type == "mps" else torch.float64
