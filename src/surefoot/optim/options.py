"""What a user may hand over, and which path a step takes: every refusal names the value and the way out."""

from __future__ import annotations

import math
import operator
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _get_foreach_kernels_supported_devices
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from surefoot.optim.engines.base import Engine, Members, wide
from surefoot.readings import THREE_WAYS
from surefoot.rules import Rule
from surefoot.statistics import Number, Seen

if TYPE_CHECKING:
    from surefoot.optim.loss_aware import LossAware

#: What the published recipe exists for.
PUBLISHED_ENGINES = ("adam", "momentum")
PUBLISHED_RULES = ("plain", "ucb", "cb", "s")


#: The largest loss, and the largest weight: a product with it must have a square that float32 can hold.
LARGEST = 1e19


#: What may be changed between steps; every change is checked.
SETTINGS = (
    "eta", "betas", "momentum", "momentum_decay", "eps", "weight_decay", "loss_beta", "weighting", "nonfinite", "seed",
    "amsgrad", "nesterov", "maximize", "decoupled_weight_decay",
)  # fmt: skip
_SWITCHES = ("amsgrad", "nesterov", "maximize", "decoupled_weight_decay", "capturable", "differentiable", "reference",
             "check_gradients")  # fmt: skip


class Settings:
    """The settings of a group, remembered to see whether any was replaced."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.read = operator.itemgetter(*(name for name in SETTINGS if name in group))
        self.values = self.read(group)

    def are_those_of(self, group: dict[str, Any]) -> bool:
        """Whether they are the very same objects; to ask whether they are equal would read tensors."""
        return all(map(operator.is_, self.read(group), self.values))


def check_group(group: dict[str, Any], engine: Engine, rule: Rule) -> None:
    """Check the hyper-parameters of one parameter group."""
    for name in ("lr", "eps", "weight_decay", "momentum", "momentum_decay", "loss_beta", "eta"):
        if name in group and not (name == "loss_beta" and group[name] is None):
            check_number(name, group[name])
    _check_lr(group)
    for name in ("eps", "weight_decay", "momentum_decay"):
        if name in group and not 0.0 <= float(group[name]) < math.inf:
            raise ValueError(f"Invalid {name} value: {group[name]}; it must be finite and not negative")
    betas = group.get("betas", (0.0, 0.0))
    if not (isinstance(betas, (tuple, list)) and len(betas) == 2):
        raise ValueError(f"Invalid betas value: {betas!r}; give two decay rates, such as (0.9, 0.999)")
    for i, beta in enumerate(betas):
        check_number("betas", beta)
        if not 0.0 <= float(beta) < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}; it must be at least 0 and below 1")
    if "momentum" in group and not 0.0 <= group["momentum"] < 1.0:
        raise ValueError(f"Invalid momentum value: {group['momentum']}; it must be at least 0 and below 1")
    if group["loss_beta"] is not None and not 0.0 <= group["loss_beta"] < 1.0:
        raise ValueError(
            f"Invalid loss_beta value: {group['loss_beta']}; it must be at least 0 and below 1, or None for the "
            "engine's own"
        )
    for name in _SWITCHES:
        check_switch(name, group.get(name, False))
    for name in ("foreach", "fused"):
        if group[name] is not None:
            check_switch(name, group[name])
    rule.check(float(group["eta"]))
    for name, choices in {"weighting": ("paper", "unit"), "nonfinite": ("skip", "raise")}.items():
        if group[name] not in choices:
            raise ValueError(f"Invalid {name} value: {group[name]!r}; take one of {', '.join(map(repr, choices))}")
    check_seed(group["seed"])
    _check_paths(group, engine)
    if group["reference"]:
        _check_reference(group, engine, rule)


def check_number(name: str, value: Any) -> None:
    """Refuse what is not one number; numbers of every kind will do, also NumPy's and tensors of one element."""
    what = "learning rate" if name == "lr" else f"{name} value"
    if isinstance(value, Tensor):
        if name != "lr" and value.numel() != 1:
            raise ValueError(f"Invalid {what}: a tensor of shape {tuple(value.shape)}; it must be one number")
        return
    try:
        math.fsum((value,))  # as float(), which would also read a string
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Invalid {what}: {value!r}; it must be a number, not {type(value).__name__}") from error


def check_switch(name: str, value: Any) -> None:
    """Refuse a word in the place of True or False: every word counts as true."""
    if not (isinstance(value, (bool, int)) and value in (0, 1)):
        raise ValueError(f"Invalid {name} value: {value!r}; it must be True or False")


def check_seed(seed: Any) -> None:
    """Refuse what is not a whole number, of whatever kind."""
    try:
        operator.index(seed)
    except TypeError as error:
        raise ValueError(f"Invalid seed value: {seed!r}; it must be an integer") from error


def _check_lr(group: dict[str, Any]) -> None:
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, but has shape {tuple(lr.shape)}")
    if isinstance(lr, Tensor) and lr.device.type != "cpu":
        return  # reading it would wait for the device
    if not 0.0 <= float(lr.detach() if isinstance(lr, Tensor) else lr) < math.inf:
        raise ValueError(f"Invalid learning rate: {lr}; it must be finite and not negative")


def _check_paths(group: dict[str, Any], engine: Engine) -> None:
    if group["fused"] and not engine.has_fused:
        raise ValueError(f"fused=True is not available for the {engine.name} engine; leave fused out")
    if group["fused"] and group["foreach"]:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together; choose one")
    if group["fused"] and group["differentiable"]:
        raise RuntimeError("`fused` does not support `differentiable`; leave fused out")


def _check_reference(group: dict[str, Any], engine: Engine, rule: Rule) -> None:
    if engine.name not in PUBLISHED_ENGINES or rule.name not in PUBLISHED_RULES:
        raise ValueError(
            f"reference=True goes with the engines {', '.join(PUBLISHED_ENGINES)} and the rules "
            f"{', '.join(PUBLISHED_RULES)}, but this is {engine.name} with {rule.name}"
        )
    if group["weighting"] != "paper":
        raise ValueError("reference=True follows the published recipe and needs weighting='paper'")
    if any(group.get(flag) for flag in ("fused", "foreach", "capturable", "differentiable", "amsgrad", "nesterov")):
        raise ValueError(
            "reference=True is a plain slow loop: leave fused, foreach, capturable, differentiable, amsgrad and "
            "nesterov out"
        )


def check_params(group: dict[str, Any], engine: Engine, who: str) -> None:
    """Refuse what the chosen kernel cannot take."""
    if not group["fused"]:
        return
    supported = _get_fused_kernels_supported_devices()
    for p in group["params"]:
        if not (torch.is_floating_point(p) and p.device.type in supported):
            raise RuntimeError(
                f"fused=True requires all the params to be floating point tensors on one of {supported}, but {who} got "
                f"{p.dtype} on {p.device.type}; leave fused out"
            )


def choose_path(group: dict[str, Any], engine: Engine, members: Members) -> str:
    """Which implementation a step runs: what was asked for, else the fastest that applies."""
    if group["differentiable"]:
        return "forloop"
    p = members.params[0]
    # A compiler fuses the plain operations itself; the ready-made kernel would be a wall in its graph.
    if not torch.compiler.is_compiling():
        fused = group["fused"]
        if fused is None and group["foreach"] is None and engine.has_fused:
            fused = _has_fused_kernels(p.device.type)
        if fused and members.aligned():
            return "fused"
    if group["foreach"] is not None:
        return "foreach" if group["foreach"] else "forloop"
    return "foreach" if p.device.type in ("cpu", "meta", *_get_foreach_kernels_supported_devices()) else "forloop"


@lru_cache
def _has_fused_kernels(device: str) -> bool:
    return device in _get_fused_kernels_supported_devices()


def check_gradients(optimizer: LossAware) -> None:
    """Refuse sparse gradients before anything is changed."""
    for group in optimizer.param_groups:
        if {p.grad.layout for p in group["params"] if p.grad is not None} <= {torch.strided}:
            continue
        shape = next(tuple(p.shape) for p in group["params"] if p.grad is not None and p.grad.layout != torch.strided)
        raise RuntimeError(
            f"{type(optimizer).__name__} does not support sparse gradients (a parameter of shape {shape} has one); "
            "build the embedding with sparse=False, or give that parameter to torch.optim.SparseAdam"
        )


def only_creates_state(optimizer: Optimizer, closure: Any) -> None:
    """Accept a step with no loss only where there is nothing to weigh.

    That is the call with which distributed checkpointing creates state, and a closure that left out its batch: it gave
    neither a loss nor a gradient.
    """
    if closure is not None and all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
        return
    creates = closure is None and all(
        float(group.get("lr") or 0) == 0 and all(p.grad is None or not p.grad.any() for p in group["params"])
        for group in optimizer.param_groups
    )
    if not creates:
        raise RuntimeError(f"{type(optimizer).__name__}.step() got no loss: {THREE_WAYS}")


def is_fine(optimizer: LossAware, loss: Number) -> bool | Tensor:
    """Whether the step may go on, the same for all groups: a bool on the host, a 0-d tensor on a device.

    On a device only nonfinite="raise" reads it back.
    """
    groups = optimizer.param_groups
    watched = []
    for group in groups:
        if group["check_gradients"]:
            watched += [p.grad for p in group["params"] if p.grad is not None]
    fine: bool | Tensor
    if isinstance(loss, Tensor):
        fine = is_sane(loss)
        for grad in watched:
            fine = fine & _is_finite(grad).to(loss.device)
        what = "the loss or a gradient is not finite"
    else:
        fine = is_sane(loss)
        what = "a gradient is not finite" if fine else f"the loss is {loss}"
        fine = fine and all(map(_is_finite_on_host, watched))
    # Whether to raise is asked first: on a device the answer to `fine` would have to be waited for.
    if "raise" in [group["nonfinite"] for group in groups] and not fine:
        raise FloatingPointError(
            f"{type(optimizer).__name__}: {what}, and nonfinite='raise' was asked for; nothing was changed "
            "(nonfinite='skip' skips such steps)"
        )
    return fine


def is_sane(loss: Number) -> Any:
    """Whether a loss (of at least float32) may enter the statistics: it is a number, and not one beyond all measure.

    Such a one would make all others look usual for a long time. A sane loss enters even where its weight is of no use,
    because the spread had shrunk to nearly nothing: left out, it would leave every later loss as unusual.
    """
    return abs(loss) <= LARGEST


#: After so many skipped steps it is said aloud, once.
MANY = 10


def warn_of_skipping(optimizer: Optimizer, seen: Seen, loss: float) -> None:
    """Say that training may be standing still; a NaN that comes at every step would never be noticed otherwise."""
    warnings.warn(
        f"{type(optimizer).__name__} has skipped {MANY} steps by now and taken {seen.count:.0f} losses in; the last "
        f"skipped loss was {loss:g}. Steps are skipped when the loss is not finite or its weight is beyond all "
        "measure; nonfinite='raise' stops at the first, confidence() counts them",
        stacklevel=6,  # the line that called step()
    )


def is_usable(weight: Number, group: dict[str, Any], optimizer: LossAware) -> bool | Tensor:
    """Whether a rule gave a weight that a gradient can be multiplied by; one that is not a number is not."""
    usable: bool | Tensor = abs(weight) <= LARGEST
    if group["nonfinite"] == "raise" and not usable:
        raise FloatingPointError(
            f"{type(optimizer).__name__}: the rule weights the gradient by {float(weight)}, and nonfinite='raise' was "
            "asked for; nothing was changed (nonfinite='skip' skips such steps)"
        )
    return usable


def _is_finite_on_host(grad: Tensor) -> bool:
    # Several times as fast in the gradient's own precision, which can only err by overflowing.
    quick = grad.sum(dtype=torch.float32 if grad.dtype.itemsize < 4 else None).isfinite()
    return bool(_of_all_shards(quick)) or bool(_is_finite(grad))


def _is_finite(grad: Tensor) -> Tensor:
    # One read and no temporary.
    widest = wide(grad.device)
    return _of_all_shards(grad.sum(dtype=widest.to_complex() if grad.is_complex() else widest).isfinite())


def _of_all_shards(finite: Tensor) -> Tensor:
    return finite.full_tensor() if hasattr(finite, "full_tensor") else finite
