"""Keeps freed memory in the process, where it is the lab's own."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

# From glibc's malloc.h: blocks beyond the first size are got from the system one by one, and memory beyond the second
# at the end of the heap is given back to it.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep what it has used; returns whether that was possible.

    glibc hands a freed block of megabytes back to the system and gets it again, page by page, in the next step: a
    quarter of the time of the paper's CNN. It cannot be undone, so it is for processes that belong to the lab, never
    for a user's own. Settings that a user made win; elsewhere than on glibc nothing happens.
    """
    if any(name in os.environ for name in _SETTINGS):
        return False
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_MMAP_THRESHOLD, 2**31 - 1)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
    return False
