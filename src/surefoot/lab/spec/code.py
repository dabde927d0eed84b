"""Loads users' Python code, and takes its fingerprint: edited code is another optimizer or another task.

What counts is source text. Code of a module counts with the text of its file and of the users' modules that it
imports, as they were when first seen. Code of a notebook or a script counts with the source of the function or class
and with the functions, classes and values that it reads. Closures, defaults and attributes of objects count by value,
installed packages by the text of the file, and torch and surefoot by name: runs record their versions.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import functools
import hashlib
import importlib.util
import inspect
import linecache
import os
import random
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from surefoot._extras import require
from surefoot.lab.spec.datasets import digest
from surefoot.lab.spec.task import Task

np = require("numpy", extra="lab")

#: Packages whose version a run records.
_VERSIONED = ("torch", "surefoot", "builtins")

#: Classes that moved, with the path they had in runs recorded before. Keys and records keep the old path.
RECORDED_AS = {"surefoot.paper.ablation:ScaledAdam": "surefoot.lab.paper.ablation:ScaledAdam"}

#: What a user's code may end with; without SystemExit a script that calls sys.exit() would end the command unexplained.
FAULTS = (Exception, SystemExit)


class CodeError(ValueError):
    """Code that cannot be imported, or whose source is unknown; the message says which and why."""


def error_text(error: BaseException) -> str:
    """An error in a user's code by its kind and message, on one line.

    >>> error_text(NameError("name 'x' is not defined"))
    "NameError: name 'x' is not defined"
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind if it has none.

    >>> first_line(OSError("no such host\\nin a traceback")), first_line(EOFError())
    ('no such host', 'EOFError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def load_file(path: Path, name: str, again: Literal["always", "if edited", "never"] = "always") -> ModuleType:
    """Run a Python file as a module.

    Args:
        path: the file; its neighbours can be imported by it.
        name: what the module's name begins with; a hash of the path follows.
        again: when to run a file that was loaded before: a class that is loaded twice is two classes.
    """
    path = path.expanduser().resolve()
    name = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules and again == "never":
        return sys.modules[name]
    if not path.is_file():
        raise CodeError(f"there is no file {path}")
    # The file's neighbours are importable, as when it is run as a script; last, so that they hide nothing.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    content = path.read_bytes()
    if name in sys.modules and again == "if edited" and _SEEN[name][1] == content:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and pickle look their own module up there
    _SEEN[name] = module, content
    try:
        # Not through an import: its bytecode cache can miss an edit made within the same second.
        exec(compile(content, str(path), "exec"), module.__dict__)
    except FAULTS as error:
        sys.modules.pop(name, None)
        raise CodeError(f"{path} could not be imported ({error_text(error)})") from error
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
        raise CodeError(f"the module {name} could not be imported ({error_text(error)})") from error


def fingerprint(thing: Any) -> str:
    """Fingerprint of a class, function or module; '' for those of torch and surefoot.

    >>> fingerprint(torch.optim.SGD)
    ''
    """
    return _hash(_Description().of(thing)) if _is_user_defined(thing) else _file_digest(thing)


def task_fingerprint(task: Task) -> str:
    """Fingerprint of what a task computes with; '' for a built-in one, whose name and settings say it.

    Beside the code of its functions it has what they give on a few examples, which also shows a change that is in no
    source text, such as another value of a global.
    """
    if task.is_built_in:
        return ""
    functions = {"model": task.model, "loss": task.loss, "prepare": task.prepare, "metrics": dict(task.metrics)}
    code = _Description().of(functions)  # before the probe, which may change what a function keeps
    return _hash("\n".join([code, *_behaviour_probe(task)]))


def _behaviour_probe(task: Task) -> list[str]:
    """The initial weights, and the loss of four examples.

    Both are rounded, so that another processor gives the same; "none" where the code fails, because the run will say
    why, and where it does not repeat itself.
    """
    first, second = _probe_once(task), _probe_once(task)
    return [text if text == again else "none" for text, again in zip(first, second)]


def _probe_once(task: Task) -> tuple[str, str]:
    weights = loss = "none"
    with _fixed_random_numbers(), torch.no_grad():
        try:
            model = task.fresh_model().cpu().eval()
        except FAULTS:  # the runs will say why
            return weights, loss
        with suppress(*FAULTS):
            weights = _Description(_rounded).of(model)
        with suppress(*FAULTS):
            inputs, targets = (part[:4].clone().cpu() for part in task.train)
            if task.prepare is not None:
                inputs = task.prepare(inputs, torch.Generator().manual_seed(0))
            loss = f"{float(task.loss(model(inputs), targets)):.4g}"
    return weights, loss


@contextmanager
def _fixed_random_numbers() -> Iterator[None]:
    """Fixed random numbers of torch, Python and NumPy and one thread inside; the caller's are restored."""
    before = random.getstate(), np.random.get_state(), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_num_threads(before[2])


def _rounded(tensor: Tensor) -> str:
    """A tensor by sums of positive numbers, which do not cancel and so survive rounding; the ramp shows the order."""
    flat = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.flatten()
    flat = flat[:: 1 + (len(flat) >> 20)].double()  # a million of its numbers say as much, in less memory
    ramp = torch.linspace(1, 2, len(flat), dtype=torch.float64)
    sums = [flat.abs().sum(), (flat.abs() * ramp).sum(), flat.clamp(min=0).sum()]
    return f"{tensor.dtype}{tuple(tensor.shape)}" + ",".join(f"{float(part):.6g}" for part in sums)


def _exact(tensor: Tensor) -> str:
    return f"{tensor.dtype}{tuple(tensor.shape)}{digest(tensor)}"


class _Description:
    """Describes any value in words that are the same in every process: no addresses, no order of sets.

    >>> _Description().of([1, {"b": 2.0, "a": None}]), _Description().of({"z", "y"})
    ("[1,{'a':None,'b':2.0}]", "set['y','z']")
    """

    def __init__(self, tensor: Callable[[Tensor], str] = _exact) -> None:
        self._tensor = tensor
        self._open: list[int] = []  # ids of what is being described: a value that contains itself is found here
        self._known: dict[int, tuple[str, Any]] = {}  # keeps the value too, so that no other one gets its id

    def of(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return repr(value)
        if id(value) in self._open:
            return f"#{self._open.index(id(value))}"
        if id(value) not in self._known:
            self._open.append(id(value))
            text = self._describe(value)
            self._open.pop()
            self._known[id(value)] = (text if len(text) < 200 else _hash(text)), value
        return self._known[id(value)][0]

    def _describe(self, value: Any) -> str:
        match value:
            case Tensor():
                return f"{value.requires_grad}{self._tensor(value.detach())}"
            case Mapping():
                return "{" + ",".join(sorted(f"{self.of(key)}:{self.of(value[key])}" for key in value)) + "}"
            case tuple() | list():
                return "[" + ",".join(self.of(item) for item in value) + "]"
            case set() | frozenset():
                return "set[" + ",".join(sorted(self.of(item) for item in value)) + "]"
            case functools.partial():
                return self.of([value.func, value.args, value.keywords])
            case functools._lru_cache_wrapper():
                return self.of(value.__wrapped__)
            case MethodType():
                return self.of([value.__func__, value.__self__])
            case FunctionType():
                return self._function(value)
            case type():
                return self._class(value)
            case ModuleType():
                return _module_digest(value) or value.__name__
            case BuiltinFunctionType():
                return f"{value.__module__}:{value.__qualname__}"
        return self._object(value)

    def _function(self, function: FunctionType) -> str:
        function = _unwrapped(function)
        bound: list[Any] = [_closure(function), function.__defaults__, function.__kwdefaults__]
        if not _is_user_defined(function):
            return f"{function.__module__}:{function.__qualname__}{_file_digest(function)}{self.of(bound)}"
        module = _module_with_file(function)
        if module is None:
            names = sorted(_globals_read(function.__code__))
            bound.append({name: function.__globals__[name] for name in names if name in function.__globals__})
        text = _function_text(function) + _module_digest(module)
        return f"{function.__qualname__}{_hash(text)}{self.of(bound)}"

    def _class(self, cls: type) -> str:
        if not _is_user_defined(cls):
            return f"{cls.__module__}:{cls.__qualname__}{_file_digest(cls)}"
        text = _module_digest(_module_with_file(cls))
        return f"{cls.__qualname__}{text}{self.of([_members(cls), cls.__bases__])}"

    def _object(self, value: Any) -> str:
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):  # repr() shortens an array
            content = self.of(value.tolist()) if value.dtype.hasobject else _hash(value.tobytes())
            return f"{value.dtype}{value.shape}{content}"
        state = object.__getstate__(value)  # a dictionary, None, or a pair of such: the second is that of the slots
        parts = state if isinstance(state, tuple) else (state,)
        attributes = {name: kept for part in parts for name, kept in (part or {}).items()}
        text = "" if _is_user_defined(type(value)) else repr(value)
        shown = "" if " at 0x" in text.lower() or isinstance(value, nn.Module) else text
        # For objects of third-party classes only plain attributes are hashed, so that cached values do not count.
        all_count = _is_user_defined(type(value)) or dataclasses.is_dataclass(value)
        counted = {n: kept for n, kept in attributes.items() if all_count or _is_plain(kept) or n == "_modules"}
        return f"{self.of(type(value))}{shown}{self.of(counted)}"


#: The file of each user's module when it was first seen, with an object that is replaced when the module is reloaded.
_SEEN: dict[str, tuple[Any, bytes]] = {}


def _module_with_file(thing: Any) -> ModuleType | None:
    """The module of a function or class; None for a script or a notebook, where only what is read counts."""
    return None if thing.__module__ == "__main__" else sys.modules.get(thing.__module__)


def _content(module: ModuleType) -> bytes:
    """The file of a user's module, as it was when the module was first seen."""
    version = module.__spec__ or module
    if module.__name__ not in _SEEN or _SEEN[module.__name__][0] is not version:
        try:
            content = Path(getattr(module, "__file__", None) or "").read_bytes()
        except OSError:  # a package without a file of its own
            content = b""
        _check_not_edited(module, content)
        _SEEN[module.__name__] = version, content
    return _SEEN[module.__name__][1]


def _check_not_edited(module: ModuleType, content: bytes) -> None:
    """Refuse a module whose file was edited between its import and now: the text would be that of other code."""
    if type(getattr(module, "__loader__", None)) is not SourceFileLoader:  # other loaders may rewrite code
        return
    with suppress(SyntaxError, ValueError):  # edited to something that is no Python
        written = {code.co_code for code in _nested(compile(content, str(module.__file__), "exec", dont_inherit=True))}
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        values = [value for namespace in (module, *classes) for value in vars(namespace).values()]
        loaded = [_unwrapped(value).__code__ for value in values if isinstance(value, FunctionType)]
        if all(code.co_code in written for code in loaded if code.co_filename == module.__file__):
            return
    raise CodeError(f"{module.__file__} was edited after it was imported; import it again and repeat the command")


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


@functools.cache
def _imports(content: bytes, package: str | None) -> set[str]:
    """Names of modules that a file of this package may import."""
    names: set[str] = set()
    with suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):
                    base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                    names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def _module_digest(module: ModuleType | None) -> str:
    """Digest of the files of a user's module and of all users' modules that it imports; '' for None."""
    contents: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        module = waiting.pop()
        if module is not None and module.__name__ not in (*contents, "__main__") and _is_user_defined(module):
            contents[module.__name__] = _content(module)
            package = module.__spec__.parent if module.__spec__ else None
            waiting += [sys.modules.get(name) for name in _imports(contents[module.__name__], package)]
    digests = sorted(hashlib.sha256(content).hexdigest() for content in contents.values())
    return _hash(",".join(digests)) if digests else ""


@functools.cache
def _cell(file: str) -> list[str]:
    """The lines of a notebook's cell, or of a script that is not the main one, when they were first seen."""
    return linecache.getlines(file)


def _lines(function: FunctionType) -> list[str]:
    """The lines of the file or notebook's cell that a function is in."""
    file, main = function.__code__.co_filename, sys.modules.get("__main__")
    module = _module_with_file(function) or (main if getattr(main, "__file__", None) == file else None)
    lines = _content(module).decode(errors="replace").splitlines(keepends=True) if module else _cell(file)
    if not lines and _module_with_file(function) is None:
        raise CodeError(
            f"the source of {function.__qualname__} is unknown, so that an edited one would pass for the same; "
            "define it in a file or in a notebook"
        )
    return lines


def _function_text(function: FunctionType) -> str:
    """The source of a function; of a lambda only its expression: several may be in one line."""
    code, lines = function.__code__, _lines(function)
    places: Any = [place for place in code.co_positions() if place[0] and place[3]]
    if code.co_name != "<lambda>" or not places:  # no columns with python -X no_debug_ranges
        with suppress(SyntaxError, tokenize.TokenError):
            return "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
        return "".join(lines[code.co_firstlineno - 1 :])
    (first, start), (last, end) = min((p[0], p[2]) for p in places), max((p[1], p[3]) for p in places)
    text = "".join(lines[first - 1 : last]).encode()
    return text[start : len(text) - len(lines[last - 1].encode()) + end].decode(errors="replace")


def _unwrapped(function: FunctionType) -> FunctionType:
    """The function inside torch's wrappers, such as no_grad and the hook that the first instance puts around step()."""
    inner = getattr(function, "__wrapped__", None)
    while isinstance(inner, FunctionType) and str(function.__globals__.get("__name__")).startswith("torch."):
        function, inner = inner, getattr(inner, "__wrapped__", None)
    return function


def _closure(function: FunctionType) -> list[Any]:
    values = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            values.append(cell.cell_contents)
    return values


def _globals_read(code: CodeType) -> set[str]:
    """Names of the globals that a function reads, also inside the functions that it defines."""
    steps = (step for part in _nested(code) for step in dis.get_instructions(part))
    return {str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _members(cls: type) -> dict[str, Any]:
    """What a user's class defines: its functions, classes and plain values."""
    members: dict[str, Any] = {}
    generated = dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")
    for name, value in vars(cls).items():
        wrapped = (getattr(value, way, None) for way in ("__func__", "fget", "func"))  # methods, (cached) properties
        function = next((inner for inner in (value, *wrapped) if isinstance(inner, FunctionType)), None)
        if function is not None:
            function = _unwrapped(function)
            # torch writes an inherited step() into the class when it is first used
            if _is_user_defined(function) and not (generated and function.__code__.co_filename == "<string>"):
                members[name] = function
        elif not name.startswith("__") and (_is_plain(value) or isinstance(value, type)):
            members[name] = value
    return members


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, tuple | list | set | frozenset):
        return all(_is_plain(item) for item in value)
    simple = bool | int | float | complex | str | bytes | Tensor | FunctionType | BuiltinFunctionType
    return value is None or isinstance(value, simple)


def _is_user_defined(thing: Any) -> bool:
    """Whether this class, function or module is the user's: not torch's, surefoot's, Python's or installed."""
    name = _module_name(thing)
    if name == "__main__":
        return True
    if _package(thing) in _VERSIONED or name in sys.builtin_module_names:
        return False
    file = Path(str(getattr(sys.modules.get(name), "__file__", None) or ""))
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return not installed and not file.is_relative_to(sysconfig.get_paths()["stdlib"])


def _file_digest(thing: Any) -> str:
    """Digest of the file that installed code is in; '' where there is none, and for torch and surefoot."""
    if _package(thing) in _VERSIONED:
        return ""
    try:
        return _hash(Path(inspect.getsourcefile(thing) or "").read_bytes())
    except (TypeError, OSError):
        return ""


def _package(thing: Any) -> str:
    return _module_name(thing).partition(".")[0]


def _module_name(thing: Any) -> str:
    """The name of the module that a thing is defined in, or is."""
    return thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""


def _hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]
