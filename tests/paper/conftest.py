"""Runs of the paper, made up: written as run folders by the lab's own store, or held in memory."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.lab.spec.config import RunConfig
from surefoot.lab.store import MetricsLog, Run, write_config
from surefoot.paper.published import Configuration, eta_of

CLASSES = {"Adam": "torch.optim.Adam"}


def make_paper_run(
    one: Configuration,
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
    eta = eta_of(one, optimizer) if optimizer.startswith("Adam") else None
    kwargs: dict[str, Any] = {"lr": 1e-3, "weight_decay": 1e-4}
    kwargs |= {"fused": True} if optimizer == "Adam" else {} if eta is None else {"eta": eta}
    kwargs |= options or {}
    dropout = {} if one.model == "lr" else {"dropout": one.dropout}
    config: dict[str, Any] = {
        "format": 1,
        "task": {
            "name": one.task,
            "batch_size": one.batch_size,
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
def mnist(tmp_path: Path) -> Path:
    """A folder with an MNIST of 40 images."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 30), ("t10k", 10)):
        pixels = torch.randint(256, (count, 28, 28), dtype=torch.uint8, generator=generator)
        labels = (torch.arange(count) % 10).to(torch.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + values.numpy().tobytes())
    return folder.parent
