"""Wrong labels, on purpose: how well does an optimizer do if a share of the training labels is false?"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from surefoot.lab.spec.options import NoiseKind


@dataclass(frozen=True)
class LabelNoise:
    """A share of the labels is wrong: exactly this share, drawn at random.

    Args:
        share: how many of the labels, above 0 and below 1.
        kind: "symmetric" draws each wrong label among the other classes, "asymmetric" takes the next class.

    >>> LabelNoise(0.5, "asymmetric").apply(torch.tensor([0, 0, 1, 2]), seed=1)
    tensor([0, 1, 1, 0])
    """

    share: float
    kind: str = NoiseKind.symmetric.value

    def __post_init__(self) -> None:
        if not isinstance(self.share, Real) or isinstance(self.share, bool) or not 0 < self.share < 1:
            raise ValueError(f"label_noise must be a share above 0 and below 1, such as 0.2, not {self.share!r}")
        if self.kind not in list(NoiseKind):
            raise ValueError(f"noise must be {' or '.join(NoiseKind)}, not {self.kind!r}")

    def apply(self, labels: Tensor, seed: int) -> Tensor:
        """The labels with the wrong ones among them: those of a seed are always the same."""
        classes, places = labels.unique(return_inverse=True)
        generator = torch.Generator().manual_seed(seed)
        wrong = torch.randperm(len(labels), generator=generator)[: round(float(self.share) * len(labels))]
        shift = torch.ones(len(wrong), dtype=torch.int64)
        if self.kind == NoiseKind.symmetric:
            shift = torch.randint(1, len(classes), (len(wrong),), generator=generator)
        places[wrong] = (places[wrong] + shift) % len(classes)
        return classes[places]

    def settings(self) -> dict[str, Any]:
        """What a run records."""
        return {"label_noise": float(self.share), "noise": str(self.kind)}
