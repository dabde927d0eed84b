"""What a run is: its full configuration, and the key that names it by content."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import surefoot
from surefoot.lab.contestants import Contestant, source_digest
from surefoot.lab.provenance import provenance
from surefoot.lab.store import FORMAT

if TYPE_CHECKING:
    from surefoot.lab.tasks import Task


def make_config(
    task: Task,
    contestant: Contestant,
    *,
    seed: int,
    epochs: int,
    threads: int = 1,
    device: str = "cpu",
    purpose: str = "report",
    defaults: Mapping[str, Any] | None = None,
    position: int = 0,
    fork: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The configuration of one run, as `config.json` records it.

    Args:
        defaults: Options given to every optimizer that accepts them, such as lr and weight_decay.
        purpose: "report" for runs to be compared, "tune" for runs that chose a setting.
        position: Place of the contestant in the comparison; the first is the baseline.
        fork: Where the run starts when not at the beginning: {"base": key, "epoch": 5, "state": "fresh"}.
    """
    options = contestant.resolve(**(defaults or {}))
    config: dict[str, Any] = {
        "format": FORMAT,
        "key": "",
        "task": {
            "name": task.name,
            "batch_size": task.batch_size,
            "data": task.data_digest,
            # A fork at another epoch is another race, so it is another task to every table.
            "settings": {**_plain(task.settings), **({"fork_at": fork["epoch"]} if fork else {})},
            "code": _task_code(task),
            "higher_is_better": dict(task.higher_is_better),
        },
        "optimizer": {
            "label": contestant.label,
            "spec": contestant.spec,
            "class": contestant.class_path,
            "kwargs": _plain(options),
            "schedule": contestant.schedule,
            "code": contestant.code(),
            "position": position,
        },
        "seed": seed,
        "epochs": epochs,
        "threads": threads,
        "device": device,
        "purpose": purpose,
        "fork": _plain(fork),
        "numerics": surefoot.NUMERICS,
        "provenance": provenance(),
    }
    config["key"] = run_key(config)
    return config


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that decides a run's numbers, and so its key.

    The number of epochs is not in it, unless a schedule depends on it: a longer run extends a shorter one.
    """
    task, optimizer = config["task"], config["optimizer"]
    scheduled = optimizer.get("schedule") is not None or config["purpose"] == "base"
    return {
        "task": {name: task.get(name) for name in ("name", "batch_size", "data", "settings", "code")},
        "optimizer": {
            "class": optimizer["class"],
            "kwargs": _as_floats(optimizer["kwargs"]),
            "schedule": optimizer.get("schedule"),
            "code": optimizer.get("code"),
        },
        "seed": config["seed"],
        "threads": config["threads"],
        "device": config.get("device", "cpu"),
        "purpose": config["purpose"],
        "fork": config.get("fork"),
        "epochs": config["epochs"] if scheduled else None,
        "numerics": config["numerics"],
    }


def run_key(config: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of what decides a run's numbers."""
    text = json.dumps(identity(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def folder_of(out: Path, config: Mapping[str, Any]) -> Path:
    """The run's folder, `<out>/<task>/<label>-s<seed>-<key8>`; found by its key when the label changed."""
    parent = out / _slug(config["task"]["name"])
    ending = f"-s{config['seed']}-{config['key'][:8]}"
    name = _slug(config["optimizer"]["label"])[:60] + ending
    if not (parent / name).exists():
        for found in sorted(parent.glob(f"*{ending}")):
            return found
    return parent / name


@functools.lru_cache(maxsize=1)
def _task_code(task: Task) -> str:
    """Digest of the user's own code in a task: an edited model is another task."""
    functions = [one for one in (task.model, task.loss, task.prepare, *task.metrics.values()) if one]
    own = {code for one in functions if (code := _function_code(one))}
    if not own:
        return ""
    with torch.random.fork_rng(devices=[]):
        try:
            model = task.model()
        except Exception as error:
            raise ValueError(
                f"the model of task {task.name!r} could not be made ({type(error).__name__}: {error})"
            ) from error
    layers = {code for layer in model.modules() if (code := source_digest(type(layer)))}
    # The model as it prints shows what a closure binds, such as a width.
    return hashlib.sha256("".join([*sorted(own | layers), repr(model)]).encode()).hexdigest()[:16]


def _function_code(function: Any) -> str:
    if isinstance(function, functools.partial):
        # What is bound by surefoot's own tasks is in the task's settings already.
        inner = _function_code(function.func)
        return f"{inner}{function.args!r}{function.keywords!r}" if inner else ""
    return source_digest(function if hasattr(function, "__name__") else type(function))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "run"


def _plain(value: Any) -> Any:
    """A value as JSON holds it; functions and classes by their path."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    text = repr(value)
    if " at 0x" in text:
        raise ValueError(f"the option {text} cannot be recorded; give it a repr() that says what it is")
    return text


def _as_floats(value: Any) -> Any:
    """Whole numbers as floats, so that lr=1 and lr=1.0 are one run."""
    if isinstance(value, Mapping):
        return {name: _as_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
