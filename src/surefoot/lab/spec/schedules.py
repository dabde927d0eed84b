"""Schedules of the learning rate: the factor at a step, with a linear warm-up before it."""

from __future__ import annotations

import math

from surefoot.averaging.memory import SPAN, rate_factor

#: What part of a run "wsd" (warm-up, stable, decay) decays over, at its end.
DECAY = 0.2
#: The schedule of `surefoot.AnytimeLR`: the loss decides.
ANYTIME = "anytime"
#: The schedules, and whether each depends on the length of the run.
SCHEDULES = {"cosine": True, "linear": True, "wsd": True, "invsqrt": False, ANYTIME: False}


def depends_on_length(schedule: str | None) -> bool:
    """Whether a run with this schedule is no beginning of a longer one.

    >>> depends_on_length("cosine"), depends_on_length("invsqrt"), depends_on_length(None)
    (True, False, False)
    """
    return schedule is not None and SCHEDULES.get(schedule, True)


def factor(schedule: str | None, warmup: int, step: int, total: int, span: float = 0.0) -> float:
    """What the learning rate is multiplied by at a step, counted from 0.

    Args:
        schedule: one of `SCHEDULES`, or None for a constant rate.
        warmup: the number of steps over which the rate rises to its value.
        step: the step.
        total: the steps of the whole run.
        span: how many steps an any-time average spans, for the schedule "anytime".

    >>> [factor("linear", 2, step, 6) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    >>> factor("invsqrt", 0, 3, 100), factor("invsqrt", 4, 15, 100), factor("wsd", 0, 90, 100)
    (0.5, 0.5, 0.5)
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / (total - warmup) if total > warmup else 0.0
    match schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            return 1 - progress
        case "wsd":
            return min(1.0, round((1 - progress) / DECAY, 12))
        case "invsqrt":
            return math.sqrt(max(warmup, 1) / (step + 1))
        case "anytime":
            return float(rate_factor(span, SPAN))
    return 1.0
