"""Runs made up in memory: learning curves with known differences, for everything that reads results."""

from __future__ import annotations

import gc
import math
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.task import Task
from surefoot.lab.store import Run


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What the tests import stays, nearly a million objects: the garbage collector need not visit them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _module_stays() -> Generator[None]:
    """The same for what a module's tests imported, compiled and cached."""
    yield
    gc.collect()
    gc.freeze()


def make_run(
    label: str = "Adam",
    seed: int = 0,
    *,
    final: float = 0.1,
    epochs: int = 5,
    done: int | None = None,
    diverged: bool = False,
    jobs: int = 1,
    optimizer: str | None = None,
    kwargs: dict[str, Any] | None = None,
    folder: Path = Path("nowhere"),
    task: dict[str, Any] | None = None,
    **config: Any,
) -> Run:
    """One run whose validation loss ends at `final`; it stops after `done` epochs, diverged or not."""
    loss_aware = not label.startswith(("Adam ", "SGD")) and label != "Adam"
    records = []
    for epoch in range(1, (done or epochs) + 1):
        lost = diverged and epoch == (done or epochs)
        decay = 2.0 * math.exp(-6.0 * epoch / epochs) - 2.0 * math.exp(-6.0)
        loss = final + decay
        records.append(
            {
                "epoch": epoch,
                "step": 12 * epoch,
                "train_loss": None if lost else loss * 0.8,
                "valid_loss": None if lost else loss,
                "valid_accuracy": None if lost else 1.0 - loss / 3.0,
                "seconds": 0.5,
                "jobs": jobs,
                "mean": loss * 0.9 if loss_aware else None,
                "std": 0.1 * loss if loss_aware else None,
                "tilt": 0.01 * math.sin(seed + epoch) if loss_aware else None,
                "weight": 0.1 * loss if loss_aware else None,
                "skipped": 0,
                "diverged": lost,
            }
        )
    provenance = {
        "surefoot": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.7",
        "platform": "Linux",
        "cpu": "a cpu",
    }
    full = {
        "format": 1,
        "key": f"{label}{seed}",
        "task": task or {"name": "digits-mlp", "batch_size": 128, "data": "d1", "settings": {}},
        "optimizer": {
            "label": label,
            "spec": label.lower(),
            "class": optimizer or f"surefoot.{label.split()[0]}",
            "kwargs": kwargs or {"lr": 0.001},
            "code": label,  # stands for the options that a label names
        },
        "seed": seed,
        "epochs": epochs,
        "threads": 1,
        "purpose": "report",
        "numerics": 1,
        "provenance": provenance | {"commit": "abc1234", "time": "2026-01-02T03:04:05Z"},
        **config,
    }
    return Run(folder, RunConfig.from_json(full), records)


@pytest.fixture
def run() -> Callable[..., Run]:
    """The maker of one run."""
    return make_run


@pytest.fixture
def paired_runs() -> Callable[..., list[Run]]:
    """A maker of a paired comparison: `offsets[label]` is added to what the seed alone gives."""

    def make(offsets: dict[str, float], seeds: int = 10, noise: float = 0.002, **options: Any) -> list[Run]:
        runs = []
        for number, (label, offset) in enumerate(offsets.items()):
            luck = np.random.default_rng(number)
            for seed in range(seeds):
                shared = 0.1 + 0.02 * math.sin(3.0 * seed)
                final = shared + offset + (noise * luck.standard_normal() if number else 0.0)
                runs.append(make_run(label, seed, final=final, **options))
        return runs

    return make


def make_tiny_task(name: str = "tiny", *, samples: int = 70, dropout: float = 0.5, **fields: Any) -> Task:
    """A task of milliseconds: three classes of random points, dropout, a last batch that is smaller."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 5, generator=generator)
    y = x[:, :3].argmax(1)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))

    return Task(name, model, train=(x, y), valid=(x[:20], y[:20]), batch_size=16, **fields)


@pytest.fixture
def tiny_task() -> Callable[..., Task]:
    """The function that makes tiny tasks."""
    return make_tiny_task


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
