"""A worker process: gets a task and then runs to compute from its parent, and reports every epoch back."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from surefoot.lab.run.memory import keep_freed_memory
from surefoot.lab.run.pool import Event, RunRequest, TaskSource, execute


def serve(connection: Connection) -> None:
    """Compute what the parent asks for, until it closes the connection."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    source: TaskSource = connection.recv()
    task: Any = None
    while True:
        try:
            request: RunRequest
            request, wait = connection.recv()
        except EOFError:
            return
        try:
            task = task or source.load()
        except Exception as error:
            connection.send(Event("failed", request.index, message=f"{type(error).__name__}: {error}"))
            continue
        execute(request, task, connection.send, wait=wait)


def _end_with_parent() -> None:
    """A killed parent closes our standard input: end then, so that the next command finds the run free."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    keep_freed_memory()
    serve(Connection(int(sys.argv[1])))
