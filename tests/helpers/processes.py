"""A function in a process of its own; forked, since importing torch takes longer than what the tests do in it."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(function: Callable[[], object]) -> int:
    """Start a process that calls this; returns its id. It ends without cleaning up: 0, or 1 after an error."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function()
        code = 0
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Wait for the end of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
