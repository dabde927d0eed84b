"""Damaged run folders, at random: every command ends with one sentence and an exit code, and changes nothing else.

`make fuzz` tries more of them; SUREFOOT_FUZZ is how many, SUREFOOT_FUZZ_SEED where they begin.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import surefoot
from mutations import mutate

FIXTURES = Path(__file__).parents[1] / "fixtures"
COUNT = int(os.environ.get("SUREFOOT_FUZZ", 120))
FIRST = int(os.environ.get("SUREFOOT_FUZZ_SEED", 0))
#: A command that takes longer waits for something that never comes.
SECONDS = 60
READERS: list[tuple[object, ...]] = [
    ("report", "runs", "-o", "out.html"),
    ("report", "runs", "--check"),
    ("report", "runs", "--format", "csv"),
    ("report", "runs", "--format", "json"),
    ("report", "runs", "--format", "md"),
    ("runs", "runs"),
]
SIZE = ("--subset", 100, "--batch-size", 32, "--seeds", 1)
WRITER = ("compare", "digits-lr", "-o", "adam", "-o", "adams:eta=0.1", *SIZE, "--epochs", 4, "--out", "runs")


@contextmanager
def time_limit(what: object) -> Iterator[None]:
    def stop(*_: object) -> None:
        pytest.fail(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def content(folder: Path) -> dict[str, Any]:
    """Every file under a folder: its kind, and what it holds or leads to."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        held: object = None
        if stat.S_ISLNK(info.st_mode):
            held = os.readlink(path)
        elif stat.S_ISREG(info.st_mode):
            held = info.st_size if info.st_size > 1 << 30 else path.read_bytes()
        files[str(path.relative_to(folder))] = stat.S_IFMT(info.st_mode), held
    return files


def check(seed: int, place: Path) -> None:
    """Damage a folder of runs and give it to a command."""
    chance = random.Random(seed)
    writes = chance.random() < 0.25
    command = WRITER if writes else chance.choice(READERS)
    shutil.copytree(FIXTURES / ("lab/compare" if writes else "report_runs"), place / "runs")
    outside = place / "outside.txt"
    outside.write_text('{"epoch": 1, "secret": 5}\n')
    damage = mutate(chance, place / "runs", outside)
    case = f"seed {seed}: {' '.join(map(str, command[:4]))} after {damage}"
    before = content(place / "runs")
    with time_limit(case):
        done = surefoot(*command)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(case) from done.exception
    assert done.exit_code in (0, 1, 2), case
    assert "Traceback" not in done.output, case
    errors = done.stderr.splitlines()
    if done.exit_code == 2:
        assert sum(line.startswith("error: ") for line in errors) == 1, (case, errors)
        assert len([line for line in errors if line.strip()]) == 1, (case, errors)
    bad = {letter for letter in done.output if not letter.isprintable()} - {"\n"}
    assert not bad, (case, bad)
    assert outside.read_text() == '{"epoch": 1, "secret": 5}\n', case
    assert {path.name for path in place.iterdir()} <= {"runs", "outside.txt", "out.html"}, case
    if not writes:
        assert content(place / "runs") == before, case


@pytest.mark.parametrize("part", range(4))
def test_damaged_runs_end_in_one_sentence(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(FIRST + part, FIRST + COUNT, 4):
        place = tmp_path / str(seed)
        place.mkdir()
        monkeypatch.chdir(place)
        check(seed, place)
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(place)
