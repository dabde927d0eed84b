"""The archive: every bit of a run in one line, merged with runs that come later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.lab.spec.config import folder_of
from surefoot.lab.store import Run, StoreError, is_done, read_run, read_runs
from surefoot.paper.archive import gather, read_archive, unpack_archive, write_archive
from surefoot.paper.command import paper
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


def test_unpacked_runs_are_not_computed_again(paper_run: MakeRun, stored: Stored, tmp_path: Path) -> None:
    ended, diverged = paper_run(LR, "Adam", 0), paper_run(LR, "Adam", 1, diverged=True)
    begun = paper_run(LR, "AdamS", 0)
    archive, out = tmp_path / "runs.jsonl", tmp_path / "out"
    write_archive(archive, [ended, diverged, Run(begun.folder, begun.config, begun.epochs[:1])])
    assert unpack_archive(archive, out) == 2
    for run in read_archive(archive)[:2]:
        folder = folder_of(out, run.config)
        assert is_done(folder, run.config)
        assert (read_run(folder).config, read_run(folder).epochs) == (run.config, run.epochs)
    assert len(read_runs(out)) == 2
    assert unpack_archive(archive, out) == 0
    assert [run.epochs for run in gather(out, archive)] == [run.epochs for run in gather(None, archive)]


def test_what_is_in_the_folder_already_stays(paper_run: MakeRun, stored: Stored, tmp_path: Path) -> None:
    run = paper_run(LR, "Adam", 0)
    out = tmp_path / "out"
    folder = folder_of(out, run.config)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("somebody's own")
    write_archive(tmp_path / "runs.jsonl", [run])
    assert unpack_archive(tmp_path / "runs.jsonl", out) == 0
    assert (folder / "config.json").read_text() == "somebody's own"


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no archive .*runs\.jsonl; name a file such as"):
        paper("lr", archive=tmp_path / "runs.jsonl", out=tmp_path / "out", plan=True)


def test_no_folder_and_no_archive_give_no_runs(tmp_path: Path) -> None:
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
