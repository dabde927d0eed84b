"""Files of run folders: opened safely, read with a bound, written whole or not at all, and explained if that fails.

A run folder may come from anywhere. So every file of it is opened by `open_plain`, which follows no link and waits for
no fifo, and read by `read_plain` or line by line, with a bound. What is wrong with it is a StoreError that names it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: Bytes of a file that is read as a whole, and of a line of `metrics.jsonl`; no run comes near them.
MOST_BYTES = 16 << 20


class StoreError(RuntimeError):
    """A run folder that cannot be read or written; the message says which file, why and how to go on.

    With `fatal` no other run could be written either: the disk is full or the folder read-only.
    """

    fatal = False


class Busy(RuntimeError):
    """Another command is working on this run."""


class NotPlain(OSError):
    """Something else than a file is in the place of one; `strerror` says what."""


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


def read_plain(path: Path, most: int = MOST_BYTES) -> bytes:
    """What a file holds, at most so many bytes; see `open_plain`."""
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MB", str(path))
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
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # half of a character cannot be written anywhere
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text, see byte {error.start + 1}") from None
    except UnicodeEncodeError:
        raise ValueError("it has half of a character") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
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
