"""Any value in words that every process would use: what the user's code is, as it was loaded.

Code goes by its instructions and not by its file, which may have been edited since: a key made of the new text would
file what the old code computes under the new code's name.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from surefoot.lab.spec import datasets as data

#: What has a version that runs record.
_VERSIONED = ("torch", "surefoot", "builtins")

#: Classes that moved, with the path they had in runs recorded before. Keys and records keep the old path.
RECORDED_AS = {"surefoot.paper.ablation:ScaledAdam": "surefoot.lab.paper.ablation:ScaledAdam"}


def code_digest(thing: Any) -> str:
    """Digest of a class, function or module: '' for torch and surefoot, which have versions.

    What is installed goes by its file; the user's own by what it was loaded as, with its parents and helpers.
    """
    if _package(thing) in _VERSIONED:
        return ""
    return text_digest(described(thing)) if _is_users(thing) else _file_digest(thing)


def text_digest(text: str) -> str:
    """A short digest of a text."""
    return _hash(text.encode())


def _exact(tensor: Tensor) -> str:
    return f"{tensor.dtype}{tuple(tensor.shape)}{data.digest(tensor.detach().cpu())}"


def described(value: Any, tensor: Any = _exact) -> str:
    """A value in words that are the same in every process: no addresses, no order of sets.

    A function goes by its instructions and what it binds: closure, defaults and the globals it reads; an object by its
    class and attributes. Of strangers' objects only plain attributes count, so that their caches do not.

    Args:
        value: anything.
        tensor: how to describe a tensor.

    >>> described([1, {"b": 2.0, "a": None}]), described({"z", "y"})
    ("[1,{'a':None,'b':2.0}]", "set['y','z']")
    """
    return _Description(tensor).of(value)


class _Description:
    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.around: list[int] = []  # what is being described, by id: one of these again is a circle
        self.known: dict[int, tuple[str, Any]] = {}  # with the value itself, or its id would be another's one day

    def of(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return repr(value)
        if id(value) in self.around:
            return f"#{self.around.index(id(value))}"
        if id(value) not in self.known:
            self.around.append(id(value))
            text = self._new(value)
            self.around.pop()
            self.known[id(value)] = (text if len(text) < 200 else _hash(text.encode())), value
        return self.known[id(value)][0]

    def _new(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return str(self.tensor(value))
        if isinstance(value, Mapping):
            return "{" + ",".join(sorted(f"{self.of(key)}:{self.of(value[key])}" for key in value)) + "}"
        if isinstance(value, tuple | list):
            return "[" + ",".join(self.of(item) for item in value) + "]"
        if isinstance(value, set | frozenset):
            return "set[" + ",".join(sorted(self.of(item) for item in value)) + "]"
        if isinstance(value, functools.partial):
            return self.of([value.func, value.args, value.keywords])
        if isinstance(value, functools._lru_cache_wrapper):
            return self.of(value.__wrapped__)
        if isinstance(value, MethodType):
            return self.of([value.__func__, value.__self__])
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, ModuleType):
            return _hash(_loaded(value)) if _is_users(value) else value.__name__
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}:{value.__qualname__}"
        return self._module(value) if isinstance(value, nn.Module) else self._object(value)

    def _function(self, function: FunctionType) -> str:
        function = _bare(function)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        bound = [cells, function.__defaults__, function.__kwdefaults__]
        if not _is_users(function):
            return f"{_name(function)}{_file_digest(function)}{self.of(bound)}"
        names = sorted(_globals_read(function.__code__))
        bound.append({name: function.__globals__[name] for name in names if name in function.__globals__})
        return f"{_name(function)}{_hash(_instructions(function.__code__))}{self.of(bound)}"

    def _class(self, cls: type) -> str:
        own = [one for one in cls.__mro__ if _is_users(one)]
        if not own:
            return f"{_name(cls)}{_file_digest(cls)}"
        strangers = [one for one in cls.__mro__ if one not in own]
        return f"{_name(cls)}{self.of([_members(one) for one in own])}{[_name(one) for one in strangers]}"

    def _module(self, module: nn.Module) -> str:
        bare = vars(nn.Module()).keys()
        parts = [
            (name, type(one), self._counting(one, {key: kept for key, kept in vars(one).items() if key not in bare}))
            for name, one in module.named_modules()
        ]
        tensors = [*module.named_parameters(), *module.named_buffers()]
        return self.of([parts, [(name, one.requires_grad, one) for name, one in tensors]])

    def _object(self, value: Any) -> str:
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):  # an array prints shortened
            content = self.of(value.tolist()) if value.dtype.hasobject else _hash(value.tobytes())
            return f"{value.dtype}{value.shape}{content}"
        slots = [name for one in type(value).__mro__ for name in _slots(one) if hasattr(value, name)]
        attributes = {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
        text = "" if _is_users(type(value)) else repr(value)
        shown = "" if " at 0x" in text.lower() else text
        return f"{self.of(type(value))}{shown}{self.of(self._counting(value, attributes))}"

    def _counting(self, value: Any, attributes: Mapping[str, Any]) -> dict[str, Any]:
        whole = _is_users(type(value)) or dataclasses.is_dataclass(value)
        return {name: kept for name, kept in attributes.items() if whole or _is_plain(kept)}


def _bare(function: FunctionType) -> FunctionType:
    """The function inside torch's wrappers, such as no_grad and the hook that the first instance puts around step()."""
    inner = getattr(function, "__wrapped__", None)
    while isinstance(inner, FunctionType) and str(function.__globals__.get("__name__")).startswith("torch."):
        function, inner = inner, getattr(inner, "__wrapped__", None)
    return function


def _members(cls: type) -> dict[str, Any]:
    """What a class of the user's defines: its functions, classes and plain values."""
    found: dict[str, Any] = {}
    for name, value in vars(cls).items():
        ways = (getattr(value, way, None) for way in ("__func__", "fget", "func"))  # methods, properties, cached ones
        inner = next((one for one in (value, *ways) if isinstance(one, FunctionType)), None)
        if inner is not None:
            if _is_users(_bare(inner)):  # torch writes an inherited step() into the class when it is first used
                found[name] = inner
        elif not name.startswith("__") and (_is_plain(value) or isinstance(value, type)):
            found[name] = value
    return found


def _loaded(module: ModuleType) -> bytes:
    """A module of the user's by the functions, classes and constants in it, without what those read elsewhere."""
    parts = []
    for name, value in sorted(vars(module).items()):
        if _is_constant(value) and not name.startswith("__"):
            parts.append(repr((name, value)).encode())
        elif getattr(value, "__module__", None) == module.__name__ and isinstance(value, FunctionType | type):
            members = _members(value) if isinstance(value, type) else {"": value}
            for key, member in sorted(members.items()):
                if isinstance(member, FunctionType):
                    parts.append(repr((name, key)).encode() + _instructions(_bare(member).__code__))
                elif _is_constant(member):
                    parts.append(repr((name, key, member)).encode())
    return b"\n".join(parts)


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_constant(item) for item in value)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _instructions(code: CodeType) -> bytes:
    inner = [_instructions(one) for one in code.co_consts if isinstance(one, CodeType)]
    # Sets print in another order in every process, and code with its address.
    plain = [sorted(map(repr, one)) if isinstance(one, frozenset) else one for one in code.co_consts]
    shown = [one for one in plain if not isinstance(one, CodeType)]
    return b"".join([code.co_code, repr((code.co_names, shown)).encode(), *inner])


def _file_digest(thing: Any) -> str:
    """Digest of the file that a stranger's code is in; '' where there is none, and for what has a version."""
    if _package(thing) in _VERSIONED:
        return ""
    try:
        return _hash(Path(inspect.getsourcefile(thing) or "").read_bytes())
    except (TypeError, OSError):
        return ""


def _package(thing: Any) -> str:
    return _home(thing).partition(".")[0]


def _home(thing: Any) -> str:
    """The name of the module that a thing is of, or is."""
    return thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _is_users(thing: Any) -> bool:
    """Whether this class, function or module is the user's: not torch's, surefoot's, Python's or installed."""
    module = _home(thing)
    if module == "__main__":
        return True
    if _package(thing) in _VERSIONED or module in sys.builtin_module_names:
        return False
    file = Path(str(getattr(sys.modules.get(module), "__file__", None) or ""))
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    return not installed and not file.is_relative_to(sysconfig.get_paths()["stdlib"])


def _name(thing: Any) -> str:
    """A stranger by its path; the user's without the module, which another file or a script may be."""
    module = "" if _is_users(thing) else f"{thing.__module__}:"
    return module + str(thing.__qualname__)


def _globals_read(code: CodeType) -> set[str]:
    """Names of the globals that a function reads, also inside the functions that it defines."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals_read(one) for one in code.co_consts if isinstance(one, CodeType)))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _slots(cls: type) -> list[str]:
    slots = vars(cls).get("__slots__", ())
    return [slots] if isinstance(slots, str) else [name for name in slots if not name.startswith("__")]


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, tuple | list | set | frozenset):
        return all(_is_plain(item) for item in value)
    simple = bool | int | float | complex | str | bytes | Tensor | FunctionType | BuiltinFunctionType
    return value is None or isinstance(value, simple)
