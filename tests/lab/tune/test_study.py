"""The list of trials: every slot is counted once, whoever dies; storages that cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes import exit_code, in_child
from surefoot.lab.spec.task import Task
from surefoot.lab.tune import Tuning, tune
from surefoot.lab.tune.search import Search
from surefoot.lab.tune.study import ATTEMPTS, Studies

optuna = pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'surefoot[tune]'")

MakeTask = Callable[..., Task]


def search(task: Task, optimizers: list[str], out: Path, **options: Any) -> Tuning:
    return tune(task, optimizers, **{"seeds": 1, "epochs": 2, "progress": False, "out": out, **options})


@pytest.mark.parametrize("kind", ["sqlite:///", "journal:"])
def test_a_trial_whose_worker_died_is_taken_up_and_counted_once(
    tiny_task: MakeTask, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"space": {"lr": "1e-3:1"}, "trials": 2, "storage": f"{kind}{tmp_path / 'list'}"}
    searches: list[Search] = []
    monkeypatch.setattr(Search, "run", lambda search, *rest: searches.append(search))
    search(tiny_task(), ["adams"], tmp_path, **options)  # fills the study, computes nothing
    [plan] = searches[0].plans

    def die() -> None:
        studies = Studies(options["storage"])
        with studies.locks.live() as worker:
            studies.claim([plan], worker)
            os._exit(9)

    for _ in range(ATTEMPTS - 1):
        assert exit_code(in_child(die)) == 9
    studies = Studies(options["storage"])
    with studies.locks.live() as worker:
        first, others_run = studies.claim([plan], worker)
        assert not others_run
        second, others_run = studies.claim([plan], worker)
        assert others_run
        assert first is not None
        assert second is not None
        assert {first.slot, second.slot} == {0, 1}
        assert [trial.options for trial in (first, second)] == [
            plan.space.setting(trial.slot) for trial in (first, second)
        ]
        assert studies.claim([plan], worker) == (None, True)  # both are computed by a living worker
    monkeypatch.undo()
    result = search(tiny_task(), ["adams"], tmp_path, **options)
    assert sorted(trial.slot for trial in result.studies[0].trials) == [0, 1]
    assert result.ok


def test_a_trial_that_kills_every_worker_is_given_up(tiny_task: MakeTask, tmp_path: Path) -> None:
    class Killer:
        """A pool that does not survive its first job."""

        def __enter__(self) -> Killer:
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def submit(self, job: object) -> Any:
            os._exit(9)

    options: dict[str, Any] = {"space": {"lr": "0.1"}}
    for _ in range(ATTEMPTS):
        pid = in_child(lambda: search(tiny_task(), ["adam"], tmp_path, executor=lambda on_event: Killer(), **options))
        assert exit_code(pid) == 9
    url = f"sqlite:///{tmp_path / 'tune.db'}"
    result = optuna.load_study(study_name=None, storage=url).trials
    assert [trial.user_attrs["attempt"] for trial in result] == [1, 2, 3]
    assert search(tiny_task(), ["adam"], tmp_path, **options).ok  # another command, another chance


def test_a_server_that_is_not_there(tiny_task: MakeTask, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="cannot reach the PostgreSQL server of --storage"):
        search(tiny_task(), ["adam"], tmp_path, space={"lr": "0.1"}, storage="postgresql://u:secret@127.0.0.1:9/db")


def test_a_storage_that_cannot_be_read(tiny_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "tune.db").write_text("this is no database, but long enough to be taken for one" * 100)
    with pytest.raises(ConnectionError, match=r"the storage of the trials failed .*; run the same command again"):
        search(tiny_task(), ["adam"], tmp_path, space={"lr": "0.1"})
