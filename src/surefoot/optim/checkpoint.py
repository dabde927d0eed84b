"""Checkpoints: add what those of older versions and plain optimizers lack; keep scalars exact that torch would cast."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from surefoot.optim.engines.base import Engine
from surefoot.rules import Rule
from surefoot.statistics import LossStats, no_statistics, widest_float

#: The name of the rule in the groups of a checkpoint; it is not an option and not kept after loading.
RULE = "loss_rule"


def check_kind(state_dict: Any, optimizer: Optimizer) -> None:
    """Refuse what no optimizer wrote."""
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        keys = f" with the keys {', '.join(map(str, state_dict))}"[:80] if isinstance(state_dict, dict) else ""
        raise ValueError(
            f"a checkpoint of an optimizer has state and param_groups, this is a {type(state_dict).__name__}{keys}; "
            f"pass what {type(optimizer).__name__}.state_dict() returned"
        )


def completed(state_dict: dict[str, Any], optimizer: Optimizer, rule: Rule) -> dict[str, Any]:
    """A copy of the state dict in which every group has all options of this optimizer, and statistics."""
    current = optimizer.param_groups
    check_kind(state_dict, optimizer)
    groups = []
    for i, group in enumerate(state_dict["param_groups"]):
        options = current[i] if i < len(current) else {}
        options = {k: v for k, v in options.items() if k not in ("params", "seen", "param_names", "initial_lr")}
        seen = group.get("seen")
        if "eta" in group:
            rule.check(float(group["eta"]))  # the eta of another rule may have another meaning
        written = {name: value for name, value in group.items() if name != RULE}
        groups.append({**options, **written, "seen": no_statistics() if seen is None else checked(seen)})
    _warn_of_another_rule(state_dict["param_groups"], optimizer, rule)
    return {**state_dict, "param_groups": groups}


def _warn_of_another_rule(saved: list[dict[str, Any]], optimizer: Optimizer, rule: Rule) -> None:
    """Say that the eta of a checkpoint was chosen for another rule; checkpoints of old versions do not name theirs."""
    other = next((group for group in saved if group.get(RULE, rule.name) != rule.name and "eta" in group), None)
    if other is not None:
        warnings.warn(
            f"the checkpoint is of the rule {other[RULE]!r}, and its eta={float(other['eta']):g} now goes with the "
            f"rule {rule.name!r} of {type(optimizer).__name__}; to have another eta, set it in param_groups after "
            f"loading (the default of {rule.name!r} is {rule.eta:g})",
            stacklevel=6,  # the line that called load_state_dict, or torch's wrapper around it
        )


def checked(seen: Any) -> Tensor:
    """Loss statistics from a checkpoint: they must have the right number of entries."""
    if not isinstance(seen, Tensor):
        seen = torch.tensor(seen, dtype=torch.float64, device="cpu")
    if seen.numel() != len(LossStats._fields):
        raise ValueError(
            f"the checkpoint's loss statistics have {seen.numel()} entries, this version keeps "
            f"{len(LossStats._fields)}; load it with the version that wrote it"
        )
    return seen


def unshared(optimizer: Optimizer, engine: Engine, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A copy whose scalars nothing else shares: distributed checkpoints load into it in place, one by one."""
    names = ("step", *engine.scalars)
    state = {
        key: {**values, **{name: values[name].clone() for name in names if isinstance(values.get(name), Tensor)}}
        if isinstance(values, dict)
        else values  # users and libraries keep entries of their own there
        for key, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state, "param_groups": portable_groups(optimizer, state_dict)}


def portable_groups(optimizer: Optimizer, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups in a form that any file and device accepts.

    `torch.load(weights_only=True)` refuses NumPy numbers, and Accelerate moves all tensors here to the parameters'
    device, which may have no float64.
    """
    devices = [p.device for group in optimizer.param_groups for p in group["params"]]
    dtype = torch.float32 if any(widest_float(device) is torch.float32 for device in devices) else torch.float64
    rule = {RULE: optimizer.rule.name} if hasattr(optimizer, "rule") else {}
    groups = []
    # A wrapped optimizer may write them in another way, or elsewhere in a form of its own.
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    for group in state_dict.get("param_groups", options):
        plain = {name: as_plain(value) for name, value in group.items() if name != "params"}
        numbers = {name: group[name].to(dtype, copy=True) for name in ("seen", "average_numbers") if name in group}
        groups.append({**group, **plain, **numbers, **(rule if "eta" in group else {})})
    return groups


def as_plain(value: Any) -> Any:
    """NumPy's number as Python's, also in a pair; anything else as it is."""
    if type(value) in (tuple, list):
        return type(value)(map(as_plain, value))
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def check_state(optimizer: Optimizer, engine: Engine, state_dict: dict[str, Any]) -> None:
    """Refuse the state of another kind of optimizer before anything is changed."""
    for saved, group in zip(state_dict["param_groups"], optimizer.param_groups):
        # Tensors after the first two (AMSGrad's maximum) start from zero if they are missing.
        tensors = engine.state_names(group)
        # Missing units of the moments are 1; other scalars (NAdam's) have no such default.
        scalars = [name for name in engine.scalars if name not in engine.units.values()]
        needed = ("step", *tensors[:2], *scalars)
        for key, p in zip(saved["params"], group["params"]):
            state = state_dict["state"].get(key)
            missing = [name for name in needed if state and state.get(name) is None]
            if missing:
                raise ValueError(
                    f"the checkpoint has no {', '.join(missing)} for parameter {key}, only "
                    f"{', '.join(map(str, state))}: it is not one that {type(optimizer).__name__} can go on from; "
                    "start without optimizer state instead"
                )
            for name in tensors:
                tensor = state.get(name) if state else None
                if isinstance(tensor, Tensor) and tensor.shape != p.shape:
                    raise ValueError(
                        f"the checkpoint's {name} for parameter {key} has the shape {tuple(tensor.shape)}, the "
                        f"parameter {tuple(p.shape)}: it is of another model; start without optimizer state instead"
                    )


def restore_scalars(optimizer: Optimizer, engine: Engine, state_dict: dict[str, Any]) -> None:
    """Put the scalars back uncast (torch casts them to the parameter's dtype), shared where they are equal."""
    names = ("step", *engine.scalars)
    for saved, group in zip(state_dict["param_groups"], optimizer.param_groups):
        shared: dict[Any, dict[str, Tensor]] = {}
        for key, p in zip(saved["params"], group["params"]):
            loaded = state_dict["state"].get(key)
            if not loaded:
                continue
            absent = [name for name in names if isinstance(loaded.get(name), dict)]
            for name in absent:  # a name that a flattened checkpoint does not have comes back as an empty dict
                del optimizer.state[p][name]
            scalars = {name: _scalar(loaded[name], name) for name in names if name in loaded and name not in absent}
            kind = (p.dtype, p.device, *((name, x.item() if not x.is_meta else id(x)) for name, x in scalars.items()))
            optimizer.state[p].update(shared.setdefault(kind, scalars))


def _scalar(value: Any, name: str) -> Tensor:
    """A 0-d copy in the dtype of the state's scalars."""
    dtype = torch.float32 if name == "step" or getattr(value, "is_mps", False) else torch.float64
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    value = value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
    return value.detach().to(dtype, copy=True).reshape(())
