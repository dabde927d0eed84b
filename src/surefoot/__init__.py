"""Optimizers that exploit the uncertainty of the loss. The names; each is imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from surefoot.version import NUMERICS, __version__

if TYPE_CHECKING:
    from surefoot import rules as rules
    from surefoot.averaging.anytime import Anytime as Anytime
    from surefoot.averaging.model import AnytimeModel as AnytimeModel
    from surefoot.averaging.rate import AnytimeLR as AnytimeLR
    from surefoot.averaging.weights import WeightAverage as WeightAverage
    from surefoot.optim.loss_aware import LossAware as LossAware
    from surefoot.optim.loss_weighted import LossWeighted as LossWeighted
    from surefoot.optim.named import AdaMaxCB as AdaMaxCB
    from surefoot.optim.named import AdaMaxS as AdaMaxS
    from surefoot.optim.named import AdaMaxUCB as AdaMaxUCB
    from surefoot.optim.named import AdamCB as AdamCB
    from surefoot.optim.named import AdamCVaR as AdamCVaR
    from surefoot.optim.named import AdamEI as AdamEI
    from surefoot.optim.named import AdamPI as AdamPI
    from surefoot.optim.named import AdamS as AdamS
    from surefoot.optim.named import AdamUCB as AdamUCB
    from surefoot.optim.named import AdamWCB as AdamWCB
    from surefoot.optim.named import AdamWS as AdamWS
    from surefoot.optim.named import AdamWUCB as AdamWUCB
    from surefoot.optim.named import LossAwareAdam as LossAwareAdam
    from surefoot.optim.named import LossAwareAdaMax as LossAwareAdaMax
    from surefoot.optim.named import LossAwareAdamW as LossAwareAdamW
    from surefoot.optim.named import LossAwareMomentum as LossAwareMomentum
    from surefoot.optim.named import LossAwareNAdam as LossAwareNAdam
    from surefoot.optim.named import Momentum as Momentum
    from surefoot.optim.named import MomentumCB as MomentumCB
    from surefoot.optim.named import MomentumS as MomentumS
    from surefoot.optim.named import MomentumUCB as MomentumUCB
    from surefoot.optim.named import NAdamCB as NAdamCB
    from surefoot.optim.named import NAdamS as NAdamS
    from surefoot.optim.named import NAdamUCB as NAdamUCB
    from surefoot.optim.schedules import EtaSchedule as EtaSchedule
    from surefoot.weighing import Weigher as Weigher
    from surefoot.weighing import weigh as weigh

_HOME = {
    "Anytime": "averaging.anytime",
    "AnytimeLR": "averaging.rate",
    "AnytimeModel": "averaging.model",
    "WeightAverage": "averaging.weights",
    "LossAware": "optim.loss_aware",
    "LossWeighted": "optim.loss_weighted",
    "Weigher": "weighing",
    "weigh": "weighing",
    "EtaSchedule": "optim.schedules",
    **dict.fromkeys(
        [
            *("AdamUCB", "AdamCB", "AdamS", "AdamPI", "AdamEI", "AdamCVaR"),
            *("AdamWUCB", "AdamWCB", "AdamWS"),
            *("Momentum", "MomentumUCB", "MomentumCB", "MomentumS"),
            *("AdaMaxUCB", "AdaMaxCB", "AdaMaxS", "NAdamUCB", "NAdamCB", "NAdamS"),
            *("LossAwareAdam", "LossAwareAdamW", "LossAwareMomentum", "LossAwareAdaMax", "LossAwareNAdam"),
        ],
        "optim.named",
    ),
}

__all__ = ["NUMERICS", "__version__", "rules", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"surefoot.{_HOME[name]}"), name)
    if name == "rules":
        return importlib.import_module("surefoot.rules")
    raise AttributeError(f"module 'surefoot' has no attribute {name!r}{_nearest(name)}")


def _nearest(name: str) -> str:
    """A question that names what was probably meant; empty if nothing is near."""
    import difflib

    names = {known.lower(): known for known in _HOME}
    near = [] if name.startswith("_") else difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.8)
    return f"; did you mean {names[near[0]]}?" if near else ""


def __dir__() -> list[str]:
    return sorted(__all__)
