"""The options that `compare`, `fork` and `tune` share, each spelled once.

The functions take them as keywords, the commands as flags, and a run records them as the command that computes it.
Nothing here imports torch before options are read, so that `surefoot --help` is fast.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

#: More seeds, threads or processes than these are a mistake, and would take the memory of the machine.
MOST_SEEDS = 100_000
MOST_EPOCHS = 10_000_000
MOST_THREADS = 1024
#: The largest seed that random generators take.
LARGEST_SEED = 2**63 - 1
#: The first tune seed: far from those that comparisons use.
FIRST_TUNE_SEED = 1000

#: Options of the task.
TASK_OPTIONS = ("batch_size", "dropout", "subset", "subset_seed", "label_noise", "noise")

Function = TypeVar("Function", bound=Callable[..., Any])


class PoolName(StrEnum):
    """The pools of workers that can be chosen by name."""

    local = "local"
    ray = "ray"


class NoiseKind(StrEnum):
    """Which class a wrong label names: any other one, or the next one."""

    symmetric = "symmetric"
    asymmetric = "asymmetric"


@dataclass(frozen=True)
class Flag:
    """How an option is described, and how it looks on the command line.

    Args:
        help: What it does, for the help of commands and functions.
        minimum: The smallest value, of a whole number.
        kind: Its type on the command line, if not that of the field.
        metavar: How its value is called there, if not by its type.
    """

    help: str
    minimum: int | None = None
    kind: Any = None
    metavar: str | None = None


@dataclass(frozen=True)
class RunOptions:
    """How runs are computed, and the options of their task. `read` checks them; the field `more` has no flag.

    >>> RunOptions.read({"jobs": 2, "subset": 100}).flags()
    ['--jobs', '2', '--subset', '100']
    """

    out: Annotated[
        Path, Flag("Folder of the run folders; what it already holds is not done again.", kind=str, metavar="PATH")
    ] = Path("runs")
    jobs: Annotated[int, Flag("Worker processes; 1 keeps timings comparable.", minimum=1)] = 1
    executor: Annotated[
        str | Callable[..., Any], Flag("Compute in local processes or on a Ray cluster.", kind=PoolName)
    ] = PoolName.local.value
    address: Annotated[str | None, Flag("Address of the Ray cluster.")] = None
    threads: Annotated[int, Flag("Threads per run; part of what identifies a run.", minimum=1)] = 1
    device: Annotated[str, Flag("Device of the model and data.")] = "cpu"
    lr: Annotated[float | None, Flag("Learning rate of optimizers that do not set their own.")] = 1e-3
    weight_decay: Annotated[float | None, Flag("Weight decay likewise; on named tasks 1e-4 when not given.")] = None
    data_dir: Annotated[Path | None, Flag("Where the data sets are; else SUREFOOT_DATA, else downloaded.")] = None
    batch_size: Annotated[int | None, Flag("Batch size.", minimum=1)] = None
    dropout: Annotated[bool | None, Flag("The paper's dropout of 0.5.")] = None
    subset: Annotated[int | None, Flag("Train on so many examples only.", minimum=1)] = None
    subset_seed: Annotated[
        int | None, Flag("Draw those examples with this seed; otherwise the first of each class.", minimum=0)
    ] = None
    label_noise: Annotated[float | None, Flag("Share of the training labels that are wrong, drawn by seed.")] = None
    noise: Annotated[
        str | None,
        Flag("With --label-noise: wrong labels name any other class, or the next.", kind=NoiseKind, metavar="KIND"),
    ] = None
    progress: bool | Callable[..., Any] = True
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, keywords: Mapping[str, Any]) -> RunOptions:
        """Check the options that a function was called with; other names are options of the user's task."""
        names = cls.names()
        known = {name: value for name, value in keywords.items() if name in names}
        return cls(**known, more={name: keywords[name] for name in keywords if name not in names})._checked()

    @classmethod
    def names(cls) -> set[str]:
        """The names of the options."""
        return {option.name for option in fields(cls)} - {"more"}

    def _checked(self) -> RunOptions:
        """These options in the types of their fields; a ValueError names a wrong one and its value."""
        if not isinstance(self.out, str | os.PathLike) or not os.fspath(self.out).strip():
            raise ValueError(f"out must be the folder for the runs, such as 'runs', got {self.out!r}")
        check_count("jobs", self.jobs, MOST_THREADS)
        check_count("threads", self.threads, MOST_THREADS)
        if not isinstance(self.progress, bool) and not callable(self.progress):
            raise ValueError(
                f"progress must be True, False or a function that makes the display, got {self.progress!r}"
            )
        if self.executor is not None and self.executor not in list(PoolName) and not callable(self.executor):
            raise ValueError(f"executor must be 'local', 'ray' or a function that makes a pool, got {self.executor!r}")
        if self.address is not None and self.executor != PoolName.ray:
            raise ValueError(f"--address {self.address} is for a Ray cluster; add --executor ray, or leave it out")
        return replace(
            self,
            out=Path(self.out),
            executor=self.executor or PoolName.local.value,
            device=_device_name(self.device),
            lr=_number("lr", self.lr),
            weight_decay=_number("weight_decay", self.weight_decay),
            data_dir=None if self.data_dir is None else Path(self.data_dir),
        )

    def keywords(self) -> dict[str, Any]:
        """The same options as keywords, for a function that reads them."""
        named = {option.name: getattr(self, option.name) for option in fields(self) if option.name != "more"}
        return {**named, **self.more}

    def task_options(self) -> dict[str, Any]:
        """The options of the task that were given."""
        named = {name: getattr(self, name) for name in TASK_OPTIONS}
        return {name: value for name, value in {**named, **self.more}.items() if value is not None}

    def flags(self) -> list[str]:
        """What to write in a command for these options; defaults are left out.

        >>> RunOptions(dropout=False, lr=1e-5, executor="ray").flags()
        ['--executor', 'ray', '--lr', '1e-05', '--no-dropout']
        """
        values = {name: getattr(self, name) for name in flags_of(type(self))} | dict(self.more)
        usual = {option.name: option.default for option in fields(self)}
        words: list[str] = []
        for name, value in values.items():
            flag = name.replace("_", "-")
            if value is None or callable(value) or value == usual.get(name):
                continue
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        return words

    def command(
        self, name: str, task: str, optimizers: Iterable[str], seeds: range, epochs: int | None, *more: str
    ) -> list[str]:
        """The words of a command with these options.

        >>> import shlex
        >>> shlex.join(RunOptions(jobs=2).command("fork", "digits-lr", ["adam"], range(3, 5), 9, "--at", "1"))
        'surefoot fork digits-lr --at 1 -o adam --seeds 2 --first-seed 3 --epochs 9 --jobs 2'
        """
        contestants = [word for spec in optimizers for word in ("-o", spec)]
        size = ["--seeds", str(len(seeds)), *(["--first-seed", str(seeds[0])] if seeds[0] else [])]
        length = [] if epochs is None else ["--epochs", str(epochs)]
        return ["surefoot", name, task, *more, *contestants, *size, *length, *self.flags()]


def flags_of(options: type) -> dict[str, tuple[Any, Flag]]:
    """The fields of a class of options that have a flag, each with its type and flag."""
    hints = get_type_hints(options, include_extras=True)
    return {name: get_args(hint)[:2] for name, hint in hints.items() if get_origin(hint) is Annotated}


def shows_options(function: Function) -> Function:
    """Show the fields of RunOptions in the signature and the help of a function that takes them as `**options`.

    In its documentation they take the place of the line that describes `options`.
    """
    signature = inspect.signature(function)
    hints = get_type_hints(RunOptions)
    hints |= {name: str | hint for name, hint in hints.items() if Path in (hint, *get_args(hint))}
    written = {name: p for name, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
    shared = [
        inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=hints[option.name]
        )
        for option in fields(RunOptions)
        if option.name not in written and option.name != "more"
    ]
    rest = inspect.Parameter("task_options", inspect.Parameter.VAR_KEYWORD, annotation=Any)
    function.__signature__ = signature.replace(parameters=[*written.values(), *shared, rest])  # type: ignore[attr-defined]
    lines = {name: flag.help for name, (_, flag) in flags_of(RunOptions).items() if name not in written}
    lines |= {"progress": "Show progress; or a function that makes the display."}
    lines |= {"task_options": "Other options of the task, for a function that makes it."}
    text = "\n".join(f"        {name}: {line}" for name, line in lines.items())
    function.__doc__ = re.sub(r" +options: .*", lambda _: text, function.__doc__ or "")
    return function


def check_count(name: str, value: Any, most: int | None = None) -> None:
    """Refuse what is not a whole number from 1 up, or more than the most that can be meant."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number from 1 up, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, got {_digits(value)}")


def _digits(value: int) -> str:
    """A whole number, or how large it is if it is too long to read."""
    return str(value) if abs(value) < 10**30 else f"a number of {int(value.bit_length() * math.log10(2)) + 1} digits"


def _number(name: str, value: Any) -> Any:
    """None or a finite number; one of NumPy or in a tensor as a float."""
    import torch

    if value is None:
        return None
    try:
        is_number = isinstance(value, Real | torch.Tensor) and not isinstance(value, bool)
        finite = is_number and math.isfinite(float(value))
    except (RuntimeError, ValueError, OverflowError):  # a tensor of several numbers, or a huge integer
        finite = False
    if not finite:
        shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise ValueError(f"{name} must be a finite number, got {shown}")
    return value if isinstance(value, int) else float(value)


def _device_name(device: Any) -> str:
    """The name of a device, as it was written."""
    import torch

    if isinstance(device, torch.device):
        return str(device)
    if not isinstance(device, str):
        raise ValueError(f"device must be a name such as 'cpu' or 'cuda', got {device!r}")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise _unusable(device, error) from error
    return device


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have, or that holds no numbers."""
    import torch

    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise _unusable(device, error) from error


def _unusable(device: str, error: Exception) -> ValueError:
    why = str(error).partition("\n")[0]
    return ValueError(f"the device {device!r} cannot be used here; take cpu ({why})")
