"""Locks that end with their process: on files and in a PostgreSQL server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from processes import exit_code, in_child
from surefoot.lab.store import StoreError
from surefoot.lab.tune.locks import FileLocks, Locks, PostgresLocks


@pytest.fixture(params=["file", "postgresql"])
def make_locks(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    if request.param == "file":
        return lambda: FileLocks(tmp_path / "locks")
    pytest.importorskip("psycopg", reason="psycopg is not installed; pip install 'surefoot[tune]'")
    url = request.getfixturevalue("postgres").replace("postgresql://", "postgresql+psycopg://")
    return lambda: PostgresLocks(url)


def test_a_worker_lives_as_long_as_its_context(make_locks) -> None:
    here, elsewhere = make_locks(), make_locks()
    with here.live() as first, here.live() as second:
        assert first != second
        for locks in (here, elsewhere):
            assert locks.is_alive(first)
            assert locks.is_alive(second)
    for locks in (here, elsewhere):
        assert not locks.is_alive(first)
        assert not locks.is_alive(second)
    assert not here.is_alive("worker-of-nobody")


def test_a_killed_worker_is_dead_at_once(make_locks) -> None:
    ready, names = os.pipe(), os.pipe()

    def work() -> None:
        with make_locks().live() as worker:
            os.write(names[1], worker.encode())
            os.read(ready[0], 1)
            os._exit(9)

    pid = in_child(work)
    worker = os.read(names[0], 100).decode()
    locks: Locks = make_locks()
    assert locks.is_alive(worker)
    os.write(ready[1], b"x")
    assert exit_code(pid) == 9
    for _ in range(100):  # a server notices the lost connection a moment later
        if not locks.is_alive(worker):
            break
    assert not locks.is_alive(worker)


def test_one_process_at_a_time_changes_the_list(make_locks, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        locks = make_locks()
        for _ in range(25):
            with locks.hold():
                counter.write_text(str(int(counter.read_text()) + 1))

    assert [exit_code(pid) for pid in [in_child(count) for _ in range(3)]] == [0, 0, 0]
    assert counter.read_text() == "75"


def test_a_lock_is_released_after_an_error(make_locks) -> None:
    locks, others = make_locks(), make_locks()
    with pytest.raises(ZeroDivisionError), locks.hold():
        raise ZeroDivisionError
    with others.hold():  # would wait for ever
        pass


def test_a_file_in_the_place_of_the_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("mine")
    with pytest.raises(StoreError, match=r"locks"):
        FileLocks(tmp_path / "locks")


def test_files_of_dead_workers_are_removed(tmp_path: Path) -> None:
    locks = FileLocks(tmp_path)
    (tmp_path / "worker-left").touch()
    assert not locks.is_alive("worker-left")
    assert not list(tmp_path.iterdir())
