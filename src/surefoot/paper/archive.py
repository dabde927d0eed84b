"""Runs in one small text file, without checkpoints: what is committed, and what everything is recomputed from.

Each line of `runs.jsonl` is a run: its configuration, and its epochs column by column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from surefoot.lab.spec.config import FORMAT, ConfigError, Purpose, RunConfig, folder_of
from surefoot.lab.store import (
    MetricsLog,
    Run,
    StoreError,
    last_epoch,
    open_folder,
    read_runs,
    write_atomic,
    write_config,
)

NAME = "runs.jsonl"


def gather(folder: Path | None, archive: Path) -> list[Run]:
    """The runs of a folder and of an archive together; of two records of a run the longer one counts.

    Args:
        folder: a folder of run folders; None, or one that does not exist, adds nothing.
        archive: the file; one that does not exist adds nothing.
    """
    by_key: dict[str, Run] = {}
    fresh = read_runs(folder) if folder is not None and folder.is_dir() else []
    for run in [*read_archive(archive), *fresh]:
        if run.config.purpose != Purpose.RESULT:
            continue
        longest = by_key.get(run.config.key)
        if longest is None or last_epoch(run.epochs) >= last_epoch(longest.epochs):
            by_key[run.config.key] = run
    return sorted(by_key.values(), key=_order)


def _order(run: Run) -> tuple[Any, ...]:
    task = json.dumps([run.task, run.config.task.batch_size, run.config.task.settings], sort_keys=True)
    return task, run.config.optimizer.position, run.label, run.seed, run.config.key


def read_archive(path: Path) -> list[Run]:
    """The runs of an archive; none when there is no such file."""
    if not path.exists():
        return []
    runs = []
    advice = "take it back from version control"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            data, columns = record["config"], record["epochs"]
            known = data["format"]
            rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{path} is damaged at line {number} ({error!r}); {advice}") from error
        if known != FORMAT:
            raise StoreError(f"{path}, line {number}: format {known}, and this surefoot reads format {FORMAT}")
        try:
            config = RunConfig.from_json(data)
        except ConfigError as error:
            raise StoreError(f"{path} is damaged at line {number}: {error}; {advice}") from error
        runs.append(Run(path.parent / config.key[:16], config, rows))
    return runs


def write_archive(path: Path, runs: Iterable[Run]) -> None:
    """Write runs as an archive, through a temporary file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for run in runs:
        names = list(dict.fromkeys(name for row in run.epochs for name in row))
        columns = {name: [_short(name, row.get(name)) for row in run.epochs] for name in names}
        # Without the command, which may name folders of the machine that computed the run.
        config = replace(run.config, provenance=replace(run.config.provenance, command=""))
        record = {"config": config.to_json(), "epochs": columns}
        lines.append(json.dumps(record, separators=(",", ":"), allow_nan=False))
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())


def unpack_archive(path: Path, out: Path) -> int:
    """Write the archived runs that ended as run folders, so that no command computes them again; how many were new.

    They have no checkpoints: a run that is to be longer than the archived one starts from its beginning.

    Args:
        path: the archive.
        out: folder of the run folders; what it already holds stays as it is.
    """
    new = 0
    for run in read_archive(path):
        folder = folder_of(out, run.config)
        if (folder / "config.json").exists() or not (run.finished or run.diverged):
            continue
        with open_folder(folder):
            log = MetricsLog(folder / "metrics.jsonl", run.config.key)
            for row in run.epochs:
                log.append(row)
            log.close()
            write_config(folder, run.config)  # last, because it makes the folder a run
        new += 1
    return new


def _short(name: str, value: Any) -> Any:
    """Results keep every bit; of a time, milliseconds are enough."""
    return round(value, 3) if name == "seconds" and value is not None else value
