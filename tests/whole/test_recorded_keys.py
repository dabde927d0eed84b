"""The keys of the archived runs: today's code must find every one of them, or the paper's study is computed again."""

from __future__ import annotations

import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from surefoot.lab import compare
from surefoot.lab.run.pool import InProcess, Outcome, RunJob
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant, takes_bounds

ARCHIVE = Path(__file__).parents[2] / "results" / "paper" / "runs.jsonl"
Json = dict[str, Any]


def first_module(*names: str) -> Any:
    """The first of these modules that exists: they are known by an old and a new name."""
    for name in names:
        with suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError(f"none of {', '.join(names)}")


def key_of(config: Mapping[str, Any]) -> str:
    """The key that the code gives to a recorded configuration."""
    return RunConfig.from_json(config).with_changes().key


def load_data() -> Callable[..., Any]:
    """The function that reads a data set into memory."""
    return first_module("surefoot.lab.spec.datasets", "surefoot.lab.data").load


def planned(task: str, spec: str, out: Path, seeds: Sequence[int], **options: Any) -> dict[int, Json]:
    """The configurations, by seed, that `compare` plans; nothing is computed."""
    configs: dict[int, Json] = {}

    class Keep(InProcess):
        def submit(self, job: RunJob) -> Future[Outcome]:
            configs[job.config.seed] = job.config.to_json()
            future = Future[Outcome]()
            future.set_result(Outcome("done"))
            return future

    compare(task, [spec], seeds=seeds, out=out, executor=Keep, progress=False, **options)
    return configs


@cache
def archived() -> list[Json]:
    return [json.loads(line)["config"] for line in ARCHIVE.read_text().splitlines()]


def test_the_archive_is_whole() -> None:
    keys = [config["key"] for config in archived()]
    assert len(keys) == len(set(keys)) >= 379  # it only grows


def test_recorded_configurations_have_the_recorded_keys() -> None:
    assert [key_of(config) for config in archived()] == [config["key"] for config in archived()]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 99},
        {"threads": 2},
        {"device": "cuda"},
        {"purpose": "tune"},
        {"numerics": 3},
        {"fork": {"base": "0", "label": "Adam", "epoch": 1, "state": "fresh", "family": "1"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_the_numbers_decides_the_key(change: Json) -> None:
    config = archived()[0]
    assert key_of({**config, **change}) != config["key"]


@pytest.mark.parametrize(
    "change", [{"epochs": 99}, {"provenance": {}}, {"format": 2}], ids=lambda change: next(iter(change))
)
def test_what_decides_no_number_is_not_in_the_key(change: Json) -> None:
    config = archived()[0]
    assert config["optimizer"]["schedule"] is None
    assert key_of({**config, **change}) == config["key"]


def stand_in(digest: str) -> SimpleNamespace:
    """Ten thousand images of one pixel, which claim to be the data set with this digest: the model is never built."""
    images = torch.arange(10_000).remainder(256).to(torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 3, 1, 1)
    labels = torch.arange(10_000).remainder(10)
    return SimpleNamespace(train_x=images, train_y=labels, valid_x=images[:10], valid_y=labels[:10], digest=digest)


@pytest.fixture
def stand_in_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named tasks get images of one pixel with the digests in the archive: the data sets need not be there."""
    digests = {config["task"]["name"].partition("-")[0]: config["task"]["data"] for config in archived()}
    original = load_data()
    for module in [module for name, module in sys.modules.items() if name.startswith("surefoot.")]:
        for name, value in list(vars(module).items()):
            if value is original:
                monkeypatch.setattr(module, name, lambda data, data_dir=None: stand_in(digests[data]))


def by_plan() -> dict[str, list[Json]]:
    """The archived configurations that one call of `compare` asks for: they differ in their seed only."""
    groups = defaultdict(list)
    for config in archived():
        optimizer, task = config["optimizer"], config["task"]
        settings = {**task["settings"], "batch": task["batch_size"], "epochs": config["epochs"], **optimizer["kwargs"]}
        words = (f"{name}={value}" for name, value in settings.items())
        groups[" ".join([task["name"], optimizer["spec"], *words])].append(config)
    return dict(groups)


def as_planned(optimizer: Json) -> str:
    """How the study writes an archived optimizer: the published method bounds no weight."""
    spec = Contestant.parse(optimizer["spec"])
    says_nothing = "gain=" not in spec.spec and takes_bounds(spec.cls, spec.kwargs)
    return spec.with_options({"gain": None}).spec if says_nothing else spec.spec


@pytest.mark.usefixtures("stand_in_data")
@pytest.mark.parametrize("name", by_plan())
def test_planning_an_archived_run_gives_its_key(name: str, tmp_path: Path) -> None:
    configs = by_plan()[name]
    task, optimizer = configs[0]["task"], configs[0]["optimizer"]
    if optimizer["class"].startswith("schedulefree."):
        pytest.importorskip("schedulefree", reason="schedulefree is not installed; pip install 'surefoot[test]'")
    options: Json = {**task["settings"], "batch_size": task["batch_size"], "epochs": configs[0]["epochs"]}
    if f"lr={optimizer['kwargs']['lr']}" not in optimizer["spec"]:
        options["lr"] = optimizer["kwargs"]["lr"]
    if optimizer["kwargs"]["weight_decay"] != 1e-4:  # what every built-in task has by default
        options["weight_decay"] = optimizer["kwargs"]["weight_decay"]
    plans = planned(task["name"], as_planned(optimizer), tmp_path, [config["seed"] for config in configs], **options)
    for config in configs:
        plan = plans[config["seed"]]
        assert plan["key"] == config["key"]
        for part in ("task", "optimizer"):
            changing = {"label": None, "position": None, "spec": None}
            assert {**plan[part], **changing} == {**config[part], **changing}


def test_every_class_and_every_option_set_is_planned() -> None:
    kinds = {(config["optimizer"]["class"], *sorted(config["optimizer"]["kwargs"])) for config in archived()}
    assert {kind[0] for kind in kinds} >= {
        "torch.optim.Adam",
        "surefoot.AdamUCB",
        "surefoot.AdamCB",
        "surefoot.AdamS",
        "schedulefree.AdamWScheduleFree",
        "surefoot.lab.paper.ablation:ScaledAdam",
    }
    assert sum(map(len, by_plan().values())) == len(archived())


@pytest.mark.usefixtures("stand_in_data")
def test_a_run_with_bounds_is_another_run(tmp_path: Path) -> None:
    config = next(config for config in archived() if config["optimizer"]["spec"].startswith("adamucb:eta=0.01"))
    options: Json = {"batch_size": config["task"]["batch_size"], "epochs": config["epochs"], "lr": 1e-3}
    plan = planned(config["task"]["name"], "adamucb:eta=0.01", tmp_path, [config["seed"]], **options)[config["seed"]]
    assert plan["key"] not in {config["key"] for config in archived()}
    assert plan["optimizer"]["kwargs"]["gain"] == [0.3, 1.5]
