"""Runs of the paper, made up: written as run folders by the lab's own store, or held in memory."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.spec.code import RECORDED_AS
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.store import MetricsLog, Run, write_config
from surefoot.paper.ablation import Variant, cnn_variants, variants
from surefoot.paper.published import OPTIMIZERS, Configuration, configurations, eta_of, plain_configurations
from surefoot.paper.why import contestants

CLASSES = {"Adam": "torch.optim.Adam"}


def make_paper_run(
    configuration: Configuration,
    optimizer: str = "Adam",
    seed: int = 0,
    *,
    epochs: int = 3,
    final: float = 0.1,
    accuracy: float = 0.9,
    diverged: bool = False,
    options: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """A run whose training loss ends at `final`, validation loss at twice that, and accuracy at `accuracy`."""
    eta = eta_of(configuration, optimizer) if optimizer.startswith("Adam") else None
    kwargs: dict[str, Any] = {"lr": 1e-3, "weight_decay": 1e-4}
    kwargs |= {"fused": True} if optimizer == "Adam" else {} if eta is None else {"eta": eta}
    kwargs |= options or {}
    dropout = {} if configuration.model == "lr" else {"dropout": configuration.dropout}
    config: dict[str, Any] = {
        "format": 1,
        "task": {
            "name": configuration.task,
            "batch_size": configuration.batch_size,
            "data": "d",
            "settings": {**dropout, **(settings or {})},
            "code": "",
            "higher_is_better": {"accuracy": True},
        },
        "optimizer": {
            "label": optimizer + "".join(f" {k}={v}" for k, v in (options or {}).items()),
            "spec": optimizer.lower(),
            "class": CLASSES.get(optimizer, f"surefoot.{optimizer}"),
            "kwargs": kwargs,
            "schedule": None,
            "code": "",
            "position": 0 if optimizer == "Adam" else 1,
        },
        "seed": seed,
        "epochs": epochs,
        "threads": 1,
        "device": "cpu",
        "purpose": "report",
        "fork": None,
        "numerics": 1,
        "provenance": {"surefoot": "0.1.0", "torch": "2.13.0", "python": "3.11", "platform": "Linux", "cpu": "a cpu"},
    }
    for name, value in changes.items():
        where, _, inner = name.partition("__")
        if inner:
            config[where][inner] = value
        else:
            config[where] = value
    config["key"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    rows = [_row(epoch, epochs, final, accuracy, diverged and epoch == epochs) for epoch in range(1, epochs + 1)]
    return Run(Path("nowhere"), RunConfig.from_json(config), rows)


def _row(epoch: int, epochs: int, final: float, accuracy: float, lost: bool) -> dict[str, Any]:
    loss = final * (1 + math.log(epochs / epoch))
    return {
        "epoch": epoch,
        "step": 10 * epoch,
        "train_loss": None if lost else loss,
        "valid_loss": None if lost else 2 * loss,
        "valid_accuracy": None if lost else accuracy * (0.9 + 0.1 * epoch / epochs),
        "seconds": 2.0004,
        "jobs": 1,
        "mean": None,
        "std": None,
        "tilt": None,
        "weight": None,
        "skipped": 0,
        "diverged": lost,
    }


@pytest.fixture
def paper_run() -> Callable[..., Run]:
    """The maker of one run."""
    return make_paper_run


@pytest.fixture
def stored() -> Callable[[Path, list[Run]], Path]:
    """Writes runs as run folders."""

    def write(root: Path, runs: list[Run]) -> Path:
        for run in runs:
            folder = root / run.task / f"{run.label.lower().replace(' ', '-')}-s{run.seed}-{run.config.key[:8]}"
            folder.mkdir(parents=True)
            write_config(folder, run.config)
            log = MetricsLog(folder / "metrics.jsonl")
            for row in run.epochs:
                log.append(row)
            log.close()
        return root

    return write


@pytest.fixture
def variant_run(paper_run: Callable[..., Run]) -> Callable[..., Run]:
    """The maker of one run of a variant of the ablation."""

    def make(configuration: Configuration, variant: Variant, seed: int, **options: Any) -> Run:
        classes = {"adam": "torch.optim.Adam", "adamucb": "surefoot.AdamUCB", "adams": "surefoot.AdamS", **RECORDED_AS}
        run = paper_run(configuration, "Adam", seed, **options)
        optimizer = replace(
            run.config.optimizer,
            class_path=classes.get(variant.name, variant.name),
            schedule=variant.schedule,
            label=variant.spec,
            options={"lr": 1e-3, "weight_decay": 1e-4, **variant.options},
        )
        return replace(run, config=replace(run.config, optimizer=optimizer, key=run.config.key + variant.spec))

    return make


@pytest.fixture
def lr_runs(paper_run: Callable[..., Run]) -> list[Run]:
    """Two seeds of the paper's optimizers on logistic regression."""
    lr = plain_configurations()["lr"]
    return [paper_run(lr, name, seed, final=0.25 + 0.01 * seed) for name in OPTIMIZERS for seed in range(2)]


@pytest.fixture
def every_run(paper_run: Callable[..., Run], variant_run: Callable[..., Run], lr_runs: list[Run]) -> list[Run]:
    """Enough runs for every figure."""
    luck = random.Random(0)
    runs = list(lr_runs)
    plain = plain_configurations()
    for configuration in configurations():
        for name in OPTIMIZERS:
            runs.append(paper_run(configuration, name, 3, final=luck.random()))
            if name != "Adam" and configuration in plain.values():
                etas = ({"eta": eta} for eta in (2.0, 3.0))
                runs += [paper_run(configuration, name, 3, final=luck.random(), options=eta) for eta in etas]
    for model in ("lr", "mlp"):
        for variant in variants(plain[model]).values():
            runs.append(variant_run(plain[model], variant, 3, final=luck.random()))
    for name in ("plain Adam", "std scale alone"):
        for lr in (1e-3, 5e-4):
            variant = cnn_variants(plain["cnn"])[name].at(lr)
            runs.append(variant_run(plain["cnn"], variant, 3, settings={"subset": 10_000}, final=luck.random()))
    reciprocal = contestants(1e-3)["reciprocal of the std"]
    runs.append(variant_run(plain["cnn"], reciprocal, 3, settings={"subset": 10_000}, final=luck.random()))
    return runs
