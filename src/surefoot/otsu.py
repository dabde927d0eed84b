"""Do the losses of examples fall into two groups, as they do where labels are wrong? Otsu's cut of a running histogram.

The cut is where the variance between the two parts is largest. Its share of the whole variance is 2/pi for a normal
distribution, about 0.67 for the losses of a calibrated classifier, 0.75 for a uniform distribution, and larger where
there are two groups. Clean data may have such a cut late in training, but with few examples above it: both count.

A long tail of the largest losses hides two groups that lie close together, as those of labels changed to one similar
class do: a classifier gives both classes a probability. So there is a second cut, for which a loss above the mean of
the upper part counts as that mean. Its share of the variance is 0.70 for a normal distribution, 0.75 for an exponential
one, 0.79 for a uniform one, up to 0.81 on clean data, and 0.82 or more where a fifth of the labels is wrong.

On a device all of it is tensor arithmetic, and nothing is read back; on the host the few single numbers are floats.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.examples import deviations, exponential, has_spread, largest
from surefoot.statistics import LossStats, Number, scalar_on, widest_float

#: The histogram is one of z, so that it needs no range of its own and the fall of the mean does not blur it.
BINS, LOWEST, HIGHEST = 160, -4.0, 12.0
WIDTH = (HIGHEST - LOWEST) / BINS
#: How many examples the histogram remembers, and over how many the evidence is averaged.
MEMORY, PATIENCE = 1500, 8000
#: Two groups: none below the first share of the variance, surely from the second on.
SHARE_OF_VARIANCE = (0.73, 0.79)
#: A part above the cut below the first share of the examples is a tail; from the second on it is a group.
SHARE_ABOVE = (0.06, 0.08)
#: The same two for the second cut, without the tail. Rare classes reach the first of its variance, but not of examples.
SHARE_WITHOUT_TAIL, SHARE_ABOVE_WITHOUT_TAIL = (0.805, 0.825), (0.10, 0.13)
#: Averaged evidence below the first is none; from the second on the tilt is whole. Rare classes look like wrong labels
#: until they are learnt, which reached 0.43 in sixteen runs; wrong labels stay, and reach 0.98.
EVIDENCE = (0.5, 0.9)
#: How far the mean must have fallen before, as the strength that belongs to it (`surefoot.examples.ramp_after`).
LEARNT = 0.4
#: On the host a look is taken after this many steps: it takes longer than everything else.
LOOK_EVERY = 16
#: The histogram counts once it is this full.
FULL = 0.8


class Cut(NamedTuple):
    """Otsu's cut: its share of the variance, the share of the examples above it, and their mean place in bins."""

    variance: Tensor
    above: Tensor
    upper_mean: Tensor


def histogram_of(stats: LossStats, losses: Tensor, valid: Tensor | None = None) -> Tensor:
    """How many of the valid losses have a z in each bin; those outside are counted in the first and the last one.

    >>> counts = histogram_of(LossStats(mean=0.0, std=1.0), torch.tensor([-9.0, 0.01, 0.02, 99.0]))
    >>> counts[0], counts[40], counts[-1]
    (tensor(1.), tensor(2.), tensor(1.))
    """
    if valid is None:  # the host has seen that there is a spread, and that all are finite
        low, high = stats.mean + LOWEST * stats.std, stats.mean + HIGHEST * stats.std
        return torch.histc(losses.clamp(low, high), BINS, low, high)
    valid = valid & has_spread(stats)
    places = ((deviations(stats, losses) - LOWEST) / WIDTH).clamp(0, BINS - 1).long()
    counts = torch.zeros(BINS, dtype=losses.dtype, device=losses.device)
    return counts.scatter_add(0, places.reshape(-1), valid.reshape(-1).to(losses.dtype))


def otsu(histogram: Tensor, highest: Tensor | None = None) -> Cut:
    """The cut of a histogram with the largest variance between its two parts.

    Args:
        histogram: how many losses are in each bin.
        highest: a place, in bins from the middle; losses above it count as if they were there (None: as they are).

    >>> two_groups = torch.zeros(BINS)
    >>> two_groups[30], two_groups[70] = 3.0, 1.0
    >>> cut = otsu(two_groups)
    >>> round(cut.variance.item(), 3), round(cut.above.item(), 3), cut.upper_mean.item()
    (1.0, 0.25, -10.0)
    """
    places = torch.arange(-BINS / 2, BINS / 2, dtype=histogram.dtype, device=histogram.device)
    if highest is not None:
        places = torch.minimum(places, highest)
    shares = histogram / histogram.sum().clamp(min=1e-9)
    weighted = shares * places
    below, moments = shares.cumsum(0)[:-1], weighted.cumsum(0)[:-1]
    mean = weighted.sum()
    between = (mean * below - moments).square() / (below - below * below).clamp(min=1e-9)
    largest, place = between.max(0)
    variance = weighted.dot(places) - mean * mean
    above = 1 - below.take(place)
    upper_mean = (mean - moments.take(place)) / above.clamp(min=1e-9)
    return Cut(largest / variance.clamp(min=1e-9), above, upper_mean)


class TwoGroups(NamedTuple):
    """What is known of the groups: the averaged evidence, the strength, the share above the cut, and the histogram.

    The numbers are floats, or 0-d tensors on a device.
    """

    evidence: Number
    strength: Number
    above: Number
    histogram: Tensor

    def with_counts(self, counts: Tensor, learnt: Number) -> TwoGroups:
        """Add new counts. The strength, from 0 to 1, never goes down; it is 0 before anything was learnt.

        Args:
            counts: the histogram of the z since the last look.
            learnt: how far the mean has fallen, as a share; a float on the host, where values may be read.
        """
        added = counts.sum()
        histogram = self.histogram * torch.exp(-added / MEMORY) + counts
        cut = otsu(histogram)
        without_tail = otsu(histogram, highest=cut.upper_mean)
        seen: tuple[Number, ...] = (added, histogram.sum(), *cut[:2], *without_tail[:2])
        number, total, variance, above, *tailless = seen if isinstance(learnt, Tensor) else [x.item() for x in seen]
        looks = (learnt >= LEARNT) & (total >= FULL * MEMORY)
        now = looks * largest(
            _from_to(variance, *SHARE_OF_VARIANCE) * _from_to(above, *SHARE_ABOVE),
            _from_to(tailless[0], *SHARE_WITHOUT_TAIL) * _from_to(tailless[1], *SHARE_ABOVE_WITHOUT_TAIL),
        )
        evidence = self.evidence + (1 - exponential(-number / PATIENCE)) * (now - self.evidence)
        return TwoGroups(evidence, largest(self.strength, _from_to(evidence, *EVIDENCE)), above, histogram)

    def to(self, device: torch.device | None) -> TwoGroups:
        """The same with its numbers as floats (None), or with everything as tensors on a device."""
        evidence, strength, above = (float(x) if device is None else scalar_on(device, x) for x in self[:3])
        histogram = self.histogram if device is None else self.histogram.to(device, widest_float(device))
        return TwoGroups(evidence, strength, above, histogram)


def pack_groups(groups: TwoGroups, steps: int, counts: Tensor | None) -> Tensor:
    """The groups, and the steps and counts since the last look, as one vector: the form of checkpoints."""
    device = groups.histogram.device
    counts = torch.zeros_like(groups.histogram) if counts is None else counts.to(groups.histogram)
    return torch.cat([torch.stack([scalar_on(device, x) for x in (*groups[:3], steps)]), groups.histogram, counts])


def unpack_groups(vector: Tensor) -> tuple[TwoGroups, int, Tensor | None]:
    """The groups, steps and counts in a vector, which is read.

    >>> groups, steps, counts = unpack_groups(pack_groups(no_groups(), 3, None))
    >>> groups.strength, steps, counts
    (0.0, 3, None)
    """
    evidence, strength, above, steps = vector[:4].tolist()
    histogram, counts = vector[4:].clone().split(BINS)
    return TwoGroups(evidence, strength, above, histogram), int(steps), counts if bool(counts.any()) else None


def no_groups() -> TwoGroups:
    """The groups before the first loss: on the host, whatever the default device is."""
    return TwoGroups(0.0, 0.0, 0.0, torch.zeros(BINS, dtype=torch.float64, device="cpu"))


def is_damaged(vector: object) -> bool:
    """Whether no run can have written this vector."""
    if not isinstance(vector, Tensor) or vector.shape != (2 * BINS + 4,) or not vector.is_floating_point():
        return True
    values = vector.tolist()
    return not all(0 <= value < math.inf for value in values) or max(values[:3]) > 1.01


def _from_to(value: Number, low: float, high: float) -> Number:
    share = (value - low) / (high - low)
    return share.clamp(0, 1) if isinstance(share, Tensor) else min(max(share, 0.0), 1.0)
