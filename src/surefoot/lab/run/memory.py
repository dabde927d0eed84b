"""The memory of the processes of the lab: how much a run needs, and that what is freed is kept.

A file of its own because the command line calls it before torch is imported.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

# From glibc's malloc.h: blocks larger than the first size come from the system one by one, and free memory beyond the
# second size at the end of the heap is given back to it.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep memory that it frees; returns whether that was possible.

    glibc returns a freed block of megabytes to the system and requests it again, page by page, in the next step: a
    quarter of the time of the paper's CNN. This cannot be undone, so it is for worker processes and commands, never for
    a user's process. Settings of the user take precedence; without glibc nothing happens.
    """
    if any(name in os.environ for name in SETTINGS):
        return False
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, 2**31 - 1)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
    return False


def reset_peak() -> None:
    """Let the peak memory of this process begin anew, where the system can do that (Linux)."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak() -> int | None:
    """The most memory that this process had since `reset_peak`, in bytes; None if unknown.

    Python, its libraries and the data count as well.
    """
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")), None)
    return None
