"""Experiments: every optimizer with every seed on one task, from the start (`compare`) or from an epoch on (`fork`)."""

from __future__ import annotations

import difflib
import operator
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from surefoot.lab.analyse.anytime_valid import fewest_seeds
from surefoot.lab.analyse.comparison import MarginOption, check_margin, summarise
from surefoot.lab.analyse.planning import Plan, make_plan
from surefoot.lab.analyse.verdicts import Outcome as Decision
from surefoot.lab.results import Results, read_record
from surefoot.lab.run.pool import InProcess, MakePool, Outcome, Processes, RunJob, TaskSource, run_all
from surefoot.lab.run.progress import make_progress
from surefoot.lab.spec.builtin import NAMED, PAPER_WEIGHT_DECAY
from surefoot.lab.spec.code import FAULTS
from surefoot.lab.spec.config import ForkConfig, Purpose, RunConfig, TaskConfig, folder_of
from surefoot.lab.spec.contestant import Contestant, parse_all
from surefoot.lab.spec.objective import losses_of
from surefoot.lab.spec.options import (
    LARGEST_SEED,
    MOST_EPOCHS,
    MOST_SEEDS,
    PoolName,
    RunOptions,
    check_count,
    check_device,
    shows_options,
)
from surefoot.lab.spec.schedules import depends_on_length
from surefoot.lab.spec.task import Task, TaskError
from surefoot.lab.store import (
    Run,
    StoreError,
    is_done,
    is_recorded,
    last_epoch,
    read_run,
    read_runs,
    record_directions,
)

#: The paper's method next to its baseline; what `surefoot compare` shows when nothing is asked for.
DEMO_OPTIMIZERS = ("adam", "adamucb", "adamcb", "adams")
#: With `until_decided`, no more seeds than this unless asked for.
MAX_SEEDS = 40
#: Folder under the output folder for the runs that forks start from; reports do not show them.
BASE = ".base"


@shows_options
def compare(
    task: str | Task = "digits-mlp",
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]] = DEMO_OPTIMIZERS,
    *,
    seeds: int | Sequence[int] = 6,
    epochs: int = 20,
    purpose: str = "report",
    until_decided: bool = False,
    max_seeds: int = MAX_SEEDS,
    margin: MarginOption = None,
    **options: Any,
) -> Results:
    """Train every optimizer with every seed and return the results; what `out` holds is not done again.

    With `until_decided` seeds are added for the optimizers that are not decided yet, on the leading metric, and end for
    those that are. The verdicts are valid whenever one looks, so that this is no cheat.

    Args:
        task: A name, a file, an import path or a Task.
        optimizers: Contestants, the first one is the baseline; "adams:eta=1e-4", a class or a Contestant.
        seeds: How many seeds (0, 1, ...), or which; six are the fewest that can support a claim.
        epochs: Epochs per run.
        purpose: "report", or "tune" for runs that only choose a setting.
        until_decided: Add seeds until every optimizer is better, worse or (with a margin) equal, or has `max_seeds`.
        max_seeds: The most seeds with `until_decided`.
        margin: Smaller differences count as equal: a number for the leading metric, "1%" of the baseline's value for
            every metric, or a dict of these.
        options: The fields of `RunOptions`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     results = compare("digits-lr", ["adam", "sgd"], seeds=2, epochs=1, out=out, progress=False)
    >>> [(run.label, run.seed) for run in results.runs]
    [('Adam', 0), ('Adam', 1), ('SGD', 0), ('SGD', 1)]
    """
    check_margin(margin)
    setup = prepare(task, optimizers, seeds=seeds, epochs=epochs, **options)
    flags = _flags(setup, until_decided, max_seeds, margin)
    jobs: list[RunJob] = []
    failures: dict[int, str] = {}
    numbers, positions = setup.seeds, list(range(len(setup.contestants)))
    while numbers:
        batch: list[RunJob] = []
        for seed in numbers:
            command = setup.command("compare", seed, epochs, *flags) if purpose == Purpose.RESULT else ""
            for position in positions:
                contestant = setup.contestants[position]
                config = setup.config(contestant, seed, epochs, purpose=purpose, position=position, command=command)
                batch.append(setup.job(len(batch), config, contestant))
        failures |= {len(jobs) + index: message for index, message in compute(setup, batch, show_done=not jobs).items()}
        jobs += [replace(job, index=len(jobs) + job.index) for job in batch]
        undecided = _undecided(recorded_runs(jobs, failures, epochs), margin) if until_decided else []
        positions = [0, *undecided]
        numbers = _more_seeds(setup, jobs, len(positions), max_seeds) if undecided else []
    return collect(jobs, failures, epochs, setup.options.out, margin)


def _flags(setup: Setup, until_decided: bool, max_seeds: int, margin: MarginOption) -> list[str]:
    """What `compare` was asked for beside seeds and epochs, as flags of the command; a dict of margins has none."""
    if until_decided:
        check_count("max_seeds", max_seeds)
        if max_seeds < len(setup.seeds):
            raise ValueError(f"max_seeds is {max_seeds}, but {len(setup.seeds)} seeds were asked for; give more")
    limit = ["--until-decided", "--max-seeds", str(max_seeds)] if until_decided else []
    return limit + ([] if margin is None or isinstance(margin, Mapping) else ["--margin", str(margin)])


def _undecided(runs: Sequence[Run], margin: MarginOption) -> list[int]:
    """The positions of the optimizers that more seeds may decide, on the leading metric."""
    summary = summarise(runs, margin=margin)
    if not summary.metrics:  # no run recorded anything
        return []
    undecided = []
    for group in summary.groups:
        rows = summary.select(metric=summary.metrics[0], task=group.name)
        broken = [row.counts.failed or row.counts.unfinished for row in rows]
        for row, contestant, is_broken in zip(rows, group.contestants, broken):
            is_seen = max(row.pairs, row.counts.diverged) >= fewest_seeds()
            is_decided = row.verdict.outcome.is_decided or row.verdict.outcome == Decision.DIVERGED
            if not (row.is_baseline or broken[0] or is_broken or (is_seen and is_decided)):
                undecided.append(contestant.optimizer.position)
    return undecided


def _more_seeds(setup: Setup, jobs: Sequence[RunJob], optimizers: int, max_seeds: int) -> list[int]:
    """The next seed, or as many as the workers need to be busy; empty once there are `max_seeds`."""
    seeds = {job.config.seed for job in jobs}
    number = min(max(1, setup.options.jobs // optimizers), max_seeds - len(seeds))
    return [max(seeds) + 1 + k for k in range(number)]


@shows_options
def plan(
    task: str | Task = "digits-mlp",
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]] = DEMO_OPTIMIZERS,
    *,
    detect: float | str,
    epochs: int = 20,
    margin: MarginOption = None,
    **options: Any,
) -> Plan:
    """How many seeds and how much time `compare(..., until_decided=True)` will take, from the runs that `out` holds.

    Two or more paired seeds of each optimizer serve as a pilot; they count as a part of the comparison.

    Args:
        task: A name, a file, an import path or a Task.
        optimizers: Contestants, the first one is the baseline.
        detect: The smallest difference worth knowing of, in the leading metric; or "1%" of the baseline's value.
        epochs: Epochs per run.
        margin: Smaller differences count as equal, as in `compare`.
        options: The fields of `RunOptions`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     asked = {"epochs": 1, "out": out, "progress": False}
    ...     pilot = compare("digits-lr", ["adam", "sgd"], seeds=2, **asked)
    ...     rows = plan("digits-lr", ["adam", "sgd"], detect=0.05, **asked).rows
    >>> [(row.label, row.pairs) for row in rows]
    [('SGD', 2)]
    """
    check_margin(margin)
    setup = prepare(task, optimizers, seeds=1, epochs=epochs, **options)
    configs = [setup.config(contestant, 0, epochs, position=k) for k, contestant in enumerate(setup.contestants)]
    asked = {config.key_of_all_seeds(): config.optimizer for config in configs}
    recorded = read_runs(setup.options.out) if setup.options.out.is_dir() else []
    runs = [
        replace(run, config=replace(run.config, optimizer=asked[run.config.key_of_all_seeds()])).cut_to(epochs)
        for run in recorded
        if run.config.key_of_all_seeds() in asked and last_epoch(run.epochs) >= epochs
    ]
    runs.sort(key=lambda run: (run.config.optimizer.position, run.seed))
    specs = [contestant.spec for contestant in setup.contestants]
    task_name = setup.source.spec or setup.task.name
    words = setup.options.command("compare", task_name, specs, range(fewest_seeds()), epochs)
    labels = [contestant.label for contestant in setup.contestants]
    return make_plan(runs, labels, detect, margin, setup.options.jobs, words)


@shows_options
def fork(
    task: str | Task,
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]] = DEMO_OPTIMIZERS,
    *,
    at: int,
    seeds: int | Sequence[int] = 6,
    epochs: int = 5,
    state: str = "fresh",
    **options: Any,
) -> Results:
    """Train the first optimizer for `at` epochs, once per seed, and let every optimizer continue from there.

    All continue from the same weights over the same batches, so that only the optimizers differ, at that point of
    training. With `state="keep"` an optimizer takes over the baseline's state if it can load it: one of the same class
    or of a relative with the same state (Adam and AdamW), and Surefoot's Adam family, which loads the moments of a
    plain Adam and starts only its statistics of the loss anew. The others start fresh; each run records which it was.
    Kept moments are no advantage for the paper's weighting: gradients weighted by the std of the loss are small next to
    moments of unweighted ones, and the steps stay small until those are forgotten.

    Args:
        task: A name, a file, an import path or a Task.
        optimizers: Contestants; the first one is the baseline that trains up to the fork.
        at: The epoch of the fork; 0 forks at the initial weights.
        seeds: How many seeds (0, 1, ...), or which.
        epochs: Epochs after the fork.
        state: "fresh" starts every optimizer anew, "keep" hands the baseline's state on where it can be loaded.
        options: The fields of `RunOptions`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     results = fork("digits-lr", ["adam", "sgd"], at=2, seeds=1, epochs=1, out=out, progress=False)
    >>> [(run.label, run.epochs[0]["epoch"]) for run in results.runs]
    [('Adam', 3), ('SGD', 3)]
    """
    if state not in ("keep", "fresh"):
        raise ValueError(f"state must be 'keep' or 'fresh', got {state!r}")
    if not isinstance(at, int) or isinstance(at, bool) or at < 0:
        raise ValueError(f"the fork must be at epoch 0 or later, got {at!r}")
    setup = prepare(task, optimizers, seeds=seeds, epochs=epochs, **options)
    bases = _bases(setup, at)
    family = bases[setup.seeds[0]].config.key_of_all_seeds()  # runs of different families are not compared
    asked = ["--at", str(at), *(["--state", "keep"] if state == "keep" else [])]
    jobs: list[RunJob] = []
    for seed, base in bases.items():
        command = setup.command("fork", seed, epochs, *asked)
        for position, contestant in enumerate(setup.contestants):
            kept = bool(at) and state == "keep" and inherits(base.contestant, contestant)
            begin = ForkConfig(base.config.key, base.contestant.label, at, "kept" if kept else "fresh", family)
            config = setup.config(contestant, seed, at + epochs, position=position, fork=begin, command=command)
            start = base.folder / "checkpoint.pt" if at else None
            jobs.append(setup.job(len(jobs), config, contestant, start=start))
    return collect(jobs, compute(setup, jobs), at + epochs, setup.options.out)


def _bases(setup: Setup, at: int) -> dict[int, RunJob]:
    """For each seed the run that the others continue, trained up to the fork."""
    baseline = setup.contestants[0]
    if depends_on_length(baseline.schedule):
        raise ValueError(f"the baseline {baseline.spec!r} has a schedule that ends at the fork; leave the schedule out")
    configs = [setup.config(baseline, seed, at, purpose=Purpose.BASE) for seed in setup.seeds]
    bases = {config.seed: setup.job(index, config, baseline, under=BASE) for index, config in enumerate(configs)}
    if not at:
        return bases
    failures = compute(setup, list(bases.values()))
    if failures:
        raise StoreError(f"the baseline failed before the fork: {next(iter(failures.values()))}")
    for seed, base in bases.items():
        if read_run(base.folder).diverged:
            raise ValueError(
                f"the baseline diverged before epoch {at} with seed {seed}; fork earlier or lower its learning rate"
            )
        if not (base.folder / "checkpoint.pt").exists():
            raise ValueError(
                f"the baseline {baseline.spec!r} keeps a state that is not plain data and so is not saved; "
                "use another baseline"
            )
    return bases


def inherits(base: Contestant, heir: Contestant) -> bool:
    """Whether an optimizer can continue with the state of another.

    >>> [inherits(Contestant.parse("adam"), Contestant.parse(heir)) for heir in ("adams", "adamw", "sgd")]
    [True, True, False]
    """
    from surefoot.optim.loss_aware import LossAware
    from surefoot.optim.named import LossAwareAdam

    if not (isinstance(base.cls, type) and isinstance(heir.cls, type)):
        return False  # nothing is known about the optimizer that a function makes
    if issubclass(heir.cls, LossAware):
        if issubclass(base.cls, LossAware):
            return type(base.cls.engine) is type(heir.cls.engine)
        return issubclass(heir.cls, LossAwareAdam) and issubclass(base.cls, torch.optim.Adam)
    return issubclass(heir.cls, base.cls) or issubclass(base.cls, heir.cls)


@dataclass(frozen=True)
class Setup:
    """What an experiment was asked to do, read and checked."""

    source: TaskSource
    task: Task
    contestants: list[Contestant]
    seeds: list[int]
    options: RunOptions
    #: Options of optimizers that do not set them themselves.
    defaults: Mapping[str, Any]

    @cached_property
    def task_config(self) -> TaskConfig:
        """What the runs record of the task, taken once: its functions may change what they keep while they run."""
        return TaskConfig.plan(self.task, self.source.spec)

    @cached_property
    def checked_source(self) -> TaskSource:
        """The source of the runs: another process that loads the task refuses it if it was edited since."""
        return replace(self.source, task=self.task, planned=self.task_config)

    def config(self, contestant: Contestant, seed: int, epochs: int, **more: Any) -> RunConfig:
        """The configuration of one run; `more` is purpose, position, fork and command of `RunConfig.plan`."""
        return RunConfig.plan(
            self.task_config,
            contestant,
            seed=seed,
            epochs=epochs,
            threads=self.options.threads,
            device=self.options.device,
            defaults=self.defaults,
            **more,
        )

    def job(
        self, index: int, config: RunConfig, contestant: Contestant, *, under: str = "", start: Path | None = None
    ) -> RunJob:
        """The job that computes a run in its folder, in the output folder or in one under it."""
        folder = folder_of(self.options.out / under, config)
        return RunJob(index, config, folder, self.checked_source, contestant, start=start, jobs=self.options.jobs)

    def command(self, name: str, seed: int, epochs: int | None, *more: str) -> str:
        """The command that computes the runs of a seed, and of the other seeds in one unbroken range with it.

        Args:
            name: "compare", "fork" or "anytime", which has no number of epochs.
            more: Options of that command alone.
        """
        first = last = seed if seed in self.seeds else self.seeds[-1]  # others are added until all is decided
        while first - 1 in self.seeds:
            first -= 1
        while last + 1 in self.seeds:
            last += 1
        specs = [contestant.spec for contestant in self.contestants]
        task = self.source.spec or self.task.name
        return shlex.join(self.options.command(name, task, specs, range(first, last + 1), epochs, *more))


def prepare(
    task: str | Task,
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]],
    *,
    seeds: int | Sequence[int],
    epochs: int,
    **options: Any,
) -> Setup:
    """Read and check what `compare`, `fork` and `tune` are asked to do; the arguments are theirs."""
    read = RunOptions.read(options)
    check_count("epochs", epochs, MOST_EPOCHS)
    contestants, numbers = parse_all(optimizers), seed_numbers(seeds)
    source = task_source(task, read)
    defaults = {"lr": read.lr, "weight_decay": read.weight_decay}
    if read.weight_decay is None and source.spec in NAMED:
        defaults["weight_decay"] = PAPER_WEIGHT_DECAY
    for contestant in contestants:
        contestant.check(**defaults)
    try:
        loaded = source.load()
    except TaskError as error:
        raise _with_hint(error, read) from error
    for contestant in contestants:
        if contestant.examples or contestant.loss:
            losses_of(loaded, contestant.loss)
    setup = Setup(source, loaded, contestants, numbers, read, defaults)
    _check_factories(setup)
    return setup


def _with_hint(error: TaskError, options: RunOptions) -> TaskError:
    """The error with the option that was meant, if one that the task has not is nearly that of the command."""
    for name in options.more:
        for close in difflib.get_close_matches(
            name, ("epochs", "seeds", "optimizers", *RunOptions.names()), cutoff=0.8
        ):
            return TaskError(f"{error}; did you mean {close}={options.more[name]!r}?")
    return error


def _check_factories(setup: Setup) -> None:
    """Refuse functions that make no optimizer of the task's parameters."""
    factories = [contestant for contestant in setup.contestants if not isinstance(contestant.cls, type)]
    if not factories:
        return
    _ = setup.task_config  # taken before the model is made: the task's functions may change what they keep
    with torch.random.fork_rng(devices=[]):
        try:
            params = list(setup.task.fresh_model().parameters())
        except FAULTS:  # its runs fail with the same error and show the trace
            return
        for contestant in factories:
            contestant.check_factory(params, **setup.defaults)


def make_pool(options: RunOptions) -> MakePool:
    """What makes the pool that the options ask for."""
    if callable(options.executor):
        return options.executor
    if options.executor == PoolName.ray:
        from surefoot.lab.run import ray

        return ray.make_pool(options.address)
    check_device(options.device)  # not for the others: a cluster may have what this machine lacks
    return partial(Processes, jobs=options.jobs, threads=options.threads) if options.jobs > 1 else InProcess


def compute(setup: Setup, jobs: Sequence[RunJob], *, show_done: bool = True) -> dict[int, str]:
    """Compute the runs that are not done yet; returns what went wrong, by index of the job.

    Args:
        show_done: Show progress also if all runs were there already.
    """
    if not show_done and all(_recorded_outcome(job) == Outcome("done") for job in jobs):
        return {}
    show, pool_maker = setup.options.progress, make_pool(setup.options)
    display = make_progress(jobs, show=show) if isinstance(show, bool) else show(jobs)
    with display:
        outcomes = {job.index: outcome for job in jobs if (outcome := _recorded_outcome(job))}
        for index, outcome in outcomes.items():
            display.on_event(outcome.event(index))
        missing = [job for job in jobs if job.index not in outcomes]
        if missing:  # no process is started for the others
            with pool_maker(display.on_event) as pool:
                outcomes |= run_all(pool, missing)
    return {index: outcome.message for index, outcome in outcomes.items() if outcome.kind == "failed"}


def _recorded_outcome(job: RunJob) -> Outcome | None:
    """How a run ended that is there already, or whose folder cannot be read; None if it is still to be computed."""
    try:
        return Outcome("done") if is_done(job.folder, job.config) else None
    except StoreError as error:
        return Outcome("failed", str(error))


def collect(
    jobs: Sequence[RunJob], failures: Mapping[int, str], epochs: int, out: Path, margin: MarginOption = None
) -> Results:
    """The recorded runs of the jobs, in the order of the contestants, and what else the folder holds."""
    failed = {str(jobs[index].folder): message for index, message in failures.items()}
    return Results(recorded_runs(jobs, failures, epochs), failed, *read_record(out), margin)


def recorded_runs(jobs: Sequence[RunJob], failures: Collection[int], epochs: int) -> list[Run]:
    """The recorded runs of the jobs, in the order of the contestants."""
    runs: list[Run] = []
    for job in sorted(jobs, key=lambda job: (job.config.optimizer.position, job.index)):
        try:
            if not is_recorded(job.folder):  # not begun when a full disk stopped everything
                continue
            run = read_run(job.folder)
            _ = run.state  # it reads error.txt; what cannot be read is found here and not in the midst of a table
        except StoreError:
            if job.index not in failures:  # otherwise it is among the failures already
                raise
            continue
        # Label, position and command of this experiment, which may differ from those of the one that computed the run.
        asked = job.config
        with suppress(StoreError):  # a folder that is read-only: the results are there all the same
            record_directions(run, asked.task.higher_is_better)
        config = replace(
            run.config,
            task=replace(run.config.task, higher_is_better=asked.task.higher_is_better),
            optimizer=asked.optimizer,
            fork=asked.fork,
            provenance=replace(run.config.provenance, command=asked.provenance.command),
        )
        runs.append(replace(run, config=config).cut_to(epochs))
    return runs


def task_source(task: str | Task, options: RunOptions) -> TaskSource:
    """How a process gets the task."""
    if not isinstance(task, str | Task):
        what = "a model alone" if isinstance(task, torch.nn.Module) else repr(task)
        raise ValueError(
            f"a task is a name such as 'digits-mlp', a file such as 'my_task.py' or a surefoot.lab.Task, not {what}"
            + ("; put it into a Task with its data, model=lambda: ..." if isinstance(task, torch.nn.Module) else "")
        )
    given = options.task_options()
    if isinstance(task, str):
        return TaskSource(task, None if options.data_dir is None else str(options.data_dir), given)
    if given:
        refused = TaskError(f"{', '.join(given)}: options are for named tasks; change the Task itself instead")
        raise _with_hint(refused, options)
    return TaskSource(task=task)


def seed_numbers(seeds: int | Sequence[int]) -> list[int]:
    """The seeds themselves.

    >>> seed_numbers(3), seed_numbers(range(10, 12))
    ([0, 1, 2], [10, 11])
    """
    if (seeds > MOST_SEEDS) if isinstance(seeds, int) else isinstance(seeds, range) and seeds[MOST_SEEDS:]:
        raise ValueError(f"seeds must be at most {MOST_SEEDS}; to begin at a larger seed give the seeds themselves")
    try:
        given = range(seeds) if isinstance(seeds, int) and not isinstance(seeds, bool) else list(seeds)  # type: ignore[arg-type]
        numbers = [operator.index(seed) for seed in given]
    except TypeError:  # such as 1.5, which int() would make another seed of
        numbers = []
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise ValueError(f"seeds must be a positive count or distinct whole numbers from 0 up, got {seeds!r}")
    if max(numbers) > LARGEST_SEED:
        raise ValueError(f"a seed must be at most {LARGEST_SEED}, 2**63 - 1; give smaller ones")
    return numbers
