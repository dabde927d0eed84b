"""The options of runs: read from keywords, written as flags, shown by the functions that take them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from surefoot.cli import app
from surefoot.lab.spec.options import RunOptions, flags_of, shows_options


def test_options_have_the_types_of_their_fields() -> None:
    options = RunOptions.read(
        {"out": "a/b", "data_dir": "data", "device": torch.device("cpu"), "lr": torch.tensor(0.5), "executor": None}
    )
    assert options == RunOptions(out=Path("a/b"), data_dir=Path("data"), device="cpu", lr=0.5, executor="local")
    assert type(options.lr) is float
    assert RunOptions.read({"weight_decay": np.float32(0.5)}).weight_decay == 0.5


def test_other_names_are_options_of_the_task() -> None:
    options = RunOptions.read({"subset": 10, "dropout": None, "width": 3, "depth": None})
    assert options.task_options() == {"subset": 10, "width": 3}
    assert RunOptions.read(options.keywords()) == options


def test_defaults_need_no_flag() -> None:
    assert RunOptions().flags() == []
    assert RunOptions.read({"out": "runs", "lr": 1e-3, "progress": False}).flags() == []


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"out": "elsewhere", "jobs": 4}, ["--out", "elsewhere", "--jobs", "4"]),
        ({"executor": "ray", "address": "head:6379"}, ["--executor", "ray", "--address", "head:6379"]),
        ({"executor": lambda on_event: None, "progress": lambda jobs: None}, []),
        ({"lr": 1e-5, "weight_decay": 0.0}, ["--lr", "1e-05", "--weight-decay", "0.0"]),
        ({"lr": 0.1 + 0.2}, ["--lr", "0.30000000000000004"]),
        ({"dropout": True, "batch_size": 16}, ["--batch-size", "16", "--dropout"]),
        ({"label_noise": 0.4, "noise": "asymmetric"}, ["--label-noise", "0.4", "--noise", "asymmetric"]),
        ({"dropout": False, "subset": 9, "subset_seed": 0}, ["--no-dropout", "--subset", "9", "--subset-seed", "0"]),
        ({"threads": 2, "device": "cuda:1", "data_dir": "data"},
         ["--threads", "2", "--device", "cuda:1", "--data-dir", "data"]),
    ],
)  # fmt: skip
def test_options_are_written_as_flags(given: dict[str, Any], flags: list[str]) -> None:
    assert RunOptions.read(given).flags() == flags


def test_every_flag_is_one_of_the_command() -> None:
    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).output
    assert all(f"--{name.replace('_', '-')} " in shown for name in flags_of(RunOptions))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"out": " "}, "out must be the folder for the runs, such as 'runs', got ' '"),
        ({"threads": True}, "threads must be a whole number from 1 up, got True"),
        ({"weight_decay": float("inf")}, "weight_decay must be a finite number, got inf"),
        ({"lr": torch.ones(2)}, r"lr must be a finite number, got a tensor of shape \(2,\)"),
        ({"executor": "cloud"}, "executor must be 'local', 'ray' or a function that makes a pool, got 'cloud'"),
        ({"address": "head:6379"}, "--address head:6379 is for a Ray cluster; add --executor ray"),
    ],
)
def test_wrong_values_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunOptions.read(given)


def test_functions_show_the_options_that_they_take() -> None:
    @shows_options
    def train(task: str, *, lr: str = "", **options: Any) -> None:
        """Train.

        Args:
            task: A task.
            options: Those of `RunOptions`.
        """

    shown = inspect.signature(train).parameters
    assert list(shown)[:2] == ["task", "lr"]
    assert shown["lr"].default == ""  # its own
    assert set(shown) == {"task", *(option.name for option in fields(RunOptions)), "task_options"} - {"more"}
    assert shown["jobs"].default == 1
    assert "        jobs: Worker processes; 1 keeps timings comparable.\n" in str(train.__doc__)
    assert "RunOptions" not in str(train.__doc__)
