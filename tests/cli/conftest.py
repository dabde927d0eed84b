"""A task in a user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import TASK


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my_task.py"
    path.write_text(TASK)
    return path
