"""A user's own task, from a Python file or an import path."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from surefoot.lab.spec.code import code_digest, text_digest
from surefoot.lab.spec.download import DataError
from surefoot.lab.spec.task import Task, TaskError
from surefoot.lab.spec.user_code import FAULTS, CodeError, import_module, load_file, told


def user_task(spec: str, data_dir: str | os.PathLike[str] | None, overrides: Mapping[str, Any]) -> Task:
    """Load `file.py`, `file.py:name` or `package.module:name`, and make the task in it.

    Args:
        spec: where the `Task`, or the function that returns one, is.
        data_dir: handed to the function when it has an argument of that name.
        overrides: handed to the function likewise; `batch_size` works on every task.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier():  # a colon can also be part of a path
        place, name = spec, ""
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place, spec)
    found = _pick(module, name, place)
    taken = {} if isinstance(found, Task) else _accepted(found, spec, data_dir, overrides)
    task = found if isinstance(found, Task) else _call(found, spec, taken)
    left = overrides.keys() - taken.keys() - {"batch_size"}
    if left:
        raise TaskError(
            f"{spec} takes no option {', '.join(sorted(left))}; make the task with a function that has such an argument"
        )
    # An edited file is another task: without this, runs of the old model would pass for runs of the new one. A module
    # that was imported before goes by what is loaded, whatever its file says by now.
    text = Path(str(module.__file__)).read_text(errors="replace") if place.endswith(".py") else ""
    source = text_digest(text) if text else code_digest(module)
    options = {key: value for key, value in taken.items() if key not in ("batch_size", "data_dir")}
    return dataclasses.replace(
        task,
        batch_size=overrides.get("batch_size", task.batch_size),
        settings={**options, **task.settings, "source": source},
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
        found = getattr(module, name)
        if not isinstance(found, Task) and not callable(found):
            raise TaskError(f"{name} in {place} is neither a Task nor a function for one but {found!r}")
        return found
    if isinstance(getattr(module, "task", None), Task) or inspect.isfunction(getattr(module, "task", None)):
        return module.task
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
        raise TaskError(f"{spec} failed to make its task ({told(error)})") from error
    if not isinstance(task, Task):
        raise TaskError(f"{spec} returned a {type(task).__name__}, not a surefoot.lab.spec.task.Task")
    return task
