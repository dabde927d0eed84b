"""Memories: how much the newest weights count in an average of all weights so far.

The average `x` of the weights `z` is a weighted mean. With every step the weights before it are forgotten by a factor,
and the newest ones enter with their trust:

    total = total * forget + trust;   share = trust / total;   x += share * (z - x)

A memory says what ``forget`` and ``trust`` are. Everything here is arithmetic and one ``exp``, so the same lines serve
floats, 0-d tensors and JAX arrays; this module imports neither torch nor JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

#: A float on the host, or a 0-d tensor or array on a device.
Number = Any
Exp = Callable[[Any], Any]
#: The statistics of the losses: a named tuple with ``count``, ``mean``, ``std`` and ``best``.
Stats = Any

#: `best` follows a mean that is this many std above it within the memory of the loss, and hardly one that is nearer.
RISE = 2.0
#: A std counts as at most so many times what it was before: the spread for trust, the usual one for the mean.
SLACK = 2.0
#: The usual std is that after the first losses: so many times the memory of the loss.
FALL = 2.0
#: Weights whose own loss is this many std above the mean are left out.
SHOCK = 10.0
#: Left to itself the average is updated at every so many steps in the end,
EVERY = 20
#: and before that the gap between two updates grows by one step after every so many.
EARLY = 50
#: The learning rate that goes with an average is halved when the average spans so many steps.
SPAN = 300.0


@dataclass(frozen=True)
class Memory:
    """Every step counts the same: the average of all weights so far; other memories are subclasses.

    >>> Memory().forget(AverageState(), 0.0, 0.0, math.exp), Memory().trust(AverageState(), math.exp)
    (1.0, 1.0)
    """

    #: Decay rate of the loss statistics.
    loss_beta: float = 0.99

    def best(self, before: Stats, after: Stats) -> Number:
        """The level that losses are compared with; ``after.best`` is the lowest mean so far."""
        return after.best

    def spread(self, before: AverageState, after: Stats) -> Number:
        """The std that trust is measured by."""
        return after.std

    def forget(self, before: Stats, best: Number, std: Number, exp: Exp) -> Number:
        """The factor by which this step's loss makes older weights count less.

        ``best`` is after the step; ``std`` too, but not below the usual one of the run.
        """
        return 1.0

    def accepts(self, stats: Stats, loss: Number) -> Any:
        """Whether weights with this loss may enter the average."""
        return loss == loss

    def trust(self, stats: Stats, exp: Exp) -> Number:
        """How much the newest weights count."""
        return 1.0


@dataclass(frozen=True)
class LossDriven(Memory):
    """The memory that the loss itself sets.

    ``forget = exp(-|change of best| / (kappa * std))`` and ``trust = exp(-(mean - best) / (kappa * std))``: while the
    loss falls the average follows, on a plateau it remembers everything since the plateau began, and weights of a spike
    hardly count. Where the mean stays above `best`, `best` follows it, slowly at first: a loss that has risen for good
    is a new plateau, and what was good before it is forgotten too.

    Once a network fits its training data, the loss and its std both shrink towards zero, and in units of that std the
    loss would fall for ever. So the std is not taken below the usual one, its mean over the steps so far.

    A loss that explodes inflates its own std, and would look near to `best` in units of that. So trust is measured by a
    std that may double at once and then grows no faster than the memory of the loss.

    >>> falling = LossDriven(kappa=0.2).forget(AverageState(best=1.0), 0.98, 0.1, math.exp)
    >>> round(falling, 4), round(math.exp(-0.02 / (0.2 * 0.1)), 4)
    (0.3679, 0.3679)
    """

    kappa: float = 0.2

    def best(self, before: Stats, after: Stats) -> Number:
        return after.best + (1 - self.loss_beta) * self._rise(after) * (after.mean - after.best)

    def spread(self, before: AverageState, after: Stats) -> Number:
        growth = 1 + (1 - self.loss_beta) + 1 / after.count
        limit = before.spread * growth + (1 - self.loss_beta) * self._rise(after) * after.std
        return _lower(after.std, limit + (before.spread == 0) * after.std)

    def forget(self, before: Stats, best: Number, std: Number, exp: Exp) -> Number:
        return exp(-abs(before.best - best) / self._unit(std))

    def trust(self, stats: AverageState, exp: Exp) -> Number:
        gap = abs(stats.mean - stats.best)  # infinite before the first loss, when best is
        return exp(-gap / self._unit(_higher(stats.usual, _lower(stats.std, SLACK * stats.spread))))

    def accepts(self, stats: Stats, loss: Number) -> Any:
        return (loss - stats.mean <= SHOCK * stats.std) | (stats.std == 0)

    def _rise(self, stats: Stats) -> Number:
        """How surely the mean has left `best`: near 0 for less than `RISE` std, near 1 for more."""
        distance = (stats.mean - stats.best) / (RISE * stats.std + (stats.std == 0))
        return 1 - 1 / (1 + distance * distance * distance * distance)

    def _unit(self, std: Number) -> Number:
        # Without a spread all losses were equal, and every distance is zero.
        return self.kappa * std + (std == 0)


def gap_after(steps: Number, every: int | None) -> Number:
    """After how many steps more the average is updated: ``every``, or by itself a number that grows to `EVERY`.

    At first the average has few iterates, so none is left out; later those near each other say nearly the same.

    >>> [gap_after(steps, None) for steps in (0, 49, 50, 950, 5000)], gap_after(0, 10)
    ([1, 1, 2, 20, 20], 10)
    """
    return _lower(EVERY, 1 + steps // EARLY) if every is None else every


def rate_factor(steps: Number, span: float) -> Number:
    """What the learning rate is multiplied by while the average spans so many steps.

    >>> rate_factor(0.0, 300), rate_factor(300.0, 300), rate_factor(2700.0, 300)
    (1.0, 0.5, 0.1)
    """
    return 1 / (1 + steps / span)


def _lower(a: Number, b: Number) -> Number:
    """The lower of two numbers that are not negative, of any kind."""
    return (a <= b) * a + (a > b) * b


def _higher(a: Number, b: Number) -> Number:
    """The higher of two numbers of any kind."""
    return (a > b) * a + (a <= b) * b


@dataclass(frozen=True)
class Polynomial(Memory):
    """Weights count in proportion to about ``step**power``: ``share = (power + 1) / (step + power)``."""

    power: float = 8.0

    def forget(self, before: Stats, best: Number, std: Number, exp: Exp) -> Number:
        return before.count / (before.count + self.power) if self.power else 1.0


@dataclass(frozen=True)
class Exponential(Memory):
    """An exponential moving average whose weights sum to one from the first step on."""

    decay: float = 0.999

    def forget(self, before: Stats, best: Number, std: Number, exp: Exp) -> Number:
        return self.decay


class AverageState(NamedTuple):
    """The statistics of the losses so far, and what the average remembers; the format of checkpoints.

    ``total`` is the weight of the average, ``forget`` what the losses since its last update have to make of it, and
    ``pending`` the number of steps since then. ``spread`` is a std of the losses that a single one hardly changes.
    ``usual`` is the mean of the std over all steps but the first, where the std is that of the fall of the loss; one
    that is more than twice the mean so far counts as twice that.
    """

    count: Number = 0.0  # type: ignore[assignment]
    mean: Number = 0.0
    std: Number = 0.0
    best: Number = math.inf
    skipped: Number = 0.0
    total: Number = 0.0
    forget: Number = 1.0
    pending: Number = 0.0
    spread: Number = 0.0
    usual: Number = 0.0

    def with_step(self, memory: Memory, after: Stats, exp: Exp) -> AverageState:
        """The state after one step more, whose loss has made the statistics what they are ``after`` it."""
        count, mean, std = after[:3]
        best, spread = memory.best(self, after), memory.spread(self, after)
        counted = count - FALL / (1 - memory.loss_beta)
        limited = _lower(std, SLACK * self.usual + (self.usual == 0) * std)
        usual = self.usual + (counted >= 1) / _higher(counted, 1.0) * (limited - self.usual)
        forget = self.forget * memory.forget(self, best, _higher(usual, std), exp)
        return AverageState(count, mean, std, best, self.skipped, self.total, forget, self.pending + 1, spread, usual)

    def span(self, every: int | None) -> Number:
        """How many steps the average spans."""
        return self.total * (EVERY if every is None else every)

    def is_due(self, every: int | None) -> Any:
        """Whether the newest weights are to enter the average.

        >>> [AverageState(count=n + 3, pending=3).is_due(every=None) for n in (0, 100, 150, 10_000)]
        [True, True, False, False]
        """
        return self.pending >= gap_after(self.count + self.skipped - self.pending, every)

    def with_update(self, memory: Memory, every: int | None, exp: Exp) -> tuple[Number, AverageState]:
        """The share of the newest weights in the average, and the state after that update.

        Weights that stand for fewer steps than ``every`` (None: `EVERY`) count less by that.

        >>> share, state = AverageState(total=3.0, pending=10).with_update(Memory(), 10, math.exp)
        >>> share, state.total, state.pending
        (0.25, 4.0, 0.0)
        """
        every = EVERY if every is None else every
        steps = 1 - (every - self.pending) * (self.pending < every) / every
        weight = memory.trust(self, exp) * steps
        total = self.total * self.forget + weight
        share = weight / (total + (total == 0))
        return share, self._replace(total=total, forget=0 * total + 1, pending=0 * steps)


MEMORIES: dict[str, tuple[type[Memory], str]] = {
    "anytime": (LossDriven, "kappa"),
    "poly": (Polynomial, "power"),
    "ema": (Exponential, "decay"),
    "uniform": (Memory, ""),
}


#: How often the arithmetic of a memory was changed since runs with it are recorded.
REVISIONS = {"anytime": 1}


def revision_of(memory: str) -> int:
    """How often the arithmetic of a memory was changed, by its name.

    >>> revision_of("anytime:0.1"), revision_of("poly:8")
    (1, 0)
    """
    return REVISIONS.get(memory.partition(":")[0], 0)


def find_memory(memory: str | Memory) -> Memory:
    """A memory by its name, with its number after a colon.

    >>> find_memory("poly:8"), find_memory("anytime").kappa, find_memory("ema:0.99").decay
    (Polynomial(loss_beta=0.99, power=8.0), 0.2, 0.99)
    """
    if isinstance(memory, Memory):
        return memory
    name, colon, number = str(memory).partition(":")
    if name in MEMORIES:
        kind, parameter = MEMORIES[name]
        if not colon:
            return kind()
        try:
            if parameter and _is_allowed(name, float(number)):
                return kind(**{parameter: float(number)})
        except ValueError:
            pass
    raise ValueError(
        f"Invalid memory: {memory!r}; take 'anytime', 'anytime:KAPPA' (above 0), 'poly:POWER' (0 or more), 'ema:DECAY' "
        "(from 0 to below 1), 'uniform', or a Memory"
    )


def _is_allowed(name: str, number: float) -> bool:
    if name == "ema":
        return 0 <= number < 1
    return (number >= 0 if name == "poly" else number > 0) and number < math.inf
