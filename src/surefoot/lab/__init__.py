"""The lab: compare optimizers honestly. The names; each is imported when first used."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.lab.compare import compare as compare
    from surefoot.lab.contestants import Contestant as Contestant
    from surefoot.lab.fork import fork as fork
    from surefoot.lab.results import Results as Results
    from surefoot.lab.store import Run as Run
    from surefoot.lab.store import read_runs as read_runs
    from surefoot.lab.tasks import Task as Task
    from surefoot.lab.tasks import find_task as find_task

_HOME = {
    "Contestant": "contestants",
    "Results": "results",
    "Run": "store",
    "Task": "tasks",
    "compare": "compare",
    "find_task": "tasks",
    "fork": "fork",
    "read_runs": "store",
}

__all__ = ["Contestant", "Results", "Run", "Task", "compare", "find_task", "fork", "read_runs"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"surefoot.lab.{_HOME[name]}"), name)
    raise AttributeError(f"module 'surefoot.lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Names(ModuleType):
    """Keeps `lab.compare` the function: importing the submodule of that name would put the module there."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Names
