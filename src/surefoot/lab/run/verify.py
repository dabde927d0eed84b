"""Computes recorded runs again, from nothing but their configuration, and compares every number bit for bit."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surefoot.lab.run.runner import run as compute
from surefoot.lab.run.runner import without_timing
from surefoot.lab.spec.code import FAULTS, error_text
from surefoot.lab.spec.config import Provenance, RunConfig, TaskConfig
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import Task, TaskError
from surefoot.lab.store import Run, StoreError, last_epoch, read_runs


@dataclass(frozen=True)
class Verification:
    """How a run that was computed again compares with its record.

    Args:
        same: Whether every number of every epoch is the same, bit for bit.
        sentence: The same in words, with the first difference, or why the run could not be computed.
    """

    run: Run
    same: bool
    sentence: str


class NotVerifiable(ValueError):
    """A run that lacks what is needed to compute it again."""


def verify(
    runs: Sequence[Run], number: int, *, data_dir: Path | None = None, choose: random.Random | None = None
) -> Iterator[Verification]:
    """Compute some of these runs again; this executes the code of their tasks and optimizers.

    Args:
        runs: What `read_runs` gives; those without an epoch are left out.
        number: How many; all if there are fewer.
        data_dir: Where the data sets are, if not in the usual place.
        choose: The generator that chooses them; by default one that nobody can predict.
    """
    recorded = [run for run in runs if run.epochs]
    for run in (choose or random.SystemRandom()).sample(recorded, min(number, len(recorded))):
        try:
            with tempfile.TemporaryDirectory() as folder:
                yield _compare(run, _again(run, Path(folder), data_dir))
        except (NotVerifiable, StoreError) as error:
            yield Verification(run, False, f"cannot be computed again: {error}")
        except FAULTS as error:
            yield Verification(run, False, f"cannot be computed again ({error_text(error)})")


def _again(run: Run, folder: Path, data_dir: Path | None) -> Run:
    """The run, computed in another folder."""
    config = replace(run.config, epochs=run.config.epochs if run.config.optimizer.schedule else last_epoch(run.epochs))
    if not config.optimizer.class_path or not config.task.data:
        raise NotVerifiable("the lab did not make it")
    task = _task_of(config, data_dir)
    start = _base(run, task, folder) if config.fork and config.fork.epoch else None
    return compute(config, task, folder / "again", start=start)


def _task_of(config: RunConfig, data_dir: Path | None) -> Task:
    """The task of a run, refused if it is not what it was."""
    recorded = config.task
    if recorded.code and not recorded.spec:
        raise NotVerifiable("its task was given in Python, and no name leads to it")
    settings = {name: value for name, value in recorded.settings.items() if name != "fork_at"}
    own = {name: value for name, value in settings.items() if name != "source"}
    # Which settings are the task's own and which are options of a function that makes it is not recorded: try both.
    for options in [{}, own] if recorded.code else [settings]:
        try:
            task = find_task(recorded.spec or recorded.name, data_dir, batch_size=recorded.batch_size, **options)
        except TaskError:
            if options == own:
                raise
            continue
        planned = TaskConfig.plan(task, recorded.spec)
        if (planned.name, planned.data, planned.code, dict(planned.settings)) == (
            recorded.name, recorded.data, recorded.code, settings,
        ):  # fmt: skip
            return task
    raise NotVerifiable("the code, the data or the settings of its task changed")


def _base(run: Run, task: Task, folder: Path) -> Path:
    """The checkpoint that a fork starts from, computed as well."""
    fork = run.config.fork
    assert fork is not None
    for parent in run.folder.parents[1:3]:
        if (parent / ".base").is_dir():
            for base in read_runs(parent / ".base"):
                if base.config.key == fork.base:
                    return compute(base.config, task, folder / "base").folder / "checkpoint.pt"
    raise NotVerifiable("the run that it was forked from is not recorded")


def _compare(run: Run, again: Run) -> Verification:
    """The first number that differs, if there is one."""
    for recorded, computed in zip(run.epochs, again.epochs):
        left, right = without_timing(recorded), without_timing(computed)
        for name in {**left, **right}:
            if left.get(name) != right.get(name):
                where = f"{name} of epoch {recorded['epoch']}"
                numbers = f"{left.get(name)} is recorded and {right.get(name)} is computed"
                return Verification(run, False, f"{where} differs, {numbers}{_other_machine(run)}")
    if len(run.epochs) != len(again.epochs):
        sentence = f"{len(run.epochs)} epochs are recorded and {len(again.epochs)} are computed{_other_machine(run)}"
        return Verification(run, False, sentence)
    return Verification(run, True, "the same in every epoch, bit for bit")


def _other_machine(run: Run) -> str:
    """What may explain a difference: other versions or another processor."""
    then, now = run.config.provenance, Provenance.here()
    words = [
        f"{name} {getattr(then, name)} then and {getattr(now, name)} now"
        for name in ("torch", "surefoot", "cpu")
        if getattr(then, name) != getattr(now, name)
    ]
    return f" ({', '.join(words)})" if words else ""
