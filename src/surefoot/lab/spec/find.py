"""Finds a task by its name, in a user's Python file, or by an import path."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from surefoot.lab.spec.builtin import NAMED, named_task
from surefoot.lab.spec.code import FAULTS, CodeError, error_text, fingerprint, import_module, load_file
from surefoot.lab.spec.contestant import is_optimizer
from surefoot.lab.spec.datasets import DataError
from surefoot.lab.spec.task import Task, TaskError


def find_task(spec: str, data_dir: str | os.PathLike[str] | None = None, **overrides: Any) -> Task:
    """Find a task by name, in a Python file, or by import path.

    Args:
        spec: a name (`digits-mlp`), a file (`my_task.py`, or `my_task.py:name` when it has several), or a
            module (`package.module:name`). What is found is a `Task` or a function that returns one, which is
            called with `data_dir` and those overrides that it has arguments for.
        data_dir: where the data sets are; see `surefoot.lab.spec.datasets.load`.
        overrides: `dropout`, `batch_size`, `subset` (train on so many examples), `subset_seed`, `label_noise` (the
            share of wrong labels) and `noise`; None is as if it were not given.

    >>> find_task("digits-lr", batch_size=16, subset=500).train[0].shape
    torch.Size([500, 64])
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    subset, subset_seed = given.pop("subset", None), given.pop("subset_seed", None)
    noise = [given.pop(name) for name in ("label_noise", "noise") if name in given]
    if subset is None and subset_seed is not None:
        raise TaskError("subset_seed chooses the examples of a subset; give subset too")
    if noise and overrides.get("label_noise") is None:
        raise TaskError("noise says which labels are wrong; give label_noise, how many, too")
    if spec in NAMED:
        unknown = given.keys() - {"dropout", "batch_size"}
        if unknown:
            raise TaskError(
                f"{spec} has no option {', '.join(sorted(unknown))}; it has batch_size, dropout, subset, "
                "subset_seed, label_noise and noise"
            )
        task = named_task(spec, data_dir, **given)
    elif is_optimizer(spec) and (":" not in spec or "=" in spec):
        raise TaskError(f"{spec} is an optimizer and no task; repeat -o before each one: -o adam -o {spec}")
    elif ":" in spec or "." in spec:
        task = _user_task(spec, data_dir, given)
    else:
        near = difflib.get_close_matches(spec, NAMED, n=3, cutoff=0.5)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise TaskError(
            f"there is no task {spec!r}{hint}; named tasks are {', '.join(NAMED)}; "
            f"your own is a file (my_task.py) or an import path (package.module:name)"
        )
    task = task if subset is None else task.subset(subset, subset_seed)
    return task.with_label_noise(*noise) if noise else task


def _user_task(spec: str, data_dir: str | os.PathLike[str] | None, overrides: Mapping[str, Any]) -> Task:
    """Load `file.py`, `file.py:name` or `package.module:name`, and make the task in it; any takes `batch_size`."""
    place, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier():  # a colon can also be part of a path
        place, name = spec, ""
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place, spec)
    task, taken = _pick(module, name, place), {}
    if not isinstance(task, Task):
        taken = _accepted(task, spec, data_dir, overrides)
        task = _call(task, spec, taken)
    left = overrides.keys() - taken.keys() - {"batch_size"}
    if left:
        raise TaskError(
            f"{spec} takes no option {', '.join(sorted(left))}; make the task with a function that has such an argument"
        )
    options = {key: value for key, value in taken.items() if key not in ("batch_size", "data_dir")}
    return dataclasses.replace(
        task,
        batch_size=overrides.get("batch_size", task.batch_size),
        settings={**options, **task.settings, "source": fingerprint(module)},
    )


def _load_file(path: Path) -> ModuleType:
    try:
        return load_file(path, f"surefoot_task_{path.stem}")
    except CodeError as error:
        if isinstance(error.__cause__, TaskError | DataError):  # a sentence for the user already
            raise error.__cause__ from None
        advice = "" if error.__cause__ else "; give the path of a Python file with a Task in it"
        raise TaskError(f"{error}{advice}") from error


def _import(place: str, spec: str) -> ModuleType:
    if not place or place.startswith(".") or os.sep in place or Path(place).is_file():  # meant as a path
        what = "a folder" if os.path.isdir(place) else "not a .py file"
        raise TaskError(
            f"{place or spec} is {what}; give a Python file with a Task in it (my_task.py) "
            "or an import path (package.module:name)"
        )
    try:
        return import_module(place)
    except CodeError as error:
        raise TaskError(f"{spec}: {error}") from error


def _pick(module: ModuleType, name: str, place: str) -> Any:
    if name:
        if not hasattr(module, name):
            raise TaskError(f"{place} has no {name!r}; it has {_offers(module)}")
        value = getattr(module, name)
        if not isinstance(value, Task) and not callable(value):
            raise TaskError(f"{name} in {place} is neither a Task nor a function for one but {value!r}")
        return value
    task = getattr(module, "task", None)
    if isinstance(task, Task) or inspect.isfunction(task):
        return task
    tasks = [value for value in vars(module).values() if isinstance(value, Task)]
    if len(tasks) != 1:
        raise TaskError(f"{place} has {_offers(module)}; say which: {place}:name (or call the one to take `task`)")
    return tasks[0]


def _offers(module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, Task) or (inspect.isfunction(value) and value.__module__ == module.__name__)
    ]
    return f"the tasks and functions {', '.join(names)}" if names else "no Task and no function"


def _accepted(
    function: Any, spec: str, data_dir: str | os.PathLike[str] | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of the options that the function has arguments for."""
    signature = inspect.signature(function)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    offered = {**overrides, **({} if data_dir is None else {"data_dir": data_dir})}
    accepted = {key: value for key, value in offered.items() if takes_all or key in signature.parameters}
    try:
        signature.bind(**accepted)
    except TypeError as error:
        raise TaskError(f"{spec} cannot be called with {accepted or 'no arguments'} ({error})") from error
    return accepted


def _call(function: Any, spec: str, arguments: Mapping[str, Any]) -> Task:
    try:
        task = function(**arguments)
    except (TaskError, DataError):
        raise
    except FAULTS as error:
        raise TaskError(f"{spec} failed to make its task ({error_text(error)})") from error
    if not isinstance(task, Task):
        raise TaskError(f"{spec} returned a {type(task).__name__}, not a surefoot.lab.Task")
    return task
