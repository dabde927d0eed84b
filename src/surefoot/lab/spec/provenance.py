"""Where a run was computed: versions, commit, machine."""

from __future__ import annotations

import datetime
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import surefoot


def provenance() -> dict[str, Any]:
    """Versions, commit, hardware and time, as recorded with every run.

    >>> sorted(provenance())
    ['commit', 'cpu', 'platform', 'python', 'surefoot', 'time', 'torch']
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {**_machine(), "time": now}


@cache
def _machine() -> dict[str, Any]:
    return {
        "surefoot": surefoot.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",  # no kernel or host names
        "cpu": _cpu(),
        "commit": _commit(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Commit of the source tree surefoot is imported from; None for an installed package."""
    root = Path(surefoot.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
