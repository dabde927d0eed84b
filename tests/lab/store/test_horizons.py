"""What `anytime` compared: written, read again, and damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.store import HorizonRecord, StoreError

RECORD = HorizonRecord({1: {"Adam": ["a", "b"], "SGD": ["c"]}, 4: {"Adam": ["a", "b"], "SGD": ["d"]}}, "1%", "x", "y")


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert HorizonRecord.read(tmp_path) is None
    assert HorizonRecord.read(tmp_path / "nowhere") is None
    RECORD.write(tmp_path)
    read = HorizonRecord.read(tmp_path)
    assert read == RECORD
    assert read is not None
    assert [list(entries) for entries in read.contestants.values()] == [["Adam", "SGD"]] * 2  # in this order


@pytest.mark.parametrize(
    "change",
    [
        {"horizons": []},
        {"horizons": [{"epochs": 1, "contestants": {}}]},
        {"horizons": [{"epochs": "1", "contestants": {"Adam": ["a"]}}]},
        {"horizons": [{"epochs": True, "contestants": {"Adam": ["a"]}}]},
        {"horizons": [{"epochs": 1, "contestants": {"Adam": []}}]},
        {"horizons": [{"epochs": 1, "contestants": {"Adam": "a"}}]},
        {"horizons": [{"epochs": 1, "contestants": {"Adam": [3]}}]},
        {"horizons": [3]},
        {"margin": None},
        {"command": 3},
    ],
)
def test_a_damaged_one_is_one_sentence(tmp_path: Path, change: dict[str, Any]) -> None:
    RECORD.write(tmp_path)
    path = tmp_path / "anytime.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(StoreError, match=r"anytime\.json cannot be read \(.*\); delete it, and run 'surefoot anytime'"):
        HorizonRecord.read(tmp_path)


def test_only_a_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "anytime.json")
    with pytest.raises(StoreError, match="it is a fifo, not a file"):
        HorizonRecord.read(tmp_path)
    (tmp_path / "anytime.json").unlink()
    (tmp_path / "anytime.json").write_text("[")
    with pytest.raises(StoreError, match="cannot be read"):
        HorizonRecord.read(tmp_path)
