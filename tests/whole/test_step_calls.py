"""How many Python functions a step calls: with cold caches each costs time, so the numbers may shrink, never grow."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import surefoot

HOME = str(Path(surefoot.__file__).parent)
#: All calls of a step, in the library and in torch; those in the library; the library's files that they are in.
MOST_CALLS, MOST_OWN_CALLS, MOST_FILES = 39, 30, 8
#: The number of calls within torch is that of this version.
COUNTED_WITH = "2.13."


def calls_of_a_step(optimizer: Any, params: list[Parameter], loss: float) -> list[str]:
    """The file of each Python function that one step calls."""
    for p in params:
        p.grad = torch.ones_like(p)
    files: list[str] = []

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    gc.disable()  # finalizers and callbacks of the garbage collector would be counted too
    sys.setprofile(count)
    try:
        optimizer.step(loss=loss)
    finally:
        sys.setprofile(before)
        gc.enable()
    return files


def warm_steps(name: str, count: int = 4, **options: Any) -> list[list[str]]:
    params = [Parameter(torch.ones(4)) for _ in range(6)]
    optimizer = getattr(surefoot, name)(params, **options)
    counted = [calls_of_a_step(optimizer, params, 1.0 + step % 3) for step in range(5 + count)]
    return counted[5:]


def test_a_warm_step_calls_no_more_functions_than_it_did() -> None:
    steps = warm_steps("AdamUCB")
    assert all(step == steps[0] for step in steps)  # counting is deterministic
    our_calls = [file for file in steps[0] if file.startswith(HOME)]
    assert len(our_calls) <= MOST_OWN_CALLS
    assert len(set(our_calls)) <= MOST_FILES
    if torch.__version__.startswith(COUNTED_WITH):
        assert len(steps[0]) <= MOST_CALLS


@pytest.mark.parametrize(
    ("name", "most"), [("AdamS", 32), ("AdamCB", 32), ("MomentumUCB", 29), ("AdaMaxUCB", 42), ("NAdamUCB", 47)]
)
def test_no_optimizer_calls_more_functions_than_it_did(name: str, most: int) -> None:
    our_calls = [file for file in warm_steps(name)[0] if file.startswith(HOME)]
    assert len(our_calls) <= most


def test_the_number_does_not_depend_on_the_number_of_tensors() -> None:
    def own_calls(size: int) -> int:
        params = [Parameter(torch.ones(2)) for _ in range(size)]
        optimizer = surefoot.AdamUCB(params)
        counted = [calls_of_a_step(optimizer, params, 1.0 + step % 3) for step in range(6)]
        return sum(file.startswith(HOME) for file in counted[-1])

    assert own_calls(2) == own_calls(40)
