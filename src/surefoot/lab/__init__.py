"""The lab: compare optimizers honestly. The names; each is imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surefoot.lab.experiments import compare as compare
    from surefoot.lab.experiments import fork as fork
    from surefoot.lab.experiments import plan as plan
    from surefoot.lab.results import Results as Results
    from surefoot.lab.spec.contestant import Contestant as Contestant
    from surefoot.lab.spec.find import find_task as find_task
    from surefoot.lab.spec.task import Task as Task
    from surefoot.lab.store import Run as Run
    from surefoot.lab.store import read_runs as read_runs

_HOME = {
    "Contestant": "spec.contestant",
    "Results": "results",
    "Run": "store",
    "Task": "spec.task",
    "compare": "experiments",
    "find_task": "spec.find",
    "fork": "experiments",
    "plan": "experiments",
    "read_runs": "store",
}

__all__ = ["Contestant", "Results", "Run", "Task", "compare", "find_task", "fork", "plan", "read_runs"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"surefoot.lab.{_HOME[name]}"), name)
    raise AttributeError(f"module 'surefoot.lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
