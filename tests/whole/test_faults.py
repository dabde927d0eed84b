"""What can go wrong around a run: kills, full disks, damaged files, two commands at once."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from processes import exit_code, in_child
from surefoot.lab import compare
from surefoot.lab.run import runner
from surefoot.lab.run.pool import Event
from surefoot.lab.run.progress import Progress
from surefoot.lab.run.runner import load_checkpoint
from surefoot.lab.spec.config import RunConfig, folder_of
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.store import MetricsLog, StoreError, open_folder, read_metrics, read_run
from surefoot.lab.store.files import explain

MakeTask = Callable[..., Task]
EPOCHS = 20


def prepare(task: Task, out: Path, seed: int = 0, epochs: int = EPOCHS) -> tuple[RunConfig, Path]:
    contestant = Contestant.parse("adams:eta=0.1")
    config = RunConfig.plan(task, contestant, seed=seed, epochs=epochs, defaults={"lr": 0.01})
    return config, folder_of(out, config)


def numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [runner.without_timing(row) for row in rows]


@pytest.mark.parametrize("pause", [0.0, 0.02, 2.0])
def test_killed_at_random_moments_nothing_is_lost_and_the_bits_are_the_same(
    tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SECONDS", pause)
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", 1.0)
    task = tiny_task()
    chance = random.Random(int(pause * 1000))
    kills = 0
    seed = 0
    while kills < 8:
        began = time.perf_counter()
        config, folder = prepare(task, tmp_path / "whole", seed)
        whole = runner.run(config, task, folder)
        longest = time.perf_counter() - began
        config, folder = prepare(task, tmp_path / "killed", seed)
        recorded: list[dict[str, Any]] = []
        status = 1
        while status != 0:
            pid = in_child(lambda config=config, folder=folder: runner.run(config, task, folder))
            time.sleep(chance.uniform(0, longest))
            longest *= 1.1  # so that on a machine that got busy, too, a run ends at last
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            kills += os.WIFSIGNALED(status)
            if (folder / "config.json").exists():
                after = read_run(folder)
                assert (after.config.key, after.edited) == (config.key, "")
            rows, _ = read_metrics(folder / "metrics.jsonl")
            assert rows[: len(recorded)] == recorded, "an epoch that was recorded is gone"
            assert numbers(rows) == numbers(whole.epochs)[: len(rows)]
            saved = load_checkpoint(folder / "checkpoint.pt", config.key)
            assert saved is None or saved["epoch"] <= len(rows) + 1
            recorded = rows
        assert numbers(read_run(folder).epochs) == numbers(whole.epochs)
        assert not list(folder.glob(".*.part"))
        ours = load_checkpoint(folder / "checkpoint.pt", config.key)
        theirs = load_checkpoint(whole.folder / "checkpoint.pt", config.key)
        assert ours is not None
        assert theirs is not None
        for name, value in theirs["model"].items():
            assert torch.equal(ours["model"][name], value)
        seed += 1


def test_two_commands_at_once_make_one_run(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    config, folder = prepare(task, tmp_path / "whole")
    whole = runner.run(config, task, folder)
    config, folder = prepare(task, tmp_path / "shared")
    children = [in_child(lambda: runner.run(config, task, folder)) for _ in range(3)]
    assert [exit_code(pid) for pid in children] == [0, 0, 0]
    assert numbers(read_run(folder).epochs) == numbers(whole.epochs)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == EPOCHS


def test_a_run_held_by_another_command_is_left_for_the_end(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    first = compare(task, ["sgd"], seeds=2, epochs=1, out=tmp_path, progress=False)
    held = first.runs[0].folder
    ready, go = os.pipe(), os.pipe()

    def hold() -> None:
        with open_folder(held):
            os.write(ready[1], b"x")
            os.read(go[0], 1)

    pid = in_child(hold)
    os.read(ready[0], 1)
    order: list[tuple[str, int]] = []

    class Noted(Progress):
        def show(self, event: Event) -> None:
            order.append((event.kind, event.index))
            if event.kind == "done" and event.index == 1:
                os.write(go[1], b"x")  # let go only after the other run is done

    results = compare(task, ["sgd"], seeds=2, epochs=2, out=tmp_path, progress=Noted)
    assert exit_code(pid) == 0
    assert results.ok
    assert order.index(("waiting", 0)) < order.index(("done", 1)) < order.index(("done", 0))


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    saved = torch.load(path, weights_only=True)["model"]["0.weight"].numpy().tobytes()
    place = data.index(saved)  # inside the weights, where torch.load itself sees nothing
    data[place] ^= 0xFF
    path.write_bytes(data)


def damage_replace(path: Path) -> None:
    path.write_bytes(b"not a checkpoint")


def damage_swap(path: Path) -> None:
    torch.save({"key": "0" * 64, "epoch": 1, "model": {}, "optimizer": {}}, path)


def damage_compressed(path: Path) -> None:
    """A flipped bit in a compressed member, which surfaces as zlib.error."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(data))
    data = bytearray(path.read_bytes())
    data[100:130] = bytes(byte ^ 0xFF for byte in data[100:130])
    path.write_bytes(data)


def damage_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_flip, damage_replace, damage_swap, damage_empty, damage_compressed]
)
def test_a_damaged_checkpoint_is_reported_and_left_as_it_is(
    tiny_task: MakeTask, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    task = tiny_task()
    config, folder = prepare(task, tmp_path, epochs=3)
    runner.run(config, task, folder)
    damage(folder / "checkpoint.pt")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    longer, _ = prepare(task, tmp_path, epochs=4)
    with pytest.raises(StoreError, match=r"checkpoint.pt is damaged \(.*\); nothing was changed. Delete this file"):
        runner.run(longer, task, folder)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in before if name != "config.json")
    (folder / "checkpoint.pt").unlink()  # as the message says
    whole, elsewhere = prepare(task, tmp_path / "whole", epochs=4)
    assert numbers(runner.run(longer, task, folder).epochs) == numbers(runner.run(whole, task, elsewhere).epochs)


def test_a_fifo_in_place_of_a_checkpoint_is_named(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    config, folder = prepare(task, tmp_path, epochs=3)
    runner.run(config, task, folder)
    damage_fifo(folder / "checkpoint.pt")
    longer, _ = prepare(task, tmp_path, epochs=4)
    with pytest.raises(StoreError, match=r"checkpoint.pt is damaged \(.*it is a fifo, not a file.*\)"):
        runner.run(longer, task, folder)


def test_a_damaged_run_does_not_stop_the_others(tiny_task: MakeTask, tmp_path: Path) -> None:
    task = tiny_task()
    first = compare(task, ["sgd"], seeds=3, epochs=2, out=tmp_path, progress=False)
    damage_replace(first.runs[0].folder / "checkpoint.pt")
    other = json.dumps({**first.runs[1].config.to_json(), "format": 2})
    (first.runs[1].folder / "config.json").write_text(other)
    results = compare(task, ["sgd"], seeds=3, epochs=3, out=tmp_path, progress=False)
    assert sorted(Path(folder).name for folder in results.failures) == sorted(run.folder.name for run in first.runs[:2])
    assert any("checkpoint.pt is damaged" in message for message in results.failures.values())
    assert any("written in format 2" in message for message in results.failures.values())
    assert [run.seed for run in results.runs if run.finished] == [2]


def test_a_full_disk_stops_with_one_sentence_and_all_is_there_afterwards(
    tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tiny_task()
    append = MetricsLog.append

    def full(log: MetricsLog, row: dict[str, Any]) -> None:
        if row["epoch"] == 3:
            raise explain(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), log.path)
        append(log, row)

    monkeypatch.setattr(MetricsLog, "append", full)
    results = compare(task, ["sgd", "adam"], seeds=2, epochs=4, out=tmp_path, progress=False)
    [message] = results.failures.values()  # the first one says it; the others would fail alike and are not tried
    assert "No space left on device; free some space and run the same command again" in message
    assert not list(tmp_path.rglob("error.txt"))
    monkeypatch.undo()
    again = compare(task, ["sgd", "adam"], seeds=2, epochs=4, out=tmp_path, progress=False)
    whole = compare(task, ["sgd", "adam"], seeds=2, epochs=4, out=tmp_path / "whole", progress=False)
    assert [numbers(run.epochs) for run in again.runs] == [numbers(run.epochs) for run in whole.runs]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB, where this may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small disk is not allowed here ({error}); the simulated full disk was tested")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)


def test_a_disk_that_is_really_full_and_then_read_only(tiny_task: MakeTask, small_disk: Path) -> None:
    task = tiny_task()
    config, folder = prepare(task, small_disk / "runs", epochs=3)
    runner.run(config, task, folder)
    filler = small_disk / "filler"
    fill(filler)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    longer, _ = prepare(task, small_disk / "runs", epochs=EPOCHS)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        runner.run(longer, task, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True)
    with pytest.raises(StoreError, match="Read-only file system; choose another --out folder"):
        runner.run(longer, task, folder)
    assert numbers(runner.run(config, task, folder).epochs)  # what is done can still be read
    subprocess.run([*remount[:2], "remount,rw", str(small_disk)], check=True)
    filler.unlink()
    whole, elsewhere = prepare(task, small_disk.parent / "whole")
    assert numbers(runner.run(longer, task, folder).epochs) == numbers(runner.run(whole, task, elsewhere).epochs)


@pytest.mark.parametrize(("number", "advice"), [(errno.EROFS, "another --out"), (errno.EACCES, "may write to")])
def test_a_folder_that_cannot_be_written_is_reported(
    tiny_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)
    results = compare(tiny_task(), ["sgd"], seeds=3, epochs=1, out=tmp_path / "new", progress=False)
    [message] = results.failures.values()
    assert os.strerror(number) in message
    assert advice in message


def test_an_out_folder_that_is_a_file_is_reported(tiny_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    results = compare(tiny_task(), ["sgd"], seeds=1, epochs=1, out=tmp_path / "out", progress=False)
    assert "choose an --out folder that is not a file" in next(iter(results.failures.values()))
    assert (tmp_path / "out").read_text() == "mine"
