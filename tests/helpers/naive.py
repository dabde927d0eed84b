"""The whole method as naive float64 loops: groups, parameters without a gradient, losses that are not finite.

Written from the formulas of the documentation, one parameter after the other, with ordinary moments and nothing kept
between steps that the formulas do not name. Slow, and independent of the optimizers that it is compared with.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import torch
from scipy.special import erfcx
from torch import Tensor

from surefoot.noise import standard_normal

#: Losses and weights beyond this are refused.
LARGEST = 1e19
#: The farthest that a weight goes from 1 with weighting="unit".
FARTHEST = 100.0
#: A smaller share of the mean is no spread.
RESOLUTION, UNIT_RESOLUTION = 2.0**-19, 2.0**-13


@dataclass
class Statistics:
    """Mean and variance of the losses so far, with exponential weights, and what was made of the last loss."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0
    best: float = math.inf
    skipped: int = 0
    z: float = 0.0
    tilt: float = 0.0
    weight: float = 1.0
    #: The mean square of the weights, where they are bounded.
    power: float = 0.0

    def take_in(self, loss: float, beta: float) -> None:
        self.count += 1
        share = (1 - beta) / (1 - beta**self.count)
        distance = loss - self.mean
        self.mean += share * distance
        self.variance = (1 - share) * (self.variance + share * distance**2)
        self.best = min(self.best, self.mean)

    def described(self) -> dict[str, float]:
        std = math.sqrt(self.variance)
        return {"mean": self.mean, "std": std, "skipped": self.skipped} | {
            name: getattr(self, name) for name in ("z", "tilt", "weight")
        }


def tilt_fraction(rule: str, seen: Statistics, eta: float, noise: float) -> tuple[float, float]:
    """The tilt times a denominator, and the denominator (the mean's magnitude for CB, else 1)."""
    std = math.sqrt(seen.variance)
    if rule == "plain":
        return 0.0, 1.0
    if rule == "ucb":
        return eta, 1.0
    if rule == "s":
        return eta * noise, 1.0
    if rule == "cb":
        return (eta, 1.0) if seen.count == 0 else (std - eta * abs(seen.mean), abs(seen.mean))
    if rule == "cvar":
        normal = NormalDist()
        return (normal.pdf(normal.inv_cdf(eta)) / (1 - eta) if eta else 0.0), 1.0
    if std == 0:
        return 1.0, 1.0
    shortfall = (seen.best - eta - seen.mean) / std
    if rule == "pi":
        return shortfall, 1.0
    assert rule == "ei"
    return -math.sqrt(2 / math.pi) / float(erfcx(-shortfall / math.sqrt(2))), 1.0


def bounded(rule: str, seen: Statistics, weight: float, options: dict[str, Any]) -> float:
    """The weight, within bounds as a multiple of the root mean square of the weights so far; it enters the mean."""
    if options.get("gain") is None or options["weighting"] != "paper" or rule == "plain":
        return weight
    (low, high), beta = options["gain"], options["betas"][1]
    share = (1 - beta) / (1 - beta ** (seen.count + 1)) if seen.power else 1.0
    seen.power = (1 - share) * seen.power + share * weight**2
    if seen.power == 0:
        return 1.0
    multiple = weight / math.sqrt(seen.power)
    if abs(multiple) < low or (multiple < 0 and rule in ("pi", "ei")):
        return low
    return max(-high, min(high, multiple))


def judge(rule: str, seen: Statistics, loss: float, eta: float, noise: float, weighting: str) -> Statistics:
    """The statistics with z, tilt and weight of this loss."""
    before = seen
    std, distance = math.sqrt(seen.variance), loss - seen.mean
    in_units = weighting == "unit" or rule == "plain"
    if std <= RESOLUTION * abs(seen.mean):
        seen, std = replace(seen, variance=0.0), 0.0
    numerator, denominator = tilt_fraction(rule, seen, eta, noise)
    z = distance / (max(std, UNIT_RESOLUTION * abs(seen.mean)) if in_units else std) if std else 0.0
    tilt = numerator / (denominator or 1.0)
    if in_units:
        weight = 1 + max(-FARTHEST, min(FARTHEST, tilt * z))
    else:
        weight = denominator * std + numerator * distance
        weight = weight if std else abs(weight)
    judged = copy.copy(before)
    judged.z, judged.tilt, judged.weight = z, tilt, weight
    return judged


@dataclass
class NaiveParameter:
    """A parameter and the state that belongs to its own history."""

    theta: Tensor
    t: int = 0
    first: Tensor | float = 0.0
    second: Tensor | float = 0.0
    largest: Tensor | float = 0.0
    product: float = 1.0

    def update(self, engine: str, options: dict[str, Any], grad: Tensor, weight: float) -> None:
        lr, decay = float(options["lr"]), options["weight_decay"]
        self.t += 1
        g = -grad if options["maximize"] else grad
        if options["decoupled_weight_decay"]:
            self.theta = self.theta * (1 - lr * decay)
        else:
            g = g + decay * self.theta
        self.theta = self.theta - lr * getattr(self, f"_{engine}")(options, weight * g)

    def _momentum(self, options: dict[str, Any], h: Tensor) -> Tensor:
        beta = options["momentum"]
        self.first = beta * self.first + (1 - beta) * h
        ahead = beta * self.first + (1 - beta) * h if options["nesterov"] else self.first
        return ahead / (1 - beta**self.t)

    def _adam(self, options: dict[str, Any], h: Tensor) -> Tensor:
        beta1, beta2 = options["betas"]
        self.first = beta1 * self.first + (1 - beta1) * h
        self.second = beta2 * self.second + (1 - beta2) * h**2
        second = self.second
        if options["amsgrad"]:
            second = self.largest = torch.maximum(torch.as_tensor(self.largest, dtype=h.dtype), second)
        return self.first / (1 - beta1**self.t) / ((second / (1 - beta2**self.t)).sqrt() + options["eps"])

    def _adamax(self, options: dict[str, Any], h: Tensor) -> Tensor:
        beta1, beta2 = options["betas"]
        self.first = beta1 * self.first + (1 - beta1) * h
        self.second = torch.maximum(torch.as_tensor(beta2 * self.second, dtype=h.dtype), h.abs() + options["eps"])
        return self.first / self.second / (1 - beta1**self.t)

    def _nadam(self, options: dict[str, Any], h: Tensor) -> Tensor:
        beta1, beta2 = options["betas"]
        self.first = beta1 * self.first + (1 - beta1) * h
        self.second = beta2 * self.second + (1 - beta2) * h**2
        now, following = (beta1 * (1 - 0.96 ** (s * options["momentum_decay"]) / 2) for s in (self.t, self.t + 1))
        self.product *= now
        move = (1 - now) * h / (1 - self.product) + following * self.first / (1 - self.product * following)
        return move / ((self.second / (1 - beta2**self.t)).sqrt() + options["eps"])


@dataclass
class NaiveGroup:
    """Options, statistics and the numbers of the parameters that belong to the group."""

    options: dict[str, Any]
    members: list[int]
    seen: Statistics = field(default_factory=Statistics)

    def loss_beta(self) -> float:
        beta = self.options["loss_beta"]
        momentum = self.options["betas"][0] if "betas" in self.options else self.options["momentum"]
        return beta if beta is not None else (momentum or 0.9)


class Refused(Exception):
    """The step is refused, and nothing may change."""


class NaiveOptimizer:
    """The model of a loss-aware optimizer: a rule, an engine, parameters and groups of them."""

    def __init__(self, rule: str, engine: str) -> None:
        self.rule, self.engine = rule, engine
        self.parameters: list[NaiveParameter] = []
        self.groups: list[NaiveGroup] = []

    def add_group(self, options: dict[str, Any], thetas: list[Tensor]) -> None:
        """A group that comes later starts from the statistics of the first, negated if only one of them maximizes."""
        start = len(self.parameters)
        self.parameters += [NaiveParameter(theta.clone()) for theta in thetas]
        group = NaiveGroup(options, list(range(start, len(self.parameters))))
        if self.groups:
            group.seen = replace(self.groups[0].seen, power=0.0)
            if options["maximize"] != self.groups[0].options["maximize"]:
                group.seen.mean = -group.seen.mean
                group.seen.best = group.seen.mean if group.seen.count else math.inf  # no mean, no best
        self.groups.append(group)

    def step(self, loss: float, grads: list[Tensor | None], *, as_tensor: bool) -> None:
        """One step; groups whose statistics live on the host decide together, and so do those on a device."""
        on_device = [g.options["capturable"] for g in self.groups]
        on_device = [capturable or (as_tensor and any(on_device)) for capturable in on_device]
        accepted = abs(loss) <= LARGEST
        for group in self.groups:
            watched = [grads[i] for i in group.members] if group.options["check_gradients"] else []
            accepted = accepted and all(g is None or bool(g.isfinite().all()) for g in watched)
        losses = [-loss if group.options["maximize"] else loss for group in self.groups]
        judged = [self._judge(i, value) for i, value in enumerate(losses)] if accepted else []
        usable = [abs(seen.weight) <= LARGEST for seen in judged]
        if any(group.options["nonfinite"] == "raise" for group in self.groups) and not (accepted and all(usable)):
            raise Refused
        for i, group in enumerate(self.groups):
            together = [usable[j] for j in range(len(judged)) if on_device[j] == on_device[i]]
            proceed = accepted and all(together)
            if accepted:
                group.seen = judged[i]
            weight = bounded(self.rule, group.seen, group.seen.weight, group.options) if accepted and usable[i] else 0.0
            for k in group.members if proceed else []:
                if grads[k] is not None:
                    self.parameters[k].update(self.engine, group.options, grads[k], weight)
            if accepted:
                group.seen.take_in(losses[i], group.loss_beta())
            group.seen.skipped += not proceed

    def _judge(self, index: int, loss: float) -> Statistics:
        group = self.groups[index]
        noise = standard_normal(group.options["seed"], group.seen.count, index)
        return judge(self.rule, group.seen, loss, group.options["eta"], noise, group.options["weighting"])
