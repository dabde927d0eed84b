"""The judgement of a loss: is it sound, what weight does it get, may the step be taken; then it is remembered.

Optimizers, the wrapper and ``weigh`` all ask a `Meter`. On the host the numbers are floats; on a device they are 0-d
tensors, and nothing is read back, unless ``nonfinite="raise"`` asks for it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surefoot._warnings import warn
from surefoot.noise import standard_normal, standard_normal_tensor
from surefoot.rules import Rule, Weighting, weigh
from surefoot.statistics import LossStats, Number, choose, scalar_on, widest_float

#: The largest loss, and the largest weight: its product with a gradient must have a square that float32 can hold.
MAX_LOSS = 1e19
#: After this many skipped steps there is a warning, once.
WARN_AFTER_SKIPS = 10


class Assessment(NamedTuple):
    """The judgement of one loss; on a device the two decisions are 0-d tensors."""

    before: LossStats
    loss: Number  # negated where it is maximized
    z: Number
    tilt: Number
    weight: Number
    #: The loss is sound: it enters the statistics.
    accepted: bool | Tensor
    #: It is accepted, and a gradient can be multiplied by its weight: the step may be taken.
    usable: bool | Tensor
    #: What the gradient is multiplied by: the weight, or what ``gain`` makes of it.
    multiplier: Number = 0.0
    #: The mean square of the weights up to this one, if ``gain`` bounds them.
    power: Number = 0.0


@dataclass(frozen=True)
class Meter:
    """The settings of the judgement; it has no state.

    Args:
        rule, eta, weighting: how the weight is computed.
        beta: decay rate of the statistics.
        seed, stream: of the noise; the stream is the index of the parameter group.
        maximize: negate the loss, so that a positive tilt is still pessimistic.
        nonfinite: "raise" stops at a loss that is not usable.
        gain: bounds on the weight as a multiple of the root mean square of all weights so far (None: no bounds).
        gain_beta: decay rate of that mean square: the one of the engine's mean squared gradient.
        owner: whose loss it is, for messages.
        skipping: what ``nonfinite="skip"`` does there, for messages.

    >>> from surefoot.rules import RULES
    >>> meter = Meter(RULES["ucb"], eta=0.1, weighting="unit", beta=0.9)
    >>> assessment = meter.assess(LossStats(count=9.0, mean=1.0, std=0.5), 2.0)
    >>> assessment.weight, assessment.usable, meter.remember(assessment, proceed=True).count
    (1.2, True, 10.0)
    """

    rule: Rule
    eta: Number
    weighting: Weighting
    beta: Number
    seed: int = 0
    stream: int = 0
    maximize: bool = False
    nonfinite: str = "skip"
    owner: str = "Meter"
    skipping: str = "skips such steps"
    gain: tuple[float, float] | None = None
    gain_beta: Number = 0.999

    def assess(
        self, stats: LossStats, loss: Number, gradients_are_sound: bool | Tensor = True, power: Number = 0.0
    ) -> Assessment:
        """Judge a loss by the statistics, and by the mean square of the weights, before it; this changes nothing."""
        on_device = isinstance(stats.mean, Tensor)
        if on_device:
            loss = scalar_on(stats.mean.device, loss)
        accepted = gradients_are_sound & (abs(loss) <= MAX_LOSS)  # is_sound, without a call
        signed = -loss if self.maximize else loss
        if on_device:
            signed = torch.where(accepted, signed, stats.mean)  # the weight of a loss that is left out is not used
        if on_device or accepted:
            noise = self.noise(stats.count) if self.rule.uses_noise else 0.0
            eta = self.eta if on_device else float(self.eta)
            z, tilt, weight = weigh(self.rule, stats, signed, eta, noise, self.weighting)
            if on_device:
                weight = scalar_on(stats.mean.device, weight)
            elif type(weight) is not float:  # a user's rule may compute with tensors
                z, tilt, weight = float(z), float(tilt), float(weight)
            usable = accepted & (abs(weight) <= MAX_LOSS)
            multiplier = weight
            if self.gain is not None and usable is not False:
                multiplier, power = self._bounded(weight, power, stats.count, usable)
            values = (stats, signed, z, tilt, weight, accepted, usable, multiplier, power)
            # On the host without the call of the constructor, which shows in the steps of tiny models.
            assessment = Assessment(*values) if on_device else tuple.__new__(Assessment, values)
        else:
            assessment = Assessment(stats, signed, *stats[5:], False, False, power=power)
        if self.nonfinite == "raise" and not assessment.usable:
            raise self._error(loss, assessment)
        return assessment

    def _bounded(self, weight: Number, power: Number, count: Number, usable: Any) -> tuple[Number, Number]:
        """The weight as a multiple of the root mean square of the weights so far, within bounds; and the mean square.

        A common factor of all weights cancels in Adam's step, so what counts is how this weight compares with those
        that the mean squared gradient remembers. Only eps noticed the factor; now it is added to gradients of their own
        size. A weight below the lower bound says nothing about the direction: the step descends, whatever its sign.
        Before there is a weight to compare with, the multiple is 1.
        """
        (low, high), beta = self.gain, self.gain_beta  # type: ignore[misc]
        lowest = -high if self.rule.climbs else low
        share = (1 - beta) / (1 - beta ** (count + 1))
        if isinstance(weight, Tensor):
            after = power + torch.where(power == 0, 1.0, share) * (weight * weight - power)
            multiple = (weight / torch.where(after > 0, after, 1.0).sqrt()).clamp(lowest, high)
            multiple = torch.where(abs(multiple) < low, low, multiple)
            multiple = torch.where(after > 0, multiple, 1.0)
            return torch.where(usable, multiple, weight), torch.where(usable, after, power)
        power += (share if power else 1.0) * (weight * weight - power)
        if not power:
            return 1.0, power
        multiple = weight / math.sqrt(power)
        return low if abs(multiple) < low else max(lowest, min(multiple, high)), power

    def noise(self, count: Number) -> Number:
        """The draw that belongs to the number of losses so far."""
        if isinstance(count, Tensor):
            return standard_normal_tensor(self.seed, count, self.stream)
        return standard_normal(self.seed, int(count), self.stream)

    def _error(self, loss: Number, assessment: Assessment) -> FloatingPointError:
        if assessment.accepted:
            problem = f"the rule weights the gradient by {float(assessment.weight)}"
        else:
            problem = "a gradient is not finite" if is_sound(loss) else f"the loss is {float(loss)}"
        return FloatingPointError(
            f"{self.owner}: {problem}, and nonfinite='raise' was asked for; nothing was changed (nonfinite='skip' "
            f"{self.skipping})"
        )

    def remember(self, assessment: Assessment, proceed: bool | Tensor) -> LossStats:
        """The statistics after this step; a step that was not taken is counted as skipped."""
        before, accepted = assessment.before, assessment.accepted
        after = before
        if accepted is not False:
            after = before.with_loss(assessment.loss, self.beta, assessment[2:5])
            if accepted is not True:
                after = choose(accepted, after, before)
        if proceed is True:
            return after
        if isinstance(proceed, Tensor):
            return after._replace(skipped=after.skipped + ~proceed)
        if after.skipped + 1 == WARN_AFTER_SKIPS and self.stream == 0:
            warn(
                f"{self.owner} has skipped {WARN_AFTER_SKIPS} steps so far and remembered {after.count:.0f} losses; "
                f"the last skipped loss was {-assessment.loss if self.maximize else assessment.loss:g}. A step is "
                f"skipped if the loss is not finite or exceeds {MAX_LOSS:g}, or if its weight does. Set "
                "nonfinite='raise' to stop at the first one; confidence() counts them",
            )
        return after._replace(skipped=after.skipped + 1)


def is_sound(loss: Number) -> Any:
    """Whether a loss (of at least float32) may enter the statistics: it is a number, and not a huge one.

    A huge loss would inflate the std for many steps, so it is left out. A loss of normal size is always remembered,
    even if its weight is unusable: otherwise the std stays near zero and the next losses are unusable too.
    """
    return abs(loss) <= MAX_LOSS


def decide(assessments: Sequence[Assessment]) -> list[bool | Tensor]:
    """For each group whether it takes the step: if one weight is unusable, no group does.

    Groups on the host decide together, and so do groups on a device: one decision for both would wait for the device.
    """
    if len(assessments) == 1:
        return [assessments[0].usable]
    on_device = [x.usable for x in assessments if isinstance(x.usable, Tensor)]
    on_host = all(x.usable for x in assessments if not isinstance(x.usable, Tensor))
    return [
        functools.reduce(operator.and_, [other.to(x.usable.device) for other in on_device])
        if isinstance(x.usable, Tensor)
        else on_host
        for x in assessments
    ]


def gradients_are_sound(gradients: Iterable[Tensor], device: torch.device | None) -> bool | Tensor:
    """Whether all gradients are finite: a bool, or a tensor on the device on which the loss is."""
    if device is None:
        return all(map(_is_finite_on_host, gradients))
    sound: bool | Tensor = True
    for gradient in gradients:
        sound = sound & _is_finite(gradient).to(device)
    return sound


def _is_finite_on_host(gradient: Tensor) -> bool:
    # The sum in the gradient's own precision is several times as fast; if it overflows, the widest float decides.
    quick = gradient.sum(dtype=torch.float32 if gradient.dtype.itemsize < 4 else None).isfinite()
    return bool(_of_all_shards(quick)) or bool(_is_finite(gradient))


def _is_finite(gradient: Tensor) -> Tensor:
    # By its sum: one read, and no temporary.
    dtype = widest_float(gradient.device)
    return _of_all_shards(gradient.sum(dtype=dtype.to_complex() if gradient.is_complex() else dtype).isfinite())


def _of_all_shards(finite: Tensor) -> Tensor:
    return finite.full_tensor() if hasattr(finite, "full_tensor") else finite
