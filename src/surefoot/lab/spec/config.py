"""What a run is: its full configuration, and the key that names it by content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import surefoot
from surefoot.lab.analyse.groups import as_floats
from surefoot.lab.spec.code import RECORDED_AS, code_digest
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.provenance import provenance
from surefoot.lab.spec.task_code import task_code
from surefoot.lab.store import FORMAT

if TYPE_CHECKING:
    from surefoot.lab.spec.task import Task


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
    code: str | None = None,
    spec: str = "",
) -> dict[str, Any]:
    """The configuration of one run, as `config.json` records it.

    Args:
        defaults: Options given to every optimizer that accepts them, such as lr and weight_decay.
        purpose: "report" for runs to be compared, "tune" for runs that chose a setting.
        position: Place of the contestant in the comparison; the first is the baseline.
        fork: Where the run starts when not at the beginning: {"base": key, "epoch": 5, "state": "fresh"}.
        code: `task_code` of the task, where it is known already.
        spec: Where a command finds the task, when its name does not say it.
    """
    options = contestant.resolve(**(defaults or {}))
    config: dict[str, Any] = {
        "format": FORMAT,
        "key": "",
        "task": {
            "name": task.name,
            "batch_size": task.batch_size,
            "data": task.digest,
            # A fork at another epoch is another race, so it is another task to every table.
            "settings": {**_plain(task.settings), **({"fork_at": fork["epoch"]} if fork else {})},
            "code": task_code(task) if code is None else code,
            "higher_is_better": dict(task.higher_is_better),
            **({"spec": spec} if spec else {}),
        },
        "optimizer": {
            "label": contestant.label,
            "spec": contestant.spec,
            "class": RECORDED_AS.get(contestant.class_path, contestant.class_path),
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
            "kwargs": as_floats(optimizer["kwargs"]),
            "schedule": optimizer.get("schedule"),
            "code": optimizer.get("code"),
        },
        "seed": config["seed"],
        "threads": config["threads"],
        "device": config.get("device", "cpu"),
        "purpose": config["purpose"],
        "fork": _start(config.get("fork")),
        "epochs": config["epochs"] if scheduled else None,
        "numerics": config["numerics"],
    }


def _start(fork: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where a fork begins, but for its family: the base's key says that, for this seed."""
    return None if fork is None else {name: value for name, value in fork.items() if name != "family"}


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


def _slug(text: str) -> str:
    """A name as a folder's; one that has no such letters, or too many, is told apart by its hash.

    >>> _slug("Adam lr=0.1"), _slug("数字"), len(_slug("long " * 100))
    ('adam-lr-0.1', 'run-c16ec927', 69)
    """
    slug = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    if slug and len(slug) <= 60:
        return slug
    return f"{slug[:60] or 'run'}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def _plain(value: Any) -> Any:
    """A value as JSON holds it; functions and classes by their path, the user's own with a digest of their code."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "__qualname__"):
        return ":".join(filter(None, [value.__module__, value.__qualname__, code_digest(value)]))
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    text = repr(value)
    if " at 0x" in text:
        raise ValueError(f"the option {text} cannot be recorded; give it a repr() that says what it is")
    return text
