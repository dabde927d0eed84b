"""Studies: one per task, optimizer and space, in a storage of the user's choice, with every trial counted once.

All trials of a budget are put into the study at its start, as waiting slots; a worker takes the next waiting one.
So the budget is kept exactly by any number of workers, and a grid's point is tried once. What changes the list of
trials (filling, taking, taking up what a killed worker left) happens under one lock.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot._extras import require
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.tune.locks import FileLocks, Locks, PostgresLocks
from surefoot.lab.tune.space import Space

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

#: A trial whose worker died so often in one command has killed them itself, most likely.
ATTEMPTS = 3
#: Finished trials that the sampler and the pruner want to see before they judge.
ENOUGH = 5


@dataclass(frozen=True)
class Plan:
    """The tuning of one optimizer.

    Args:
        name: The study's name; it says everything that decides a trial's value.
        contestant: The optimizer without the options that are tried.
        template: The configuration of its runs, to be completed by those options.
        rungs: After so many epochs a trial is judged; the last one is its end.
    """

    name: str
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


@dataclass(frozen=True)
class Taken:
    """A trial that this worker computes now."""

    plan: Plan
    trial: Trial
    slot: int
    options: dict[str, Any]


class Studies:
    """The studies of a storage.

    Args:
        url: `sqlite:///file.db`, `postgresql://...` or `journal:file`.
    """

    def __init__(self, url: str) -> None:
        self._optuna = require("optuna", extra="tune")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self.locks: Locks
        self.locks, make = _backend(url)
        with self.locks.hold():  # two processes must not create the tables at once
            self._storage = make()

    def fill(self, plans: Sequence[Plan]) -> None:
        """Put every slot of the budgets into its study that is not there or failed; finishes a half-done filling."""
        with self.locks.hold():
            for plan in plans:
                study = self._optuna.create_study(
                    storage=self._storage,
                    study_name=plan.name,
                    direction="maximize" if plan.maximize else "minimize",
                    load_if_exists=True,
                )
                trials = self._current(study, plan)
                there = {_slot(one) for one in trials if one.state.name != "FAIL"}
                for slot in range(plan.budget):
                    if slot not in there:
                        failed = [one.params for one in trials if _slot(one) == slot and one.params]
                        setting = failed[-1] if failed else plan.space.setting(slot)
                        study.enqueue_trial(setting, user_attrs={"slot": slot, "attempt": 1})

    def take(self, plans: Sequence[Plan], worker: str, most: int = 1) -> tuple[list[Taken], bool]:
        """Take waiting trials, of the study that is furthest behind; and tell whether others are computed elsewhere."""
        taken: list[Taken] = []
        with self.locks.hold():
            while len(taken) < most:
                waiting = {}
                elsewhere = False
                for place, plan in enumerate(plans):
                    trials = self._current(self._load(plan), plan)
                    states = [one.state.name for one in trials]
                    if "WAITING" in states:
                        waiting[len(states) - states.count("WAITING") - states.count("FAIL"), place] = plan, trials
                    ours = sum(one.plan is plan for one in taken)
                    elsewhere = elsewhere or states.count("RUNNING") > ours
                if not waiting:
                    break
                taken.append(self._ask(*waiting[min(waiting)], worker))
        return taken, elsewhere

    def tell(self, taken: Taken, value: float | None, *, pruned: bool = False) -> None:
        """End a trial: with its value, as pruned, or as failed when there is neither."""
        states = self._optuna.trial.TrialState
        state = states.PRUNED if pruned else states.FAIL if value is None else states.COMPLETE
        # A worker that was cut off from the server was given up: its trial is another's by now.
        self._load(taken.plan).tell(taken.trial, value if state == states.COMPLETE else None, state, True)

    def trials(self, plan: Plan) -> list[FrozenTrial]:
        """The trials of a study, with copies of nothing."""
        return self._load(plan).get_trials(deepcopy=False)

    @property
    def given_up(self) -> type[Exception]:
        """What a worker gets that goes on with a trial it was cut off from."""
        return self._optuna.exceptions.UpdateFinishedTrialError

    def _load(self, plan: Plan, sampler: Any = None) -> Study:
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

    def _ask(self, plan: Plan, trials: Sequence[FrozenTrial], worker: str) -> Taken:
        slot = _slot(next(one for one in trials if one.state.name == "WAITING"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Another seed for every slot, and the same one for a slot whoever takes it.
            seed = int.from_bytes(hashlib.sha256(f"{plan.name} {slot}".encode()).digest()[:4], "big")
            sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=ENOUGH, constant_liar=True)
            trial = self._load(plan, sampler).ask(plan.space.distributions())
        trial.set_user_attr("worker", worker)
        options = plan.space.rounded(trial.params)
        if options in [one.user_attrs.get("options") for one in trials if _slot(one) != slot]:
            options = dict(trial.params)
        trial.set_user_attr("options", options)
        return Taken(plan, trial, slot, options)

    def _current(self, study: Study, plan: Plan) -> list[FrozenTrial]:
        """The trials; one whose worker died gets another chance with its setting, its runs go on from checkpoints."""
        trials = study.get_trials(deepcopy=False)
        lost = []
        for one in trials:
            if one.state.name == "RUNNING":
                worker = one.user_attrs.get("worker")  # none: it was killed right after it took the trial
                if worker is None or not self.locks.is_alive(worker):
                    lost.append(one)
        for one in lost:
            study.tell(one.number, state=self._optuna.trial.TrialState.FAIL)
            attempt = one.user_attrs.get("attempt", 1) + 1
            if attempt <= ATTEMPTS:
                setting = one.params or plan.space.setting(_slot(one))
                study.enqueue_trial(setting, user_attrs={"slot": _slot(one), "attempt": attempt})
        return study.get_trials(deepcopy=False) if lost else trials


@contextmanager
def storage_errors() -> Iterator[None]:
    """Say in one sentence that the storage failed, whichever package noticed."""
    optuna, sqlalchemy = require("optuna", extra="tune"), require("sqlalchemy.exc", extra="tune")
    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.SQLAlchemyError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise ConnectionError(
            f"the storage of the trials failed ({reason}); run the same command again when it is there: "
            "what was computed is kept"
        ) from error


def _slot(trial: FrozenTrial) -> int:
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
            reason = str(error.orig).strip().splitlines()[0]
            raise ConnectionError(f"cannot reach the PostgreSQL server of --storage: {reason}") from error
        return locks, lambda: storages.RDBStorage(full, engine_kwargs={"pool_pre_ping": True})
    raise ValueError(
        f"cannot use the storage {scheme}:...; give sqlite:///file.db, postgresql://user@host/database or journal:file"
    )


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.locks")
