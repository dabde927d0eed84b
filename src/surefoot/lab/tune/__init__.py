"""Search for settings: equal budgets, other seeds than the reported ones, any number of workers, resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from surefoot._extras import require
from surefoot.lab.experiments import Setup, make_pool, prepare
from surefoot.lab.run.pool import Event
from surefoot.lab.spec.config import Purpose
from surefoot.lab.spec.contestant import Contestant, accepted_options
from surefoot.lab.spec.options import FIRST_TUNE_SEED, shows_options
from surefoot.lab.spec.schedules import depends_on_length
from surefoot.lab.spec.task import Task
from surefoot.lab.store import read_runs
from surefoot.lab.tune.result import Tuning, compare_command
from surefoot.lab.tune.search import Search, TrialOutcome, rungs_of
from surefoot.lab.tune.space import DEFAULT_SPACE, Grid, Range, Space, budget_of, parse_values
from surefoot.lab.tune.study import Studies, StudyResult, TrialResult, TuningPlan, storage_errors

if TYPE_CHECKING:
    from surefoot.lab.tune.progress import TrialProgress

__all__ = ["Grid", "Range", "StudyResult", "TrialResult", "Tuning", "tune"]


@shows_options
def tune(
    task: str | Task = "digits-mlp",
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]] = ("adam", "adams"),
    *,
    space: Mapping[str, str | Range | Grid] = DEFAULT_SPACE,
    trials: int | None = None,
    seeds: int | Sequence[int] = 2,
    epochs: int = 5,
    metric: str = "valid_loss",
    prune: bool = True,
    storage: str | None = None,
    **options: Any,
) -> Tuning:
    """Search for good settings of every optimizer, with the same budget for each; what is done is not done again.

    Args:
        task: A name, a file, an import path or a Task.
        optimizers: Contestants such as "adams"; options in their spec stay fixed.
        space: What to try, by option: a range "1e-6:1" (logarithmic) or values "1e-4,1e-3". An optimizer without an
            option is tuned over the others.
        trials: Settings per optimizer; 20 when not given, or all points of a grid.
        seeds: How many tune seeds (1000, 1001, ...), or which; they must not be among the reported ones.
        epochs: Epochs per run.
        metric: What is optimized: its mean over the seeds at the end.
        prune: Stop a trial early that is worse than the median of the others after a ninth or a third of the epochs.
        storage: Where the trials are listed: sqlite:///file.db (by default tune.db in `out`), postgresql://...,
            journal:file.
        options: The fields of `RunOptions`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     tuning = tune("digits-lr", ["adam"], space={"lr": "1e-5,1e-2"}, seeds=1, epochs=1, out=out, progress=False)
    >>> tuning.best
    {'Adam': {'lr': 0.01}}
    """
    require("optuna", extra="tune")
    numbers = range(FIRST_TUNE_SEED, FIRST_TUNE_SEED + seeds) if isinstance(seeds, int) else seeds
    setup = prepare(task, optimizers, seeds=numbers, epochs=epochs, **options)
    out, pool_maker = setup.options.out, make_pool(setup.options)
    _check_metric(setup, metric)
    _check_seeds(setup, out)
    plans, notes = make_plans(setup, space, trials, epochs, metric, prune)
    if storage is None:
        out.mkdir(parents=True, exist_ok=True)
        storage = f"sqlite:///{out / 'tune.db'}"
    with storage_errors():
        studies = Studies(storage)
        studies.fill(plans)
        with _display(studies, plans) if setup.options.progress else nullcontext() as display:
            on_trial = display.on_trial if display else _ignore
            search = Search(plans, storage, setup.checked_source, out, setup.options.jobs, on_trial)
            search.run(pool_maker(_ignore), studies)
        results = [studies.result(plan) for plan in plans]
    return Tuning(results, notes, compare_command(setup.source.spec, results, setup.seeds, epochs, setup.options))


def make_plans(
    setup: Setup,
    space: Mapping[str, str | Range | Grid],
    trials: int | None,
    epochs: int,
    metric: str,
    prune: bool,
) -> tuple[tuple[TuningPlan, ...], list[str]]:
    """The plan of every optimizer, and what to say about spaces and budgets."""
    options = {
        name: parse_values(name, values) if isinstance(values, str) else values for name, values in space.items()
    }
    if not options:
        raise ValueError("there is nothing to tune; give a range or values, like --lr 1e-4:1e-2")
    if trials is not None and trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
    spaces, notes = _spaces(setup.contestants, options)
    budget, budget_notes = budget_of(spaces, trials)
    plans = []
    for position, contestant in enumerate(setup.contestants):
        tuned_over = spaces[contestant.label]
        # A schedule stretches over all epochs: a shorter run is another run, not the beginning of a longer one.
        rungs = rungs_of(epochs, prune and not depends_on_length(contestant.schedule))
        if prune and depends_on_length(contestant.schedule):
            budget_notes.append(f"{contestant.label} has a schedule: its trials are not stopped early.")
        template = setup.config(contestant, setup.seeds[0], epochs, purpose=Purpose.TUNING, position=position)
        plan = TuningPlan(
            contestant=contestant,
            template=template,
            space=tuned_over,
            budget=len(tuned_over.points) if tuned_over.bounded else budget,
            seeds=tuple(setup.seeds),
            rungs=rungs,
            metric=metric,
            maximize=template.task.is_higher_better(metric),
        )
        plans.append(plan)
    return tuple(plans), [*notes, *budget_notes]


def _spaces(
    contestants: Sequence[Contestant], options: Mapping[str, Range | Grid]
) -> tuple[dict[str, Space], list[str]]:
    """The options that each optimizer is tuned over, by its label, and notes on those that it lacks or sets itself."""
    spaces, notes = {}, []
    for contestant in contestants:
        accepted = accepted_options(contestant.cls)
        unknown = [name for name in options if name not in accepted]
        fixed = [name for name in options if name in contestant.kwargs]
        tuned = {name: option for name, option in options.items() if name not in unknown and name not in fixed}
        if not tuned:
            raise ValueError(
                f"{contestant.label} has none of the options to tune ({', '.join(options)}); "
                "leave it out, or tune an option that it has, like --lr 1e-4:1e-2"
            )
        if unknown:
            notes.append(f"{contestant.label} has no {' or '.join(unknown)}: it is tuned over {', '.join(tuned)}.")
        if fixed:
            notes.append(f"{contestant.label} sets {' and '.join(fixed)} itself: tuned over {', '.join(tuned)}.")
        spaces[contestant.label] = Space(tuned)
    return spaces, notes


def _check_metric(setup: Setup, metric: str) -> None:
    known = ["valid_loss", "train_loss", *(f"valid_{name}" for name in setup.task.metrics)]
    if metric not in known:
        raise ValueError(f"the task {setup.task.name} records no {metric!r}; choose {', '.join(known)}")


def _check_seeds(setup: Setup, out: Path) -> None:
    """Refuse to tune on seeds that results of this task are reported on."""
    if not out.is_dir():
        return
    reported = {
        run.seed for run in read_runs(out) if run.task == setup.task.name and run.config.purpose == Purpose.RESULT
    }
    shared = sorted(reported & set(setup.seeds))
    if shared:
        raise ValueError(
            f"{out} reports results of {setup.task.name} on seed {', '.join(map(str, shared))}: tuning on a reported "
            "seed would flatter the winner; choose another --first-seed"
        )


def _display(studies: Studies, plans: Sequence[TuningPlan]) -> TrialProgress:
    from surefoot.lab.tune.progress import trial_display

    done = sum(len(studies.result(plan).trials) for plan in plans)
    total = sum(plan.budget for plan in plans)
    return trial_display(plans[0].metric, done, total, maximize=plans[0].maximize)


def _ignore(event: Event | TrialOutcome) -> None:
    return None
