"""Optional packages, with one clear sentence when one is missing."""

from __future__ import annotations

import importlib
from typing import Any


def how_to_install(extra: str) -> str:
    """The command that installs an extra: Surefoot is not on a package index.

    >>> how_to_install("lab")
    "pip install '.[lab]' in a checkout of Surefoot"
    """
    return f"pip install '.[{extra}]' in a checkout of Surefoot"


def require(module: str, *, extra: str) -> Any:
    """Import an optional package or say which command installs it.

    >>> require("math", extra="lab").sqrt(4.0)
    2.0
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise ImportError(
            f"{module} is needed for this and is not installed; install it with {how_to_install(extra)}"
        ) from error
