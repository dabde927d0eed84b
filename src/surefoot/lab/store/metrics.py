"""`metrics.jsonl`: a line per epoch, written whole or not at all, and chained by hashes.

Each line ends with a hash of itself and of the line before it; the first one is chained to the run's key. So a line
that was edited is noticed, and so is the file of another run. Lines of earlier versions have no hash.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.lab.store.files import StoreError, explained, open_plain, parse_json, unreadable, write_atomic
from surefoot.lab.store.rows import Rows

MOST_LINE = 1 << 20


@dataclass(frozen=True)
class Log:
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
    log = read_log(path)
    return log.rows, log.size


def read_log(path: Path, key: str = "") -> Log:
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
    return Log(rows, size, last, links == len(rows), edited)


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
            raise ValueError(f"{name:.60} is {value!r:.60}")
    expected = after["epoch"] + 1 if after else max(row["epoch"], 0)
    if row["epoch"] != expected:
        raise ValueError(f"epoch {row['epoch']} is not {expected}")
    return row


class MetricsLog:
    """Appends epochs to `metrics.jsonl`, a whole line or nothing; with the run's key the lines are chained."""

    def __init__(self, path: Path, key: str = "") -> None:
        self.path, self._key = path, key
        log = read_log(path, key)
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
