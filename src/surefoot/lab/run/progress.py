"""What a comparison is doing right now: a live display in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from surefoot._extras import require
from surefoot.lab import terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

    from surefoot.lab.run.pool import Event, RunJob

#: Without a terminal a long run prints a line this often, in seconds.
LINE_SECONDS = 30.0
#: A notebook's bar is drawn this often at most, in seconds.
NOTEBOOK_SECONDS = 0.2
#: So many lines at most are below it, the last ones.
NOTEBOOK_LINES = 4


class Progress:
    """Follows the events of a comparison and shows nothing; the parent of the displays."""

    def __init__(self, jobs: Sequence[RunJob]) -> None:
        self.jobs = jobs
        self.last: dict[int, dict[str, Any]] = {}
        self.ended: set[int] = set()
        self.done = {job.index: 0 for job in jobs}
        self._trained = 0
        self._began = 0.0  # the end of the first epoch: before, workers started and data were read

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def on_event(self, event: Event) -> None:
        """Record an event and show it."""
        if event.row is not None:
            self.last[event.index] = event.row
            self.done[event.index] = event.row["epoch"] - self.jobs[event.index].config.first_epoch
            self._trained += 1
            if self._trained == 1:
                self._began = time.monotonic()
        if event.kind in ("done", "failed"):
            self.ended.add(event.index)
            self.done[event.index] = self.epochs(event.index)
        self.show(event)

    def show(self, event: Event) -> None:
        """Show an event."""

    def epochs(self, index: int) -> int:
        """How many epochs a run has, after its fork if it is one."""
        config = self.jobs[index].config
        return config.epochs - config.first_epoch

    @property
    def total(self) -> int:
        return sum(self.epochs(job.index) for job in self.jobs)

    def time_left(self) -> str:
        """Time left at the speed so far; empty before the second epoch."""
        left = self.total - sum(self.done.values())
        if self._trained < 2 or not left:
            return ""
        return f"{duration((time.monotonic() - self._began) / (self._trained - 1) * left)} left"

    def name(self, index: int) -> str:
        config = self.jobs[index].config
        return f"{config.optimizer.label}, seed {config.seed}"


class PlainLines(Progress):
    """A line for each run that ends, and during long runs a line every 30 seconds."""

    def __init__(self, jobs: Sequence[RunJob], console: Console) -> None:
        super().__init__(jobs)
        self._console = console
        self._last_line = time.monotonic()
        self._already_done = 0

    def __exit__(self, *error: object) -> None:
        if self._already_done:
            self._console.print(f"{self._already_done} of {len(self.jobs)} runs were there already", highlight=False)

    def show(self, event: Event) -> None:
        late = time.monotonic() - self._last_line > LINE_SECONDS
        if event.kind == "start" or (event.kind == "epoch" and not late):
            return
        if event.kind == "done" and event.index not in self.last:
            self._already_done += 1
            return
        count = f"[{len(self.ended)}/{len(self.jobs)}]"
        left = self.time_left()
        row = self.last.get(event.index)
        text = {
            "done": losses(row),
            "failed": f"failed: {event.message}",
            "waiting": "another command is computing it; waiting",
            "epoch": f"epoch {row['epoch']}, {losses(row)}" if row else "",
        }[event.kind]
        line = f"{count} {self.name(event.index)}: {text}" + (f" ({left})" if left else "")
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._last_line = time.monotonic()


def live_bars(console: Console) -> Any:
    """The bars of all commands: a name, a bar, how much is done, and a note; a line each, however narrow it is.

    Only the column of the notes gives way where there is no room.
    """
    rich, column = require("rich.progress", extra="lab"), require("rich.table", extra="lab").Column

    class NoteColumn(require("rich.progress", extra="lab").ProgressColumn):  # type: ignore[misc]
        def render(self, task: Any) -> Note:
            return Note(task.fields["note"])

    bar = 24 if console.width >= 100 else 10 if console.width >= 80 else 5
    name = column(no_wrap=True, overflow="ellipsis", max_width=console.width // 3)
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False, table_column=name),
        rich.BarColumn(bar, table_column=column(no_wrap=True, min_width=bar)),
        rich.TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=column(no_wrap=True, min_width=7)),
        NoteColumn(),
        console=console,
        transient=True,
    )


@dataclass(frozen=True)
class Note:
    """A few words beside a bar; what stands between commas is shown whole, or left out where there is no room."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text

        yield Text(whole_parts(self.text, options.max_width), no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Any:
        from rich.measure import Measurement

        return Measurement(0, len(self.text))


def whole_parts(text: str, width: int) -> str:
    """As many of the parts between commas as there is room for, and at least the first.

    >>> whole_parts("train 0.25, valid 0.5, accuracy 0.875", 30)
    'train 0.25, valid 0.5'
    """
    while len(text) > width and ", " in text:
        text = text.rpartition(", ")[0]
    return text


class LiveDisplay(Progress):
    """An overall bar, a bar per running run with its losses so far, and the time left."""

    def __init__(self, jobs: Sequence[RunJob], console: Console) -> None:
        super().__init__(jobs)
        self._bars = live_bars(console)
        self._overall = self._bars.add_task("all epochs", total=self.total, note="")
        self._rows: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        index = event.index
        runs = f"{len(self.ended)} of {len(self.jobs)} runs"
        left = self.time_left()
        self._bars.update(self._overall, completed=sum(self.done.values()), note=f"{left}, {runs}" if left else runs)
        if event.kind in ("done", "failed"):
            if index in self._rows:
                self._bars.remove_task(self._rows.pop(index))
            last = self.last.get(index)
            if event.kind == "failed":
                self._print_line(f"{self.name(index)} failed: {event.message}", style="red")
            elif last is not None and last["diverged"]:
                self._print_line(f"{self.name(index)}: {losses(last)}")
            return
        if index not in self._rows:
            self._rows[index] = self._bars.add_task(self.name(index), total=self.epochs(index), note="")
        note = "waiting, since another command computes it" if event.kind == "waiting" else losses(self.last.get(index))
        self._bars.update(self._rows[index], completed=self.done[index], note=note)

    def _print_line(self, line: str, style: str | None = None) -> None:
        self._bars.console.print(line, style=style, markup=False, highlight=False)


class NotebookOutput:
    """The bar of all commands in the output of a notebook's cell: how much is done, a few words, and lines below."""

    def __init__(self) -> None:
        display = require("IPython.display", extra="lab")
        self._html, self._display, self._handle = display.HTML, display.display, None
        self._drawn = 0.0

    def draw(
        self, done: int, total: int, words: Sequence[str], lines: Sequence[str] = (), *, at_once: bool = False
    ) -> None:
        """Draw the bar; not `at_once` it may be left out, since an epoch of a short run takes a few milliseconds."""
        if not at_once and time.monotonic() - self._drawn <= NOTEBOOK_SECONDS:
            return
        self._drawn = time.monotonic()
        below = "".join(f"<br><small>{html.escape(line)}</small>" for line in lines[-NOTEBOOK_LINES:])
        bar = f'<progress value="{done}" max="{max(1, total)}" style="width:20em"></progress>'
        shown = self._html(f"<div>{bar} {html.escape(', '.join(filter(None, words)))}{below}</div>")
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        else:
            self._handle.update(shown)


class NotebookBar(Progress):
    """A bar in the output of a notebook's cell, with the time left and what the running runs have reached."""

    def __init__(self, jobs: Sequence[RunJob]) -> None:
        super().__init__(jobs)
        self._output = NotebookOutput()

    def __enter__(self) -> Self:
        self._draw(at_once=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._draw(at_once=True)

    def show(self, event: Event) -> None:
        self._draw(at_once=event.kind == "failed")

    def _draw(self, *, at_once: bool) -> None:
        done, total = sum(self.done.values()), self.total
        words = [f"{done} of {total} epochs", f"{len(self.ended)} of {len(self.jobs)} runs", self.time_left()]
        running = [index for index in self.last if index not in self.ended]
        lines = [f"{self.name(index)}: {losses(self.last[index])}" for index in running]
        self._output.draw(done, total, words, lines, at_once=at_once)


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook, where output is HTML."""
    shell = sys.modules.get("IPython")
    current = shell.get_ipython() if shell is not None else None
    return current is not None and hasattr(current, "kernel")


def make_progress(jobs: Sequence[RunJob], *, show: bool = True) -> Progress:
    """A live display in a terminal, a bar in a notebook, plain lines elsewhere; with `show=False` none."""
    if not show:
        return Progress(jobs)
    if in_notebook():
        return NotebookBar(jobs)
    console = terminal.console(stderr=True)
    return LiveDisplay(jobs, console) if console.is_terminal else PlainLines(jobs, console)


def losses(row: dict[str, Any] | None) -> str:
    """An epoch's results in a few words.

    >>> losses({"train_loss": 0.25, "valid_loss": 0.5, "valid_accuracy": 0.875, "diverged": False})
    'train 0.25, valid 0.5, accuracy 0.875'
    """
    if row is None:
        return ""
    if row.get("diverged"):
        return f"diverged in epoch {row['epoch']}"
    names = {"train_loss": "train", "valid_loss": "valid"}
    names |= {name: name.removeprefix("valid_") for name in row if name.startswith("valid_") and name not in names}
    return ", ".join(f"{name} {row[metric]:.4g}" for metric, name in names.items() if row.get(metric) is not None)


def duration(seconds: float) -> str:
    """A time span in words.

    >>> duration(42.3), duration(150), duration(7300)
    ('42 s', '2 min 30 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
