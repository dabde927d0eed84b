"""A run's configuration: what is written is read again, and wrong entries are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.spec.config import (
    ConfigError,
    ForkConfig,
    OptimizerConfig,
    Provenance,
    Purpose,
    RunConfig,
    TaskConfig,
)

ARCHIVE = Path(__file__).parents[3] / "results" / "paper" / "runs.jsonl"
TOY = RunConfig(TaskConfig("toy"), OptimizerConfig("Adam"), seed=3, epochs=2, key="0123")


def test_the_archive_is_written_as_it_was_read() -> None:
    for line in ARCHIVE.read_text().splitlines():
        recorded = json.loads(line)["config"]
        assert json.dumps(RunConfig.from_json(recorded).to_json()) == json.dumps(recorded)


def test_every_field_is_written_and_read() -> None:
    here = Provenance.here()
    config = RunConfig(
        TaskConfig("toy", 8, "d", {"dropout": True}, "c", {"f1": True}, "my_task.py"),
        OptimizerConfig("Adam", "adam", "torch.optim.Adam", {"betas": [0.9, 0.99]}, "cosine", "c", 2),
        seed=3,
        epochs=2,
        threads=4,
        device="cuda",
        purpose=Purpose.TUNING,
        fork=ForkConfig("b", "SGD", 5, "kept", "f"),
        numerics=2,
        provenance=here.with_resumed(Provenance(torch="9.9", time="later")),
        key="0123",
    )
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_what_was_added_later_may_be_missing() -> None:
    old = {"format": 1, "key": "0123", "task": {"name": "toy"}, "optimizer": {"label": "Adam"}, "seed": 3, "epochs": 2}
    assert RunConfig.from_json(old) == TOY
    assert "spec" not in TOY.to_json()["task"]
    assert not {"command", "resumed"} & TOY.to_json()["provenance"].keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": {}}, "task.name is missing"),
        ({"task": {"name": "toy", "settings": []}}, r"task.settings is \[\]"),
        ({"optimizer": {"label": "Adam", "kwargs": 5}}, "optimizer.kwargs is 5"),
        ({"optimizer": {"label": "Adam", "schedule": 5}}, "optimizer.schedule is 5"),
        ({"purpose": "fun"}, "purpose is 'fun'"),
        ({"fork": {"epoch": "5"}}, "fork.epoch is '5'"),
        ({"provenance": {"resumed": {}}}, "provenance.resumed is {}"),
        ({"provenance": {"resumed": [{"torch": 2}]}}, "provenance.resumed.torch is 2"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_a_wrong_entry_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        RunConfig.from_json({**TOY.to_json(), **change})


def test_the_key_follows_a_change_and_is_kept_as_it_was_recorded() -> None:
    planned = TOY.with_changes()
    assert planned.with_changes(epochs=9).key == planned.key != planned.with_changes(seed=4).key
    assert planned.key_of_all_seeds() == planned.with_changes(seed=4).key_of_all_seeds()
    assert RunConfig.from_json(TOY.to_json()).key == "0123"
