"""What a search is doing right now: the displays of a comparison, with trials in place of runs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

from surefoot.lab import terminal
from surefoot.lab.analyse.groups import metric_name
from surefoot.lab.analyse.verdicts import number
from surefoot.lab.run.progress import NotebookOutput, duration, in_notebook, live_bars
from surefoot.lab.tune.search import TrialOutcome

if TYPE_CHECKING:
    from rich.console import Console


class TrialProgress:
    """Follows the trials of a search and shows nothing; the parent of the displays.

    Args:
        metric: what is optimized.
        done: how many trials had ended before.
        total: how many there are.
        maximize: whether a higher value is better.
    """

    def __init__(self, metric: str, done: int, total: int, *, maximize: bool = False) -> None:
        self.metric, self.done, self.total = metric, done, total
        self.best: float | None = None
        #: How far the trials are that are computed now, by label.
        self.running: dict[str, TrialOutcome] = {}
        self._better = max if maximize else min
        self._before, self._began = done, time.monotonic()
        self._lock = threading.Lock()  # trials are computed in several threads

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def on_trial(self, outcome: TrialOutcome) -> None:
        """Record how far a trial is and show it."""
        with self._lock:
            self.done += outcome.state in ("done", "pruned", "diverged")
            if outcome.state == "done" and outcome.value is not None:
                self.best = outcome.value if self.best is None else self._better(self.best, outcome.value)
            if outcome.state == "running":
                self.running[outcome.label] = outcome
            else:
                self.running.pop(outcome.label, None)
            self.show(outcome)

    def show(self, outcome: TrialOutcome) -> None:
        """Show how far a trial is."""

    def text(self, outcome: TrialOutcome) -> str:
        """How far a trial is, or how it ended, in words."""
        value = f"{metric_name(self.metric)} {number(outcome.value)}" if outcome.value is not None else ""
        return {
            "running": value,
            "done": value,
            "pruned": f"{value}, stopped early",
            "diverged": "diverged",
            "failed": f"failed: {outcome.message}",
            "queued again": f"{outcome.message}; it is tried again",
        }[outcome.state]

    def note(self) -> str:
        """The best value of this command so far, and the time left."""
        best = f"best {number(self.best)}" if self.best is not None else ""
        return ", ".join(filter(None, [best, self._time_left()]))

    def _time_left(self) -> str:
        ended, left = self.done - self._before, self.total - self.done
        if not ended or not left:
            return ""
        return f"{duration((time.monotonic() - self._began) / ended * left)} left"


class TrialLines(TrialProgress):
    """A line for each trial that ends."""

    def __init__(self, metric: str, done: int, total: int, console: Console) -> None:
        super().__init__(metric, done, total)
        self._console = console

    def __enter__(self) -> Self:
        if self.done:
            self._print(f"{self.done} of {self.total} trials were there already")
        return self

    def show(self, outcome: TrialOutcome) -> None:
        if outcome.state != "running":
            self._print(f"[{self.done}/{self.total}] {outcome.label}: {self.text(outcome)}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class TrialBars(TrialProgress):
    """An overall bar with the best value so far, a bar per running trial, and the time left, as `compare` has them."""

    def __init__(self, metric: str, done: int, total: int, console: Console, *, maximize: bool = False) -> None:
        super().__init__(metric, done, total, maximize=maximize)
        self._bars = live_bars(console)
        self._overall = self._bars.add_task("all trials", total=total, completed=done, note="")
        self._rows: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def show(self, outcome: TrialOutcome) -> None:
        self._bars.update(self._overall, completed=self.done, note=self.note())
        if outcome.state == "running":
            if outcome.label not in self._rows:
                self._rows[outcome.label] = self._bars.add_task(outcome.label, total=outcome.last, note="")
            self._bars.update(self._rows[outcome.label], completed=outcome.epochs, note=self.text(outcome))
            return
        if outcome.label in self._rows:
            self._bars.remove_task(self._rows.pop(outcome.label))
        if outcome.state in ("failed", "queued again"):
            line = f"{outcome.label}: {self.text(outcome)}"
            self._bars.console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)


class TrialNotebookBar(TrialProgress):
    """The bar that `compare` has in a notebook, with the best value so far and the trials that are computed now."""

    def __init__(self, metric: str, done: int, total: int, *, maximize: bool = False) -> None:
        super().__init__(metric, done, total, maximize=maximize)
        self._output = NotebookOutput()
        self._failed: list[str] = []

    def __enter__(self) -> Self:
        self._draw(at_once=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._draw(at_once=True)

    def show(self, outcome: TrialOutcome) -> None:
        if outcome.state in ("failed", "queued again"):
            self._failed.append(f"{outcome.label}: {self.text(outcome)}")
        self._draw()

    def _draw(self, *, at_once: bool = False) -> None:
        words = [f"{self.done} of {self.total} trials", self.note()]
        running = [
            ", ".join(filter(None, [f"{trial.label}: {trial.epochs} of {trial.last} epochs", self.text(trial)]))
            for trial in self.running.values()
        ]
        self._output.draw(self.done, self.total, words, [*self._failed, *running], at_once=at_once)


def trial_display(metric: str, done: int, total: int, *, maximize: bool = False) -> TrialProgress:
    """A bar in a notebook, bars in a terminal, lines elsewhere; `done` of `total` trials had ended before."""
    if in_notebook():
        return TrialNotebookBar(metric, done, total, maximize=maximize)
    console = terminal.console(stderr=True)
    if console.is_terminal:
        return TrialBars(metric, done, total, console, maximize=maximize)
    return TrialLines(metric, done, total, console)
