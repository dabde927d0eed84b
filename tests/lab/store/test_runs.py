"""Run folders: what is read, what is refused by name, and edits that are noticed."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from surefoot.lab import Task, compare
from surefoot.lab.spec.config import OptimizerConfig, RunConfig, TaskConfig
from surefoot.lab.store import (
    MetricsLog,
    Run,
    StoreError,
    claim,
    open_folder,
    read_run,
    read_runs,
    record_directions,
    write_config,
)


def write_run(folder: Path, label: str = "Adam", seed: int = 0, position: int = 0, **changes: object) -> Path:
    folder.mkdir(parents=True)
    optimizer = {"label": label, "position": position}
    config = {
        "format": 1,
        "key": "0123456789",
        "task": {"name": "toy"},
        "optimizer": optimizer,
        "seed": seed,
        "epochs": 2,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_another_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", format=7)
    with pytest.raises(StoreError, match=r"format 7 .* reads format 1.*another --out"):
        read_runs(tmp_path)
    assert json.loads((folder / "config.json").read_text())["format"] == 7


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": "abc"}'])
def test_an_unreadable_configuration_is_reported(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path / "adam-s0-01234567")
    (folder / "config.json").write_text(text)
    with pytest.raises(StoreError, match=r"config.json cannot be read .*; delete the folder .*adam-s0-01234567 to"):
        read_runs(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", '{"format": 1}', '{"model_type": "bert", "task": "fill-mask"}', '{"key": "abc", "format": "mp3"}'],
)
def test_a_configuration_of_another_program_is_left_alone(tmp_path: Path, text: str) -> None:
    write_run(tmp_path / "toy" / "mine", "SGD")
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "models" / "bert" / "config.json").write_text(text)
    assert [run.label for run in read_runs(tmp_path)] == ["SGD"]
    with pytest.raises(StoreError) as caught:  # asked for by name it is named, and not deleted
        read_run(tmp_path / "models" / "bert")
    assert "delete" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_unreadable_configuration_next_to_metrics_is_not_passed_over(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "renamed")
    (folder / "metrics.jsonl").touch()
    (folder / "config.json").write_text("{")
    with pytest.raises(StoreError, match=r"config.json cannot be read .*; move .*renamed away"):
        read_runs(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": "3"}, "seed is '3'"),
        ({"epochs": None}, "epochs is None"),
        ({"epochs": True}, "epochs is True"),
        ({"task": {}}, "task.name is missing"),
        ({"task": "toy"}, "task is 'toy'"),
        ({"optimizer": []}, r"optimizer is \[\]"),
        ({"optimizer": {"label": 5}}, "optimizer.label is 5"),
        ({"optimizer": {"label": "Adam", "position": "first"}}, "optimizer.position is 'first'"),
        ({"purpose": 1}, "purpose is 1"),
        ({"provenance": "here"}, "provenance is 'here'"),
    ],
)
def test_the_error_of_a_damaged_field_names_its_value(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write_run(tmp_path / "run", **changes)
    with pytest.raises(StoreError, match=rf"config.json is damaged: {message}; delete the folder"):
        read_runs(tmp_path)


def test_runs_come_in_the_order_of_the_comparison(tmp_path: Path) -> None:
    write_run(tmp_path / "toy" / "a", "AdamS", 1, position=1)
    write_run(tmp_path / "toy" / "b", "SGD", 0, position=0)
    write_run(tmp_path / "toy" / "c", "AdamS", 0, position=1)
    write_run(tmp_path / ".base" / "d", "hidden")
    assert [(run.label, run.seed) for run in read_runs(tmp_path)] == [("SGD", 0), ("AdamS", 0), ("AdamS", 1)]


def test_corrected_directions_hold_for_all_runs_of_the_task_and_rewrite_none(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / "toy" / name, task={"name": "toy", "higher_is_better": {"f1": False}}) for name in "ab"
    ]
    other = write_run(tmp_path / "toy" / "c", task={"name": "Toy", "higher_is_better": {"f1": False}})
    before = [(folder / "config.json").read_bytes() for folder in folders]
    record_directions(read_run(folders[0]), {"f1": False})
    assert not (tmp_path / "toy" / "task.json").exists()  # there is nothing to correct
    record_directions(read_run(folders[0]), {"f1": True})
    record_directions(read_run(folders[1]), {"auc": True})
    for folder in folders:
        assert read_run(folder).config.task.higher_is_better == {"f1": True, "auc": True}
    assert read_run(other).config.task.higher_is_better == {"f1": False}
    assert [(folder / "config.json").read_bytes() for folder in folders] == before
    (tmp_path / "toy" / "task.json").write_text("[]")
    with pytest.raises(StoreError, match=r"task.json cannot be read .*; delete it"):
        read_runs(tmp_path)


def test_state_of_a_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    log = MetricsLog(folder / "metrics.jsonl")
    log.append({"epoch": 1, "diverged": False})
    run = read_run(folder)
    assert (run.finished, run.diverged, run.error) == (False, False, None)
    (folder / "error.txt").write_text("it broke")
    assert run.error == "it broke"
    log.append({"epoch": 2, "diverged": False})
    log.close()
    assert read_run(folder).finished


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a folder"):
        read_runs(tmp_path / "nothing")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.fixture
def computed(tiny_task: Callable[..., Task], tmp_path: Path) -> list[Run]:
    """Two seeds of one optimizer, three epochs each."""
    return compare(tiny_task(), ["sgd"], seeds=2, epochs=3, out=tmp_path / "runs", progress=False).runs


def test_a_record_that_nobody_touched_is_not_edited(computed: list[Run]) -> None:
    assert [(run.edited, run.chained) for run in computed] == [("", True)] * 2
    assert [(read_run(run.folder).edited, len(run.epochs)) for run in computed] == [("", 3)] * 2


@pytest.mark.parametrize(
    ("file", "old", "new", "edited"),
    [
        ("metrics.jsonl", '"epoch": 2, "step": 10', '"epoch": 2, "step": 11', "line 2 of metrics.jsonl"),
        ("metrics.jsonl", '"skipped": 0', '"skipped": 1', "line 1 of metrics.jsonl"),
        ("config.json", '"lr": 0.001', '"lr": 0.002', "config.json"),
        ("config.json", '"seed": 0', '"seed": 7', "config.json"),
        ("config.json", '"name": "tiny"', '"name": "huge"', "config.json"),
        # What decides no number, and so is not in the key.
        ("config.json", '"label": "SGD"', '"label": "Adam"', "config.json"),
        ("config.json", '"position": 0', '"position": 1', "config.json"),
        ("config.json", '"epochs": 3', '"epochs": 2', "config.json"),
        ("config.json", '"accuracy": true', '"accuracy": false', "config.json"),
        ("config.json", "--seeds 2", "--seeds 1", "config.json"),
        ("config.json", '"hash": "', '"hash": "0', "config.json"),
    ],
)
def test_an_edited_record_is_noticed(computed: list[Run], file: str, old: str, new: str, edited: str) -> None:
    folder = computed[0].folder
    edit(folder / file, old, new)
    assert read_run(folder).edited == edited


def test_lines_that_were_deleted_or_copied_from_another_run_are_noticed(computed: list[Run]) -> None:
    first, second = (run.folder / "metrics.jsonl" for run in computed)
    whole = second.read_bytes()
    second.write_bytes(first.read_bytes())
    assert read_run(second.parent).edited == "line 1 of metrics.jsonl"
    second.write_bytes(whole)
    lines = whole.decode().splitlines(keepends=True)
    plain = lines[1].partition(', "chain"')[0] + "}\n"
    second.write_text(lines[0] + plain + lines[2])  # a line that lost its hash
    assert read_run(second.parent).edited == "line 2 of metrics.jsonl"
    assert not read_run(second.parent).chained


def test_an_edited_configuration_stays_edited_when_its_run_goes_on(computed: list[Run]) -> None:
    folder, config = computed[0].folder, computed[0].config
    edit(folder / "config.json", '"label": "SGD"', '"label": "Adam"')
    claim(folder, replace(config, epochs=5))
    run = read_run(folder)
    assert (run.label, run.config.epochs, run.edited) == ("Adam", 5, "config.json")
    edit(folder / "config.json", '"label": "Adam"', '"label": "SGD"')
    edit(folder / "config.json", '"epochs": 5', '"epochs": 3')
    assert read_run(folder).edited == ""
    claim(folder, replace(config, epochs=5))
    assert (read_run(folder).config.epochs, read_run(folder).edited) == (5, "")


def test_a_configuration_of_an_earlier_version_has_no_hash(computed: list[Run]) -> None:
    folder = computed[0].folder
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(re.sub(r',\s*"hash": "\w+"', "", text))
    assert (read_run(folder).edited, read_run(folder).chained) == ("", False)
    claim(folder, replace(computed[0].config, epochs=5))  # what is not known to be whole is not sealed
    assert not read_run(folder).chained


def test_a_run_under_the_key_of_another_is_noticed(computed: list[Run]) -> None:
    folder, key = computed[0].folder, computed[0].config.key
    other = computed[0].config.with_changes(seed=5)
    write_config(folder, other)  # with the right key for its content, in the old folder
    assert other.key != key
    assert read_run(folder).edited == "config.json"


def test_lines_without_hashes_are_read_and_the_next_one_seals_them(tmp_path: Path) -> None:
    config = RunConfig(TaskConfig("toy"), OptimizerConfig("Adam"), seed=0, epochs=3).with_changes()
    write_config(tmp_path, config)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 1, "train_loss": 1.0}\n{"epoch": 2}\n')
    assert (read_run(tmp_path).edited, read_run(tmp_path).chained) == ("", False)
    log = MetricsLog(path, config.key)
    log.append({"epoch": 3})
    log.close()
    assert (read_run(tmp_path).edited, read_run(tmp_path).chained) == ("", False)
    edit(path, "1.0", "0.5")
    assert read_run(tmp_path).edited == "line 3 of metrics.jsonl"


def test_trials_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "a", purpose="tune")
    write_run(tmp_path / "b", label="AdamS", purpose="report")
    assert [run.label for run in read_runs(tmp_path)] == ["AdamS"]
    assert [run.label for run in read_runs(tmp_path, tuning=True)] == ["Adam", "AdamS"]


def make_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def make_endless_link(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


def make_fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path, secret: Path) -> None:
    path.mkdir()


def make_endless(path: Path, secret: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "error.txt", "../task.json"])
@pytest.mark.parametrize("make", [make_link, make_endless_link, make_fifo, make_folder, make_endless])
def test_what_is_no_plain_file_in_a_run_folder_is_named_and_not_read(
    tmp_path: Path, name: str, make: Callable[[Path, Path], None]
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text('{"epoch": 1, "secret": 7}\n')
    folder = write_run(tmp_path / "toy" / "adam-s0-01234567")
    path = (folder / name).resolve()
    path.unlink(missing_ok=True)
    make(path, secret)
    with pytest.raises(StoreError) as caught:
        _ = [run.error for run in read_runs(tmp_path)]
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["metrics.jsonl", "lock"])
def test_no_file_elsewhere_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("torn line")
    folder = write_run(tmp_path / "toy" / "adam-s0-01234567")
    (folder / name).symlink_to(secret)
    message = rf"/{name}.* is a symbolic link, not a file.*; delete it"
    with pytest.raises(StoreError, match=message) as caught, open_folder(folder):
        MetricsLog(folder / "metrics.jsonl")
    assert not caught.value.fatal  # the other runs can be written
    assert secret.read_text() == "torn line"


def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "toy" / "a")
    closed = write_run(tmp_path / "toy" / "b")
    scandir = os.scandir

    def refuse(path: str) -> object:  # root may read everything, so permissions alone do not show it
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match=rf"{closed} cannot be read \(Permission denied\); make it readable"):
        read_runs(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_file_that_may_not_be_read_is_not_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = write_run(tmp_path / "adam-s0-01234567")
    (folder / "metrics.jsonl").touch()
    opens = os.open

    def refuse(path: Path, *more: int) -> int:
        if Path(path).name == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opens(path, *more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=rf"{name} cannot be read \(Permission denied\); make it readable") as caught:
        read_runs(tmp_path)
    assert "delete" not in str(caught.value)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seed": 0', f'"seed": {"9" * 400}'),
        ('"seed": 0', '"seed": 9223372036854775808'),
        ('"seed": 0', '"seed": Infinity'),
        ('"seed": 0', '"seed": 0, "threads": "x"'),
        ('"seed": 0', '"seed": 0, "fork": "x"'),
        ('"seed": 0', '"seed": 0, "fork": {"epoch": []}'),
        ('"seed": 0', '"seed": 0, "numerics": 1e999'),
        ('"seed": 0', f'"seed": 0, "x": {DEEP}'),
        ('"Adam"', '"\\ud800"'),
    ],
)
def test_a_configuration_that_no_run_writes_is_refused_by_name(tmp_path: Path, old: str, new: str) -> None:
    path = write_run(tmp_path / "adam-s0-01234567") / "config.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(StoreError, match=r"^\S+config.json (cannot be read|is damaged).{1,300}; delete the folder"):
        read_runs(tmp_path)


def test_text_that_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "adam-s0-01234567")
    config = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(config.replace(b"Adam", "Adé".encode("latin-1")))
    with pytest.raises(
        StoreError, match=r"config.json cannot be read \(it is not UTF-8 text, see byte \d+\); delete the"
    ):
        read_runs(tmp_path)
    (folder / "config.json").write_bytes(config)
    (folder / "error.txt").write_bytes(b"bad \xe9 letter")
    assert read_run(folder).error == "bad � letter"
    (folder / "metrics.jsonl").write_bytes(b'{"epoch": 1, "\xe9": 1}\n')
    with pytest.raises(StoreError, match=r"metrics.jsonl is damaged at line 1"):
        read_runs(tmp_path)


@pytest.mark.parametrize("value", ["x", 1, None, []])
def test_a_direction_is_true_or_false(tmp_path: Path, value: object) -> None:
    write_run(tmp_path / "toy" / "a")
    (tmp_path / "toy" / "task.json").write_text(json.dumps({"higher_is_better": {"toy": {"f1": value}}}))
    with pytest.raises(StoreError, match=r"task.json cannot be read \('f1' of 'toy' is .*, not true or false\)"):
        read_runs(tmp_path)
