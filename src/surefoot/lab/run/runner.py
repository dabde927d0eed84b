"""Computes one run into its folder, with its checkpoint; after a kill at any moment it goes on, bit for bit.

A fork starts from the checkpoint of another run.
"""

from __future__ import annotations

import io
import os
import pickle
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surefoot.lab.run.memory import peak, reset_peak
from surefoot.lab.run.trainer import Trainer, lists_to_tuples, pinned_arithmetic
from surefoot.lab.spec.code import FAULTS, first_line
from surefoot.lab.spec.config import ForkConfig, RunConfig
from surefoot.lab.spec.contestant import Contestant, accepted_options, takes_bounds
from surefoot.lab.store import (
    Busy,
    MetricsLog,
    Run,
    StoreError,
    claim,
    is_done,
    last_epoch,
    open_folder,
    open_plain,
    read_run,
    write_atomic,
)

if TYPE_CHECKING:
    from surefoot.lab.spec.task import Task

#: Seconds from one checkpoint to the next, at least: they would slow down epochs of milliseconds.
CHECKPOINT_SECONDS = 2.0
#: Share of the time that checkpoints may take: those of large models are written less often.
CHECKPOINT_SHARE = 0.01

OnEpoch = Callable[[dict[str, Any]], None]


def run(
    config: RunConfig,
    task: Task,
    folder: Path,
    on_epoch: OnEpoch | None = None,
    *,
    contestant: Contestant | None = None,
    start: Path | None = None,
    jobs: int = 1,
    wait: bool = True,
) -> Run:
    """Compute a run, or what is missing of it, and return it.

    Args:
        config: What `RunConfig.plan` made.
        folder: The run's folder; created when needed.
        on_epoch: Called with the row of every epoch, as it is recorded.
        contestant: The optimizer; built from the configuration when not given.
        start: Checkpoint of the run that this one is forked from.
        jobs: How many runs share the machine (recorded, since it decides whether seconds can be compared).
        wait: Wait when another command computes this run; otherwise raise Busy.
    """
    if is_done(folder, config):
        return read_run(folder)
    with open_folder(folder, wait=wait):
        if is_done(folder, config):  # by the command we waited for
            return read_run(folder)
        claim(folder, config)
        log = MetricsLog(folder / "metrics.jsonl", config.key)
        try:
            with pinned_arithmetic(config.threads):
                contestant = contestant or contestant_of(config)
                contestant.check_code(config.optimizer.code)
                trainer = Trainer(config, task, contestant)
                done = _restore(trainer, folder, config, log, start)
                _compute(trainer, folder, config, log, done, on_epoch, jobs)
        except (KeyboardInterrupt, StoreError, Busy):
            raise
        except FAULTS:
            write_atomic(folder / "error.txt", traceback.format_exc().encode())
            raise
        finally:
            log.close()
    return read_run(folder)


def contestant_of(config: RunConfig) -> Contestant:
    """The contestant that a configuration describes."""
    optimizer = config.optimizer
    options = {name: lists_to_tuples(value) for name, value in optimizer.options.items()}
    lab: dict[str, Any] = {**optimizer.lab_options, "riders": optimizer.riders}
    contestant = Contestant(optimizer.label, optimizer.class_path, options, optimizer.spec, **lab)
    if takes_bounds(contestant.cls, options):  # bounds are recorded: a run without any has none
        options.setdefault("gain", None)
    return contestant


def _restore(trainer: Trainer, folder: Path, config: RunConfig, log: MetricsLog, start: Path | None) -> int:
    """Bring the trainer to the last checkpoint, or to the run's start; returns the epochs done there."""
    saved = load_checkpoint(folder / "checkpoint.pt", config.key)
    recorded = max(last_epoch(log.rows), config.first_epoch)
    # With a checkpoint further ahead of the metrics, where someone deleted lines, epochs would be missing: start anew.
    if saved is not None and saved["epoch"] <= recorded + 1:
        trainer.load_state(saved)
        if saved["epoch"] > recorded:
            log.append(saved["row"])
        return int(saved["epoch"])
    if start is not None and config.fork is not None:
        load_start(trainer, start, config.fork)
    return config.first_epoch


def _compute(
    trainer: Trainer,
    folder: Path,
    config: RunConfig,
    log: MetricsLog,
    done: int,
    on_epoch: OnEpoch | None,
    jobs: int,
) -> None:
    path = folder / "checkpoint.pt"
    possible = True
    reset_peak()
    if config.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(config.device)
    saved_at, pause = time.monotonic(), CHECKPOINT_SECONDS
    for epoch in range(done + 1, config.epochs + 1):
        row = {**trainer.run_epoch(epoch), "jobs": jobs}
        if (memory := peak_memory(config.device)) is not None:
            row["peak_memory"] = memory
        recorded = _recorded(log, row)
        row = recorded or row
        due = epoch == config.epochs or time.monotonic() - saved_at >= pause
        if due and possible and not row["diverged"]:
            began = time.monotonic()
            log.sync()
            content = {"key": config.key, "epoch": epoch, "row": row, **trainer.state()}
            possible = save_checkpoint(path, content)
            saved_at = time.monotonic()
            pause = max(CHECKPOINT_SECONDS, (saved_at - began) / CHECKPOINT_SHARE)
        if recorded is None:
            log.append(row)
        if on_epoch is not None:
            on_epoch(row)
        if row["diverged"]:
            break
    log.sync()


def _recorded(log: MetricsLog, row: dict[str, Any]) -> dict[str, Any] | None:
    """The recorded row of an epoch that was trained again after a kill; deleted if its numbers differ from these."""
    recorded = next((earlier for earlier in reversed(log.rows) if earlier["epoch"] == row["epoch"]), None)
    if recorded is not None and without_timing(recorded) != without_timing(row):
        log.cut(row["epoch"])
        return None
    return recorded


def without_timing(row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an epoch's row that is the same on every machine."""
    return {name: value for name, value in row.items() if name not in ("seconds", "jobs", "peak_memory")}


def peak_memory(device: str) -> int | None:
    """The peak memory of a run so far in bytes: that of its accelerator, else that of the process."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    return peak()


def load_start(trainer: Trainer, path: Path, fork: ForkConfig) -> None:
    """Put a trainer where its run forks: the baseline's weights and, where kept, the optimizer's state."""
    saved = load_checkpoint(path, fork.base)
    if saved is None:
        raise StoreError(f"{path}, the start of this fork, is missing; run the same fork command again to make it")
    trainer.model.load_state_dict(saved["model"])
    if fork.state == "kept":
        state = saved["optimizer"]
        options = accepted_options(type(trainer.optimizer))
        # Options (lr, eta, ...) stay those of this run; the optimizer's state is the baseline's.
        groups = [
            {**group, **{name: value for name, value in current.items() if name in options and name != "params"}}
            for group, current in zip(state["param_groups"], trainer.optimizer.state_dict()["param_groups"])
        ]
        trainer.optimizer.load_state_dict({**state, "param_groups": groups})


def save_checkpoint(path: Path, content: dict[str, Any]) -> bool:
    """Write a checkpoint; False, and no file, when its content could not be loaded again without pickle."""
    buffer = io.BytesIO()
    try:
        torch.save(content, buffer)
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda among an optimizer's options
        return False
    if not path.exists():  # the first checkpoint of a run shows whether this optimizer's state is plain data
        buffer.seek(0)
        try:
            torch.load(buffer, weights_only=True)
        except pickle.UnpicklingError:
            return False
    write_atomic(path, buffer.getvalue())
    return True


def load_checkpoint(path: Path, key: str) -> dict[str, Any] | None:
    """Read the checkpoint of the run with this key; None when there is none, StoreError when damaged."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()  # torch.load does not compare the checksums
            if damaged is not None:
                raise ValueError(f"wrong checksum of {damaged}")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        if content["key"] != key:
            raise ValueError(f"it belongs to the run {content['key'][:8]}")
    except FileNotFoundError:
        return None
    except Exception as error:  # zipfile, zlib, pickle and torch raise what they like on damaged bytes
        raise StoreError(
            f"{path} is damaged ({first_line(error)[:120]}); nothing was changed. Delete this file and run the same "
            "command again: the run is computed anew and checked against the epochs recorded so far"
        ) from error
    return content
