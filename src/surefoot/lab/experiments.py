"""The comparison: every optimizer with every seed on one task."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from surefoot.lab.results import Results
from surefoot.lab.run.pool import InProcess, MakePool, OnEvent, Outcome, Processes, RunJob, TaskSource, run_all
from surefoot.lab.run.progress import Progress, make_progress
from surefoot.lab.run.runner import is_done
from surefoot.lab.spec.config import RunConfig, TaskConfig, folder_of
from surefoot.lab.spec.contestant import Contestant, parse_all
from surefoot.lab.spec.task import NAMED, PAPER_WEIGHT_DECAY, Task
from surefoot.lab.spec.task_code import task_code, task_identity
from surefoot.lab.spec.user_code import FAULTS
from surefoot.lab.store import Run, StoreError, read_config, read_run, write_config

#: The paper's method next to its baseline; what `surefoot compare` shows when nothing is asked for.
DEMO_OPTIMIZERS = ("adam", "adamucb", "adamcb", "adams")


def compare(
    task: str | Task = "digits-mlp",
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]] = DEMO_OPTIMIZERS,
    *,
    seeds: int | Sequence[int] = 6,
    epochs: int = 20,
    out: Path | str = "runs",
    jobs: int = 1,
    lr: float = 1e-3,
    weight_decay: float | None = None,
    threads: int = 1,
    device: str | torch.device = "cpu",
    data_dir: Path | str | None = None,
    purpose: str = "report",
    progress: bool | Callable[[Sequence[RunJob]], Progress] = True,
    executor: MakePool | None = None,
    **overrides: Any,
) -> Results:
    """Train every optimizer with every seed and return what was found; what `out` holds is not done again.

    Args:
        task: A name, a file, an import path or a Task.
        optimizers: Contestants, the first one is the baseline; "adams:eta=1e-4", a class or a Contestant.
        seeds: How many seeds (0, 1, ...), or which; six are the fewest that can support a claim.
        epochs: Epochs per run.
        out: Folder of the run folders.
        jobs: Worker processes; 1 computes in this process.
        lr: Learning rate of optimizers that do not set their own.
        weight_decay: The same for weight decay; None is 1e-4 (the paper's) on named tasks, else each class's own.
        threads: Threads of each run, part of its key: numbers are reproducible at the same count.
        device: Where to train, "cpu" or "cuda"; part of the key too.
        purpose: "report", or "tune" for runs that only choose a setting.
        progress: Show progress; or a function that makes the display.
        executor: Where to compute; by default here or in local workers, by `jobs`.
        overrides: Options of the task: batch_size, dropout, subset, ...

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     found = compare("digits-lr", ["adam", "sgd"], seeds=2, epochs=1, out=out, progress=False)
    >>> [(run.label, run.seed) for run in found.runs]
    [('Adam', 0), ('Adam', 1), ('SGD', 0), ('SGD', 1)]
    """
    setup = prepare(
        task,
        optimizers,
        out=out,
        seeds=seeds,
        epochs=epochs,
        jobs=jobs,
        lr=lr,
        weight_decay=weight_decay,
        threads=threads,
        device=device,
        data_dir=data_dir,
        progress=progress,
        **overrides,
    )
    requests: list[RunJob] = []
    for seed in setup.seeds:
        for position, contestant in enumerate(setup.contestants):
            config = setup.config(contestant, seed, epochs, purpose=purpose, position=position)
            folder = folder_of(Path(out), config)
            requests.append(RunJob(len(requests), config, folder, setup.checked_source, contestant, jobs=jobs))
    failures = compute(setup, requests, executor=executor, progress=progress)
    return collect(requests, failures, epochs)


@dataclass(frozen=True)
class Setup:
    """What a comparison was asked to do, read and checked."""

    source: TaskSource
    task: Task
    contestants: list[Contestant]
    seeds: list[int]
    defaults: Mapping[str, Any]
    threads: int
    device: str

    @cached_property
    def code(self) -> str:
        """Digest of what the task computes with, taken once: its own functions may change it while they run."""
        return task_code(self.task)

    @cached_property
    def checked_source(self) -> TaskSource:
        """The source of the runs: another process that loads the task refuses it if it was edited since."""
        return replace(self.source, task=self.task, planned=task_identity(self.task, self.code))

    def config(self, contestant: Contestant, seed: int, epochs: int, **more: Any) -> RunConfig:
        """The configuration of one run; `more` is purpose, position and fork of `RunConfig.plan`."""
        return RunConfig.plan(
            self.task,
            contestant,
            seed=seed,
            epochs=epochs,
            threads=self.threads,
            device=self.device,
            defaults=self.defaults,
            code=self.code,
            spec=self.source.spec if self.code else "",
            **more,
        )


def prepare(
    task: str | Task,
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]],
    *,
    out: Path | str = "runs",
    seeds: int | Sequence[int],
    epochs: int,
    jobs: int = 1,
    lr: float = 1e-3,
    weight_decay: float | None = None,
    threads: int = 1,
    device: str | torch.device = "cpu",
    data_dir: Path | str | None = None,
    progress: bool | Callable[[Sequence[RunJob]], Progress] = True,
    **overrides: Any,
) -> Setup:
    """Read and check what `compare`, `fork` and `tune` are asked to do; the arguments are theirs."""
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise ValueError(f"out must be the folder for the runs, such as 'runs', got {out!r}")
    for name, value in {"epochs": epochs, "jobs": jobs, "threads": threads}.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} must be a whole number from 1 up, got {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    for name, rate in {"lr": lr, "weight_decay": weight_decay}.items():
        if rate is not None and not _is_number(rate):
            given = f"a tensor of shape {tuple(rate.shape)}" if isinstance(rate, torch.Tensor) else repr(rate)
            raise ValueError(f"{name} must be a finite number, got {given}")
    if not isinstance(progress, bool) and not callable(progress):
        raise ValueError(f"progress must be True, False or a function that makes the display, got {progress!r}")
    device = _device_name(device)
    contestants, numbers = parse_all(optimizers), seed_numbers(seeds)
    source = task_source(task, data_dir, overrides)
    if weight_decay is None and source.spec in NAMED:
        weight_decay = PAPER_WEIGHT_DECAY
    defaults = {"lr": lr, "weight_decay": weight_decay}
    for one in contestants:
        one.check(**defaults)
    setup = Setup(source, source.load(), contestants, numbers, defaults, threads, device)
    _check_factories(setup)
    return setup


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real | torch.Tensor):
        return False
    try:
        return math.isfinite(float(value))
    except (RuntimeError, ValueError, OverflowError):  # several numbers, or one beyond all floats
        return False


def _check_factories(setup: Setup) -> None:
    """Refuse functions that make no optimizer; only the task's own parameters can tell, so classes are spared this."""
    factories = [one for one in setup.contestants if not isinstance(one.cls, type)]
    if not factories:
        return
    _ = setup.code  # taken before the model is made: the task's functions may change what they keep
    with torch.random.fork_rng(devices=[]):
        try:
            params = list(setup.task.fresh_model().parameters())
        except FAULTS:  # the runs tell it, with the trace
            return
        for one in factories:
            one.check_factory(params, **setup.defaults)


def _device_name(device: str | torch.device) -> str:
    """A device as runs record it: as it was written."""
    if isinstance(device, torch.device):
        return str(device)
    if not isinstance(device, str):
        raise ValueError(f"device must be a name such as 'cpu' or 'cuda', got {device!r}")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise _unusable(device, error) from error
    return device


def check_device(device: str) -> None:
    """Refuse a device that this machine lacks, or that holds no numbers."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise _unusable(device, error) from error


def _unusable(device: str, error: Exception) -> ValueError:
    why = str(error).partition("\n")[0]
    return ValueError(f"the device {device!r} cannot be used here; take cpu ({why})")


def compute(
    setup: Setup,
    requests: Sequence[RunJob],
    *,
    executor: MakePool | None = None,
    progress: bool | Callable[[Sequence[RunJob]], Progress] = True,
) -> dict[int, str]:
    """Compute the requests that are not done yet; returns what went wrong, by index of the request."""
    if executor is None:  # a cluster may have what this machine lacks
        check_device(setup.device)
    display = make_progress(requests, show=progress) if isinstance(progress, bool) else progress(requests)
    with display:
        missing, outcomes = _missing(requests, display.report)
        if missing:
            jobs = missing[0].jobs
            local = partial(Processes, jobs=jobs, threads=setup.threads) if jobs > 1 else InProcess
            with (executor or local)(display.report) as pool:
                outcomes |= run_all(pool, missing)
    return {index: outcome.message for index, outcome in outcomes.items() if outcome.kind == "failed"}


def _missing(requests: Sequence[RunJob], on_event: OnEvent) -> tuple[list[RunJob], dict[int, Outcome]]:
    """The runs that are still to be computed, so that no process is started for the others, and how those ended."""
    missing, outcomes = [], {}
    for request in requests:
        try:
            if not is_done(request.folder, request.config):
                missing.append(request)
                continue
            outcomes[request.index] = Outcome("done")
        except StoreError as error:
            outcomes[request.index] = Outcome("failed", str(error))
        on_event(outcomes[request.index].event(request.index))
    return missing, outcomes


def collect(requests: Sequence[RunJob], failures: Mapping[int, str], epochs: int) -> Results:
    """The recorded runs of the requests, in the order of the contestants."""
    runs: list[Run] = []
    for request in sorted(requests, key=lambda one: (one.config.optimizer.position, one.index)):
        if not (request.folder / "config.json").exists():  # not begun when a full disk stopped everything
            continue
        try:
            run = read_run(request.folder)
        except StoreError:
            if request.index not in failures:  # otherwise it was told already
                raise
            continue
        # The label and the place of this comparison, which may differ from the one that computed the run.
        asked = request.config
        task = _with_directions(run, asked.task.higher_is_better)
        config = replace(run.config, task=task, optimizer=asked.optimizer, fork=asked.fork)
        runs.append(Run(run.folder, config, run.epochs))
    failed = {str(requests[index].folder): message for index, message in failures.items()}
    return Results([run.cut_to(epochs) for run in runs], failed)


def _with_directions(run: Run, told: Mapping[str, bool]) -> TaskConfig:
    """The run's task with the directions of its metrics as told now, which changes no number and so no key.

    They are recorded too, for all runs of the task: a report reads them there.
    """
    task = run.config.task
    if task.higher_is_better == told:
        return task
    corrected = replace(task, higher_is_better=dict(told))
    for folder in run.folder.parent.iterdir():
        with suppress(StoreError):  # no run, or a folder that is read-only: the results are there all the same
            config = read_config(folder)
            if config.task == task:
                write_config(folder, replace(config, task=corrected))
    return corrected


def task_source(task: str | Task, data_dir: Path | str | None, overrides: Mapping[str, Any]) -> TaskSource:
    """How a process gets at the task."""
    given = {name: value for name, value in overrides.items() if value is not None}
    if not isinstance(task, str | Task):
        what = "a model alone" if isinstance(task, torch.nn.Module) else repr(task)
        raise ValueError(
            f"a task is a name such as 'digits-mlp', a file such as 'my_task.py' or a surefoot.lab.Task, not {what}"
            + ("; put it into a Task with its data, model=lambda: ..." if isinstance(task, torch.nn.Module) else "")
        )
    if isinstance(task, str):
        return TaskSource(task, None if data_dir is None else str(data_dir), given)
    if given:
        raise ValueError(f"{', '.join(given)}: options are for named tasks; change the Task itself instead")
    return TaskSource(task=task)


def seed_numbers(seeds: int | Sequence[int]) -> list[int]:
    """The seeds themselves.

    >>> seed_numbers(3), seed_numbers(range(10, 12))
    ([0, 1, 2], [10, 11])
    """
    try:
        given = range(seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) else list(seeds)  # type: ignore[arg-type]
        numbers = [operator.index(seed) for seed in given]
    except TypeError:  # such as 1.5, which int() would make another seed of
        numbers = []
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise ValueError(f"seeds must be a positive count or distinct whole numbers from 0 up, got {seeds!r}")
    return numbers
