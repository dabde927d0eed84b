"""Checkpoints: add what those of older versions and plain optimizers lack; keep scalars exact that torch would cast.

A damaged checkpoint is refused with the name of the entry, before anything is changed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _get_scalar_dtype

from surefoot._warnings import warn
from surefoot.meter import MAX_LOSS
from surefoot.optim.engines.base import Engine
from surefoot.optim.options import check_eta
from surefoot.rules import Rule
from surefoot.statistics import LossStats, no_statistics, unpack, widest_float

#: The largest values that a run can reach, by the name of a scalar: no weight exceeds the largest loss.
_LARGEST = {"weight_mean": MAX_LOSS, "weight_power": MAX_LOSS**2, "mu_product": 1.0}
#: Beyond this a float64 cannot count.
_MAX_COUNT = 2.0**53
#: Rounding, also to single precision.
_SLACK = 1.01

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
    groups, states = state_dict["param_groups"], state_dict["state"]
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, dict) for group in groups):
        raise ValueError("the checkpoint's param_groups are not a list of groups; it is damaged")
    if not isinstance(states, dict):
        raise ValueError(f"the checkpoint's state is a {type(states).__name__}, not a dict; it is damaged")


@contextlib.contextmanager
def unchanged_on_error(optimizer: Optimizer) -> Iterator[None]:
    """Put state and groups back if loading fails on the way: torch replaces them as a whole, then looks into them."""
    before = optimizer.state, optimizer.param_groups
    try:
        yield
    except BaseException:
        with contextlib.suppress(AttributeError):  # a base around another one has no state of its own to put back
            optimizer.state, optimizer.param_groups = before
        raise


def completed(state_dict: dict[str, Any], optimizer: Optimizer, rule: Rule) -> dict[str, Any]:
    """A copy of the state dict in which every group has all options of this optimizer, and statistics."""
    current = optimizer.param_groups
    check_kind(state_dict, optimizer)
    groups = []
    for i, group in enumerate(state_dict["param_groups"]):
        options = current[i] if i < len(current) else {}
        options = {k: v for k, v in options.items() if k not in ("params", "seen", "param_names", "initial_lr")}
        if "gain_power" in options:
            options["gain_power"] = torch.zeros(1, dtype=torch.float64, device="cpu")
            if "weighting" in group:  # one of ours, from before there were bounds: it goes on without them
                options["gain"] = None
        seen = group.get("seen")
        if "eta" in group:
            check_eta(group["eta"], rule)  # the eta of another rule may have another meaning
        written = {name: value for name, value in group.items() if name != RULE}
        seen = no_statistics() if seen is None else checked(seen, f" of group {i}")
        if "gain_power" in written:
            written["gain_power"] = _checked_power(written["gain_power"], f" of group {i}")
        groups.append({**options, **written, "seen": seen})
    _warn_of_another_rule(state_dict["param_groups"], optimizer, rule)
    return {**state_dict, "param_groups": groups}


def _warn_of_another_rule(saved: list[dict[str, Any]], optimizer: Optimizer, rule: Rule) -> None:
    """Say that the eta of a checkpoint was chosen for another rule; checkpoints of old versions do not name theirs."""
    other = next((group for group in saved if group.get(RULE, rule.name) != rule.name and "eta" in group), None)
    if other is not None:
        warn(
            f"the checkpoint is of the rule {other[RULE]!r}, and its eta={float(other['eta']):g} now goes with the "
            f"rule {rule.name!r} of {type(optimizer).__name__}; to have another eta, set it in param_groups after "
            f"loading (the default of {rule.name!r} is {rule.eta:g})",
        )


def checked(seen: Any, whose: str = "") -> Tensor:
    """Loss statistics from a checkpoint: they must have the right number of entries, of values that a run can reach."""
    if not isinstance(seen, Tensor):
        try:
            seen = torch.tensor(seen, dtype=torch.float64, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"the checkpoint's loss statistics{whose} are not numbers: {seen!r}"[:200]) from error
    if seen.numel() != len(LossStats._fields):
        raise ValueError(
            f"the checkpoint's loss statistics have {seen.numel()} entries, this version keeps "
            f"{len(LossStats._fields)}; load it with the version that wrote it"
        )
    if seen.is_complex():
        raise ValueError(f"the checkpoint's loss statistics{whose} are complex; the checkpoint is damaged")
    if seen.is_meta:
        return seen
    stats, most = unpack(seen.reshape(-1)), MAX_LOSS * _SLACK
    fits = {
        "count": 0 <= stats.count <= _MAX_COUNT and stats.count % 1 == 0,
        "mean": abs(stats.mean) <= most,
        "std": 0 <= stats.std <= most,
        "best": abs(stats.best) <= most or (stats.count == 0 and stats.best == math.inf),
        "skipped": 0 <= stats.skipped <= _MAX_COUNT,
        # z, tilt and weight of the last loss are only shown, and not finite after a step that was skipped for it.
    }
    wrong = [f"{name} = {getattr(stats, name)}" for name, is_possible in fits.items() if not is_possible]
    if wrong:
        raise ValueError(
            f"the checkpoint's loss statistics{whose} have {', '.join(wrong)}, which no training reaches: the "
            "checkpoint is damaged; load an earlier one, or delete 'seen' from its param_groups to start them anew"
        )
    return seen


def _checked_power(power: Any, whose: str) -> Tensor:
    """The mean square of weights from a checkpoint: one number that a run can reach."""
    if isinstance(power, Tensor) and power.is_meta:
        return power
    try:
        value = torch.as_tensor(power, dtype=torch.float64, device="cpu").reshape(1)
    except (TypeError, ValueError, RuntimeError):
        value = torch.full((1,), math.nan)
    if not 0 <= value.item() <= (MAX_LOSS * _SLACK) ** 2:
        raise ValueError(
            f"the checkpoint's gain_power{whose} is {power!r}, which no training reaches: the checkpoint is damaged; "
            "load an earlier one, or delete 'gain_power' from its param_groups to start it anew"
        )
    return value


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
        names = ("seen", "average_numbers", "gain_power")
        numbers = {name: group[name].to(dtype, copy=True) for name in names if isinstance(group.get(name), Tensor)}
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
        if not isinstance(saved.get("params"), (list, tuple)):
            raise ValueError("a group in the checkpoint's param_groups has no list of params; it is damaged")
        # Tensors after the first two (AMSGrad's maximum) start from zero if they are missing.
        tensors = engine.state_names(group)
        # Missing units of the moments are 1; other scalars (NAdam's) have no such default.
        scalars = [name for name in engine.scalars if name not in engine.units.values()]
        needed = ("step", *tensors[:2], *scalars)
        for key, p in zip(saved["params"], group["params"]):
            state = state_dict["state"].get(key)
            if state is not None and not isinstance(state, dict):
                raise ValueError(
                    f"the checkpoint's state of parameter {key} is a {type(state).__name__}, not a dict; it is damaged"
                )
            missing = [name for name in needed if state and state.get(name) is None]
            if missing:
                raise ValueError(
                    f"the checkpoint has no {', '.join(missing)} for parameter {key}, only "
                    f"{', '.join(map(str, state or ()))}: it is not one that {type(optimizer).__name__} can go on "
                    "from; start without optimizer state instead"
                )
            for name in tensors:
                tensor = state.get(name) if state else None
                if tensor is not None and tensor != {} and not isinstance(tensor, Tensor):
                    raise ValueError(
                        f"the checkpoint's {name} for parameter {key} is a {type(tensor).__name__}, not a tensor; "
                        "it is damaged"
                    )
                if isinstance(tensor, Tensor) and tensor.shape != p.shape:
                    raise ValueError(
                        f"the checkpoint's {name} for parameter {key} has the shape {tuple(tensor.shape)}, the "
                        f"parameter {tuple(p.shape)}: it is of another model; start without optimizer state instead"
                    )


def with_checked_scalars(engine: Engine, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A copy of the state dict whose scalars are 0-d tensors of values that a run can reach."""
    names, state = ("step", *engine.scalars), dict(state_dict["state"])
    for group in state_dict["param_groups"]:
        step_dtype = _get_scalar_dtype(group.get("fused"))  # as torch counts
        for key in filter(state.get, group["params"]):
            # A name that a flattened checkpoint does not have comes back as an empty dict.
            present = {name: state[key][name] for name in names if state[key].get(name, {}) != {}}
            scalars = {name: _scalar(value, name, key, step_dtype) for name, value in present.items()}
            state[key] = {**state[key], **scalars}
    return {**state_dict, "state": state}


def restore_scalars(optimizer: Optimizer, engine: Engine, state_dict: dict[str, Any]) -> None:
    """Put the scalars back uncast (torch casts them to the parameter's dtype), shared where they are equal."""
    names = ("step", *engine.scalars)
    for saved, group in zip(state_dict["param_groups"], optimizer.param_groups):
        shared: dict[Any, dict[str, Tensor]] = {}
        for key, p in zip(saved["params"], group["params"]):
            loaded = state_dict["state"].get(key)
            if not loaded:
                continue
            scalars = {name: loaded[name] for name in names if isinstance(loaded.get(name), Tensor)}
            for name in set(names) & loaded.keys() - scalars.keys():
                del optimizer.state[p][name]
            kind = (p.dtype, p.device, *((name, x.item() if not x.is_meta else id(x)) for name, x in scalars.items()))
            optimizer.state[p].update(shared.setdefault(kind, scalars))


def _scalar(value: Any, name: str, key: Any, step_dtype: torch.dtype) -> Tensor:
    """A 0-d copy in the dtype of the state's scalars."""
    dtype = step_dtype if name == "step" else torch.float64
    dtype = torch.float32 if getattr(value, "is_mps", False) else dtype
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    problem = f"the checkpoint's {name} for parameter {key} is"
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(f"{problem} a tensor of shape {tuple(value.shape)} and {value.dtype}, not one number")
    elif isinstance(value, (int, float)):
        value = torch.tensor(float(value), dtype=torch.float64, device="cpu")
    else:
        raise ValueError(f"{problem} a {type(value).__name__}, not a number: {value!r}"[:200])
    scalar = value.detach().to(dtype, copy=True).reshape(())
    if not scalar.is_meta and not 0 <= scalar.item() <= _LARGEST.get(name, 1e38) * _SLACK:
        raise ValueError(
            f"{problem} {scalar.item():g}, which no training reaches: the checkpoint is damaged; load an earlier one"
        )
    return scalar
