"""Optimizers that exploit the uncertainty of the loss. The names; each is imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from surefoot.version import NUMERICS, __version__

if TYPE_CHECKING:
    from surefoot import rules as rules
    from surefoot.named import AdaMaxCB as AdaMaxCB
    from surefoot.named import AdaMaxS as AdaMaxS
    from surefoot.named import AdaMaxUCB as AdaMaxUCB
    from surefoot.named import AdamCB as AdamCB
    from surefoot.named import AdamCVaR as AdamCVaR
    from surefoot.named import AdamEI as AdamEI
    from surefoot.named import AdamPI as AdamPI
    from surefoot.named import AdamS as AdamS
    from surefoot.named import AdamUCB as AdamUCB
    from surefoot.named import LossAwareAdam as LossAwareAdam
    from surefoot.named import LossAwareAdaMax as LossAwareAdaMax
    from surefoot.named import LossAwareMomentum as LossAwareMomentum
    from surefoot.named import LossAwareNAdam as LossAwareNAdam
    from surefoot.named import Momentum as Momentum
    from surefoot.named import MomentumCB as MomentumCB
    from surefoot.named import MomentumS as MomentumS
    from surefoot.named import MomentumUCB as MomentumUCB
    from surefoot.named import NAdamCB as NAdamCB
    from surefoot.named import NAdamS as NAdamS
    from surefoot.named import NAdamUCB as NAdamUCB
    from surefoot.optimizer import LossAware as LossAware
    from surefoot.schedules import EtaSchedule as EtaSchedule
    from surefoot.weigher import Weigher as Weigher
    from surefoot.weigher import weigh as weigh
    from surefoot.wrap import LossWeighted as LossWeighted

_HOME = {
    "LossAware": "optimizer",
    "LossWeighted": "wrap",
    "Weigher": "weigher",
    "weigh": "weigher",
    "EtaSchedule": "schedules",
    **dict.fromkeys(
        [
            *("AdamUCB", "AdamCB", "AdamS", "AdamPI", "AdamEI", "AdamCVaR"),
            *("Momentum", "MomentumUCB", "MomentumCB", "MomentumS"),
            *("AdaMaxUCB", "AdaMaxCB", "AdaMaxS", "NAdamUCB", "NAdamCB", "NAdamS"),
            *("LossAwareAdam", "LossAwareMomentum", "LossAwareAdaMax", "LossAwareNAdam"),
        ],
        "named",
    ),
}

__all__ = ["NUMERICS", "__version__", "rules", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"surefoot.{_HOME[name]}"), name)
    if name == "rules":
        return importlib.import_module("surefoot.rules")
    raise AttributeError(f"module 'surefoot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
