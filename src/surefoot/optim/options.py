"""The options of the optimizers, each spelled once: names, defaults, checks; and the kernels that they choose.

Every refusal names the value and what to do.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _get_foreach_kernels_supported_devices
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from surefoot._warnings import warn
from surefoot.optim.engines.base import Bucket, Engine, Group
from surefoot.rules import Rule, Weighting


class Options(TypedDict, total=False):
    """The options that all named optimizers have in common, beside the few of their engine."""

    rule: str | Rule | None
    eta: float | None
    weighting: Weighting
    decoupled_weight_decay: bool | None
    maximize: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool
    loss_beta: float | None
    seed: int
    nonfinite: str
    check_gradients: bool
    process_group: Any
    reference: bool
    gain: tuple[float, float] | None


#: Bounds on the weight as a multiple of the root mean square of the weights so far; docs/guide.md shows the choice.
GAIN = (0.3, 1.5)

DEFAULTS: Options = {
    "rule": None, "eta": None, "weighting": "paper", "decoupled_weight_decay": None, "maximize": False,
    "foreach": None, "fused": None, "capturable": False, "differentiable": False, "loss_beta": None, "seed": 0,
    "nonfinite": "skip", "check_gradients": False, "process_group": None, "reference": False,
    "gain": GAIN,
}  # fmt: skip


def takes_options(*, without: tuple[str, ...] = (), **defaults: Any) -> Callable[[Callable[..., None]], Any]:
    """Let a constructor with ``**options`` take the common ones: fill in defaults, and show them in its signature.

    ``inspect.signature`` is what help(), the lab and command lines made of constructors read.

    Args:
        without: options that this family has not.
        defaults: defaults that differ.

    >>> @takes_options(without=("fused",), seed=7)
    ... def make(lr, **options):
    ...     return options["seed"]
    >>> make(0.1), make(0.1, seed=3), "fused" in inspect.signature(make).parameters
    (7, 3, False)
    """
    values = {name: value for name, value in (DEFAULTS | defaults).items() if name not in without}  # type: ignore[operator]
    types = {name: annotation.__forward_arg__ for name, annotation in Options.__annotations__.items()}
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=types[name])
        for name, value in values.items()
    ]

    def decorate(constructor: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(constructor)
        named = [x for x in signature.parameters.values() if x.kind is not inspect.Parameter.VAR_KEYWORD]
        signature = signature.replace(parameters=[*named, *shown])

        @functools.wraps(constructor)
        def construct(*args: Any, **given: Any) -> None:
            try:
                signature.bind(*args, **given)
            except TypeError as error:  # a name that is not there, or one too many
                owner = type(args[0]).__name__ if args else constructor.__name__
                near = _nearest(given.keys() - signature.parameters.keys(), signature.parameters)
                raise TypeError(f"{owner}() {error}{near}; help({owner}) lists what it takes") from None
            return constructor(*args, **(values | given))

        construct.__signature__ = signature  # type: ignore[attr-defined]
        return construct

    return decorate


#: What other libraries call an option.
USUAL_NAMES = {"learning_rate": "lr", "l2": "weight_decay", "wd": "weight_decay", "epsilon": "eps"}


def _nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """A question that names the option that was probably meant; empty if none is near."""
    for name in sorted(unknown):
        near = difflib.get_close_matches(USUAL_NAMES.get(name, name), known, n=1)
        if near:
            return f"; did you mean {near[0]}?"
    return ""


def constructor_arguments(engine_options: dict[str, Any], options: Options) -> dict[str, Any]:
    """What LossAware is constructed with: the rule, the process group, and as defaults of the groups all else."""
    whole = {name: options[name] for name in ("rule", "process_group")}  # type: ignore[literal-required]
    by_group = {name: value for name, value in options.items() if name not in whole}
    return {"defaults": {"fused": None, "reference": False, "gain": None, **engine_options, **by_group}, **whole}


# -- checks ----------------------------------------------------------------------------------------------------------


def _is_not_negative(value: float) -> bool:
    return 0.0 <= value < math.inf


def _are_bounds(low: float, high: float) -> bool:
    return 0.0 <= low <= 1.0 <= high


def _is_decay_rate(value: float) -> bool:
    return 0.0 <= value < 1.0


_AMOUNT = ("number", _is_not_negative, "it must be finite and not negative")
_DECAY_RATE = ("number", _is_decay_rate, "it must be at least 0 and below 1")
_SWITCH = ("switch", (0, 1), "it must be True or False")
_NONFINITE = ("choice", ("skip", "raise"), "")
Check = tuple[str, Any, str]
#: The check of an option: its kind, the values that are allowed, and the words that say so. "?" allows None.
CHECKS: dict[str, Check] = {
    **dict.fromkeys(("lr", "eps", "weight_decay", "momentum_decay"), _AMOUNT),
    "betas": ("pair", *_DECAY_RATE[1:]),
    "momentum": _DECAY_RATE,
    "loss_beta": ("number?", _is_decay_rate, "it must be at least 0 and below 1, or None for the engine's own"),
    **dict.fromkeys(("amsgrad", "nesterov", "maximize"), _SWITCH),
    **dict.fromkeys(("capturable", "differentiable", "reference", "check_gradients"), _SWITCH),
    **dict.fromkeys(("foreach", "fused", "decoupled_weight_decay"), ("switch?", *_SWITCH[1:])),
    "weighting": ("choice", ("paper", "unit"), ""),
    "nonfinite": _NONFINITE,
    "gain": ("bounds?", _are_bounds, "give two numbers around 1, such as (0.3, 1.5), or None for no bounds"),
    "seed": ("integer", None, "it must be an integer"),
}

#: What the published recipe exists for.
PUBLISHED_ENGINES = ("adam", "momentum")
PUBLISHED_RULES = ("plain", "ucb", "cb", "s")
#: What may be changed between steps; every change is checked.
CHANGEABLE = (
    "eta", "betas", "momentum", "momentum_decay", "eps", "weight_decay", "loss_beta", "weighting", "nonfinite", "seed",
    "amsgrad", "nesterov", "maximize", "decoupled_weight_decay", "reference",
    "gain",
)  # fmt: skip


def check_group(group: Group, engine: Engine, rule: Rule) -> None:
    """Check the options of one parameter group."""
    for name, check in CHECKS.items():
        if name in group:
            check_option(name, group[name], check)
    check_eta(group["eta"], rule)
    _check_paths(group, engine)
    if group["reference"]:
        _check_reference(group, engine, rule)


def check_weighing_options(*, coast: bool = False, **options: Any) -> None:
    """Check the options of LossWeighted and weigh; ``coast`` is one more way to treat a loss that is not finite."""
    choices = ("choice", ("skip", "raise", "coast"), "") if coast else _NONFINITE
    for name, value in options.items():
        check_option(name, value, {"loss_beta": _DECAY_RATE, "nonfinite": choices}.get(name) or CHECKS[name])


def check_option(name: str, value: Any, check: Check) -> None:
    """Refuse a value that an option cannot have."""
    kind, allowed, words = check
    if value is None and kind.endswith("?"):
        return
    label = "learning rate" if name == "lr" else f"{name} value"
    if kind == "pair":
        if not (isinstance(value, (tuple, list)) and len(value) == 2):
            raise ValueError(f"Invalid {label}: {value!r}; give two decay rates, such as (0.9, 0.999)")
        if isinstance(value[0], Tensor) != isinstance(value[1], Tensor):
            raise ValueError(f"betas must be either both floats or both Tensors, but are {value!r}")
        for i, beta in enumerate(value):
            _check_number(label, beta)
            if not allowed(_as_number(beta)):
                raise ValueError(f"Invalid beta parameter at index {i}: {beta}; {words}")
    elif kind == "bounds?":
        if not (isinstance(value, (tuple, list)) and len(value) == 2):
            raise ValueError(f"Invalid {label}: {value!r}; {words}")
        for bound in value:
            _check_number(label, bound)
        if not allowed(*map(float, value)):
            raise ValueError(f"Invalid {label}: {value!r}; {words}")
    elif kind.startswith("number"):
        if name == "lr" and isinstance(value, Tensor):
            if value.numel() != 1:
                raise ValueError(f"Tensor lr must be 1-element, but has shape {tuple(value.shape)}")
            if value.device.type != "cpu":
                return  # reading it would wait for the device
        _check_number(label, value)
        if not allowed(_as_number(value)):
            raise ValueError(f"Invalid {label}: {value}; {words}")
    elif kind == "choice":
        if value not in allowed:
            raise ValueError(f"Invalid {label}: {value!r}; take one of {', '.join(map(repr, allowed))}")
    elif kind == "integer":
        try:
            operator.index(value)
        except TypeError as error:
            raise ValueError(f"Invalid {label}: {value!r}; {words}") from error
    elif not (isinstance(value, (bool, int)) and value in allowed):  # a switch: any word would count as true
        raise ValueError(f"Invalid {label}: {value!r}; {words}")


def check_eta(eta: Any, rule: Rule) -> None:
    """Refuse an eta that is not a number, or that the rule has no meaning for."""
    _check_number("eta value", eta)
    rule.check(float(eta))


def _as_number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _check_number(label: str, value: Any) -> None:
    """Refuse what is not one number; numbers of any kind are accepted, also NumPy's and tensors of one element."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Invalid {label}: a tensor of shape {tuple(value.shape)}; it must be one number")
        return
    try:
        math.fsum((value,))  # like float(), but refuses a string
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Invalid {label}: {value!r}; it must be a number, not {type(value).__name__}") from error


def with_fixed_pairs(group: Group) -> Group:
    """The group with betas and gain as tuples: entries of a list could be replaced between steps, unnoticed."""
    for name in ("betas", "gain"):
        if isinstance(group.get(name), list):
            group[name] = tuple(group[name])
    return group


def _check_paths(group: Group, engine: Engine) -> None:
    if group["fused"] and not engine.has_fused:
        raise ValueError(f"fused=True is not available for the {engine.name} engine; leave fused out")
    if group["fused"] and group["foreach"]:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together; choose one")
    if group["fused"] and group["differentiable"]:
        raise RuntimeError("`fused` does not support `differentiable`; leave fused out")


def check_new_group(group: Group, engine: Engine, rule: Rule) -> None:
    """Check the options of a group that is added: those that may change later, and what torch refuses only here."""
    check_group(group, engine, rule)
    if engine.refuses_tensors_with_foreach and group["foreach"] and not group["capturable"]:
        options = {"lr": group["lr"], "betas[0]": group["betas"][0], "betas[1]": group["betas"][1]}
        for name, value in options.items():
            if isinstance(value, Tensor):
                raise ValueError(
                    f"{name} as a Tensor is not supported for capturable=False and foreach=True; leave foreach out"
                )


def _check_reference(group: Group, engine: Engine, rule: Rule) -> None:
    if engine.name not in PUBLISHED_ENGINES or rule.name not in PUBLISHED_RULES:
        raise ValueError(
            f"reference=True goes with the engines {', '.join(PUBLISHED_ENGINES)} and the rules "
            f"{', '.join(PUBLISHED_RULES)}, but this is {engine.name} with {rule.name}"
        )
    if group["weighting"] != "paper":
        raise ValueError("reference=True follows the published recipe and needs weighting='paper'")
    if any(group.get(flag) for flag in ("fused", "foreach", "capturable", "differentiable", "nesterov")):
        raise ValueError(
            "reference=True is a plain slow loop: leave fused, foreach, capturable, differentiable and nesterov out"
        )


#: From here on a weight decay looks like one that was meant for AdamW, whose default this is.
DECAY_OF_ADAMW = 0.01


def settle_decay(group: Group, earlier: Sequence[Group], owner: str) -> None:
    """Make the decay L2, as published, if nobody chose; say so, once, if it is of the size that AdamW takes."""
    if group["decoupled_weight_decay"] is not None:
        return
    group["decoupled_weight_decay"] = False
    was_said = any(_has_decay_of_adamw(other) and not other["decoupled_weight_decay"] for other in earlier)
    if _has_decay_of_adamw(group) and not group["reference"] and not was_said:
        warn(
            f"{owner} adds weight_decay={group['weight_decay']} to the gradient, as published (L2), and weights the "
            "gradient after that: this is not AdamW's decay, and much stronger. decoupled_weight_decay=True, or AdamWS "
            "in the place of AdamS, is what torch.optim.AdamW does; decoupled_weight_decay=False keeps L2 and silences "
            "this warning",
        )


def _has_decay_of_adamw(group: Group) -> bool:
    return _as_number(group["weight_decay"]) >= DECAY_OF_ADAMW


def check_params(optimizer: Optimizer) -> None:
    """Refuse parameters and gradients that the chosen kernels cannot take, before anything is changed.

    Parameters are looked at when they have a gradient, not at construction: a model that starts on the meta device gets
    its memory later.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:
                raise RuntimeError(
                    f"{type(optimizer).__name__} does not support sparse gradients (a parameter of shape "
                    f"{tuple(p.shape)} has one); build the embedding with sparse=False, or give that parameter to "
                    "torch.optim.SparseAdam"
                )
            if group["fused"] and not (torch.is_floating_point(p) and _has_fused_kernels(p.device.type)):
                raise RuntimeError(
                    f"`fused=True` requires all the params to be floating point Tensors of supported devices: "
                    f"{_get_fused_kernels_supported_devices()}, but {type(optimizer).__name__} got {p.dtype} on "
                    f"{p.device.type}; leave fused out"
                )


# -- the choice of kernels -------------------------------------------------------------------------------------------


def choose_path(group: Group, engine: Engine, bucket: Bucket) -> str:
    """Which kernels update a bucket: those asked for, else the fastest that apply."""
    if group["differentiable"]:
        return "forloop"
    p = bucket.params[0]
    # A compiler fuses the plain operations itself; it could not look into the ready-made kernel.
    if not torch.compiler.is_compiling():
        fused = group["fused"]
        if fused is None and group["foreach"] is None and engine.has_fused:
            fused = _has_fused_kernels(p.device.type)
        if fused and bucket.aligned():
            return "fused"
    if group["foreach"] is not None:
        return "foreach" if group["foreach"] else "forloop"
    return "foreach" if p.device.type in ("cpu", "meta", *_get_foreach_kernels_supported_devices()) else "forloop"


@functools.lru_cache
def _has_fused_kernels(device: str) -> bool:
    return device in _get_fused_kernels_supported_devices()
