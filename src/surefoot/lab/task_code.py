"""What a user's task computes with, as one digest: runs are found by it."""

from __future__ import annotations

import dataclasses
import dis
import functools
import hashlib
import random
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.lab import data
from surefoot.lab.contestants import source_digest
from surefoot.lab.tasks import Task, is_named
from surefoot.lab.trainer import pinned_arithmetic
from surefoot.lab.user_code import FAULTS


def task_code(task: Task) -> str:
    """Digest of what a task computes with: its functions, what they bind, and what they give on a few examples.

    Runs are found by it, so a changed model, loss or `prepare` must change it, and another process must not. It is
    '' for a named task, which its name and settings say.
    """
    if is_named(task):
        return ""
    functions = {"model": task.model, "loss": task.loss, "prepare": task.prepare, "metrics": dict(task.metrics)}
    told = described(functions)  # before the probe, which may change what a function keeps
    return _hash("\n".join([told, *_probe(task)]).encode())


def _probe(task: Task) -> list[str]:
    """The initial weights and the loss of four examples: what also tells a changed helper in another module.

    Rounded, so that another processor gives the same; "none" where it fails, since the run will tell the error, and
    where it does not repeat itself, since it tells nothing then.
    """
    first, second = _probe_once(task), _probe_once(task)
    return [one if one == other else "none" for one, other in zip(first, second)]


def _probe_once(task: Task) -> tuple[str, str]:
    weights = loss = "none"
    with _seeded(), torch.no_grad():
        try:
            model = task.fresh_model().cpu().eval()
        except FAULTS:  # the runs tell it
            return weights, loss
        with suppress(*FAULTS):
            weights = described(model, _rounded)
        with suppress(*FAULTS):
            inputs, targets = (part[:4].clone().cpu() for part in task.train)
            if task.prepare is not None:
                inputs = task.prepare(inputs, torch.Generator().manual_seed(0))
            loss = f"{float(task.loss(model(inputs), targets)):.4g}"
    return weights, loss


@contextmanager
def _seeded() -> Iterator[None]:
    """Fixed random numbers of torch, Python and NumPy inside, and those of the caller as they were after it."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), numpy.random.get_state() if numpy else None
    with pinned_arithmetic(1):
        torch.manual_seed(0)
        random.seed(0)
        if numpy:
            numpy.random.seed(0)
        try:
            yield
        finally:
            random.setstate(before[0])
            if numpy:
                numpy.random.set_state(before[1])


def _rounded(tensor: Tensor) -> str:
    """A tensor by sums of positive numbers, which do not cancel and so survive rounding; the ramp sees the order."""
    flat = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.flatten()
    flat = flat[:: 1 + (len(flat) >> 20)].double()  # a million numbers of it tell as much, in less memory
    ramp = torch.linspace(1, 2, len(flat), dtype=torch.float64)
    sums = [flat.abs().sum(), (flat.abs() * ramp).sum(), flat.clamp(min=0).sum()]
    return f"{tensor.dtype}{tuple(tensor.shape)}" + ",".join(f"{float(one):.6g}" for one in sums)


def _exact(tensor: Tensor) -> str:
    return f"{tensor.dtype}{tuple(tensor.shape)}{data.digest(tensor.detach().cpu())}"


def described(value: Any, tensor: Any = _exact) -> str:
    """A value in words that are the same in every process: no addresses, no order of sets.

    A function goes by its source and what it binds: closure, defaults and the globals it reads; an object by its class
    and attributes. Of strangers' objects only plain attributes count, so that their caches do not.

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
            file = value.__file__ if _is_users(value) else None
            return _hash(Path(file).read_bytes()) if file else value.__name__
        if isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}:{value.__qualname__}"
        return self._module(value) if isinstance(value, nn.Module) else self._object(value)

    def _function(self, function: FunctionType) -> str:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        bound = [cells, function.__defaults__, function.__kwdefaults__]
        if _is_users(function):
            names = sorted(_globals_read(function.__code__))
            bound.append({name: function.__globals__[name] for name in names if name in function.__globals__})
        return f"{_name(function)}{source_digest(function)}{self.of(bound)}"

    def _class(self, cls: type) -> str:
        own = [one for one in cls.__mro__ if _is_users(one)]
        functions = [
            function
            for one in own
            for value in vars(one).values()
            if isinstance(function := getattr(value, "__func__", getattr(value, "fget", value)), FunctionType)
        ]
        return f"{_name(cls)}{[source_digest(one) for one in own] or source_digest(cls)}{self.of(functions)}"

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


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _is_users(thing: Any) -> bool:
    """Whether this class, function or module is the user's: not torch's, surefoot's, Python's or installed."""
    module = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
    if module == "__main__":
        return True
    if module.partition(".")[0] in ("torch", "surefoot", "builtins") or module in sys.builtin_module_names:
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
