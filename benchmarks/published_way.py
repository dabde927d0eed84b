"""The published way to do it, as a peer for the step-time table: straightforward, one tensor at a time.

Each tensor keeps its own running ``r`` and ``s`` of the loss, the loss is read once per step, and the gradient is
scaled in place before Adam sees it. ``inner="loop"`` goes on with Adam's arithmetic tensor by tensor, as optimizers
were written when the method was published; ``inner="fused"`` hands the scaled gradients to torch's fused kernel, the
best that this approach can do today.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam


class PublishedUCB(Adam):
    """AdamUCB with the loss statistics per tensor and the weight multiplied into ``p.grad``."""

    def __init__(self, params: Any, *, eta: float = 0.01, inner: str = "loop", **settings: Any) -> None:
        super().__init__(params, fused=inner == "fused", foreach=False if inner == "loop" else None, **settings)
        self.eta = eta
        self.losses: dict[Tensor, list[float]] = {}

    @torch.no_grad()
    def step(self, closure: None = None, *, loss: Any = None) -> None:  # type: ignore[override]
        value = float(loss)
        for group in self.param_groups:
            beta = group["betas"][0]
            for p in group["params"]:
                seen = self.losses.setdefault(p, [0.0, 0.0, 0.0])  # r, s, t
                p.grad.mul_(self._weight(seen, value, beta))
                seen[0] = beta * seen[0] + (1 - beta) * value
                seen[1] = beta * seen[1] + (1 - beta) * value * value
                seen[2] += 1
        super().step()

    def _weight(self, seen: list[float], loss: float, beta: float) -> float:
        r, s, t = seen
        if t == 0:
            return abs(self.eta * loss)
        mass = 1 - beta**t
        mean = r / mass
        return math.sqrt(max(s / mass - mean * mean, 0.0)) + self.eta * (loss - mean)
