"""Optimizers that exploit the uncertainty of the loss. The names; each is imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from surefoot.version import NUMERICS, __version__

if TYPE_CHECKING:
    from surefoot import rules as rules

_HOME = {
    **dict.fromkeys(["LossAware"], "optimizer"),
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
