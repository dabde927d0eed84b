"""A user's own Python, from a file or an import path; whatever it does when imported, the error is one sentence."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

#: What a user's code may end with; without SystemExit a script that calls sys.exit() would end the command unexplained.
FAULTS = (Exception, SystemExit)


class CodeError(ValueError):
    """A file or a module that cannot be imported; the message says which and why, the cause is what it raised."""


def told(error: BaseException) -> str:
    """An error in a user's code by its kind and message, on one line.

    >>> told(NameError("name 'x' is not defined"))
    "NameError: name 'x' is not defined"
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def load_file(path: Path, name: str) -> ModuleType:
    """Run a Python file as a module.

    Args:
        path: the file; its neighbours can be imported by it.
        name: what the module's name begins with; a hash of the path follows.
    """
    path = path.expanduser().resolve()
    if not path.is_file():
        raise CodeError(f"there is no file {path}")
    # The file's neighbours are importable, as when it is run as a script; last, so that they hide nothing.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look their own module up there
    try:
        # Not through an import: its bytecode cache can miss an edit made within the same second.
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except FAULTS as error:
        sys.modules.pop(name, None)
        raise CodeError(f"{path} could not be imported ({told(error)})") from error
    return module


def import_module(name: str) -> ModuleType:
    """Import a module by its name, also from the current folder."""
    if not name or name.startswith("."):
        raise CodeError(f"{name!r} is not the name of a module")
    if os.getcwd() not in sys.path:  # console scripts, unlike `python -m`, do not look here
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except FAULTS as error:
        raise CodeError(f"the module {name} could not be imported ({told(error)})") from error
