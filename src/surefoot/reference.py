"""The paper's algorithms line by line: slow, plain, one tensor after the other.

``Reference`` is the oracle that the fast optimizers are tested against, in float64. It imports none of what it checks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from surefoot.noise import standard_normal

#: The default bounds of Surefoot's optimizers.
GAIN = (0.3, 1.5)


def paper_weight(rule: str, loss: float, mu: float, sigma: float, eta: float, noise: float) -> float:
    """The bracket of Algorithm 2 and of its two siblings.

    >>> paper_weight("ucb", 2.0, 1.0, 0.5, 0.1, 0.0)
    0.6
    """
    if rule == "plain":
        return 1.0
    if rule == "ucb":
        return sigma + eta * (loss - mu)
    if rule == "cb":
        return sigma * abs(mu) - (eta * abs(mu) - sigma) * (loss - mu)
    if rule == "s":
        return sigma + (eta * noise) * (loss - mu)
    raise ValueError(f"the paper has no rule {rule!r}; it has ucb, cb and s")


def algorithm_1(theta: Tensor, g: Tensor, m: Tensor, t: int, lr: float, beta: float) -> None:
    """SGD with momentum and bias correction."""
    m.mul_(beta).add_((1 - beta) * g)
    m_hat = m / (1 - beta**t)
    theta.sub_(lr * m_hat)


def algorithm_2(
    theta: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    t: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    *,
    eps_first: bool = False,
    largest: Tensor | None = None,
) -> None:
    """Adam on the weighted gradient; ``eps_first`` adds eps before bias correction, as the published code does."""
    beta1, beta2 = betas
    m.mul_(beta1).add_((1 - beta1) * g)
    v.mul_(beta2).add_((1 - beta2) * g**2)
    if largest is not None:
        largest.copy_(torch.maximum(largest, v))
        v = largest
    m_hat = m / (1 - beta1**t)
    if eps_first:
        theta.sub_(lr * m_hat * math.sqrt(1 - beta2**t) / (v.sqrt() + eps))
        return
    v_hat = v / (1 - beta2**t)
    theta.sub_(lr * m_hat / (v_hat.sqrt() + eps))


class Reference:
    """The oracle: Surefoot's defaults in float64, from the paper's own r and s, with nothing clever in between.

    >>> theta = torch.zeros(2, dtype=torch.float64)
    >>> oracle = Reference([theta], rule="ucb", eta=0.1, lr=0.5)
    >>> oracle.step([torch.ones(2, dtype=torch.float64)], loss=2.0)
    >>> [round(x, 6) for x in theta.tolist()]
    [-0.5, -0.5]
    """

    def __init__(
        self,
        thetas: list[Tensor],
        *,
        rule: str,
        eta: float,
        lr: float,
        engine: str = "adam",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        maximize: bool = False,
        amsgrad: bool = False,
        weighting: str = "paper",
        seed: int = 0,
        weights: list[float] | None = None,
        gain: tuple[float, float] | None = GAIN,
    ) -> None:
        self.thetas, self.rule, self.eta, self.lr, self.engine = thetas, rule, eta, lr, engine
        self.betas, self.eps, self.weight_decay, self.decoupled = betas, eps, weight_decay, decoupled
        self.maximize, self.weighting, self.seed, self.weights = maximize, weighting, seed, weights
        self.m = [torch.zeros_like(x) for x in thetas]
        self.v = [torch.zeros_like(x) for x in thetas]
        self.largest = [torch.zeros_like(x) if amsgrad else None for x in thetas]
        self.t = [0] * len(thetas)
        # Only Adam cancels the paper's scale, so only there can it be bounded.
        self.gain = gain if weighting == "paper" and engine == "adam" and rule != "plain" else None
        self.losses: list[float] = []
        self.power = 0.0

    def weight_of(self, loss: float) -> float:
        """The weight of the next gradient, from the paper's r and s over all losses before it."""
        beta, before = self.betas[0], self.losses
        shares = [(1 - beta) * beta ** (len(before) - 1 - k) for k in range(len(before))]
        mass = 1 - beta ** len(before)
        # The paper's r/mass and s/mass - mu**2, summed about the last loss and about the mean, because float64 would
        # cancel for large losses and see a spread in constant ones.
        last = before[-1] if before else 0.0
        mu = last + sum(share * (x - last) for share, x in zip(shares, before)) / mass if before else 0.0
        s = sum(share * (x - mu) ** 2 for share, x in zip(shares, before))
        sigma = math.sqrt(s / mass) if len(before) > 1 else 0.0
        sigma = 0.0 if sigma <= 2.0**-19 * abs(mu) else sigma  # below the resolution of the loss
        noise = standard_normal(self.seed, len(before), 0)
        if self.weighting == "unit":
            tilt = {"plain": 0.0, "ucb": self.eta, "s": self.eta * noise}.get(self.rule)
            if tilt is None:
                tilt = (sigma - self.eta * abs(mu)) / (abs(mu) or 1.0) if before else self.eta
            return 1 + tilt * (loss - mu) / max(sigma, 2.0**-13 * abs(mu)) if sigma else 1.0
        if not before and self.rule == "cb":
            return abs(self.eta * loss)
        weight = paper_weight(self.rule, loss, mu, sigma, self.eta, noise)
        return weight if sigma else abs(weight)

    def bounded(self, weight: float) -> float:
        """The weight as a multiple of the root mean square of all weights up to it, within the bounds of ``gain``."""
        if self.gain is None:
            return weight
        beta, (low, high) = self.betas[1], self.gain
        share = (1 - beta) / (1 - beta ** (len(self.losses) + 1)) if self.power else 1.0
        self.power = (1 - share) * self.power + share * weight**2
        if not self.power:
            return 1.0
        multiple = weight / math.sqrt(self.power)
        return low if abs(multiple) < low else max(-high, min(multiple, high))

    def step(self, grads: list[Tensor | None], loss: float) -> None:
        """One step over all tensors that have a gradient."""
        loss = -loss if self.maximize else loss
        weight = self.weights[len(self.losses)] if self.weights else self.bounded(self.weight_of(loss))
        for i, (theta, grad) in enumerate(zip(self.thetas, grads)):
            if grad is None:
                continue
            self.t[i] += 1
            g = -grad if self.maximize else grad
            if self.decoupled:
                theta.mul_(1 - self.lr * self.weight_decay)
            else:
                g = g + self.weight_decay * theta
            g = weight * g
            if self.engine == "momentum":
                algorithm_1(theta, g, self.m[i], self.t[i], self.lr, self.betas[0])
            else:
                algorithm_2(
                    theta, g, self.m[i], self.v[i], self.t[i], self.lr, self.betas, self.eps, largest=self.largest[i]
                )
        self.losses.append(loss)
