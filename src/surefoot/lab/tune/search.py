"""The search itself: trials are claimed and their runs submitted to the pool, until every budget is spent.

A trial is one setting with every tune seed. After some of the epochs (a rung) it is compared with the others, and
stopped there if it is worse than most. Each thread of a search computes one trial at a time; another command on the
same studies is only more such threads.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from surefoot.lab.run.pool import Outcome, Pool, RunJob, TaskSource, run_all
from surefoot.lab.spec.config import RunConfig, folder_of
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.store import Run, StoreError, last_epoch, read_run
from surefoot.lab.tune.study import ClaimedTrial, Studies, TuningPlan

#: How often a thread without a trial looks whether one that others compute has been lost, in seconds.
WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class TrialOutcome:
    """How far a trial is, or how it ended; one whose process died may be queued again.

    Args:
        epochs: After how many epochs the value was taken.
        last: How many epochs it is trained, if it is not stopped early.
    """

    label: str
    state: Literal["running", "done", "pruned", "diverged", "failed", "queued again"]
    value: float | None = None
    message: str = ""
    epochs: int = 0
    last: int = 0


OnTrial = Callable[[TrialOutcome], None]


@dataclass(frozen=True)
class Search:
    """What is searched, and with what.

    Args:
        storage: Where the studies are.
        source: The task.
        out: Folder of the run folders.
        jobs: How many trials are computed at once.
        on_trial: Called when a trial of this search begins, was judged without being stopped, and ends.
    """

    plans: Sequence[TuningPlan]
    storage: str
    source: TaskSource
    out: Path
    jobs: int
    on_trial: OnTrial

    def run(self, pool: Pool, studies: Studies) -> None:
        """Compute trials until every budget is spent, also by other commands; leaves the pool closed."""
        stop = threading.Event()
        if self.jobs == 1:
            with pool:
                self._take_trials(pool, studies, stop)
            return
        with ThreadPoolExecutor(self.jobs, "trials") as threads:
            try:
                with pool:  # closed before the threads are waited for, so that none waits for a run
                    for ended in as_completed([threads.submit(self._work, pool, stop) for _ in range(self.jobs)]):
                        ended.result()
            finally:
                stop.set()

    def _work(self, pool: Pool, stop: threading.Event) -> None:
        # Studies of its own for every thread, because to a PostgreSQL server one connection is one worker.
        self._take_trials(pool, Studies(self.storage), stop)

    def _take_trials(self, pool: Pool, studies: Studies, stop: threading.Event) -> None:
        with studies.locks.live() as worker:
            while not stop.is_set():
                claimed, others_run = studies.claim(self.plans, worker)
                if claimed is not None:
                    self._compute(claimed, pool, studies)
                elif others_run:
                    stop.wait(WAIT_SECONDS)
                else:
                    return

    def _compute(self, claimed: ClaimedTrial, pool: Pool, studies: Studies) -> None:
        """Compute a trial rung by rung, until its end or until it is stopped."""
        contestant = claimed.plan.contestant.with_options(claimed.options)
        last = claimed.plan.rungs[-1]
        self.on_trial(TrialOutcome(contestant.label, "running", last=last))
        for rung in claimed.plan.rungs:
            configs = [run_config(claimed, contestant, seed, rung) for seed in claimed.plan.seeds]
            jobs = [
                RunJob(index, config, folder_of(self.out, config), self.source, contestant, jobs=self.jobs)
                for index, config in enumerate(configs)
            ]
            failed = [end for end in run_all(pool, jobs).values() if end.kind == "failed"]
            for end in failed:
                if end.fatal:  # nothing else could be written either; the next command computes the trial
                    raise StoreError(end.message)
            try:
                if failed:
                    outcome = _fail(claimed, contestant, failed, studies)
                else:
                    outcome = _judge(claimed, contestant, [read_run(job.folder) for job in jobs], rung, studies)
            except studies.given_up:
                return
            self.on_trial(replace(outcome, epochs=rung, last=last))
            if outcome.state != "running":
                return


def _fail(claimed: ClaimedTrial, contestant: Contestant, failed: Sequence[Outcome], studies: Studies) -> TrialOutcome:
    """End a trial of which runs failed; where only processes died it is queued again."""
    retry = all(outcome.died for outcome in failed)
    message = next((outcome.message for outcome in failed if not outcome.died), failed[0].message)
    queued = studies.fail(claimed, message, retry=retry)
    return TrialOutcome(contestant.label, "queued again" if queued else "failed", message=message)


def _judge(
    claimed: ClaimedTrial, contestant: Contestant, runs: Sequence[Run], rung: int, studies: Studies
) -> TrialOutcome:
    """Record a trial's value after a rung, and say whether it ends there."""
    plan, trial = claimed.plan, claimed.trial
    trial.set_user_attr("epochs", sum(min(last_epoch(run.epochs), rung) for run in runs))
    diverged = [run.seed for run in runs if _has_diverged(run, plan, rung)]
    if diverged:  # one seed is enough to make the setting the worst there is
        trial.set_user_attr("diverged", diverged)
        value = -math.inf if plan.maximize else math.inf
    else:
        value = statistics.fmean(row[plan.metric] for run in runs for row in run.epochs if row["epoch"] == rung)
    trial.report(value, rung)
    if diverged or rung == plan.rungs[-1]:
        studies.end(claimed, value)
        return TrialOutcome(contestant.label, "diverged" if diverged else "done", value)
    if trial.should_prune():
        studies.end(claimed, None)
        return TrialOutcome(contestant.label, "pruned", value)
    return TrialOutcome(contestant.label, "running", value)


def _has_diverged(run: Run, plan: TuningPlan, rung: int) -> bool:
    """Whether a run diverged by then, or has no value there because the metric was not a number."""
    diverged = run.diverged and last_epoch(run.epochs) <= rung
    return diverged or any(row["epoch"] == rung and row[plan.metric] is None for row in run.epochs)


def rungs_of(epochs: int, prune: bool = True) -> tuple[int, ...]:
    """The epochs after which a trial is compared with the others: a ninth, a third, and the end.

    >>> rungs_of(20), rungs_of(5), rungs_of(20, prune=False)
    ((3, 7, 20), (1, 2, 5), (20,))
    """
    if not prune:
        return (epochs,)
    return tuple(sorted({math.ceil(epochs / 9), math.ceil(epochs / 3), epochs}))


def run_config(claimed: ClaimedTrial, contestant: Contestant, seed: int, epochs: int) -> RunConfig:
    """The configuration of one run of a trial: the plan's, with the options that are tried."""
    template = claimed.plan.template
    options = {**template.optimizer.options, **claimed.options}
    optimizer = replace(template.optimizer, label=contestant.label, spec=contestant.spec, options=options)
    return template.with_changes(optimizer=optimizer, seed=seed, epochs=epochs)
