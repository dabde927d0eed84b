"""Moments of the weighted gradient, kept divided by the moments of the weight itself.

With w the weight, ``A = b1*A + (1-b1)*abs(w)`` and ``C = b2*C + (1-b2)*w*w``, the quantities ``N = m/A`` and
``V = v/C`` follow the plain recurrences on ``sign(w) * g`` with the per-step decays ``b1*A_old/A`` and
``b2*C_old/C``. So a fused kernel can run on the raw gradient, no gradient is copied, and tiny weights never underflow
in the parameter's dtype. The division is a free choice of units: any state with A = C = 1 holds ordinary moments.
"""

from __future__ import annotations

import torch

from surefoot.optim.engines.base import Scalar


def kernel_knows(gain: float, device: torch.device) -> bool:
    """Whether a kernel that is told only the decay gets the gain from it well enough.

    On the CPU the rest of the decay is taken in double precision, elsewhere in float32, where it soon is rounding only.

    >>> kernel_knows(1e-6, torch.device("cpu")), kernel_knows(1e-6, torch.device("cuda"))
    (True, False)
    """
    return gain > (1e-9 if device.type == "cpu" else 1e-4)


def advance(kept: Scalar, size: float, beta: float) -> tuple[float, float, float]:
    """Take one weight into its running mean; return the mean, and the decay and the gain of the normalised moment.

    Decay and gain sum to one, but a small gain taken as the rest of the decay would be rounding and nothing else.

    >>> import torch
    >>> mean = torch.zeros((), dtype=torch.float64)
    >>> advance(mean, 0.5, 0.75), advance(mean, 0.0, 0.75), mean.item()
    ((0.125, 0.0, 1.0), (0.09375, 1.0, 0.0), 0.09375)
    """
    old = kept.item()
    new = beta * old + (1 - beta) * size
    kept.fill_(new)
    return (new, beta * old / new, (1 - beta) * size / new) if new > 0 else (0.0, 1.0, 0.0)
