"""The fork test: train the baseline to an epoch, then let every optimizer continue from there.

All continue from the same weights over the same batches, so what differs is the rule alone, at that point of
training. By default every optimizer starts with a fresh state, the baseline too. With `state="keep"` what the baseline
learned comes along where it can: into the same class and relatives with the same state (Adam and AdamW), and into the
Adam family of Surefoot, which loads a plain Adam's moments and starts only its statistics of the loss anew; everyone
else starts fresh, and the run's configuration says which it was. Kept moments are no head start for the paper's
weighting: gradients weighted by the std of the loss are small next to a history of unweighted ones, and the steps stay
small until that is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from surefoot.lab.experiments import DEMO_OPTIMIZERS, Setup, collect, compute, prepare
from surefoot.lab.results import Results
from surefoot.lab.run.pool import MakePool, RunJob
from surefoot.lab.run.progress import Progress
from surefoot.lab.spec.config import ForkConfig, Purpose, folder_of
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.store import StoreError, read_run

#: Where baselines are kept under the output folder; not runs to be compared, so hidden from reports.
BASE = ".base"


def fork(
    task: str | Task,
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]] = DEMO_OPTIMIZERS,
    *,
    at: int,
    seeds: int | Sequence[int] = 6,
    epochs: int = 5,
    out: Path | str = "runs",
    state: str = "fresh",
    jobs: int = 1,
    progress: bool | Callable[[Sequence[RunJob]], Progress] = True,
    executor: MakePool | None = None,
    **options: Any,
) -> Results:
    """Train the first optimizer for `at` epochs, once per seed, and let every optimizer continue from there.

    Args:
        task: A name, a file, an import path or a Task.
        optimizers: Contestants; the first one is the baseline that trains up to the fork.
        at: The epoch of the fork; 0 forks at the initial weights.
        epochs: Epochs after the fork.
        state: "fresh" starts every optimizer anew, "keep" hands the baseline's state on where it can be loaded.
        options: As for `compare`: lr, weight_decay, threads, device, data_dir, batch_size, dropout, subset.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     found = fork("digits-lr", ["adam", "sgd"], at=2, seeds=1, epochs=1, out=out, progress=False)
    >>> [(run.label, run.epochs[0]["epoch"]) for run in found.runs]
    [('Adam', 3), ('SGD', 3)]
    """
    if state not in ("keep", "fresh"):
        raise ValueError(f"state must be 'keep' or 'fresh', got {state!r}")
    if not isinstance(at, int) or isinstance(at, bool) or at < 0:
        raise ValueError(f"the fork must be at epoch 0 or later, got {at!r}")
    setup = prepare(task, optimizers, out=out, seeds=seeds, epochs=epochs, jobs=jobs, progress=progress, **options)
    base = setup.contestants[0]
    if base.schedule:
        raise ValueError(f"the baseline {base.spec!r} has a schedule that ends at the fork; leave the schedule out")
    bases = {seed: setup.config(base, seed, at, purpose=Purpose.BASE) for seed in setup.seeds}
    family = bases[setup.seeds[0]].key_of_all_seeds()  # of all seeds: what tells this race from others
    starts = {seed: folder_of(Path(out) / BASE, config) for seed, config in bases.items()}
    if at:
        first = [
            RunJob(i, bases[seed], starts[seed], setup.checked_source, base, jobs=jobs)
            for i, seed in enumerate(setup.seeds)
        ]
        failures = compute(setup, first, executor=executor, progress=progress)
        if failures:
            raise StoreError(f"the baseline failed before the fork: {next(iter(failures.values()))}")
        _check_alive(setup, starts, at)
    requests: list[RunJob] = []
    for seed in setup.seeds:
        for position, one in enumerate(setup.contestants):
            kept = bool(at) and state == "keep" and inherits(base, one)
            begin = ForkConfig(bases[seed].key, base.label, at, "kept" if kept else "fresh", family)
            config = setup.config(one, seed, at + epochs, position=position, fork=begin)
            start = starts[seed] / "checkpoint.pt" if at else None
            folder = folder_of(Path(out), config)
            requests.append(RunJob(len(requests), config, folder, setup.checked_source, one, start=start, jobs=jobs))
    failures = compute(setup, requests, executor=executor, progress=progress)
    return collect(requests, failures, at + epochs)


def inherits(base: Contestant, heir: Contestant) -> bool:
    """Whether an optimizer can go on with the state of another.

    >>> [inherits(Contestant.parse("adam"), Contestant.parse(heir)) for heir in ("adams", "adamw", "sgd")]
    [True, True, False]
    """
    from surefoot.optim.loss_aware import LossAware
    from surefoot.optim.named import LossAwareAdam

    if not (isinstance(base.cls, type) and isinstance(heir.cls, type)):
        return False  # a function that makes an optimizer does not tell which
    if issubclass(heir.cls, LossAware):
        if issubclass(base.cls, LossAware):
            return type(base.cls.engine) is type(heir.cls.engine)
        return issubclass(heir.cls, LossAwareAdam) and issubclass(base.cls, torch.optim.Adam)
    return issubclass(heir.cls, base.cls) or issubclass(base.cls, heir.cls)


def _check_alive(setup: Setup, starts: Mapping[int, Path], at: int) -> None:
    for seed, folder in starts.items():
        if read_run(folder).diverged:
            raise ValueError(
                f"the baseline diverged before epoch {at} with seed {seed}; fork earlier or lower its learning rate"
            )
        if not (folder / "checkpoint.pt").exists():
            raise ValueError(
                f"the baseline {setup.contestants[0].spec!r} keeps a state that is not plain data and so is not "
                "saved; use another baseline"
            )
