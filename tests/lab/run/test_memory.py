"""Processes of the lab keep freed memory; settings of the user take precedence."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from surefoot.lab.run import memory

FAULTS = """
import resource, sys
import torch
from surefoot.lab.run.memory import keep_freed_memory

kept = keep_freed_memory()
for _ in range(20):
    torch.zeros(2**22)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.zeros(2**22)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**settings: str) -> tuple[bool, int]:
    """Whether memory is kept, and how many pages a loop over freed and new blocks of 16 MB gets from the system."""
    clean = {name: value for name, value in os.environ.items() if name not in memory.SETTINGS}
    done = subprocess.run([sys.executable, "-c", FAULTS], env=clean | settings, capture_output=True, check=True)
    kept, count = done.stdout.split()
    return bool(int(kept)), int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is kept is a matter of glibc")
def test_freed_memory_is_kept() -> None:
    kept, few = faults()
    kept_by_user, many = faults(MALLOC_TRIM_THRESHOLD_="131072")
    assert (kept, kept_by_user) == (True, False)
    assert 10 * few < many  # without it: ten times 16 MB, page by page


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in memory.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert memory.keep_freed_memory() is False


@pytest.mark.skipif(memory.peak() is None, reason="the system does not say how much memory a process had")
def test_the_peak_is_that_since_the_reset() -> None:
    code = """
from surefoot.lab.run.memory import peak, reset_peak
block = bytearray(300 * 2**20)
before = peak()
del block
reset_peak()
print(before, peak())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 300 * 2**20
    assert after < before - 200 * 2**20
