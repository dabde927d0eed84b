"""Do the losses of examples fall into two groups, as they do where labels are wrong? Otsu's cut of a running histogram.

The cut is where the variance between the two parts is largest. Its share of the whole variance is 2/pi for a normal
distribution, about 0.67 for the losses of a calibrated classifier, 0.75 for a uniform distribution, and larger where
there are two groups. Clean data may have such a cut late in training, but with few examples above it: both count.

All of it is tensor arithmetic on the device of the losses; nothing is read back.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

#: The histogram is one of z, so that it needs no range of its own and the fall of the mean does not blur it.
BINS, LOWEST, HIGHEST = 160, -4.0, 12.0
WIDTH = (HIGHEST - LOWEST) / BINS
#: How many examples the histogram remembers, and over how many the evidence is averaged.
MEMORY, PATIENCE = 1500, 8000
#: Two groups: none below the first share of the variance, surely from the second on.
SHARE_OF_VARIANCE = (0.73, 0.79)
#: A part above the cut below the first share of the examples is a tail; from the second on it is a group.
SHARE_ABOVE = (0.06, 0.08)
#: Averaged evidence below the first is none; from the second on the tilt is whole. Rare classes look like wrong labels
#: until they are learnt, which reached 0.42 in sixteen runs; wrong labels stay, and reach 0.99.
EVIDENCE = (0.5, 0.9)
#: How far the mean must have fallen before, as the strength that belongs to it (`surefoot.examples.ramp_after`).
LEARNT = 0.4
#: The histogram counts once it is this full.
FULL = 0.8


class Cut(NamedTuple):
    """Otsu's cut: its share of the variance, and the share of the examples above it."""

    variance: Tensor
    above: Tensor


def histogram_of(z: Tensor, valid: Tensor) -> Tensor:
    """How many of the valid z fall into each bin; those outside are counted in the first and the last one.

    >>> counts = histogram_of(torch.tensor([-9.0, 0.0, 0.01, 99.0]), torch.tensor([True, True, True, True]))
    >>> counts[0], counts[40], counts[-1]
    (tensor(1.), tensor(2.), tensor(1.))
    """
    places = ((z.reshape(-1) - LOWEST) / WIDTH).clamp(0, BINS - 1).long()
    counts = torch.zeros(BINS, dtype=z.dtype, device=z.device)
    return counts.scatter_add(0, places, valid.reshape(-1).to(z.dtype))


def otsu(histogram: Tensor) -> Cut:
    """The cut of a histogram with the largest variance between its two parts.

    >>> two_groups = torch.zeros(BINS)
    >>> two_groups[30], two_groups[70] = 3.0, 1.0
    >>> cut = otsu(two_groups)
    >>> round(cut.variance.item(), 3), round(cut.above.item(), 3)
    (1.0, 0.25)
    """
    total = histogram.sum()
    shares = histogram / torch.where(total > 0, total, 1.0)
    places = torch.arange(BINS, dtype=shares.dtype, device=shares.device) - BINS / 2
    moments = shares * places
    mean = moments.sum()
    variance = (moments * places).sum() - mean * mean
    below = shares.cumsum(0)[:-1]
    inside = below * (1 - below)
    between = (mean * below - moments.cumsum(0)[:-1]).square() / inside.clamp(min=1e-9)
    largest, place = between.max(0)
    return Cut(largest / variance.clamp(min=1e-9), 1 - below.gather(0, place.reshape(1)).squeeze(0))


class TwoGroups(NamedTuple):
    """What is known of the groups: the histogram, the averaged evidence, the strength, and the share above."""

    histogram: Tensor
    evidence: Tensor
    strength: Tensor
    above: Tensor

    def with_counts(self, counts: Tensor, learnt: Tensor) -> TwoGroups:
        """Add a step's histogram. The strength, from 0 to 1, never goes down; it is 0 before anything was learnt.

        Args:
            counts: the histogram of the step's z.
            learnt: the strength that belongs to the fall of the mean.
        """
        number = counts.sum()
        histogram = self.histogram * torch.exp(-number / MEMORY) + counts
        cut = otsu(histogram)
        looks = (learnt >= LEARNT) & (histogram.sum() >= FULL * MEMORY)
        now = _from_to(cut.variance, *SHARE_OF_VARIANCE) * _from_to(cut.above, *SHARE_ABOVE) * looks
        evidence = self.evidence + (1 - torch.exp(-number / PATIENCE)) * (now - self.evidence)
        return TwoGroups(histogram, evidence, torch.maximum(self.strength, _from_to(evidence, *EVIDENCE)), cut.above)


def pack_groups(groups: TwoGroups) -> Tensor:
    """The groups as one vector, the form of checkpoints."""
    return torch.cat([torch.stack(groups[1:]), groups.histogram])


def unpack_groups(vector: Tensor) -> TwoGroups:
    """The groups in a vector.

    >>> unpack_groups(no_groups()).strength.item()
    0.0
    """
    return TwoGroups(vector[3:], *vector[:3].unbind())


def no_groups() -> Tensor:
    """The vector before the first loss: on the host, whatever the default device is."""
    return torch.zeros(BINS + 3, dtype=torch.float64, device="cpu")


def is_damaged(vector: object) -> bool:
    """Whether no run can have written this vector."""
    if not isinstance(vector, Tensor) or vector.shape != (BINS + 3,) or not vector.is_floating_point():
        return True
    values = vector.tolist()
    return not all(0 <= value < math.inf for value in values) or max(values[:3]) > 1.01


def _from_to(value: Tensor, low: float, high: float) -> Tensor:
    return ((value - low) / (high - low)).clamp(0, 1)
