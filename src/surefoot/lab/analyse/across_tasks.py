"""Several tasks at once: performance profiles and the probability of improvement, as rliable defines them.

Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021. Intervals are those of a
bootstrap that draws runs within each task; like every bootstrap interval they are valid for one look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot._extras import require
from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, higher_is_better, value_at
from surefoot.lab.analyse.stats import LEVEL

if TYPE_CHECKING:
    import numpy as np
else:
    np = require("numpy", extra="lab")

#: How many times the bootstrap draws.
DRAWS = 1000
#: The scores at which a profile is given.
THRESHOLDS = 51


@dataclass(frozen=True)
class Improvement:
    """The probability that a run of a contestant is better than one of the baseline, on a task drawn at random."""

    label: str
    baseline: str
    probability: float
    low: float
    high: float


@dataclass(frozen=True)
class Profile:
    """For each threshold, the share of runs with a higher score, as a mean over tasks, and its interval."""

    label: str
    thresholds: tuple[float, ...]
    shares: tuple[float, ...]
    band: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class AcrossTasks:
    """What several tasks say together, of the contestants that ran on all of them.

    Args:
        tasks: how many tasks there are.
        improvements: one per contestant but the baseline.
        profiles: one per contestant.
    """

    tasks: int
    improvements: tuple[Improvement, ...]
    profiles: tuple[Profile, ...]


def across_tasks(groups: Sequence[TaskGroup], metric: str, seed: int = 0) -> AcrossTasks | None:
    """The profiles and probabilities of one metric; None unless two contestants have values on two tasks."""
    scores = [_scores(group, metric) for group in groups]
    scores = [by_label for by_label in scores if by_label]
    shared = [label for label in (scores[0] if scores else ()) if all(label in by_label for by_label in scores)]
    if len(scores) < 2 or len(shared) < 2:
        return None
    luck = np.random.default_rng(seed)
    of = {label: [by_label[label] for by_label in scores] for label in shared}
    baseline, *others = shared
    improvements = []
    for label in others:
        low, high = bootstrap([of[label], of[baseline]], probability_of_improvement, luck)
        probability = float(probability_of_improvement(of[label], of[baseline]))
        improvements.append(Improvement(label, baseline, probability, float(low), float(high)))
    thresholds = np.linspace(0, 1, THRESHOLDS)
    profiles = []
    for label in shared:
        low, high = bootstrap([of[label]], lambda tasks: performance_profile(tasks, thresholds), luck)
        band = tuple(zip(low.tolist(), high.tolist()))
        profiles.append(Profile(label, tuple(thresholds), tuple(performance_profile(of[label], thresholds)), band))
    return AcrossTasks(len(scores), tuple(improvements), tuple(profiles))


def probability_of_improvement(tasks: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over tasks of ``P(X > Y) + P(X = Y) / 2``, X and Y being runs of the two sides.

    >>> float(probability_of_improvement([np.array([1.0, 3.0]), np.array([5.0])], [np.array([2.0]), np.array([5.0])]))
    0.5
    """
    signs = [np.sign(a[..., :, None] - b[..., None, :]).mean(axis=(-2, -1)) for a, b in zip(tasks, others)]
    return (1 + np.mean(signs, axis=0)) / 2


def performance_profile(tasks: Sequence[np.ndarray], thresholds: np.ndarray) -> np.ndarray:
    """The share of runs with a score above each threshold, as a mean over tasks.

    >>> performance_profile([np.array([0.2, 0.8]), np.array([0.9])], np.array([0.0, 0.5, 1.0])).tolist()
    [1.0, 0.75, 0.0]
    """
    return np.mean([(scores[..., None] > thresholds).mean(axis=-2) for scores in tasks], axis=0)


def bootstrap(
    sides: Sequence[Sequence[np.ndarray]], statistic: Callable[..., np.ndarray], luck: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The 95% percentile interval of a statistic of several sides, with runs drawn anew within each side and task."""
    drawn = [[scores[luck.integers(len(scores), size=(DRAWS, len(scores)))] for scores in tasks] for tasks in sides]
    low, high = np.quantile(statistic(*drawn), [LEVEL / 2, 1 - LEVEL / 2], axis=0)
    return low, high


def _scores(group: TaskGroup, metric: str) -> dict[str, np.ndarray]:
    """The scores of the runs that ended, by contestant: 0 is the worst run of the task and 1 the best.

    A run that diverged is worse than all others. Empty if no two runs differ.
    """
    sign = 1.0 if higher_is_better(metric, group.task) else -1.0
    values = {contestant.label: _values(contestant, metric, sign) for contestant in group.contestants}
    known = [value for row in values.values() for value in row if math.isfinite(value)]
    if not known or min(known) == max(known):
        return {}
    low, high = min(known), max(known)
    return {label: np.maximum((np.array(row) - low) / (high - low), -1.0) for label, row in values.items() if row}


def _values(contestant: ContestantRuns, metric: str, sign: float) -> list[float]:
    ended = [(run.diverged, value_at(run, metric)) for run in contestant.runs if run.finished or run.diverged]
    known = [sign * value for diverged, value in ended if value is not None and not diverged]
    return known + [-math.inf] * sum(diverged for diverged, _ in ended)
