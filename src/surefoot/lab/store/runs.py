"""Run folders: what was asked, what was measured, and how far a run is.

A run folder holds `config.json` (what was asked), `metrics.jsonl` (one JSON object per epoch), `checkpoint.pt` (to
continue from) and, when user code raised, `error.txt`. `task.json` beside the run folders holds directions of metrics
that were corrected later. `config.json` ends with a hash of its other entries; that of earlier versions has none.

A checkpoint holds the line of its epoch and is written before the line is appended. So a line that is missing after a
kill is in the checkpoint, and a finished run has its last checkpoint. Short epochs do not get a checkpoint each: those
after the last one are trained again after a kill. Training is deterministic, so their lines stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from surefoot.lab.spec.config import FORMAT, ConfigError, Purpose, RunConfig
from surefoot.lab.store.files import (
    NotPlain,
    StoreError,
    explained,
    open_folder,
    open_plain,
    parse_json,
    read_plain,
    unreadable,
    write_atomic,
)
from surefoot.lab.store.metrics import read_log
from surefoot.lab.store.rows import Rows, last_epoch


@dataclass(frozen=True)
class Run:
    """One recorded run: an optimizer on a task with a seed.

    >>> from surefoot.lab.spec.config import OptimizerConfig, TaskConfig
    >>> config = RunConfig(TaskConfig("toy"), OptimizerConfig("Adam"), seed=3, epochs=2)
    >>> run = Run(Path("nowhere"), config, [{"epoch": 1, "train_loss": 0.5, "diverged": False}])
    >>> run.label, run.seed, run.task, run.finished, run.diverged, run.error
    ('Adam', 3, 'toy', False, False, None)
    """

    folder: Path
    config: RunConfig
    epochs: Sequence[dict[str, Any]]
    #: Which part of the record contradicts its hashes: it was edited, or belongs to another run. Empty if none does.
    edited: str = ""
    #: Whether the configuration and every epoch have their hashes; runs of earlier versions have none.
    chained: bool = True

    @property
    def label(self) -> str:
        return self.config.optimizer.label

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def task(self) -> str:
        return self.config.task.name

    @property
    def diverged(self) -> bool:
        return bool(self.epochs) and bool(self.epochs[-1].get("diverged"))

    @property
    def finished(self) -> bool:
        """Every epoch asked for is there, or the run diverged: both are results."""
        return self.diverged or last_epoch(self.epochs) >= self.config.epochs

    @property
    def error(self) -> str | None:
        """What user code raised, or None."""
        path = self.folder / "error.txt"
        try:
            return read_plain(path).decode(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from error

    def cut_to(self, epochs: int) -> Run:
        """The run as it was after so many epochs; its folder may hold a longer one."""
        rows: Sequence[dict[str, Any]] = self.epochs
        if last_epoch(rows) > epochs:
            rows = Rows(row for row in rows if row["epoch"] <= epochs)
        return replace(self, config=replace(self.config, epochs=epochs), epochs=rows)

    def riders(self) -> list[Run]:
        """The runs of the averages that rode along: each as if it had been trained alone with that average."""
        return [self._rider(name) for name in self.config.optimizer.riders]

    def _rider(self, name: str) -> Run:
        optimizer = replace(
            self.config.optimizer.with_average(name),
            label=f"{self.label} average={name}",
            spec=f"{self.config.optimizer.spec}{',' if ':' in self.config.optimizer.spec else ':'}average={name}",
        )
        own = f"@{name}"
        rows = Rows(
            {column: row.get(column + own, value) for column, value in row.items() if "@" not in column}
            for row in self.epochs
        )
        return replace(self, config=self.config.with_changes(optimizer=optimizer), epochs=rows)

    def without_riders(self) -> Run:
        """The run of the weights themselves."""
        if not self.config.optimizer.riders:
            return self
        rows = Rows({column: value for column, value in row.items() if "@" not in column} for row in self.epochs)
        optimizer = self.config.optimizer.with_average(self.config.optimizer.average)
        return replace(self, config=self.config.with_changes(optimizer=optimizer), epochs=rows)

    @property
    def state(self) -> str:
        """In a word: done, diverged, failed or unfinished."""
        if self.finished:
            return "diverged" if self.diverged else "done"
        return "failed" if self.error else "unfinished"


def read_run(folder: Path) -> Run:
    """Read one run folder; raises StoreError when it is damaged or of another version."""
    config, seal = _read_config(folder)
    corrected = _read_directions(folder.parent).get(config.task.name)
    if corrected:
        task = replace(config.task, higher_is_better={**config.task.higher_is_better, **corrected})
        config = replace(config, task=task)
    log = read_log(folder / "metrics.jsonl", config.key)
    edited = "config.json" if seal.is_broken or _is_misnamed(folder, config) else log.edited
    return Run(folder, config, log.rows, edited, log.chained and bool(seal.hash))


def _is_misnamed(folder: Path, config: RunConfig) -> bool:
    """Whether a configuration is not the one that the run's key, or the name of its folder, was made from."""
    named = _RUN_FOLDER.fullmatch(folder.name) is not None
    return config.with_changes().key != config.key or (named and not config.key.startswith(folder.name[-8:]))


def record_directions(run: Run, directions: Mapping[str, bool]) -> None:
    """Record for each metric of a task whether higher values are better, if its runs say otherwise.

    They change no number, so they are in no key, and a user may correct them. They go to `task.json` beside the run
    folders, where they hold for all runs of the task, and no recorded run is rewritten.
    """
    if all(run.config.task.higher_is_better.get(metric) == higher for metric, higher in directions.items()):
        return
    folder = run.folder.parent
    with open_folder(folder):
        known = _read_directions(folder)
        known[run.task] = {**known.get(run.task, {}), **directions}
        data = {"format": FORMAT, "higher_is_better": known}
        write_atomic(folder / "task.json", (json.dumps(data, indent=1) + "\n").encode())


def _read_directions(folder: Path) -> dict[str, dict[str, bool]]:
    """The directions of metrics that were corrected, by name of the task."""
    path = folder / "task.json"
    try:
        directions = parse_json(read_plain(path))["higher_is_better"]
        recorded = {name: dict(metrics) for name, metrics in directions.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} cannot be read ({error!r}); delete it, and run the comparison again") from error
    for name, metrics in recorded.items():
        for metric, higher in metrics.items():
            if not isinstance(higher, bool):
                raise StoreError(
                    f"{path} cannot be read ({metric!r} of {name!r} is {higher!r}, not true or false); delete it, and "
                    "run the comparison again"
                )
    return recorded


def read_runs(root: Path | str, *, tuning: bool = False) -> list[Run]:
    """Read every run folder under `root`, in the order of the comparison: the baseline first.

    Other programs call a file `config.json` too; folders that are not runs are left out.

    Args:
        tuning: also the runs that only chose a setting, which are no results.
    """
    root = Path(root)
    if not root.is_dir():
        raise StoreError(f"{root} is not a folder; give the folder that 'surefoot compare --out' wrote to")
    runs = [read_run(folder) for folder in _run_folders(root)]
    runs = [run for run in runs if tuning or run.config.purpose != Purpose.TUNING]
    runs = [part for run in runs for part in (run.without_riders(), *run.riders())]
    runs.sort(key=lambda run: (run.task, run.config.optimizer.position, run.label, run.seed))
    return runs


def _run_folders(root: Path) -> list[Path]:
    """The run folders under `root`; one that cannot be looked into is an error: its runs would be missing."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

    folders = []
    for name, inner, files in os.walk(root, onerror=refuse):
        inner[:] = [part for part in inner if not part.startswith(".")]
        folder = Path(name)
        if "config.json" in (*inner, *files) and _is_run(folder):
            folders.append(folder)
    return sorted(folders)


def is_recorded(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    try:
        (folder / "config.json").lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(folder, error) from error
    return True


@dataclass(frozen=True)
class _Seal:
    """The hash that a configuration was found with, None in those of earlier versions, and the one it should have."""

    hash: Any
    expected: str

    @property
    def is_broken(self) -> bool:
        return self.hash is not None and self.hash != self.expected


def _hash(config: Mapping[str, Any]) -> str:
    """The hash of a configuration's entries: also of those that decide no number, such as the label."""
    entries = {name: entry for name, entry in config.items() if name != "hash"}
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16]


def _read_config(folder: Path) -> tuple[RunConfig, _Seal]:
    """Read `config.json` of a run folder."""
    path = folder / "config.json"
    try:
        data = parse_json(read_plain(path))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise StoreError(f"{path} cannot be read ({error!s:.200}); {_advice(folder)}") from error
    if not isinstance(data, dict) or "format" not in data:
        raise StoreError(f"{path} cannot be read (it is not the configuration of a run); {_advice(folder)}")
    if data["format"] != FORMAT:
        raise StoreError(
            f"{folder} was written in format {data['format']!r:.20} and this surefoot reads format {FORMAT}; "
            "choose another --out folder or use the surefoot version that wrote it"
        )
    try:
        return RunConfig.from_json(data), _Seal(data.get("hash"), _hash(data))
    except ConfigError as error:
        raise StoreError(f"{path} is damaged: {error}; {_advice(folder, data)}") from error


# What `folder_of` in config.py ends a run's folder with: its seed and the beginning of its key.
_RUN_FOLDER = re.compile(r".+-s\d+-[0-9a-f]{8}")


def _is_run(folder: Path) -> bool:
    """Whether a folder with a `config.json` is a run's, or was one before it was damaged."""
    if _RUN_FOLDER.fullmatch(folder.name):
        return True
    try:
        config = parse_json(read_plain(folder / "config.json"))
    except (OSError, ValueError):
        return (folder / "metrics.jsonl").exists()  # a run that cannot be read must not go missing in silence
    return isinstance(config, dict) and config.keys() >= {"format", "key", "task"}


def check_place(report: Path) -> None:
    """Refuse a place for a report that holds something else: a special file, a run, a file that is no page."""
    owner = next((parent for parent in report.absolute().parents if is_recorded(parent) and _is_run(parent)), None)
    why = f"it would be inside the run {owner}" if owner else _other_content(report)
    if why:
        raise OSError(f"the report {report} cannot be written ({why}); write it to another place")


def _other_content(report: Path) -> str:
    """What stands in the place of a report, in words; empty if it is a report or nothing."""
    try:
        with os.fdopen(open_plain(report), "rb") as file:
            begins = file.read(200).lstrip().lower()
    except NotPlain as error:
        return str(error.strerror)
    except OSError:  # there is none, or one that may not be read: writing will show
        return ""
    return "" if not begins or begins.startswith((b"<!doctype html", b"<html")) else "another file has this name"


def _advice(folder: Path, config: Mapping[str, Any] | None = None) -> str:
    """How to go on with a damaged folder: only what is surely a run may be deleted."""
    if _RUN_FOLDER.fullmatch(folder.name) or str((config or {}).get("key", "")) != "":
        return f"delete the folder {folder} to compute this run again"
    return f"move {folder} away or choose another --out folder"


def write_config(folder: Path, config: RunConfig) -> None:
    """Write `config.json` of a run folder."""
    _write_config(folder, config.to_json(), _hash(config.to_json()))


def _write_config(folder: Path, data: dict[str, Any], seal: Any) -> None:
    sealed = data if seal is None else {**data, "hash": seal}
    write_atomic(folder / "config.json", (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode())


def is_done(folder: Path, config: RunConfig) -> bool:
    """Whether a folder holds this run to its end, or to its divergence."""
    if not is_recorded(folder):
        return False
    recorded = read_run(folder)
    if recorded.config.key != config.key:
        raise StoreError(
            f"{folder} holds another run than its name says (key {recorded.config.key[:12]}, expected "
            f"{config.key[:12]}); move it away or choose another --out folder"
        )
    return recorded.diverged or last_epoch(recorded.epochs) >= config.epochs


def claim(folder: Path, config: RunConfig) -> None:
    """Write the configuration of a new run; in a recorded one update only the epochs and the machine."""
    if is_recorded(folder):
        recorded, seal = _read_config(folder)
        updated = replace(
            recorded,
            epochs=max(recorded.epochs, config.epochs),
            provenance=recorded.provenance.with_resumed(config.provenance),
        )
        if updated != recorded:  # an edit that was noticed stays noticed
            data = updated.to_json()
            _write_config(folder, data, _hash(data) if seal.hash == seal.expected else seal.hash)
    else:
        write_config(folder, config)
    with explained(folder / "error.txt"):
        (folder / "error.txt").unlink(missing_ok=True)
