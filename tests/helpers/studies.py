"""Results of a search that nobody ran."""

from __future__ import annotations

from typing import Any

from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.tune.space import Space, parse_values
from surefoot.lab.tune.study import StudyResult, TrialResult, TuningPlan


def make_study(
    task: Task,
    spec: str,
    trials: list[TrialResult],
    space: dict[str, str] | None = None,
    failures: dict[int, str] | None = None,
    **changes: Any,
) -> StudyResult:
    """The study of one optimizer with these trials; its budget is their number."""
    contestant = Contestant.parse(spec)
    options = {name: parse_values(name, text) for name, text in (space or {"lr": "1e-3:1"}).items()}
    fields: dict[str, Any] = {
        "template": RunConfig.plan(task, contestant, seed=1000, epochs=4, purpose="tune"),
        "space": Space(options),
        "budget": len(trials) + len(failures or {}),
        "seeds": (1000, 1001),
        "rungs": (1, 4),
        "metric": "valid_loss",
        "maximize": False,
    }
    return StudyResult(TuningPlan(contestant, **{**fields, **changes}), trials, failures or {})
