"""What a user can rely on: the commands with their options, the public names and their signatures.

All of it is in tests/fixtures/public_surface.txt. After a deliberate change:
SUREFOOT_REFRESH_SNAPSHOTS=1 python -m pytest tests/whole/test_public_surface.py
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import surefoot.integrations
from snapshots import FIXTURES, assert_unchanged
from surefoot.cli import app

#: Modules whose names are public; those without `__all__` by what they define.
MODULES = [
    "surefoot",
    "surefoot.rules",
    "surefoot.optax",
    *(f"surefoot.integrations.{module.name}" for module in pkgutil.iter_modules(surefoot.integrations.__path__)),
    "surefoot.lab",
    "surefoot.lab.tune",
]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def test_public_surface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("TERMINAL_WIDTH", raising=False)
    lines = [line for name in MODULES for line in described(importlib.import_module(name))]
    assert_unchanged(FIXTURES / "public_surface.txt", "\n".join([*lines, *helps()]))


def helps() -> Iterator[str]:
    """The help of the program and of each command."""
    commands = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for arguments in ([], *([command] for command in commands)):
        shown = CliRunner().invoke(app, [*arguments, "--help"], prog_name="surefoot")
        assert shown.exit_code == 0, shown.output
        yield "\n$ " + " ".join(["surefoot", *arguments, "--help"])
        yield from (line.rstrip() for line in ANSI.sub("", shown.output).strip().splitlines())


def described(module: ModuleType) -> Iterator[str]:
    """A line per public name of a module, and per public method of its classes."""
    listed = hasattr(module, "__all__")
    names = sorted(module.__all__ if listed else defined_in(module))
    yield f"\n{module.__name__}" + ("" if listed else " (without __all__)")
    values = {name: getattr(module, name) for name in names}
    public = {value for value in values.values() if inspect.isclass(value)}
    for name, value in values.items():
        if inspect.isclass(value):
            bases = [base.__name__ for base in value.__mro__[1:] if base in public]
            yield f"  class {name}{signature(value)}" + (f" is a {', '.join(bases)}" if bases else "")
            yield from (f"    {line}" for line in members(value, public))
        elif callable(value):
            yield f"  {name}{signature(value)}"
        elif isinstance(value, dict):
            yield f"  {name}: {', '.join(value)}"
        else:
            yield f"  {name}"


def defined_in(module: ModuleType) -> list[str]:
    """Public classes and functions that a module defines itself."""
    kinds = (inspect.isclass, inspect.isfunction)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and any(kind(value) for kind in kinds) and value.__module__ == module.__name__
    ]


def members(cls: type, public: set[type]) -> Iterator[str]:
    """Public methods and properties of a class, without those of libraries and of other public classes."""
    elsewhere = {base for parent in cls.__mro__[1:] if parent in public for base in parent.__mro__}
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("surefoot") and base not in elsewhere:
            # When an optimizer is made, torch puts a copy of an inherited step into its class.
            members.update(
                {
                    name: value
                    for name, value in vars(base).items()
                    if not name.startswith("_") and (name != "step" or value.__qualname__ == f"{base.__name__}.step")
                }
            )
    for name, value in sorted(members.items()):
        if isinstance(value, property):
            yield f".{name} (property)"
        elif isinstance(value, (classmethod, staticmethod)):
            yield f".{name}{signature(value.__func__)} ({type(value).__name__})"
        elif inspect.isfunction(value) and value.__module__.startswith("surefoot"):
            yield f".{name}{signature(value)}"


def signature(value: Any) -> str:
    """A signature without module names, which differ between releases of the libraries and when files move."""
    try:
        parsed = inspect.signature(value)
    except (TypeError, ValueError):
        return "(?)"
    empty = inspect.Parameter.empty
    parameters = []
    for parameter in parsed.parameters.values():
        if parameter.annotation is not empty:
            parameter = parameter.replace(annotation=Plain(annotation(parameter.annotation)))
        if parameter.default is not empty:
            parameter = parameter.replace(default=Plain(default(parameter.default)))
        parameters.append(parameter)
    returned = parsed.return_annotation
    if returned is not inspect.Signature.empty:
        returned = Plain(annotation(returned))
    return str(parsed.replace(parameters=parameters, return_annotation=returned))


class Plain(str):
    """A text that `str(signature)` shows without quotation marks."""

    def __repr__(self) -> str:
        return str(self)


def annotation(value: Any) -> str:
    if not isinstance(value, str):
        value = value.__name__ if inspect.isclass(value) and not hasattr(value, "__args__") else str(value)
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", value)


def default(value: Any) -> str:
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value)).replace("PosixPath", "Path").replace("WindowsPath", "Path")
