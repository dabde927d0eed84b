"""Files of run folders: whole or not at all, one writer, and nothing through a link."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from surefoot.lab.store import (
    Busy,
    StoreError,
    open_folder,
    write_atomic,
)


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*file: No space left.*run the same command again") as caught:
        write_atomic(path, b"new content")
    assert caught.value.fatal
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_has_one_holder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_folder(folder), pytest.raises(Busy), open_folder(folder, wait=False):
        pass
    with open_folder(folder, wait=False):  # free again
        pass


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint.pt.123.part").write_bytes(b"half")
    with open_folder(tmp_path):
        assert not list(tmp_path.glob(".*.part"))


def test_a_link_with_the_name_of_a_temporary_file_is_removed_and_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    (tmp_path / f".file.{os.getpid()}.part").symlink_to(secret)
    write_atomic(tmp_path / "file", b"new")
    assert (secret.read_text(), (tmp_path / "file").read_text()) == ("mine", "new")
