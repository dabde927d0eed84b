"""`metrics.jsonl`: whole lines, and damaged ones named."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.lab.store import (
    MetricsLog,
    StoreError,
    read_metrics,
)


def test_a_torn_last_line_does_not_count_and_is_removed_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3, "tr')
    assert read_metrics(path) == ([{"epoch": 1}, {"epoch": 2}], 26)
    log = MetricsLog(path)
    log.append({"epoch": 3})
    log.close()
    assert path.read_text() == '{"epoch": 1}\n{"epoch": 2}\n{"epoch": 3}\n'


@pytest.mark.parametrize(
    "text",
    [
        '{"epoch": 1}\nrubbish\n{"epoch": 3}\n',
        '{"epoch": 1}\n{"epoch": 3}\n',
        '{"epoch": 1}\n[]\n',
        '{"epoch": 1}\n{"epoch": 2, "valid_loss": "low"}\n',
    ],
)
def test_an_error_in_metrics_names_the_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"metrics.jsonl is damaged at line 2"):
        read_metrics(path)
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["5\n", "[]\n", '{"epoch": "one"}\n', '{"epoch": null}\n', "{}\n"])
def test_a_damaged_first_line_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"metrics.jsonl is damaged at line 1"):
        read_metrics(path)


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"epoch": 1})

    class HalfFull:
        def __init__(self, file: object) -> None:
            self.file = file

        def write(self, data: bytes) -> int:
            return self.file.write(data[:5])  # type: ignore[attr-defined]

        def truncate(self, size: int) -> None:
            self.file.truncate(size)  # type: ignore[attr-defined]

    log._file = HalfFull(log._file)  # type: ignore[assignment]
    with pytest.raises(StoreError, match="No space left"):
        log.append({"epoch": 2})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"epoch": 1}\n'
    assert [row["epoch"] for row in log.rows] == [1]


def test_numbers_that_json_cannot_hold_are_refused(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append({"epoch": 1, "train_loss": float("nan")})
    log.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_cutting_forgets_the_later_epochs_only(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for epoch in (1, 2, 3):
        log.append({"epoch": epoch})
    log.cut(2)
    log.append({"epoch": 2, "again": True})
    log.close()
    assert read_metrics(tmp_path / "metrics.jsonl")[0] == [{"epoch": 1}, {"epoch": 2, "again": True}]


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "row",
    [
        '{"epoch": Infinity}', '{"epoch": 1.0}', '{"epoch": true}', '{"epoch": -1}', '{"epoch": 1, "step": null}',
        '{"epoch": 1, "step": "x"}', '{"epoch": 1, "diverged": 1}', '{"epoch": 1, "valid_loss": NaN}',
        '{"epoch": 1, "valid_loss": 1e999}', f'{{"epoch": 1, "valid_loss": {"9" * 400}}}', f'{{"epoch": {DEEP}}}',
        '{"epoch": 1, "\\ud800": 1}', '{"epoch": 1, "jobs": [1]}',
    ],
)  # fmt: skip
def test_a_row_that_no_run_writes_is_refused_with_its_line(tmp_path: Path, row: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(StoreError, match=r"^\S+metrics.jsonl is damaged at line 1 \(.{1,250}\); delete its folder"):
        read_metrics(path)
