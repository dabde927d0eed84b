"""Studies: one per task, optimizer and space, in a storage of the user's choice, with every trial counted once.

All trials of a budget are put into the study at its start, as waiting slots; a worker claims the next one.
So the budget is kept exactly by any number of workers, and a grid's point is tried once. What changes the list of
trials (filling, claiming, queueing again what a killed worker left) happens under one lock.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot._extras import require
from surefoot.lab.analyse.groups import is_number, on_edge
from surefoot.lab.spec.code import first_line
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.tune.locks import FileLocks, Locks, PostgresLocks
from surefoot.lab.tune.space import Space

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

#: After so many deaths of its worker in one command a trial fails: most likely it kills them itself.
ATTEMPTS = 3
#: Finished trials that the sampler and the pruner want to see before they judge.
ENOUGH = 5


@dataclass(frozen=True)
class TuningPlan:
    """The tuning of one optimizer.

    Args:
        contestant: The optimizer without the options that are tried.
        template: The configuration of its runs, to be completed by those options.
        rungs: After so many epochs a trial is judged; the last one is its end.
    """

    contestant: Contestant
    template: RunConfig
    space: Space
    budget: int
    seeds: tuple[int, ...]
    rungs: tuple[int, ...]
    metric: str
    maximize: bool

    @property
    def label(self) -> str:
        return self.contestant.label

    @cached_property
    def name(self) -> str:
        """The study's name, with a hash of everything that decides the value of a trial; the budget may grow."""
        decisive = {
            "run": {**self.template.identity(), "seed": None},
            "space": self.space.describe(),
            "seeds": self.seeds,
            "rungs": self.rungs,
            "metric": self.metric,
        }
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()
        return f"{self.template.task.name} {self.label} {digest[:12]}"


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this worker computes now."""

    plan: TuningPlan
    trial: Trial
    slot: int
    options: dict[str, Any]


@dataclass(frozen=True)
class TrialResult:
    """One setting: its value (infinite when a seed diverged), "done", "pruned" or "diverged", and epochs trained."""

    slot: int
    options: Mapping[str, Any]
    value: float
    state: str
    epochs: int


@dataclass(frozen=True)
class StudyResult:
    """The trials of one optimizer, in the order in which they ended; `failures` by slot."""

    plan: TuningPlan
    trials: list[TrialResult]
    failures: dict[int, str]

    @property
    def best(self) -> TrialResult | None:
        """The best setting that was trained to the end; None when every one diverged."""
        complete = [trial for trial in self.trials if trial.state == "done"]
        sign = -1 if self.plan.maximize else 1
        return min(complete, key=lambda trial: (sign * trial.value, trial.slot), default=None)

    @property
    def edges(self) -> list[str]:
        """Options whose best value lies on the edge of what was tried."""
        if self.best is None:
            return []
        tried = {name: [trial.options[name] for trial in self.trials] for name in self.best.options}
        numeric = {name: values for name, values in tried.items() if all(map(is_number, values))}
        return [name for name, values in numeric.items() if on_edge(self.best.options[name], values)]

    @property
    def epochs(self) -> int:
        return sum(trial.epochs for trial in self.trials)

    def of(self, state: str) -> int:
        """How many trials ended in this state."""
        return sum(trial.state == state for trial in self.trials)

    def edge_note(self) -> str:
        """The warning about the edge, or ''."""
        words = []
        for name in self.edges:
            tried = [trial.options[name] for trial in self.trials]
            words.append(f"{name} (tried {min(tried):g} to {max(tried):g})")
        if not words:
            return ""
        return f"{self.plan.label}: the best {' and '.join(words)} is on the edge; a better one may lie beyond it."


class Studies:
    """The studies of a storage.

    Args:
        url: `sqlite:///file.db`, `postgresql://...` or `journal:file`.
    """

    def __init__(self, url: str) -> None:
        self._optuna = require("optuna", extra="tune")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._states = self._optuna.trial.TrialState
        self.locks: Locks
        self.locks, make = _backend(url)
        with self.locks.hold():  # two processes must not create the tables at once
            self._storage = make()

    def fill(self, plans: Sequence[TuningPlan]) -> None:
        """Queue every slot of the budgets that is missing or failed; finishes an interrupted filling."""
        with self.locks.hold():
            for plan in plans:
                study = self._optuna.create_study(
                    storage=self._storage,
                    study_name=plan.name,
                    direction="maximize" if plan.maximize else "minimize",
                    load_if_exists=True,
                )
                trials = self._current(study, plan)
                present = {_slot(trial) for trial in trials if trial.state != self._states.FAIL}
                for slot in range(plan.budget):
                    if slot not in present:
                        failed = [trial.params for trial in trials if _slot(trial) == slot and trial.params]
                        setting = failed[-1] if failed else plan.space.setting(slot)
                        study.enqueue_trial(setting, user_attrs={"slot": slot, "attempt": 1})

    def claim(self, plans: Sequence[TuningPlan], worker: str) -> tuple[ClaimedTrial | None, bool]:
        """Take a waiting trial, of the study that is furthest behind; and whether other trials are being computed."""
        waiting: dict[tuple[int, int], tuple[TuningPlan, list[FrozenTrial]]] = {}
        others_run = False
        with self.locks.hold():
            for position, plan in enumerate(plans):
                trials = self._current(self._load(plan), plan)
                states = [trial.state.name for trial in trials]
                others_run = others_run or "RUNNING" in states
                if "WAITING" in states:
                    begun = len(states) - states.count("WAITING") - states.count("FAIL")
                    waiting[begun, position] = plan, trials
            claimed = self._ask(*waiting[min(waiting)], worker) if waiting else None
        return claimed, others_run

    def end(self, claimed: ClaimedTrial, value: float | None) -> None:
        """End a trial with its value, or without one if it was stopped early."""
        state = self._states.PRUNED if value is None else self._states.COMPLETE
        self._load(claimed.plan).tell(claimed.trial, value, state, True)

    def fail(self, claimed: ClaimedTrial, message: str, *, retry: bool) -> bool:
        """End a trial without a value; with `retry` it is queued again, unless it had all its attempts.

        Returns whether it was queued.
        """
        with self.locks.hold():
            claimed.trial.set_user_attr("error", message)
            study = self._load(claimed.plan)
            if retry:
                return self._retry(study, claimed.plan, claimed.trial)
            study.tell(claimed.trial, None, self._states.FAIL, True)
        return False

    def result(self, plan: TuningPlan) -> StudyResult:
        """What each slot of a study's budget came to."""
        trials: list[TrialResult] = []
        failures: dict[int, str] = {}
        recorded = self._load(plan).get_trials(deepcopy=False)
        for trial in sorted(recorded, key=lambda trial: (str(trial.datetime_complete or ""), trial.number)):
            slot = _slot(trial)
            if not 0 <= slot < plan.budget:  # of a larger budget that was asked for before
                continue
            if trial.state == self._states.FAIL:
                failures[slot] = trial.user_attrs.get("error", "its worker process died again and again")
            elif trial.state.is_finished():
                trials.append(self._trial_result(trial))
        ended = {trial.slot for trial in trials}
        return StudyResult(plan, trials, {slot: error for slot, error in failures.items() if slot not in ended})

    def _trial_result(self, trial: FrozenTrial) -> TrialResult:
        diverged = trial.value is not None and math.isinf(trial.value)
        state = "pruned" if trial.state == self._states.PRUNED else "diverged" if diverged else "done"
        options = trial.user_attrs.get("options", trial.params)
        return TrialResult(_slot(trial), options, float(trial.value or 0.0), state, trial.user_attrs.get("epochs", 0))

    @property
    def given_up(self) -> type[Exception]:
        """Raised for a trial that another worker has, because this one was cut off from the server for a while."""
        return self._optuna.exceptions.UpdateFinishedTrialError

    def _load(self, plan: TuningPlan, sampler: Any = None) -> Study:
        pruner = (
            self._optuna.pruners.MedianPruner(n_startup_trials=ENOUGH)
            if len(plan.rungs) > 1
            else self._optuna.pruners.NopPruner()
        )
        return self._optuna.load_study(
            study_name=plan.name,
            storage=self._storage,
            sampler=sampler or self._optuna.samplers.RandomSampler(seed=0),
            pruner=pruner,
        )

    def _ask(self, plan: TuningPlan, trials: Sequence[FrozenTrial], worker: str) -> ClaimedTrial:
        slot = _slot(next(trial for trial in trials if trial.state == self._states.WAITING))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Another seed for every slot, and the same one for a slot whoever takes it.
            seed = int.from_bytes(hashlib.sha256(f"{plan.name} {slot}".encode()).digest()[:4], "big")
            sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=ENOUGH, constant_liar=True)
            trial = self._load(plan, sampler).ask(plan.space.distributions())
        trial.set_user_attr("worker", worker)
        options = plan.space.rounded(trial.params)
        if options in [other.user_attrs.get("options") for other in trials if _slot(other) != slot]:
            options = dict(trial.params)
        trial.set_user_attr("options", options)
        return ClaimedTrial(plan, trial, slot, options)

    def _current(self, study: Study, plan: TuningPlan) -> list[FrozenTrial]:
        """The trials; those whose worker died are queued again first, and their runs go on from checkpoints."""
        trials = study.get_trials(deepcopy=False)
        lost = [trial for trial in trials if trial.state == self._states.RUNNING and not self._has_worker(trial)]
        for trial in lost:
            self._retry(study, plan, trial)
        return study.get_trials(deepcopy=False) if lost else trials

    def _has_worker(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get("worker")  # none: it was killed right after it took the trial
        return worker is not None and self.locks.is_alive(worker)

    def _retry(self, study: Study, plan: TuningPlan, trial: Trial | FrozenTrial) -> bool:
        """Fail a trial whose process died and queue its setting again, unless it had all its attempts."""
        study.tell(trial.number, state=self._states.FAIL)
        slot, attempt = _slot(trial), trial.user_attrs.get("attempt", 1) + 1
        if attempt > ATTEMPTS:
            return False
        study.enqueue_trial(trial.params or plan.space.setting(slot), user_attrs={"slot": slot, "attempt": attempt})
        return True


@contextmanager
def storage_errors() -> Iterator[None]:
    """Say in one sentence that the storage failed, whichever package noticed."""
    optuna, sqlalchemy = require("optuna", extra="tune"), require("sqlalchemy.exc", extra="tune")
    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.SQLAlchemyError) as error:
        reason = first_line(getattr(error, "orig", None) or error)
        raise ConnectionError(
            f"the storage of the trials failed ({reason}); run the same command again when it is there: "
            "what was computed is kept"
        ) from error


def _slot(trial: Trial | FrozenTrial) -> int:
    return int(trial.user_attrs.get("slot", -1))


def _backend(url: str) -> tuple[Locks, Any]:
    """The locks of a storage, and what opens it."""
    storages = require("optuna.storages", extra="tune")
    scheme, _, rest = url.partition(":")
    if scheme == "journal":
        path = Path(rest)
        journal = require("optuna.storages.journal", extra="tune")
        return FileLocks(_beside(path)), lambda: storages.JournalStorage(journal.JournalFileBackend(str(path)))
    require("sqlalchemy", extra="tune")
    if scheme.partition("+")[0] == "sqlite":
        path = Path(require("sqlalchemy.engine", extra="tune").make_url(url).database or "")
        if not path.name or path.name == ":memory:":
            raise ValueError(f"--storage {url} has no file; write it like sqlite:///tune.db")
        # Writers wait for each other; a busy disk may take its time.
        options = {"connect_args": {"timeout": 120}}
        return FileLocks(_beside(path)), lambda: storages.RDBStorage(url, engine_kwargs=options)
    if scheme.partition("+")[0] in ("postgresql", "postgres"):
        driver = scheme.partition("+")[2] or "psycopg"
        require(driver, extra="tune")
        full = f"postgresql+{driver}:{rest}"
        try:
            locks = PostgresLocks(full)
        except require("sqlalchemy.exc", extra="tune").OperationalError as error:
            reason = first_line(error.orig)
            raise ConnectionError(f"cannot reach the PostgreSQL server of --storage: {reason}") from error
        return locks, lambda: storages.RDBStorage(full, engine_kwargs={"pool_pre_ping": True})
    raise ValueError(
        f"cannot use the storage {scheme}:...; give sqlite:///file.db, postgresql://user@host/database or journal:file"
    )


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.locks")
