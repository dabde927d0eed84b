"""Packed rows are the rows that were written."""

from __future__ import annotations

import gc
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.store import (
    Rows,
    column,
    read_metrics,
)


def test_packed_rows_are_the_rows_that_were_written(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"epoch": k, "valid_loss": 1 / k if k % 7 else None, "seconds": 0.5, "skipped": 0, "diverged": False}
        for k in range(1, 10_000)
    ]
    rows[5000]["valid_f1"] = 0.25  # a block whose rows have different names
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed, size = read_metrics(path)
    assert size == path.stat().st_size
    assert (list(packed), packed) == (rows, rows)
    assert [type(value) for value in packed[0].values()] == [int, float, float, int, bool]
    assert (packed[-1], packed[4095], packed[4096:4098]) == (rows[-1], rows[4095], rows[4096:4098])
    for name in ("epoch", "valid_loss", "valid_f1", "unknown"):
        assert list(column(packed, name)) == list(column(rows, name))
    with pytest.raises(IndexError):
        packed[len(rows)]


def test_a_million_epochs_are_not_a_million_dicts() -> None:
    rows = Rows({"epoch": k, "valid_loss": 1 / k, "train_loss": 2 / k, "diverged": False} for k in range(1, 100_001))
    dicts = sum(isinstance(thing, dict) and "train_loss" in thing for thing in gc.get_objects())
    assert dicts < 5_000
    assert len(pickle.dumps(rows)) < 40 * len(rows)
