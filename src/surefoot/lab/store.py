"""Run folders: what was asked, what was measured, and how both survive a kill, a full disk or a second command.

A run folder holds `config.json` (what was asked), `metrics.jsonl` (one JSON object per epoch), `checkpoint.pt` (to
continue from) and, when user code raised, `error.txt`. `task.json` beside the run folders holds directions of metrics
that were corrected later.

Each line of `metrics.jsonl` ends with a hash of itself and of the line before it; the first one is chained to the run's
key. So a line that was edited is noticed, and so is the file of another run. Lines of earlier versions have no hash.

A checkpoint holds the line of its epoch and is written before the line is appended. So a line that is missing after a
kill is in the checkpoint, and a finished run has its last checkpoint. Short epochs do not get a checkpoint each: those
after the last one are trained again after a kill. Training is deterministic, so their lines stay as they are.

A run folder may come from anywhere. So every file of it is opened by `open_plain`, which follows no link and waits for
no fifo, and read by `read_plain` or line by line, with a bound. What is wrong with it is a StoreError that names it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import operator
import os
import re
import stat
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

from surefoot.lab.spec.config import FORMAT, ConfigError, Purpose, RunConfig

#: Bytes of a file that is read as a whole, and of a line of `metrics.jsonl`; no run comes near them.
MOST_BYTES = 16 << 20
MOST_LINE = 1 << 20


class StoreError(RuntimeError):
    """A run folder that cannot be read or written; the message says which file, why and how to go on.

    With `fatal` no other run could be written either: the disk is full or the folder read-only.
    """

    fatal = False


class Busy(RuntimeError):
    """Another command is working on this run."""


class NotPlain(OSError):
    """Something else than a file is in the place of one; `strerror` says what."""


class Rows(Sequence[dict[str, Any]]):
    """The rows of epochs, packed by columns in blocks: as dicts, a million of them take two gigabytes.

    >>> rows = Rows({"epoch": epoch, "valid_loss": 1 / epoch} for epoch in range(1, 10_001))
    >>> len(rows), rows[-1], rows[4:5]
    (10000, {'epoch': 10000, 'valid_loss': 0.0001}, [{'epoch': 5, 'valid_loss': 0.2}])
    """

    _BLOCK = 4096

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        self._blocks: list[Sequence[dict[str, Any]]] = []
        self._tail: list[dict[str, Any]] = []  # too few for a block
        for row in rows:
            self.append(row)

    def append(self, row: dict[str, Any]) -> None:
        self._tail.append(row)
        if len(self._tail) == self._BLOCK:
            alike = all(other.keys() == row.keys() for other in self._tail)
            self._blocks.append(_Columns(self._tail) if alike else self._tail)
            self._tail = []

    def __len__(self) -> int:
        return len(self._blocks) * self._BLOCK + len(self._tail)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self._blocks:
            yield from block
        yield from self._tail

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        block, place = divmod(range(len(self))[index], self._BLOCK)
        return (self._blocks[block] if block < len(self._blocks) else self._tail)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> Iterator[Any]:
        for block in self._blocks:
            yield from block.column(name) if isinstance(block, _Columns) else column(block, name)
        yield from column(self._tail, name)


class _Columns(Sequence[dict[str, Any]]):
    """Rows with the same names, each column in as few bytes as its values allow."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._names = tuple(rows[0])
        self._columns = [_packed([row[name] for row in rows]) for name in self._names]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self._names, values)) for values in zip(*self._columns))

    def __getitem__(self, index: Any) -> Any:
        return {name: values[index] for name, values in zip(self._names, self._columns)}

    def column(self, name: str) -> Iterable[Any]:
        return self._columns[self._names.index(name)] if name in self._names else repeat(None, len(self))


def column(rows: Sequence[Mapping[str, Any]], name: str) -> Iterator[Any]:
    """The values of one name, None where a row has none; much faster than row by row where the rows are packed.

    >>> list(column([{"epoch": 1, "seconds": 0.5}, {"epoch": 2}], "seconds"))
    [0.5, None]
    """
    return rows.column(name) if isinstance(rows, Rows) else (row.get(name) for row in rows)


def _packed(values: list[Any]) -> Sequence[Any]:
    kinds = set(map(type, values))
    return array("d", values) if kinds == {float} else array("q", values) if kinds == {int} else values


@dataclass(frozen=True)
class Run:
    """One recorded run: an optimizer on a task with a seed.

    >>> from surefoot.lab.spec.config import OptimizerConfig, TaskConfig
    >>> config = RunConfig(TaskConfig("toy"), OptimizerConfig("Adam"), seed=3, epochs=2)
    >>> run = Run(Path("nowhere"), config, [{"epoch": 1, "train_loss": 0.5, "diverged": False}])
    >>> run.label, run.seed, run.task, run.finished, run.diverged, run.error
    ('Adam', 3, 'toy', False, False, None)
    """

    folder: Path
    config: RunConfig
    epochs: Sequence[dict[str, Any]]
    #: Which part of the record contradicts its hashes: it was edited, or belongs to another run. Empty if none does.
    edited: str = ""
    #: Whether every epoch has its hash; runs of earlier versions have none.
    chained: bool = True

    @property
    def label(self) -> str:
        return self.config.optimizer.label

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def task(self) -> str:
        return self.config.task.name

    @property
    def diverged(self) -> bool:
        return bool(self.epochs) and bool(self.epochs[-1].get("diverged"))

    @property
    def finished(self) -> bool:
        """Every epoch asked for is there, or the run diverged: both are results."""
        return self.diverged or last_epoch(self.epochs) >= self.config.epochs

    @property
    def error(self) -> str | None:
        """What user code raised, or None."""
        path = self.folder / "error.txt"
        try:
            return read_plain(path).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from error

    def cut_to(self, epochs: int) -> Run:
        """The run as it was after so many epochs; its folder may hold a longer one."""
        rows: Sequence[dict[str, Any]] = self.epochs
        if last_epoch(rows) > epochs:
            rows = Rows(row for row in rows if row["epoch"] <= epochs)
        return replace(self, config=replace(self.config, epochs=epochs), epochs=rows)

    def riders(self) -> list[Run]:
        """The runs of the averages that rode along: each as if it had been trained alone with that average."""
        return [self._rider(name) for name in self.config.optimizer.riders]

    def _rider(self, name: str) -> Run:
        optimizer = replace(
            self.config.optimizer,
            label=f"{self.label} average={name}",
            spec=f"{self.config.optimizer.spec}{',' if ':' in self.config.optimizer.spec else ':'}average={name}",
            average=name,
            riders=(),
        )
        own = f"@{name}"
        rows = Rows(
            {column: row.get(column + own, value) for column, value in row.items() if "@" not in column}
            for row in self.epochs
        )
        return replace(self, config=self.config.with_changes(optimizer=optimizer), epochs=rows)

    def without_riders(self) -> Run:
        """The run of the weights themselves."""
        if not self.config.optimizer.riders:
            return self
        rows = Rows({column: value for column, value in row.items() if "@" not in column} for row in self.epochs)
        optimizer = replace(self.config.optimizer, riders=())
        return replace(self, config=self.config.with_changes(optimizer=optimizer), epochs=rows)

    @property
    def state(self) -> str:
        """In a word: done, diverged, failed or unfinished."""
        if self.finished:
            return "diverged" if self.diverged else "done"
        return "failed" if self.error else "unfinished"


def last_epoch(rows: Sequence[Mapping[str, Any]]) -> int:
    """Number of the last recorded epoch, 0 when there is none.

    >>> last_epoch([{"epoch": 1}, {"epoch": 2}])
    2
    """
    return int(rows[-1]["epoch"]) if rows else 0


def read_run(folder: Path) -> Run:
    """Read one run folder; raises StoreError when it is damaged or of another version."""
    config = read_config(folder)
    corrected = _read_directions(folder.parent).get(config.task.name)
    if corrected:
        task = replace(config.task, higher_is_better={**config.task.higher_is_better, **corrected})
        config = replace(config, task=task)
    log = _read_log(folder / "metrics.jsonl", config.key)
    edited = "config.json" if _is_edited(folder, config) else log.edited
    return Run(folder, config, log.rows, edited, log.chained)


def _is_edited(folder: Path, config: RunConfig) -> bool:
    """Whether a configuration is not the one that the run's key, or the name of its folder, was made from."""
    named = _RUN_FOLDER.fullmatch(folder.name) is not None
    return config.with_changes().key != config.key or (named and not config.key.startswith(folder.name[-8:]))


def record_directions(run: Run, directions: Mapping[str, bool]) -> None:
    """Record for each metric of a task whether higher values are better, if its runs say otherwise.

    They change no number, so they are in no key, and a user may correct them. They go to `task.json` beside the run
    folders, where they hold for all runs of the task, and no recorded run is rewritten.
    """
    if all(run.config.task.higher_is_better.get(metric) == higher for metric, higher in directions.items()):
        return
    folder = run.folder.parent
    with open_folder(folder):
        known = _read_directions(folder)
        known[run.task] = {**known.get(run.task, {}), **directions}
        data = {"format": FORMAT, "higher_is_better": known}
        write_atomic(folder / "task.json", (json.dumps(data, indent=1) + "\n").encode())


def _read_directions(folder: Path) -> dict[str, dict[str, bool]]:
    """The directions of metrics that were corrected, by name of the task."""
    path = folder / "task.json"
    try:
        directions = parse_json(read_plain(path))["higher_is_better"]
        recorded = {name: dict(metrics) for name, metrics in directions.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} cannot be read ({error!r}); delete it, and run the comparison again") from error
    for name, metrics in recorded.items():
        for metric, higher in metrics.items():
            if not isinstance(higher, bool):
                raise StoreError(
                    f"{path} cannot be read ({metric!r} of {name!r} is {higher!r}, not true or false); delete it, and "
                    "run the comparison again"
                )
    return recorded


def read_runs(root: Path | str, *, tuning: bool = False) -> list[Run]:
    """Read every run folder under `root`, in the order of the comparison: the baseline first.

    Other programs call a file `config.json` too; folders that are not runs are left out.

    Args:
        tuning: also the runs that only chose a setting, which are no results.
    """
    root = Path(root)
    if not root.is_dir():
        raise StoreError(f"{root} is not a folder; give the folder that 'surefoot compare --out' wrote to")
    runs = [read_run(folder) for folder in _run_folders(root)]
    runs = [run for run in runs if tuning or run.config.purpose != Purpose.TUNING]
    runs = [part for run in runs for part in (run.without_riders(), *run.riders())]
    runs.sort(key=lambda run: (run.task, run.config.optimizer.position, run.label, run.seed))
    return runs


def _run_folders(root: Path) -> list[Path]:
    """The run folders under `root`; one that cannot be looked into is an error: its runs would be missing."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

    folders = []
    for name, inner, files in os.walk(root, onerror=refuse):
        inner[:] = [part for part in inner if not part.startswith(".")]
        folder = Path(name)
        if "config.json" in (*inner, *files) and _is_run(folder):
            folders.append(folder)
    return sorted(folders)


def is_recorded(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    try:
        (folder / "config.json").lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(folder, error) from error
    return True


def read_config(folder: Path) -> RunConfig:
    """Read `config.json` of a run folder."""
    path = folder / "config.json"
    try:
        data = parse_json(read_plain(path))
        written = data["format"]
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path} cannot be read ({error!r:.200}); {_advice(folder)}") from error
    if written != FORMAT:
        raise StoreError(
            f"{folder} was written in format {written!r:.20} and this surefoot reads format {FORMAT}; "
            "choose another --out folder or use the surefoot version that wrote it"
        )
    try:
        return RunConfig.from_json(data)
    except ConfigError as error:
        raise StoreError(f"{path} is damaged: {error}; {_advice(folder, data)}") from error


# What `folder_of` in config.py ends a run's folder with: its seed and the beginning of its key.
_RUN_FOLDER = re.compile(r".+-s\d+-[0-9a-f]{8}")


def _is_run(folder: Path) -> bool:
    """Whether a folder with a `config.json` is a run's, or was one before it was damaged."""
    if _RUN_FOLDER.fullmatch(folder.name):
        return True
    try:
        config = parse_json(read_plain(folder / "config.json"))
    except (OSError, ValueError):
        return (folder / "metrics.jsonl").exists()  # a run that cannot be read must not go missing in silence
    return isinstance(config, dict) and config.keys() >= {"format", "key", "task"}


def check_place(report: Path) -> None:
    """Refuse a place for a report that holds something else: a special file, a run, a file that is no page."""
    owner = next((parent for parent in report.absolute().parents if is_recorded(parent) and _is_run(parent)), None)
    why = f"it would be inside the run {owner}" if owner else _other_content(report)
    if why:
        raise OSError(f"the report {report} cannot be written ({why}); write it to another place")


def _other_content(report: Path) -> str:
    """What stands in the place of a report, in words; empty if it is a report or nothing."""
    try:
        with os.fdopen(open_plain(report), "rb") as file:
            begins = file.read(200).lstrip().lower()
    except NotPlain as error:
        return str(error.strerror)
    except OSError:  # there is none, or one that may not be read: writing will show
        return ""
    return "" if not begins or begins.startswith((b"<!doctype html", b"<html")) else "another file has this name"


def _advice(folder: Path, config: Mapping[str, Any] | None = None) -> str:
    """How to go on with a damaged folder: only what is surely a run may be deleted."""
    if _RUN_FOLDER.fullmatch(folder.name) or str((config or {}).get("key", "")) != "":
        return f"delete the folder {folder} to compute this run again"
    return f"move {folder} away or choose another --out folder"


def write_config(folder: Path, config: RunConfig) -> None:
    """Write `config.json` of a run folder."""
    write_atomic(folder / "config.json", (json.dumps(config.to_json(), indent=1, allow_nan=False) + "\n").encode())


def is_done(folder: Path, config: RunConfig) -> bool:
    """Whether a folder holds this run to its end, or to its divergence."""
    if not is_recorded(folder):
        return False
    recorded = read_run(folder)
    if recorded.config.key != config.key:
        raise StoreError(
            f"{folder} holds another run than its name says (key {recorded.config.key[:12]}, expected "
            f"{config.key[:12]}); move it away or choose another --out folder"
        )
    return recorded.diverged or last_epoch(recorded.epochs) >= config.epochs


def claim(folder: Path, config: RunConfig) -> None:
    """Write the configuration of a new run; in a recorded one update only the epochs and the machine."""
    if is_recorded(folder):
        recorded = read_config(folder)
        updated = replace(
            recorded,
            epochs=max(recorded.epochs, config.epochs),
            provenance=recorded.provenance.with_resumed(config.provenance),
        )
        if updated != recorded:
            write_config(folder, updated)
    else:
        write_config(folder, config)
    with explained(folder / "error.txt"):
        (folder / "error.txt").unlink(missing_ok=True)


@dataclass(frozen=True)
class _Log:
    """The complete lines of a metrics file.

    Args:
        rows: What they record.
        size: How many bytes they take.
        last: The hash of the last line, to chain the next one to.
        chained: Whether every line has its hash.
        edited: The first line whose hash is wrong, in words; empty if there is none.
    """

    rows: Rows
    size: int
    last: str
    chained: bool
    edited: str = ""


def read_metrics(path: Path) -> tuple[Rows, int]:
    """Read the complete lines of a metrics file: the rows, and how many bytes they take.

    A last line without its end was being written when the process died and does not count.
    """
    log = _read_log(path)
    return log.rows, log.size


def _read_log(path: Path, key: str = "") -> _Log:
    """Read a metrics file; with the key of its run its hashes are checked."""
    rows, row = Rows(), None
    size, last, links, edited = 0, key, 0, ""
    for number, line in enumerate(_lines(path), start=1):
        body, link = _without_link(line.rstrip(b"\n"))
        try:
            row = check_row(parse_json(body), after=row)
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{path} is damaged at line {number} ({error!s:.200}); delete its folder to compute this run again"
            ) from error
        rows.append(row)
        size += len(line)
        expected = _link(body, last) if key else ""
        # A line without a hash is one of an earlier version, unless lines with one came before it.
        if key and not edited and (link != expected if link else links):
            edited = f"line {number} of metrics.jsonl"
        last, links = link or expected, links + bool(link)
    return _Log(rows, size, last, links == len(rows), edited)


def _lines(path: Path) -> Iterator[bytes]:
    """The complete lines of a file; one that goes on without end is cut, so that it is no complete line of JSON."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            while line := file.readline(MOST_LINE):
                if not line.endswith(b"\n") and len(line) < MOST_LINE:
                    return
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(path, error) from error


#: What an epoch's row records besides metrics; metrics are numbers, or null where there is none.
_ROW_TYPES = {"epoch": int, "step": int, "skipped": int, "jobs": int, "peak_memory": int, "diverged": bool}


def check_row(row: Any, after: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The row of an epoch; ValueError if it is none, or not the one that follows the row `after`.

    >>> check_row({"epoch": 2, "step": 24, "valid_loss": None}, after={"epoch": 1})
    {'epoch': 2, 'step': 24, 'valid_loss': None}
    >>> check_row({"epoch": 2, "step": None})
    Traceback (most recent call last):
    ValueError: step is None
    """
    if not isinstance(row, dict) or "epoch" not in row:
        raise ValueError("it is not the row of an epoch")
    for name, value in row.items():
        kind = _ROW_TYPES.get(name)
        if type(value) is not kind if kind else not (value is None or isinstance(value, int | float)):
            raise ValueError(f"{name} is {value!r}")
    expected = after["epoch"] + 1 if after else max(row["epoch"], 0)
    if row["epoch"] != expected:
        raise ValueError(f"epoch {row['epoch']} is not {expected}")
    return row


class MetricsLog:
    """Appends epochs to `metrics.jsonl`, a whole line or nothing; with the run's key the lines are chained."""

    def __init__(self, path: Path, key: str = "") -> None:
        self.path, self._key = path, key
        log = _read_log(path, key)
        self.rows, self._size, self._last = log.rows, log.size, log.last
        with explained(path):
            self._file = os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)
            self._file.truncate(self._size)

    def append(self, row: Mapping[str, Any]) -> None:
        line, link = _line(row, self._last)
        with explained(self.path):
            try:
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._file.truncate(self._size)
                raise
        self._size, self._last = self._size + len(line), link
        self.rows.append(dict(row))

    def cut(self, epoch: int) -> None:
        """Forget the epochs from `epoch` on."""
        self._file.close()
        kept = sum(row["epoch"] < epoch for row in self.rows)
        write_atomic(self.path, b"".join(self.path.read_bytes().splitlines(keepends=True)[:kept]))
        self.__init__(self.path, self._key)  # type: ignore[misc]

    def sync(self) -> None:
        with explained(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


_LINK = b', "chain": "'


def _line(row: Mapping[str, Any], last: str) -> tuple[bytes, str]:
    """The line of a row, and its hash; without anything to chain it to it has none."""
    body = json.dumps(row, allow_nan=False).encode()
    link = _link(body, last) if last else ""
    return (body[:-1] + _LINK + link.encode() + b'"}' if link else body) + b"\n", link


def _link(body: bytes, last: str) -> str:
    """The hash of a line, chained to that of the line before it."""
    return hashlib.sha256(last.encode() + body).hexdigest()[:16]


def _without_link(line: bytes) -> tuple[bytes, str]:
    """A line as it was hashed, and its hash; empty if it has none.

    >>> _without_link(b'{"epoch": 1, "chain": "00ff"}'), _without_link(b'{"epoch": 1}')
    ((b'{"epoch": 1}', '00ff'), (b'{"epoch": 1}', ''))
    """
    body, separator, link = line.rpartition(_LINK)
    return (body + b"}", link.removesuffix(b'"}').decode(errors="replace")) if separator else (line, "")


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file, but nothing else that has its name: a link would lead elsewhere, and a fifo would never end."""
    with suppress(FileNotFoundError):
        _refuse_special(path, path.lstat())
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _refuse_special(path, os.fstat(handle))  # it may have been replaced in between
    except NotPlain:
        os.close(handle)
        raise
    return handle


def _refuse_special(path: Path, status: os.stat_result) -> None:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a fifo",
        stat.S_IFSOCK: "a socket",
    }
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise NotPlain(errno.EINVAL, f"it is {kinds.get(kind, 'a special file')}, not a file", str(path))


def read_plain(path: Path) -> bytes:
    """What a file holds; see `open_plain`."""
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES >> 20} MB", str(path))
    return data


def unreadable(path: Path, error: OSError) -> StoreError:
    """The StoreError that says why a file or folder cannot be read and how to go on."""
    advice = "delete it" if isinstance(error, NotPlain) else "make it readable, or move it away"
    return StoreError(f"{path} cannot be read ({error.strerror or error}); {advice}")


def parse_json(data: bytes) -> Any:
    """JSON as this store writes it; raises ValueError for anything else.

    Python also reads NaN, infinity, numbers of any length and half characters: none of them is in a run, and each would
    fail much later.
    """
    try:
        value = _JSON.decode(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()  # half of a character cannot be written anywhere
    return value


def _whole(text: str) -> int:
    number = int(text) if len(text) < 20 else 1 << 63
    if abs(number) >= 1 << 63:
        raise ValueError(f"the number {text[:20]}... has {len(text)} digits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is not finite")
    return number


_JSON = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that after a kill at any moment it holds either the old content or the new."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with explained(path):
        try:
            part.unlink(missing_ok=True)
            with os.fdopen(open_plain(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def open_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a run folder alone, made when needed; while another holds it, wait, or raise Busy without `wait`."""
    import fcntl

    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = open_plain(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait:
                    raise Busy(f"another command is working on {folder}") from None
                time.sleep(0.1)
        for part in folder.glob(".*.part"):  # left by a killed process
            with explained(part):
                part.unlink()
        yield
    finally:
        os.close(handle)


def explain(error: OSError, path: Path) -> StoreError:
    """The StoreError that says what an OSError on a run folder means and how to go on."""
    if isinstance(error, NotPlain):
        return StoreError(f"cannot write {error.filename}: {error.strerror}; delete it, and run the same command again")
    advice = {
        errno.ENOSPC: "free some space and run the same command again",
        errno.EDQUOT: "free some space and run the same command again",
        errno.EROFS: "choose another --out folder",
        errno.EACCES: "choose an --out folder you may write to",
        errno.EPERM: "choose an --out folder you may write to",
        errno.ENOTDIR: "choose an --out folder that is not a file",
        errno.EEXIST: "choose an --out folder that is not a file",
    }.get(error.errno or 0, "run the same command again when this is repaired")
    explained = StoreError(f"cannot write {path}: {error.strerror or error}; {advice}: what was recorded is kept")
    explained.fatal = True
    return explained


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError on a run folder into the StoreError that `explain` makes of it."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error
