"""What a run is: its whole configuration, the key that names it by content, and its folder."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import surefoot
from surefoot.averaging.memory import revision_of
from surefoot.lab.spec.code import RECORDED_AS, fingerprint, task_fingerprint
from surefoot.lab.spec.schedules import depends_on_length
from surefoot.lab.spec.task import Task

if TYPE_CHECKING:
    from surefoot.lab.spec.contestant import Contestant

#: Raised whenever the layout of a run folder changes.
FORMAT = 1

Json = Mapping[str, Any]
#: Marks a field that is written to `config.json` only if it is not empty.
_IF_GIVEN = {"if given": True}


class ConfigError(ValueError):
    """A recorded configuration with a wrong or missing entry; the message names the entry."""


class Purpose(StrEnum):
    """What a run is for. The texts are part of run keys."""

    RESULT = "report"  # to be compared and reported
    TUNING = "tune"  # to choose a setting
    BASE = "base"  # to be forked from


@dataclass(frozen=True)
class TaskConfig:
    """The task of a run.

    Args:
        data: Digest of the data.
        settings: Options of the task, such as dropout and subset.
        code: Fingerprint of the user's functions; empty for a built-in task.
        higher_is_better: For each metric whether larger values are better.
        spec: How a command names the task, if not by `name`.
    """

    name: str
    batch_size: int = 0
    data: str = ""
    settings: Json = field(default_factory=dict)
    code: str = ""
    higher_is_better: Mapping[str, bool] = field(default_factory=dict)
    spec: str = field(default="", metadata=_IF_GIVEN)

    @classmethod
    def plan(cls, task: Task, spec: str = "") -> TaskConfig:
        """What runs record of a task; `spec` is how a command names a task of the user's.

        The data are read and the model is built for it, so it is done once for all runs of a comparison.
        """
        return cls(
            name=task.name,
            batch_size=task.batch_size,
            data=task.digest,
            settings=_plain(task.settings),
            code=(code := task_fingerprint(task)),
            higher_is_better=dict(task.higher_is_better),
            spec=spec if code else "",
        )

    def is_higher_better(self, metric: str) -> bool:
        """Whether a higher value of this metric is better.

        If the task does not say (for losses, and in runs of the first versions), this holds for accuracy alone.

        >>> TaskConfig("toy").is_higher_better("valid_accuracy"), TaskConfig("toy").is_higher_better("valid_loss")
        (True, False)
        """
        name = metric.removeprefix("valid_").removeprefix("train_")
        directions = self.higher_is_better
        return bool(directions.get(metric, directions.get(name, name == "accuracy")))


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer of a run: one contestant.

    Args:
        class_path: Where its class is found; "class" in `config.json`.
        options: What the class is called with; "kwargs" in `config.json`.
        code: Fingerprint of the class; empty for classes of torch and surefoot.
        position: Place in the comparison; the first is the baseline.
        revision: How often its arithmetic was changed since runs are recorded; not written while that is never.
        warmup: Steps over which the learning rate rises.
        average: The average of the weights that is validated in place of them.
        examples: The rule that weighs the examples.
        loss: The loss in place of the cross-entropy.
        riders: Averages that are validated beside it; each is a run of its own, which `Run.riders` gives.
        memory_revision: How often the arithmetic of one of these averages was changed.
    """

    label: str
    spec: str = ""
    class_path: str = ""
    options: Json = field(default_factory=dict)
    schedule: str | None = None
    code: str = ""
    position: int = 0
    revision: int = field(default=0, metadata=_IF_GIVEN)
    warmup: int = field(default=0, metadata=_IF_GIVEN)
    average: str = field(default="", metadata=_IF_GIVEN)
    examples: str = field(default="", metadata=_IF_GIVEN)
    loss: str = field(default="", metadata=_IF_GIVEN)
    riders: tuple[str, ...] = field(default=(), metadata=_IF_GIVEN)
    memory_revision: int = field(default=0, metadata=_IF_GIVEN)

    def with_average(self, name: str) -> OptimizerConfig:
        """The same with this average as its own (empty: none), and without riders."""
        revision = self.memory_revision if revision_of(name) else 0
        return replace(self, average=name, riders=(), memory_revision=revision)

    @property
    def lab_options(self) -> dict[str, Any]:
        """The options of the lab that were given: schedule, warmup, average, examples, loss."""
        named = {name: getattr(self, name) for name in ("schedule", "warmup", "average", "examples", "loss")}
        return {name: value for name, value in named.items() if value}


@dataclass(frozen=True)
class ForkConfig:
    """Where a run starts if not at the beginning.

    Args:
        base: Key of the run that it continues.
        label: Label of that run's optimizer.
        epoch: The epoch after which it continues.
        state: "kept" if the optimizer continues with the base's state, else "fresh".
        family: Key shared by all seeds of this fork.
    """

    base: str = ""
    label: str = ""
    epoch: int = 0
    state: str = "fresh"
    family: str = ""


@dataclass(frozen=True)
class Provenance:
    """Where, when and by which command a run was computed. It decides no number, so it is not in the key.

    Args:
        command: What to type to compute the run, with those that it is compared with; empty if there is no command.
        resumed: The machines and versions that continued it, where these differ.

    """

    surefoot: str = ""
    torch: str = ""
    python: str = ""
    platform: str = ""
    cpu: str = ""
    commit: str | None = None
    time: str = ""
    command: str = field(default="", metadata=_IF_GIVEN)
    resumed: tuple[Provenance, ...] = field(default=(), metadata=_IF_GIVEN)

    @classmethod
    def here(cls) -> Provenance:
        """Versions, commit and hardware of this process, and the time."""
        return replace(_this_machine(), time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    def with_resumed(self, here: Provenance) -> Provenance:
        """The same with the command that continued the run, and with its machine and versions where these differ."""
        current = replace(self, command=here.command or self.command)
        same = (self.torch, self.surefoot, self.cpu) == (here.torch, here.surefoot, here.cpu)
        if same or any(other.time == here.time for other in self.resumed):
            return current
        return replace(current, resumed=(*self.resumed, replace(here, command="")))


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run, and the key that names it.

    `plan` makes one and computes its key; `from_json` reads a recorded one and takes the key as it was recorded.
    """

    task: TaskConfig
    optimizer: OptimizerConfig
    seed: int
    epochs: int
    threads: int = 1
    device: str = "cpu"
    purpose: Purpose = Purpose.RESULT
    fork: ForkConfig | None = None
    numerics: int = 0
    provenance: Provenance = field(default_factory=Provenance)
    key: str = ""

    @classmethod
    def plan(
        cls,
        task: Task | TaskConfig,
        contestant: Contestant,
        *,
        seed: int,
        epochs: int,
        threads: int = 1,
        device: str = "cpu",
        purpose: Purpose | str = Purpose.RESULT,
        defaults: Mapping[str, Any] | None = None,
        position: int = 0,
        fork: ForkConfig | None = None,
        command: str = "",
    ) -> RunConfig:
        """The configuration of one run of a contestant on a task.

        Args:
            defaults: Options given to every optimizer that accepts them, such as lr and weight_decay.
            position: Place of the contestant in the comparison; the first is the baseline.
            fork: Where the run starts, if not at the beginning.
            command: What to type to compute the run.
        """
        task = TaskConfig.plan(task) if isinstance(task, Task) else task
        if fork:  # forks at different epochs are not compared with each other: to every table they are different tasks
            task = replace(task, settings={**task.settings, "fork_at": fork.epoch})
        return cls(
            task=task,
            optimizer=OptimizerConfig(
                label=contestant.label,
                spec=contestant.spec,
                class_path=RECORDED_AS.get(contestant.class_path, contestant.class_path),
                options=_plain(contestant.recorded(**(defaults or {}))),
                schedule=contestant.schedule,
                warmup=contestant.warmup,
                average=contestant.average,
                examples=contestant.examples,
                loss=contestant.loss,
                riders=contestant.riders,
                code=contestant.code(),
                revision=contestant.revision(),
                memory_revision=max(map(revision_of, (contestant.average, *contestant.riders))),
                position=position,
            ),
            seed=seed,
            epochs=epochs,
            threads=threads,
            device=device,
            purpose=Purpose(purpose),
            fork=fork,
            numerics=surefoot.NUMERICS,
            provenance=replace(Provenance.here(), command=command),
        ).with_changes()

    def with_changes(self, **changes: Any) -> RunConfig:
        """The configuration with some fields changed, and the key that belongs to it."""
        config = replace(self, **changes)
        return replace(config, key=_digest(config.identity()))

    def identity(self) -> dict[str, Any]:
        """The part of a configuration that decides a run's numbers, and so its key.

        The number of epochs is in it only if a schedule depends on it: a longer run extends a shorter one.
        """
        task, optimizer, fork = self.task, self.optimizer, self.fork
        fixed_length = depends_on_length(optimizer.schedule) or self.purpose == Purpose.BASE
        return {
            "task": {
                "name": task.name,
                "batch_size": task.batch_size,
                "data": task.data,
                "settings": task.settings,
                "code": task.code,
            },
            "optimizer": {
                "class": optimizer.class_path,
                "kwargs": as_floats(optimizer.options),
                "schedule": optimizer.schedule,
                "code": optimizer.code,
                **({"revision": optimizer.revision} if optimizer.revision else {}),
                **{name: value for name, value in optimizer.lab_options.items() if name != "schedule"},
                **({"riders": list(optimizer.riders)} if optimizer.riders else {}),
                **({"memory_revision": optimizer.memory_revision} if optimizer.memory_revision else {}),
            },
            "seed": self.seed,
            "threads": self.threads,
            "device": self.device,
            "purpose": self.purpose.value,
            # Without its family: for one seed the base's key says the same.
            "fork": fork and {"base": fork.base, "label": fork.label, "epoch": fork.epoch, "state": fork.state},
            "epochs": self.epochs if fixed_length else None,
            "numerics": self.numerics,
        }

    @property
    def first_epoch(self) -> int:
        """The epoch that the run continues from: where it was forked, otherwise 0."""
        return self.fork.epoch if self.fork else 0

    def key_of_all_seeds(self) -> str:
        """What the key would be without the seed: the same for the runs of all seeds."""
        return _digest({**self.identity(), "seed": None})

    def to_json(self) -> dict[str, Any]:
        """What `config.json` holds."""
        return {"format": FORMAT, "key": self.key, **_to_json(self)}

    @classmethod
    def from_json(cls, data: Json) -> RunConfig:
        """Read what `config.json` holds; what was added after its run was recorded may be missing."""
        config: RunConfig = _from_json(cls, data, "")
        if "key" not in data:
            raise ConfigError("key is missing")
        return config


#: Fields with other names in `config.json`.
_JSON_NAMES = {"class_path": "class", "options": "kwargs"}


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if not is_dataclass(value):
        return value
    items = [(part, getattr(value, part.name)) for part in fields(value)]
    written = {part.name: item for part, item in items if item or part.metadata != _IF_GIVEN}
    return {_JSON_NAMES.get(name, name): _to_json(item) for name, item in written.items()}


def _from_json(kind: Any, value: Any, place: str) -> Any:
    """A value of this type from JSON; raises ConfigError with its place if it is of another type."""
    inner = get_args(kind)
    if type(None) in inner:
        return None if value is None else _from_json(inner[0], value, place)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_from_json(inner[0], item, place) for item in value)
    if kind is Purpose and value in list(Purpose):
        return Purpose(value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _object_from_json(kind, value, place)
    if not isinstance(value, get_origin(kind) or kind) or isinstance(value, bool):
        raise ConfigError(f"{place} is {value!r}")
    return value


def _object_from_json(kind: Any, value: Json, place: str) -> Any:
    kinds, given = get_type_hints(kind), {}
    for part in fields(kind):
        name = _JSON_NAMES.get(part.name, part.name)
        inside = f"{place}.{name}" if place else name
        if name in value:
            given[part.name] = _from_json(kinds[part.name], value[name], inside)
        elif part.default is MISSING and part.default_factory is MISSING:
            raise ConfigError(f"{inside} is missing")
    return kind(**given)


def as_floats(value: Any) -> Any:
    """Whole numbers as floats, so that lr=1 and lr=1.0 are the same.

    >>> as_floats({"lr": 1, "betas": [0, 0.9], "fused": True})
    {'lr': 1.0, 'betas': [0.0, 0.9], 'fused': True}
    """
    if isinstance(value, Mapping):
        return {name: as_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _digest(identity: Json) -> str:
    """SHA-256 of the canonical JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def folder_of(out: Path, config: RunConfig) -> Path:
    """The run's folder, `<out>/<task>/<label>-s<seed>-<key8>`; found by its key when the label changed."""
    parent = out / _slug(config.task.name)
    ending = f"-s{config.seed}-{config.key[:8]}"
    name = _slug(config.optimizer.label)[:60] + ending
    if not (parent / name).exists():
        for renamed in sorted(parent.glob(f"*{ending}")):
            return renamed
    return parent / name


def _slug(text: str) -> str:
    """A text as the name of a folder; a hash makes it unique if it is too long or has no usable letters.

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
        return ":".join(filter(None, [value.__module__, value.__qualname__, fingerprint(value)]))
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    text = repr(value)
    if " at 0x" in text:
        raise ValueError(f"the option {text} cannot be recorded; give it a repr() that says what it is")
    return text


@cache
def _this_machine() -> Provenance:
    import torch

    return Provenance(
        surefoot=surefoot.__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",  # no kernel or host names
        cpu=_cpu(),
        commit=_commit(),
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Commit of the source tree surefoot is imported from; None for an installed package."""
    root = Path(surefoot.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
