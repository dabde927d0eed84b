"""What `surefoot paper` does: refusals before any work, the archive, and what is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.store import Run, read_runs
from surefoot.paper import ablation
from surefoot.paper.archive import write_archive
from surefoot.paper.command import paper
from surefoot.paper.published import Configuration

LR = Configuration("mnist", "lr", 128, False)


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (None, {}, "nothing to do; name a part"),
        ("lr", {"page": Path("page.md")}, "--page page.md is refreshed from what --export writes"),
        ("steps", {"plan": True}, "steps is one training per variant and has no plan; leave --plan out"),
        ("lr", {"archive": Path("no.jsonl")}, r"there is no archive no\.jsonl; name a file such as"),
        ("lr", {"model": "cnn"}, "lr has nothing for the model cnn; leave --model out"),
        ("rnn", {}, "no part 'rnn'; choose lr"),
    ],
)
def test_refused_before_any_work(part: str | None, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        paper(part, out=tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_an_archive_is_unpacked_first(paper_run: Callable[..., Run], mnist: Path, tmp_path: Path) -> None:
    write_archive(tmp_path / "runs.jsonl", [paper_run(LR, "Adam", seed) for seed in range(2)])
    lines: list[str] = []
    options: dict[str, Any] = {"out": tmp_path / "runs", "data_dir": mnist, "print_line": lines.append}
    assert paper("lr", plan=True, archive=tmp_path / "runs.jsonl", **options)
    assert lines[0] == f"2 runs of {tmp_path / 'runs.jsonl'} are now in {tmp_path / 'runs'}"
    assert "LR 128 (mnist-lr)" in lines[1]
    assert len(read_runs(tmp_path / "runs")) == 2  # planned, not run


def test_failed_runs_are_printed(mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ArithmeticError("one over zero")

    monkeypatch.setattr("surefoot.lab.run.trainer.Trainer.run_epoch", fails)
    lines: list[str] = []
    options: dict[str, Any] = {"out": tmp_path / "runs", "data_dir": mnist, "print_line": lines.append}
    assert not paper("lr", seeds=1, epochs=1, progress=False, **options)
    assert len(lines) == 4
    assert all(line.startswith("failed: ArithmeticError: one over zero") for line in lines)


def test_without_schedulefree_it_is_said_that_one_variant_is_left_out(
    mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation, "has_schedule_free", lambda: False)
    lines: list[str] = []
    paper("ablation", model="lr", plan=True, out=tmp_path / "runs", data_dir=mnist, print_line=lines.append)
    assert lines[0].endswith("to have it take part: pip install schedulefree")
