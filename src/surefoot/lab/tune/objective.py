"""What a trial does: the runs of one setting with every tune seed, judged after some of the epochs and at the end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from surefoot.lab.experiments import Setup
from surefoot.lab.run.pool import Event, MakePool, RunJob, run_all
from surefoot.lab.spec.config import RunConfig, folder_of
from surefoot.lab.spec.contestant import Contestant, written
from surefoot.lab.store import Run, StoreError, last_epoch, read_run
from surefoot.lab.tune.study import Plan, Studies, Taken


@dataclass(frozen=True)
class Ended:
    """How a trial ended: "done", "pruned", "diverged" or "failed", its value, and the epochs it took in all."""

    label: str
    slot: int
    state: str
    value: float | None
    epochs: int
    message: str = ""


def rungs_of(epochs: int, prune: bool = True) -> tuple[int, ...]:
    """The epochs after which a trial is compared with the others: a ninth, a third, and the end.

    >>> rungs_of(20), rungs_of(5), rungs_of(20, prune=False)
    ((3, 7, 20), (1, 2, 5), (20,))
    """
    if not prune:
        return (epochs,)
    return tuple(sorted({math.ceil(epochs / 9), math.ceil(epochs / 3), epochs}))


def with_options(base: Contestant, options: Mapping[str, Any]) -> Contestant:
    """An optimizer with these options, written as a spec that `surefoot compare` reads.

    >>> with_options(Contestant.parse("adams:weight_decay=0"), {"eta": 0.01}).spec
    'adams:weight_decay=0,eta=0.01'
    """
    kwargs = {**base.kwargs, **options}
    spec = written(base.spec, options, between="," if base.kwargs or base.schedule else ":")
    if base.schedule is not None:
        kwargs["schedule"] = base.schedule
    return Contestant.create(None, base.given or base.class_path, kwargs, spec=spec)


def config_of(plan: Plan, contestant: Contestant, options: Mapping[str, Any], seed: int, epochs: int) -> RunConfig:
    """The configuration of one run of a trial: the plan's, with the options that are tried."""
    planned = plan.template.optimizer
    optimizer = replace(planned, label=contestant.label, spec=contestant.spec, options={**planned.options, **options})
    return plan.template.with_changes(optimizer=optimizer, seed=seed, epochs=epochs)


@dataclass
class _Going:
    """A trial that is being computed."""

    taken: Taken
    contestant: Contestant
    folders: list[Path] = field(default_factory=list)
    epochs: int = 0


def evaluate(
    batch: Sequence[Taken],
    studies: Studies,
    setup: Setup,
    out: Path,
    on_end: Callable[[Ended], None],
    *,
    jobs: int = 1,
    executor: MakePool,
) -> None:
    """Compute trials of plans with the same rungs, rung by rung, and tell their studies how each ended."""
    going = [_Going(taken, with_options(taken.plan.contestant, taken.options)) for taken in batch]
    for rung in batch[0].plan.rungs:
        requests: list[RunJob] = []
        owners: list[_Going] = []
        for one in going:
            one.folders = []
            for seed in one.taken.plan.seeds:
                config = config_of(one.taken.plan, one.contestant, one.taken.options, seed, rung)
                folder = folder_of(out, config)
                requests.append(RunJob(len(requests), config, folder, setup.checked_source, one.contestant, jobs=jobs))
                owners.append(one)
                one.folders.append(folder)
        with executor(_ignore) as pool:
            outcomes = run_all(pool, requests)
        for outcome in outcomes.values():
            if outcome.fatal:  # nothing else could be written either; the trial is taken up by the next command
                raise StoreError(outcome.message)
        errors = {id(owners[index]): one.message for index, one in outcomes.items() if one.kind == "failed"}
        going = [one for one in going if _goes_on(one, rung, errors.get(id(one), ""), studies, on_end)]
        if not going:
            return


def _goes_on(one: _Going, rung: int, error: str, studies: Studies, on_end: Callable[[Ended], None]) -> bool:
    """Judge a trial after a rung; tells the study when it ended."""
    plan, trial = one.taken.plan, one.taken.trial
    runs = [read_run(folder) for folder in one.folders] if not error else []
    spent = sum(min(last_epoch(run.epochs), rung) for run in runs)
    state, value = "failed", None
    try:
        if error:
            trial.set_user_attr("error", error)
            studies.tell(one.taken, None)
        else:
            trial.set_user_attr("epochs", spent)
            lost = [run.seed for run in runs if _lost(run, plan, rung)]
            if lost:
                trial.set_user_attr("diverged", lost)
            value = _value(runs, plan, rung, bool(lost))
            trial.report(value, rung)
            if lost or rung == plan.rungs[-1]:
                state = "diverged" if lost else "done"
                studies.tell(one.taken, value)
            elif trial.should_prune():
                state = "pruned"
                studies.tell(one.taken, None, pruned=True)
            else:
                return True
    except studies.given_up:
        return False
    on_end(Ended(one.contestant.label, one.taken.slot, state, value, spent, error))
    return False


def _lost(run: Run, plan: Plan, rung: int) -> bool:
    """Whether a run diverged by then, or has no value there because the metric was not a number."""
    diverged = run.diverged and last_epoch(run.epochs) <= rung
    return diverged or any(row["epoch"] == rung and row[plan.metric] is None for row in run.epochs)


def _value(runs: Sequence[Run], plan: Plan, rung: int, lost: bool) -> float:
    """The mean over seeds; one seed that was lost makes the setting the worst there is."""
    if lost:
        return -math.inf if plan.maximize else math.inf
    rows = [next(row for row in run.epochs if row["epoch"] == rung) for run in runs]
    return statistics.fmean(row[plan.metric] for row in rows)


def _ignore(event: Event) -> None:
    return None
