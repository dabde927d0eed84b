"""Locks that end with their process, whatever ends it: on files, and in a PostgreSQL server.

They have two uses. One worker at a time changes the list of trials (`hold`). And each worker holds a lock as long as it
lives (`live`), by which others distinguish a trial that is being computed from a trial whose worker was killed. No
clock is involved: a slow worker is never taken for a dead one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from surefoot._extras import require
from surefoot.lab.store import explained


class Locks(Protocol):
    """The locks beside one storage."""

    def hold(self) -> AbstractContextManager[None]:
        """Change the list of trials alone."""

    def live(self) -> AbstractContextManager[str]:
        """Be a worker; gives its name."""

    def is_alive(self, worker: str) -> bool:
        """Whether the worker of this name still lives."""


class FileLocks:
    """Locks in a folder beside the storage's file, for every process that sees it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     locks = FileLocks(Path(folder))
    ...     with locks.live() as worker:
    ...         during = locks.is_alive(worker)
    ...     after = locks.is_alive(worker)
    >>> during, after
    (True, False)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def hold(self) -> AbstractContextManager[None]:
        return self._held("list")

    @contextmanager
    def live(self) -> Iterator[str]:
        worker = _new_name()
        with self._held(worker):
            try:
                yield worker
            finally:
                (self.folder / worker).unlink(missing_ok=True)

    def is_alive(self, worker: str) -> bool:
        try:
            handle = os.open(self.folder / worker, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        (self.folder / worker).unlink(missing_ok=True)  # left by a killed process
        return False

    @contextmanager
    def _held(self, name: str) -> Iterator[None]:
        handle = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class PostgresLocks:
    """Advisory locks of a PostgreSQL server: it drops them when the connection of their process ends."""

    def __init__(self, url: str) -> None:
        sqlalchemy = require("sqlalchemy", extra="tune")
        pool = require("sqlalchemy.pool", extra="tune")
        self._text = sqlalchemy.text
        self._engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=pool.NullPool)
        self._connection: Any = self._engine.connect()
        self._live_here: set[str] = set()
        # A machine that lost its power does not close its connection: the server asks for it within about a minute.
        for setting in ("tcp_keepalives_idle = 30", "tcp_keepalives_interval = 10", "tcp_keepalives_count = 3"):
            with suppress(Exception):  # not over a local socket
                self._connection.execute(self._text(f"SET {setting}"))

    def hold(self) -> AbstractContextManager[None]:
        return self._held("list")

    @contextmanager
    def live(self) -> Iterator[str]:
        worker = _new_name()
        with self._held(worker):
            self._live_here.add(worker)
            try:
                yield worker
            finally:
                self._live_here.discard(worker)

    def is_alive(self, worker: str) -> bool:
        if worker in self._live_here:  # the server grants a lock twice to the same connection
            return True
        free = self._call("pg_try_advisory_lock", worker)
        if free:
            self._call("pg_advisory_unlock", worker)
        return not free

    @contextmanager
    def _held(self, name: str) -> Iterator[None]:
        self._call("pg_advisory_lock", name)
        try:
            yield
        finally:
            with suppress(Exception):  # the server unlocks it when the connection is lost
                self._call("pg_advisory_unlock", name)

    def _call(self, function: str, name: str) -> Any:
        number = int.from_bytes(hashlib.sha256(f"surefoot tune {name}".encode()).digest()[:8], "big", signed=True)
        return self._connection.execute(self._text(f"SELECT {function}(:key)"), {"key": number}).scalar()


def _new_name() -> str:
    return f"worker-{uuid.uuid4().hex}"
