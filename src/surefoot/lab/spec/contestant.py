"""Contestants: any optimizer, written in one line such as `adams:eta=1e-4` or `torch.optim.AdamW:lr=3e-4`."""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from surefoot.averaging.memory import find_memory
from surefoot.lab.spec.code import FAULTS, RECORDED_AS, CodeError, error_text, fingerprint, import_module, load_file
from surefoot.lab.spec.objective import find_loss, find_weigher
from surefoot.lab.spec.schedules import SCHEDULES

# A name, a dotted path, or "module:Class" / "file.py:Class"; options follow after a colon.
_SPEC = re.compile(r"(?P<path>[^:=]+(?::[A-Za-z_][\w.]*(?=$|:))?)(?::(?P<options>.*))?", re.DOTALL)
#: Options of the lab, which every contestant has; an optimizer with an option of that name gets it itself.
LAB_OPTIONS = ("schedule", "warmup", "average", "examples", "loss")
#: The average that validation losses choose.
TWO_TAILED = "two-tailed"
#: Values that are no Python literals: "poly:8", "two-tailed", "tilted:-3".
_WITH_COLON = re.compile(r"(^|,)\s*(average|examples|loss)\s*=\s*([A-Za-z][^,'\"]*?)\s*(?=,|$)")
#: No option is so large; a float could not hold it.
_TOO_LARGE = 1 << 63
#: Options that are numbers in every optimizer that has them.
_NUMBERS = ("lr", "weight_decay", "eta", "momentum", "eps")
#: What other libraries call an option.
_USUAL_NAMES = {"learning_rate": "lr", "l2": "weight_decay", "wd": "weight_decay", "epsilon": "eps"}
#: Words that are values: as a text, "no" would count as true.
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "none": None}
_WANTED = "give an optimizer class, or a function that makes an optimizer of a model's parameters"


@dataclass(frozen=True)
class Contestant:
    """An optimizer class and its options, to be built once per run.

    >>> adam = Contestant.parse("adam:lr=3e-4,betas=(0.9,0.99)")
    >>> adam.label, adam.class_path, adam.kwargs
    ('Adam lr=0.0003 betas=(0.9,0.99)', 'torch.optim.Adam', {'lr': 0.0003, 'betas': (0.9, 0.99)})
    """

    label: str
    class_path: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    spec: str = ""
    schedule: str | None = None
    warmup: int = 0
    average: str = ""
    #: The rule that weighs the examples ("tilted:-3"), and the loss in place of the cross-entropy ("gce:0.7").
    examples: str = ""
    loss: str = ""
    #: Averages of the same run that are validated beside it.
    riders: tuple[str, ...] = ()
    given: type[torch.optim.Optimizer] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, spec: str) -> Contestant:
        """Read `name:option=value,...`.

        Args:
            spec: the name is short (`adams`, `adamw`), a dotted path, `module:Class` or `file.py:Class`; values
                are Python literals, bare words are strings, save for true/false, yes/no, on/off and none.
        """
        match = _SPEC.fullmatch(spec.strip())
        if match is None:
            raise ValueError(f"cannot read the optimizer {spec!r}; write it like 'adams:eta=1e-4,lr=3e-4'")
        kwargs = _parse_options(match["options"] or "", spec)
        for name, value in kwargs.items():
            _check_number(name, value, spec)
        path = match["path"].strip()
        return cls.create(None, _short_names().get(path.lower(), path), kwargs, spec=spec.strip())

    @classmethod
    def create(
        cls,
        label: str | None,
        class_path: str | type[torch.optim.Optimizer],
        kwargs: Mapping[str, Any] | None = None,
        *,
        spec: str = "",
    ) -> Contestant:
        """Make a contestant in code; without a label it is named by its class and options."""
        options = dict(kwargs or {})
        given = None if isinstance(class_path, str) else class_path
        optimizer = load_class(class_path, again=True) if isinstance(class_path, str) else class_path
        if not hasattr(optimizer, "__name__"):  # functools.partial
            raise ValueError(f"{optimizer!r} has no name to show in the results; give its class, and options with it")
        class_path = class_path if isinstance(class_path, str) else _path_of(optimizer)
        own = accepted_options(optimizer) - {"schedule"}
        lab = {name: options.pop(name) for name in LAB_OPTIONS if name in options and name not in own}
        lab = {name: value for name, value in lab.items() if value}
        _check_lab_options(lab)
        shown = {**options, **lab}
        label = label or " ".join([optimizer.__name__, *(f"{name}={_short(value)}" for name, value in shown.items())])
        return cls(label, class_path, options, spec or write_spec(class_path, shown), given=given, **lab)

    def with_options(self, options: Mapping[str, Any]) -> Contestant:
        """The same optimizer with more options, also in its spec.

        >>> Contestant.parse("adams:weight_decay=0").with_options({"eta": 0.01}).spec
        'adams:weight_decay=0,eta=0.01'
        """
        lab = {name: getattr(self, name) for name in LAB_OPTIONS if getattr(self, name)}
        spec = write_spec(self.spec, options, "," if self.kwargs or lab else ":")
        kwargs = {**self.kwargs, **options, **lab}
        return Contestant.create(None, self.given or self.class_path, kwargs, spec=spec)

    def without_average(self) -> Contestant:
        """The same optimizer whose trained weights are validated.

        >>> Contestant.parse("adam:lr=0.1,average=poly:8").without_average().spec
        'torch.optim.Adam:lr=0.1'
        """
        lab = {name: getattr(self, name) for name in LAB_OPTIONS if name != "average" and getattr(self, name)}
        return Contestant.create(None, self.given or self.class_path, {**self.kwargs, **lab})

    @property
    def cls(self) -> type[torch.optim.Optimizer]:
        return self.given or load_class(self.class_path)

    def resolve(self, **defaults: Any) -> dict[str, Any]:
        """The options a run uses: the defaults that the class accepts, then this contestant's own.

        A torch optimizer that has a fused kernel uses it, unless the spec says otherwise: fast is compared with fast.
        """
        accepted = accepted_options(self.cls)
        options = {name: value for name, value in defaults.items() if name in accepted and value is not None}
        eta = getattr(getattr(self.cls, "rule", None), "eta", None)
        if "eta" in accepted and eta is not None and "rule" not in self.kwargs:
            options["eta"] = eta  # recorded, so that runs with a default eta take their place among the others
        fast = {"fused", "foreach", "differentiable"}
        if self.class_path.startswith("torch.") and "fused" in accepted and not fast & set(self.kwargs):
            options["fused"] = True
        options.update(self.kwargs)
        if takes_bounds(self.cls, options):
            options.setdefault("gain", inspect.signature(self.cls).parameters["gain"].default)
        return options

    def recorded(self, **defaults: Any) -> dict[str, Any]:
        """The options that a run records: bounds on the weights, but not that there are none.

        So a run without bounds has the key that it had before there were any.

        >>> bounded, published = Contestant.parse("adams"), Contestant.parse("adams:gain=None")
        >>> bounded.recorded(), published.recorded()
        ({'eta': 0.0001, 'gain': (0.3, 1.5)}, {'eta': 0.0001})
        """
        return {name: value for name, value in self.resolve(**defaults).items() if (name, value) != ("gain", None)}

    def revision(self) -> int:
        """How often the arithmetic of the class, with these options, was changed since runs are recorded."""
        # Since then reference=True follows the authors' code more closely, and AdaMax has another default weighting.
        changed = self.kwargs.get("reference") or ("AdaMax" in self.class_path and "weighting" not in self.kwargs)
        return int(bool(self.class_path.startswith("surefoot.") and changed))

    def build(self, params: Iterable[Any], *, seed: int = 0, **defaults: Any) -> torch.optim.Optimizer:
        """Build the optimizer; one that draws its own noise (`seed` option) is given the run's seed.

        >>> weights = [torch.nn.Parameter(torch.zeros(2))]
        >>> Contestant.parse("sgd:momentum=0.9").build(weights, lr=0.1, weight_decay=0.0).defaults["momentum"]
        0.9
        """
        options = self.resolve(**defaults)
        if "seed" in accepted_options(self.cls):
            options.setdefault("seed", seed)
        try:
            return self.cls(params, **options)
        except TypeError as error:
            raise TypeError(f"{self.spec!r}: {error}") from error

    def check(self, **defaults: Any) -> None:
        """Refuse options that a class of torch or surefoot refuses, before anything is trained.

        >>> Contestant.parse("adam:lr=-1").check()
        Traceback (most recent call last):
        ValueError: 'adam:lr=-1': Invalid learning rate: -1
        """
        if self.class_path.partition(".")[0] not in ("torch", "surefoot"):
            return
        parameters = inspect.signature(self.cls).parameters
        for name, value in self.kwargs.items():
            if value is None and name in _NUMBERS and name in parameters and parameters[name].default is not None:
                raise ValueError(f"{self.spec!r}: {name} must be a number, not None; write it like {name}=1e-3")
        try:
            optimizer = self.cls([torch.nn.Parameter(torch.zeros(2, 2))], **self.resolve(**defaults))
            if self.examples:
                find_weigher(self.examples, optimizer)
        except (TypeError, ValueError, RuntimeError) as error:
            unknown = self._unknown_option() if isinstance(error, TypeError) else ""
            raise ValueError(f"{self.spec!r}: {unknown or error}") from error

    def _unknown_option(self) -> str:
        """Which option the class does not have, and which one was probably meant; empty if it has all of them."""
        accepted = accepted_options(self.cls)
        name = next((name for name in self.kwargs if name not in accepted), None)
        if name is None:
            return ""
        usual = _USUAL_NAMES.get(name, name)
        near = difflib.get_close_matches(usual, [*sorted(accepted), *LAB_OPTIONS], n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(accepted))}"
        return f"{self.cls.__name__} has no option {name!r}; {hint}"

    def check_factory(self, params: Iterable[Any], **defaults: Any) -> None:
        """Refuse a function that makes no optimizer of these parameters."""
        try:
            made = self.cls(params, **self.resolve(seed=0, **defaults))
        except FAULTS as error:
            raise ValueError(f"{self.spec!r} made no optimizer ({error_text(error)}); {_WANTED}") from error
        if not hasattr(made, "step"):
            raise ValueError(f"{self.spec!r} made no optimizer but a {type(made).__name__}; {_WANTED}")

    def code(self) -> str:
        """Fingerprint of the class, '' for those of torch and surefoot: an edited optimizer is another optimizer."""
        return fingerprint(self.given) if self.given is not None else _code_when_loaded(self.cls)

    def check_code(self, recorded: str) -> None:
        """Refuse a class that is not the one a run was planned with: another process loads its file anew.

        A class that was given as such is sent there itself, if it cannot be found by its name.
        """
        if self.given is None and self.code() != recorded:
            raise ValueError(
                f"the code of the optimizer {self.spec!r} changed after the comparison began; start the command again"
            )


def takes_bounds(cls: Any, options: Mapping[str, Any]) -> bool:
    """Whether an optimizer with these options bounds its weights by default.

    >>> from surefoot import AdamS, MomentumS
    >>> takes_bounds(AdamS, {}), takes_bounds(AdamS, {"weighting": "unit"}), takes_bounds(MomentumS, {})
    (True, False, False)
    """
    if "gain" not in accepted_options(cls) or not hasattr(cls, "engine") or options.get("reference"):
        return False
    return options.get("weighting", inspect.signature(cls).parameters["weighting"].default) == "paper"


def parse_all(specs: Sequence[str | Contestant | type[torch.optim.Optimizer]]) -> list[Contestant]:
    """Contestants with distinct labels.

    >>> [contestant.label for contestant in parse_all(["adam", "adam:lr=0.01"])]
    ['Adam', 'Adam lr=0.01']
    """
    contestants: list[Contestant] = []
    if not specs or not isinstance(specs, Iterable) or isinstance(specs, str):
        raise ValueError(f"give a list of at least one optimizer, such as ['adam', 'adams'], not {specs!r}")
    for spec in specs:
        if isinstance(spec, str):
            spec = Contestant.parse(spec)
        elif isinstance(spec, type) and hasattr(spec, "step"):
            spec = Contestant.create(None, spec)
        elif not isinstance(spec, Contestant):
            raise ValueError(_refused(spec))
        for other in contestants:
            if _identity(other) == _identity(spec):
                raise ValueError(f"the optimizers {other.spec!r} and {spec.spec!r} are the same; give each once")
        contestants.append(spec)
    return _with_distinct_labels(contestants)


def _identity(contestant: Contestant) -> tuple[Any, ...]:
    return contestant.cls, contestant.kwargs, *(getattr(contestant, name) for name in LAB_OPTIONS)


def _check_lab_options(options: Mapping[str, Any]) -> None:
    """Refuse schedules, averages, weights and losses that do not exist, and warm-ups that are no number of steps."""
    schedule, warmup, average, examples, loss = (options.get(name) for name in LAB_OPTIONS)
    if schedule is not None and schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; choose {' or '.join(SCHEDULES)}, or leave it out")
    if warmup is not None and (not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0):
        raise ValueError(f"warmup must be a whole number of steps, such as warmup=100, not {warmup!r}")
    if average is not None and average != TWO_TAILED:
        try:
            find_memory(str(average))
        except ValueError:
            raise ValueError(
                f"unknown average {average!r}; choose anytime, anytime:KAPPA, poly:POWER, ema:DECAY, uniform or "
                f"{TWO_TAILED}, such as average=poly:8, or leave it out"
            ) from None
    if examples is not None:
        find_weigher(str(examples))
    if loss is not None:
        find_loss(str(loss))


def _with_distinct_labels(contestants: list[Contestant]) -> list[Contestant]:
    """Contestants of one label with their class paths, and where these are the same too, with numbers."""
    labels = [contestant.label for contestant in contestants]
    distinct: list[Contestant] = []
    for contestant in contestants:
        if labels.count(contestant.label) > 1:
            contestant = replace(contestant, label=f"{contestant.label} ({contestant.class_path})")
        same = sum(other.label.partition(" #")[0] == contestant.label for other in distinct)
        distinct.append(replace(contestant, label=f"{contestant.label} #{same + 1}") if same else contestant)
    return distinct


def _refused(spec: Any) -> str:
    """The sentence on what is no optimizer, and how to give it."""
    if isinstance(spec, torch.optim.Optimizer):
        how = f"every run builds its own; give the class {type(spec).__name__} or Contestant.create"
    elif callable(spec) and not isinstance(spec, type):
        # Its learning rate could be neither recorded nor tuned nor compared.
        how = "a function hides its options; write Contestant.create('my own', torch.optim.SGD, {'lr': 0.1})"
    else:
        how = "give a line such as 'adams:eta=1e-4', an optimizer class or a Contestant"
    return f"{spec!r} is not an optimizer to compare: {how}"


def load_class(path: str, *, again: bool = False) -> type[torch.optim.Optimizer]:
    """Import an optimizer class from `package.module.Class`, `package.module:Class` or `file.py:Class`.

    Args:
        path: where it is.
        again: load a file once more that was edited since; otherwise what is loaded stays, until a comparison ends.

    >>> load_class("torch.optim:AdamW").__name__
    'AdamW'
    """
    path = next((moved for moved, recorded in RECORDED_AS.items() if recorded == path), path)
    module_name, colon, name = path.partition(":")
    if not colon:
        module_name, _, name = path.rpartition(".")
    if not module_name:
        close = difflib.get_close_matches(path.lower(), _short_names(), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "give a torch or surefoot name or an import path"
        raise ValueError(f"unknown optimizer {path!r}; {hint}")
    if not colon and path.endswith(".py"):
        raise ValueError(f"{path!r} is a file and not yet an optimizer; name the class in it, like '{path}:MyClass'")
    try:
        if module_name.endswith(".py"):
            value: Any = load_file(Path(module_name), "surefoot_contestant", "if edited" if again else "never")
        else:
            value = import_module(module_name)
        for part in name.split("."):
            value = getattr(value, part)
    except (CodeError, ImportError, AttributeError) as error:
        if colon and module_name.lower() in _short_names():  # adams:eta
            raise ValueError(
                f"cannot read the options of {path!r}; give {name} a value, like '{module_name}:{name}=1e-4'"
            ) from error
        raise ValueError(f"cannot import the optimizer {path!r}: {error}") from error
    if not callable(value) or inspect.isbuiltin(value) or (isinstance(value, type) and not hasattr(value, "step")):
        raise ValueError(f"{path!r} is not an optimizer class but {value!r}")
    return value


def write_spec(path: str, options: Mapping[str, Any], separator: str = ":") -> str:
    """How a command names an optimizer with its options: what `Contestant.parse` reads.

    >>> write_spec("adams", {"eta": 0.1, "weighting": "unit"})
    'adams:eta=0.1,weighting=unit'
    """
    words = (f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in options.items())
    return f"{path}{separator}{','.join(words)}" if options else path


def _path_of(cls: type) -> str:
    """The short way to a class, so that a class and its name are the same contestant."""
    short = _short_names().get(cls.__name__.lower())
    return short if short and load_class(short) is cls else f"{cls.__module__}:{cls.__qualname__}"


@cache
def _short_names() -> dict[str, str]:
    import surefoot

    names = {
        name.lower(): f"torch.optim.{name}"
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
    }
    for name in surefoot.__all__:
        if name[0].isupper() and not name.isupper():  # classes; none is imported before it is asked for
            names.setdefault(name.lower(), f"surefoot.{name}")
    return names


def is_optimizer(name: str) -> bool:
    """Whether an optimizer of torch or surefoot has this short name, as in `adams:eta=1e-4`.

    >>> is_optimizer("adams:eta=1e-4"), is_optimizer("digits-lr")
    (True, False)
    """
    return name.partition(":")[0].lower() in _short_names()


_CODES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _code_when_loaded(cls: Any) -> str:
    """The fingerprint of a class before it was used: a class that counts its instances stays the same."""
    if cls not in _CODES:
        _CODES[cls] = fingerprint(cls)
    return _CODES[cls]


def accepted_options(cls: Any) -> set[str]:
    """Names of a class's options, also of those that `**kwargs` hands to a parent.

    >>> sorted(accepted_options(torch.optim.SGD) & {"lr", "eta", "momentum"})
    ['lr', 'momentum']
    """
    names: set[str] = set()
    parents = cls.__mro__[:-1] if isinstance(cls, type) else ()
    for maker in [vars(parent)["__init__"] for parent in parents if "__init__" in vars(parent)] or [cls]:
        parameters = inspect.signature(maker).parameters.values()
        names |= {
            option.name for option in parameters if option.kind in (option.POSITIONAL_OR_KEYWORD, option.KEYWORD_ONLY)
        }
        if all(option.kind is not option.VAR_KEYWORD for option in parameters):
            break
    return names - {"self", "params"}


def _parse_options(text: str, spec: str) -> dict[str, Any]:
    text = _WITH_COLON.sub(r"\1\2='\3'", text)
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("only name=value is allowed")
        names = {keyword.arg for keyword in call.keywords}
        if None in names or len(names) < len(call.keywords):
            raise ValueError("only name=value is allowed, each name once")
        return {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"cannot read the options of {spec!r}; write them like 'adams:eta=1e-4,betas=(0.9,0.99),weighting=unit'"
        ) from error


def _check_number(name: str, value: Any, spec: str) -> None:
    """Refuse a learning rate that is a word, and nan and inf: the messages of torch do not show the value."""
    nothing = isinstance(value, float) and not math.isfinite(value)
    items = value if isinstance(value, tuple | list) else [value]
    nothing = nothing or any(isinstance(item, int) and abs(item) >= _TOO_LARGE for item in items)
    word = name in _NUMBERS and isinstance(value, str | bool)
    if nothing or word or (isinstance(value, str) and value.lower() in ("nan", "inf")):
        raise ValueError(f"{spec!r}: {name} must be a finite number, not {value!s:.40}; write it like {name}=1e-3")


def _literal(node: ast.expr) -> Any:
    return word_value(node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def word_value(word: str) -> Any:
    """What a bare word means as a value.

    >>> word_value("no"), word_value("True"), word_value("paper")
    (False, True, 'paper')
    """
    return _WORDS.get(word.lower(), word)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return "(" + ",".join(_short(item) for item in value) + ")"
    return getattr(value, "__name__", None) or str(value)
