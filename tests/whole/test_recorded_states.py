"""Checkpoints that an earlier version wrote load, and training goes on from them to the recorded bits."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import surefoot
from recorded import (
    DTYPES,
    FILE,
    SHAPES,
    WEIGHERS,
    make,
    named_optimizers,
    optimizer_cases,
    parameters,
    statistics,
    tensors,
    train,
    weigh_all,
)


@functools.cache
def recorded() -> dict[str, Any]:
    return torch.load(FILE, weights_only=True)


@functools.cache
def vendor() -> str:
    """Who made the processor: the same kernels of MKL round otherwise on another one."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def assert_same(actual: Any, expected: Any) -> None:
    """Bit for bit where torch and the processor are those of the recording; elsewhere kernels may round otherwise."""
    here = (str(torch.__version__), torch.backends.cpu.get_cpu_capability(), vendor())
    exact = here == (recorded()["torch"], recorded()["cpu"], "AuthenticAMD")
    options = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(actual, expected, equal_nan=True, **options)


def shaped(flat: Tensor) -> list[Tensor]:
    parts = flat.split([math.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES)]


CASE = pytest.mark.parametrize("case", optimizer_cases())
DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def test_every_named_optimizer_is_recorded() -> None:
    assert len(named_optimizers()) >= 16
    for dtype in DTYPES:
        # reference=True follows the authors' code more closely than it did then.
        assert set(recorded()["optimizers"][dtype]) - {"AdamCB reference"} == set(optimizer_cases())
    assert FILE.stat().st_size < 300_000


@CASE
@DTYPE
@pytest.mark.parametrize("as_recorded", [True, False], ids=["defaults then", "defaults now"])
def test_a_recorded_checkpoint_continues_as_it_did(case: str, dtype: str, as_recorded: bool) -> None:
    expected = recorded()["optimizers"][dtype][case]
    params = parameters(shaped(expected["params"]))
    optimizer = make(case, params, as_recorded)
    optimizer.load_state_dict(copy.deepcopy(expected["state_dict"]))  # whose tensors the steps would write to
    train(optimizer, params, 1)
    assert_same([p.detach() for p in params], shaped(expected["params_after"]))
    assert_same(statistics(optimizer), expected["statistics_after"])


@CASE
@DTYPE
def test_training_from_the_start_writes_the_recorded_checkpoint(case: str, dtype: str) -> None:
    expected = recorded()["optimizers"][dtype][case]
    params = parameters(tensors(DTYPES[dtype], 0))
    optimizer = make(case, params)
    train(optimizer, params, 0)
    assert_same([p.detach() for p in params], shaped(expected["params"]))
    written = optimizer.state_dict()
    assert_same(written["state"], expected["state_dict"]["state"])
    for group, before in zip(written["param_groups"], expected["state_dict"]["param_groups"], strict=True):
        assert before.keys() <= group.keys()  # an option may be added, none may go
        assert group["seen"].shape == (8,)
        assert_same(group["seen"], before["seen"])
        assert all(group[name] == value for name, value in before.items() if name != "seen")


@pytest.mark.parametrize("name", WEIGHERS)
def test_a_recorded_weigher_continues_as_it_did(name: str) -> None:
    expected = recorded()["weighers"][name]
    weigh = surefoot.weigh(**WEIGHERS[name])
    weigh.load_state_dict(expected["state_dict"])
    assert_same(weigh_all(weigh, 1), expected["weights"][1])
    assert_same(statistics(weigh), expected["statistics_after"])


@pytest.mark.parametrize("name", WEIGHERS)
def test_a_weigher_from_the_start_writes_the_recorded_checkpoint(name: str) -> None:
    expected = recorded()["weighers"][name]
    weigh = surefoot.weigh(**WEIGHERS[name])
    assert_same(weigh_all(weigh, 0), expected["weights"][0])
    assert_same(weigh.state_dict(), expected["state_dict"])
