"""Do the losses of examples fall into two groups, as they do where labels are wrong? Otsu's cut of a running histogram.

The cut is where the variance between the two parts is largest. Its share of the whole variance is 2/pi for a normal
distribution, about 0.67 for the losses of a calibrated classifier, 0.75 for a uniform distribution, and larger where
there are two groups. Clean data may have such a cut late in training, but with few examples above it: both count.

On a device all of it is tensor arithmetic, and nothing is read back; on the host the few single numbers are floats.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.statistics import Number, scalar_on, widest_float

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


def histogram_of(z: Tensor, counted: Tensor | None = None) -> Tensor:
    """How many of the z that count fall into each bin; those outside are counted in the first and the last one.

    >>> counts = histogram_of(torch.tensor([-9.0, 0.0, 0.01, 99.0]))
    >>> counts[0], counts[40], counts[-1]
    (tensor(1.), tensor(2.), tensor(1.))
    """
    places = (z.reshape(-1) - LOWEST).div_(WIDTH).clamp_(0, BINS - 1).long()
    each = torch.ones_like(places, dtype=z.dtype) if counted is None else counted.reshape(-1).to(z.dtype)
    return z.new_zeros(BINS).scatter_add_(0, places, each)


def otsu(histogram: Tensor) -> Cut:
    """The cut of a histogram with the largest variance between its two parts.

    >>> two_groups = torch.zeros(BINS)
    >>> two_groups[30], two_groups[70] = 3.0, 1.0
    >>> cut = otsu(two_groups)
    >>> round(cut.variance.item(), 3), round(cut.above.item(), 3)
    (1.0, 0.25)
    """
    powers = _powers(histogram.device, histogram.dtype)
    sums = (powers * (histogram / histogram.sum().clamp(min=1e-9))).cumsum(1)
    _, mean, squares = sums[:, -1].unbind()
    below, moments = sums[0, :-1], sums[1, :-1]
    between = (mean * below - moments).square_() / (below - below * below).clamp_(min=1e-9)
    largest, place = between.max(0)
    return Cut(largest / (squares - mean * mean).clamp(min=1e-9), 1 - below.gather(0, place.reshape(1)).squeeze(0))


@cache
def _powers(device: torch.device, dtype: torch.dtype) -> Tensor:
    """The powers 0, 1 and 2 of the places of the bins, counted from the middle."""
    places = torch.arange(BINS, dtype=dtype, device=device) - BINS / 2
    return torch.stack([torch.ones_like(places), places, places * places])


class TwoGroups(NamedTuple):
    """What is known of the groups: the averaged evidence, the strength, the share above the cut, and the histogram.

    The numbers are floats, or 0-d tensors on a device.
    """

    evidence: Number
    strength: Number
    above: Number
    histogram: Tensor

    def with_counts(self, counts: Tensor, learnt: Number) -> TwoGroups:
        """Add a step's histogram. The strength, from 0 to 1, never goes down; it is 0 before anything was learnt.

        Args:
            counts: the histogram of the step's z.
            learnt: how far the mean has fallen, as a share; a float on the host, where values may be read.
        """
        on_host = not isinstance(learnt, Tensor)
        number, exp = counts.sum(), torch.exp
        if on_host:
            number, exp = number.item(), math.exp
        histogram = self.histogram * exp(-number / MEMORY) + counts
        variance, above = otsu(histogram)
        total = histogram.sum()
        if on_host:
            variance, above, total = variance.item(), above.item(), total.item()
        looks = (learnt >= LEARNT) & (total >= FULL * MEMORY)
        now = _from_to(variance, *SHARE_OF_VARIANCE) * _from_to(above, *SHARE_ABOVE) * looks
        evidence = self.evidence + (1 - exp(-number / PATIENCE)) * (now - self.evidence)
        strength = _from_to(evidence, *EVIDENCE)
        strength = max(self.strength, strength) if on_host else torch.maximum(self.strength, strength)
        return TwoGroups(evidence, strength, above, histogram)

    def to(self, device: torch.device, *, on_host: bool) -> TwoGroups:
        """The same with its numbers as floats, ``on_host``, or else as tensors on a device."""
        histogram = self.histogram.to(device, widest_float(device))
        numbers = (float(x) if on_host else scalar_on(device, x) for x in self[:3])
        return TwoGroups(*numbers, histogram)


def pack_groups(groups: TwoGroups) -> Tensor:
    """The groups as one vector, the form of checkpoints."""
    device = groups.histogram.device
    return torch.cat([torch.stack([scalar_on(device, x) for x in groups[:3]]), groups.histogram])


def unpack_groups(vector: Tensor) -> TwoGroups:
    """The groups in a vector.

    >>> unpack_groups(pack_groups(no_groups())).strength.item()
    0.0
    """
    return TwoGroups(*vector[:3].unbind(), vector[3:])


def no_groups() -> TwoGroups:
    """The groups before the first loss: on the host, whatever the default device is."""
    return TwoGroups(0.0, 0.0, 0.0, torch.zeros(BINS, dtype=torch.float64, device="cpu"))


def is_damaged(vector: object) -> bool:
    """Whether no run can have written this vector."""
    if not isinstance(vector, Tensor) or vector.shape != (BINS + 3,) or not vector.is_floating_point():
        return True
    values = vector.tolist()
    return not all(0 <= value < math.inf for value in values) or max(values[:3]) > 1.01


def _from_to(value: Number, low: float, high: float) -> Number:
    share = (value - low) / (high - low)
    return share.clamp(0, 1) if isinstance(share, Tensor) else min(max(share, 0.0), 1.0)
