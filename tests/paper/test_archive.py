"""The archive: every bit of a run in one line, merged with runs that come later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.lab.store import Run, StoreError
from surefoot.paper.archive import gather, read_archive, write_archive
from surefoot.paper.published import Configuration

LR = Configuration("mnist", "lr", 128, False)
MakeRun = Callable[..., Run]
Stored = Callable[[Path, list[Run]], Path]


def test_round_trip_keeps_every_result(paper_run: MakeRun, tmp_path: Path) -> None:
    runs = [paper_run(LR, "AdamS", 1, final=1 / 3), paper_run(LR, "Adam", 2, diverged=True)]
    write_archive(tmp_path / "runs.jsonl", runs)
    back = read_archive(tmp_path / "runs.jsonl")
    assert [run.config for run in back] == [run.config for run in runs]
    for read, run in zip(back, runs):
        assert read.epochs == [{**row, "seconds": 2.0} for row in run.epochs]
        assert (read.diverged, read.finished, read.error) == (run.diverged, True, None)


def test_commands_are_left_out(paper_run: MakeRun, tmp_path: Path) -> None:
    run = paper_run(LR, "Adam", 0)
    provenance = replace(run.config.provenance, command="surefoot compare mnist-lr --data-dir /home/me/data")
    write_archive(tmp_path / "runs.jsonl", [Run(run.folder, replace(run.config, provenance=provenance), run.epochs)])
    assert "/home/me" not in (tmp_path / "runs.jsonl").read_text()
    assert [back.config for back in read_archive(tmp_path / "runs.jsonl")] == [run.config]


def test_folder_and_archive_are_merged_and_the_longer_run_counts(
    paper_run: MakeRun, stored: Stored, tmp_path: Path
) -> None:
    known, longer = paper_run(LR, "Adam", 0), paper_run(LR, "Adam", 1)
    short = Run(longer.folder, longer.config, longer.epochs[:1])
    archive = tmp_path / "runs.jsonl"
    write_archive(archive, [known, short])
    folder = stored(tmp_path / "runs", [longer, paper_run(LR, "AdamS", 0), paper_run(LR, "Adam", 5, purpose="tune")])
    gathered = gather(folder, archive)
    assert [(run.label, run.seed, len(run.epochs)) for run in gathered] == [
        ("Adam", 0, 3),
        ("Adam", 1, 3),
        ("AdamS", 0, 3),
    ]
    write_archive(archive, [longer])
    stored(tmp_path / "other", [short])
    assert [len(run.epochs) for run in gather(tmp_path / "other", archive)] == [3]


def test_nothing_yet(tmp_path: Path) -> None:
    assert gather(None, tmp_path / "runs.jsonl") == gather(tmp_path / "no", tmp_path / "runs.jsonl") == []


@pytest.mark.parametrize("line", ["{", "{}", '{"config": {}, "epochs": {}}', '{"config": {"format": 1}, "epochs": 3}'])
def test_damage_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(StoreError, match=r"runs\.jsonl is damaged at line 1 .* version control"):
        read_archive(path)


def test_another_format_is_refused(paper_run: MakeRun, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    write_archive(path, [paper_run(LR)])
    path.write_text(path.read_text().replace('"format":1', '"format":7'))
    with pytest.raises(StoreError, match="line 1: format 7"):
        read_archive(path)
