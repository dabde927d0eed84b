"""Weights of single examples: from the losses of a batch, and the statistics of single losses before it, to weights.

The mean weight is 1, so that the learning rate keeps its meaning. On a device all of it is tensor arithmetic, and
nothing is read back. On the host the statistics are floats, and where every loss counts (``valid`` is None) a few
operations on the losses are left: a training step hardly notices them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.rules import RESOLUTION, RULES, Rule, Tilt, find_rule, where
from surefoot.statistics import LossSample, LossStats, Number, scalar_on

#: Over how many examples the strength rises where all was learnt.
PATIENCE = 8000
#: Where signed weights have a smaller mean than this, dividing by it would multiply the gradient too much.
MIN_MEAN_WEIGHT = 0.1


@dataclass(frozen=True)
class ExampleRule(Rule):
    """A rule that has a meaning for single examples alone."""


def _eta_as_tilt(stats: LossStats, eta: float, noise: Number) -> Tilt:
    return eta, 1.0


def _is_share(eta: float) -> bool:
    return 0 <= eta < 1


EXAMPLE_RULES: dict[str, Rule] = {
    # The default is "auto": from no tilt to this one.
    "tilted": ExampleRule("tilted", _eta_as_tilt, eta=-3.0),
    "trimmed": ExampleRule(
        "trimmed", _eta_as_tilt, eta=0.1, allowed=_is_share,
        allowed_words="the share of examples left out, at least 0 and below 1",
    ),
}  # fmt: skip


def find_any_rule(rule: str | Rule) -> Rule:
    """Look up a rule, also one for examples alone.

    >>> find_any_rule("tilted").eta
    -3.0
    """
    name = str(rule).lower()
    if isinstance(rule, Rule) or name not in EXAMPLE_RULES:
        if not isinstance(rule, Rule) and not callable(rule) and name not in RULES:
            raise ValueError(f"Unknown rule {rule!r}; take one of {', '.join([*RULES, *EXAMPLE_RULES])} or a Rule")
        return find_rule(rule)
    return EXAMPLE_RULES[name]


def example_shares(
    rule: Rule,
    stats: LossStats,
    losses: Tensor,
    valid: Tensor | None,
    eta: float,
    strength: Number,
    noise: Number = 0.0,
    *,
    signed: bool = False,
) -> Tensor:
    """The weight of each loss as a share of all weights: 0 if it is not valid, not negative unless ``signed``.

    Times the number of valid losses it is the weight, whose mean is 1.

    Args:
        rule: "tilted" is ``exp(eta * strength * z)``; "cvar" keeps the losses above the batch's quantile eta,
            "trimmed" those below its quantile 1 - eta; any other is ``1 + strength * tilt * z``.
        stats: of the single losses before this step: floats, or 0-d tensors on a device.
        losses: of this batch; finite.
        valid: which of them count (None: all).
        eta: of the rule.
        strength: from 0, all weights are equal, to 1.
        noise: the draw of rule S.
        signed: let ``1 + tilt * z`` be negative, as for batches; where the weights then nearly cancel, all are equal.

    >>> stats, losses = LossStats(count=9.0, mean=1.0, std=0.5), torch.tensor([0.5, 1.0, 5.0])
    >>> example_shares(EXAMPLE_RULES["tilted"], stats, losses, None, -1.0, 1.0).round(decimals=3)
    tensor([0.7310, 0.2690, 0.0000])
    """
    if rule.name == "tilted":
        return _softmax(losses, valid, where(has_spread(stats), eta * strength / (stats.std + (stats.std == 0)), 0.0))
    if valid is None and rule.name in ("cvar", "trimmed"):
        kept = _kept(rule.name, losses, eta)
        share = (1 - strength) / losses.numel()
        return torch.where(kept, share + strength / kept.sum().item(), share)
    z = deviations(stats, losses)
    if valid is None:
        valid = torch.ones_like(z, dtype=torch.bool)
    if rule.name in ("cvar", "trimmed"):
        level = eta if rule.name == "cvar" else 1 - eta
        threshold = torch.nanquantile(torch.where(valid, losses, math.nan), level)
        kept = losses >= threshold if rule.name == "cvar" else losses <= threshold
        weights = 1 + strength * (kept.to(z.dtype) / (kept & valid).sum().clamp(min=1) * valid.sum() - 1)
    else:
        numerator, denominator = rule.tilt(stats, eta, noise)
        tilt = numerator / (denominator + (denominator == 0))
        weights = rule.weight(strength * tilt, z)
        weights = weights if signed else weights.clamp(min=0)
    weights = torch.where(valid, weights, 0.0)
    total, count = weights.sum(), valid.sum().clamp(min=1)
    usable = (total > MIN_MEAN_WEIGHT * count) if signed else (total > 0)
    return torch.where(usable, weights / torch.where(usable, total, 1.0), valid / count)


def _softmax(losses: Tensor, valid: Tensor | None, slope: Number) -> Tensor:
    """``exp(slope * loss)`` over their sum: the mean of the losses cancels."""
    if valid is None:
        return torch.softmax((losses * slope).reshape(-1), 0).view_as(losses)
    exponents = torch.where(valid, losses * slope, -math.inf).reshape(-1)
    return torch.where(valid, torch.softmax(exponents, 0).view_as(losses), 0.0)


def _kept(rule: str, losses: Tensor, eta: float) -> Tensor:
    """Which losses "cvar" or "trimmed" keeps: those on one side of a quantile, by the order of the losses."""
    places = losses.numel() - 1
    if rule == "cvar":
        return losses >= losses.reshape(-1).kthvalue(1 + math.ceil(round(eta * places, 9))).values
    return losses <= losses.reshape(-1).kthvalue(1 + math.floor(round((1 - eta) * places, 9))).values


def has_spread(stats: LossStats) -> bool | Tensor:
    """Whether the losses so far have a spread that their precision can show."""
    enough: bool | Tensor = stats.std > RESOLUTION * abs(stats.mean)
    return enough


def deviations(stats: LossStats, losses: Tensor) -> Tensor:
    """The z of each loss; 0 where there is no spread."""
    enough = has_spread(stats)
    if not isinstance(enough, Tensor):
        return (losses - stats.mean) / stats.std if enough else torch.zeros_like(losses)
    return torch.where(enough, (losses - stats.mean) / torch.where(enough, stats.std, 1.0), 0.0)


def shares_of_tenths(losses: Tensor, weights: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """The shares of the weight that the tenths of the examples with the lowest and with the highest losses got.

    >>> losses, weights = torch.arange(20.0), torch.tensor([2.0] * 10 + [0.0] * 10)
    >>> shares_of_tenths(losses, weights, None)
    (tensor(0.2000), tensor(0.))
    """
    valid = torch.ones_like(losses, dtype=torch.bool) if valid is None else valid
    order = torch.where(valid, losses, math.inf).reshape(-1).argsort()
    sorted_weights = weights.reshape(-1)[order]
    count = valid.sum()
    tenth = (count / 10).ceil()
    rank = torch.arange(len(order), device=order.device)
    total = sorted_weights.sum()
    total = torch.where(total == 0, 1.0, total)
    lowest, highest = rank < tenth, (rank >= count - tenth) & (rank < count)
    return (sorted_weights * lowest).sum() / total, (sorted_weights * highest).sum() / total


def add_weights(history: Tensor, ids: Tensor, shares: Tensor, strength: Number, valid: Tensor | None) -> None:
    """Add weights to the history, a table of (sum of weights, number of weights): each counts by its strength.

    While all weights are 1 they say nothing, and so they do not count. The table is changed in place: its size is that
    of the data set.
    """
    counted = torch.ones_like(shares) if valid is None else valid.to(shares.dtype)
    rows = torch.stack([shares * counted.sum(), counted], -1).reshape(-1, 2)
    history.index_add_(0, ids, (strength * rows).to(history.dtype))


class Moments(NamedTuple):
    """How many losses of a batch count, their mean, and the sum of squared distances from it."""

    count: Number
    mean: Number
    deviation: Number


def moments_of(losses: Tensor, valid: Tensor) -> Moments:
    """The moments of the valid losses, on their device."""
    count = valid.sum().to(losses.dtype)
    mean = torch.where(valid, losses, 0.0).sum() / count.clamp(min=1)
    return Moments(count, mean, torch.where(valid, losses - mean, 0.0).square().sum())


def with_moments(sample: LossSample, batch: Moments, left_out: Number) -> LossSample:
    """Add the losses of a batch to those of this step."""
    total = sample.weight + batch.count
    distance = batch.mean - sample.mean
    share = batch.count / (total + (total == 0))
    return LossSample(
        total,
        sample.mean + distance * share,
        sample.deviation + batch.deviation + distance * distance * sample.weight * share,
        sample.left_out + left_out,
    )


class Ramp(NamedTuple):
    """How strongly the weights of examples count, and what decides it; floats, or 0-d tensors on a device.

    ``first`` is the mean of the first step's losses (NaN before it). ``learnt``, from 0 to 1, is how far the mean has
    fallen since in units of the std: before anything was learnt, the spread of the losses says nothing. The strength
    rises from 0 to 1 with the examples seen, the faster the more was learnt. Neither goes down.

    >>> ramp = Ramp(first=3.0).after(LossStats(count=9.0, mean=2.0, std=1.0), None, 8000)
    >>> round(ramp.strength, 3), round(ramp.learnt, 3)
    (0.579, 0.865)
    """

    first: Number = math.nan
    strength: Number = 0.0
    learnt: Number = 0.0

    def after(self, stats: LossStats, warmup: int | None, number: Number) -> Ramp:
        """The ramp after a step.

        Args:
            stats: after the step.
            warmup: a number of steps, over which the strength rises linearly instead.
            number: how many examples the step had.
        """
        first = where(self.first == self.first, self.first, stats.mean)  # NaN differs from itself
        if warmup is not None:
            now = stats.count / max(warmup, 1)
            now = now.clamp(max=1) if isinstance(now, Tensor) else min(now, 1.0)
            return Ramp(first, largest(self.strength, now), self.learnt)
        has_fallen = (stats.std > 0) & (stats.mean < first)
        fall = (first - stats.mean) / where(has_fallen, stats.std, 1.0)
        learnt = largest(self.learnt, where(has_fallen, 1 - exponential(-2 * fall), 0.0))
        return Ramp(first, 1 - (1 - self.strength) * exponential(-learnt * number / PATIENCE), learnt)

    def to(self, device: torch.device | None) -> Ramp:
        """The same with floats (None), or with tensors on a device."""
        return Ramp(*(float(x) if device is None else scalar_on(device, x) for x in self))


def exponential(value: Number) -> Number:
    """exp of a number that is not positive, on the host or on a device."""
    return torch.exp(value) if isinstance(value, Tensor) else math.exp(min(value, 0.0))


def largest(first: Number, second: Number) -> Number:
    """The larger of two numbers, on the host or on a device."""
    return torch.maximum(first, second) if isinstance(first, Tensor) else max(first, second)
