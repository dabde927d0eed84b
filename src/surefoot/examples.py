"""Weights of single examples: from the losses of a batch, and the statistics of single losses before it, to weights.

The mean weight is 1, so that the learning rate keeps its meaning. All of it is tensor arithmetic on the device of the
losses; nothing is read back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot.meter import RESOLUTION
from surefoot.rules import RULES, Rule, Tilt, find_rule
from surefoot.statistics import LossSample, LossStats, Number

#: An exponent beyond this adds nothing: the example has all the weight of its batch, or none.
MAX_EXPONENT = 50.0
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
        if not isinstance(rule, Rule) and name not in RULES:
            raise ValueError(f"Unknown rule {rule!r}; take one of {', '.join([*RULES, *EXAMPLE_RULES])} or a Rule")
        return find_rule(rule)
    return EXAMPLE_RULES[name]


def example_weights(
    rule: Rule,
    stats: LossStats,
    losses: Tensor,
    valid: Tensor,
    eta: float,
    strength: Tensor,
    noise: Number = 0.0,
    *,
    signed: bool = False,
) -> Tensor:
    """The weight of each loss: with mean 1 over those that are valid, 0 elsewhere, and not negative unless ``signed``.

    Args:
        rule: "tilted" is ``exp(eta * strength * z)``; "cvar" keeps the losses above the batch's quantile eta,
            "trimmed" those below its quantile 1 - eta; any other is ``1 + strength * tilt * z``.
        stats: of the single losses before this step, as 0-d tensors.
        losses: of this batch; finite.
        valid: which of them count.
        eta: of the rule.
        strength: from 0, all weights are 1, to 1.
        noise: the draw of rule S.
        signed: let ``1 + tilt * z`` be negative, as for batches; where the weights then nearly cancel, all are 1.

    >>> stats = LossStats(*map(torch.tensor, (9.0, 1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 1.0)))
    >>> losses, valid = torch.tensor([0.5, 1.0, 5.0]), torch.tensor([True, True, True])
    >>> example_weights(EXAMPLE_RULES["tilted"], stats, losses, valid, -1.0, torch.tensor(1.0)).round(decimals=3)
    tensor([2.1930, 0.8070, 0.0000])
    """
    z = deviations(stats, losses)
    if rule.name == "tilted":
        exponent = torch.where(valid, eta * strength * z, -math.inf)
        # Relative to the largest, so that the exponential cannot overflow.
        largest = exponent.max().clamp(min=-MAX_EXPONENT * 1e3)
        weights = torch.exp((exponent - largest).clamp(min=-MAX_EXPONENT))
    elif rule.name in ("cvar", "trimmed"):
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
    total, count = weights.sum(), valid.sum()
    usable = (total > MIN_MEAN_WEIGHT * count) if signed else (total > 0)
    return torch.where(usable, weights * (count / torch.where(usable, total, 1.0)), valid.to(z.dtype))


def deviations(stats: LossStats, losses: Tensor) -> Tensor:
    """The z of each loss; 0 where the losses so far have no spread that their precision can show."""
    has_spread = stats.std > RESOLUTION * abs(stats.mean)
    return torch.where(has_spread, (losses - stats.mean) / torch.where(has_spread, stats.std, 1.0), 0.0)


def shares_of_tenths(losses: Tensor, weights: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The shares of the weight that the tenths of the examples with the lowest and with the highest losses got.

    >>> losses, weights = torch.arange(20.0), torch.tensor([2.0] * 10 + [0.0] * 10)
    >>> shares_of_tenths(losses, weights, torch.ones(20, dtype=torch.bool))
    (tensor(0.2000), tensor(0.))
    """
    order = torch.where(valid, losses, math.inf).reshape(-1).argsort()
    sorted_weights = weights.reshape(-1)[order]
    count = valid.sum()
    tenth = (count / 10).ceil()
    rank = torch.arange(len(order), device=order.device)
    total = sorted_weights.sum()
    total = torch.where(total == 0, 1.0, total)
    lowest, highest = rank < tenth, (rank >= count - tenth) & (rank < count)
    return (sorted_weights * lowest).sum() / total, (sorted_weights * highest).sum() / total


def with_weights(history: Tensor, ids: Tensor, weights: Tensor, strength: Tensor, valid: Tensor) -> Tensor:
    """Add weights to the history, a table of (sum of weights, number of weights): each counts by its strength.

    While all weights are 1 they say nothing, and so they do not count.
    """
    counted = strength * valid.reshape(-1)
    return history.index_add(0, ids, torch.stack([counted * weights.reshape(-1), counted], 1))


def with_losses(sample: LossSample, losses: Tensor, valid: Tensor, left_out: Tensor) -> LossSample:
    """Add the valid losses of a batch to those of this step."""
    count = valid.sum().to(losses.dtype)
    mean = torch.where(valid, losses, 0.0).sum() / count.clamp(min=1)
    deviation = torch.where(valid, losses - mean, 0.0).square().sum()
    total = sample.weight + count
    distance = mean - sample.mean
    share = count / torch.clamp(total, min=1)
    return LossSample(
        total,
        sample.mean + distance * share,
        sample.deviation + deviation + distance * distance * sample.weight * share,
        sample.left_out + left_out,
    )


def ramp_after(ramp: Tensor, stats: Tensor, warmup: int | None) -> Tensor:
    """The first mean, and how strongly weights count: by how far the mean has fallen in units of the std, never down.

    Args:
        ramp: (first mean or NaN, strength) so far.
        stats: the stored vector of the statistics.
        warmup: a number of steps, over which the strength rises linearly instead.

    >>> ramp_after(torch.tensor([3.0, 0.1]), torch.tensor([9.0, 2.0, 1.0]), None).round(decimals=3)
    tensor([3.0000, 0.8650])
    """
    count, mean, std = stats[0], stats[1], stats[2]
    first = torch.where(ramp[0].isnan(), mean, ramp[0])
    if warmup is None:
        fall = (first - mean).clamp(min=0) / torch.where(std > 0, std, 1.0)
        now = torch.where(std > 0, 1 - torch.exp(-2 * fall), 0.0)
    else:
        now = (count / max(warmup, 1)).clamp(max=1)
    return torch.stack([first, torch.maximum(ramp[1], now)])
