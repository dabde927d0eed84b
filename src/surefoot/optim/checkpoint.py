"""Checkpoints: complete what an older or a plain optimizer's lacks, keep scalars exact where torch would cast them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from surefoot.optim.engines.base import wide
from surefoot.statistics import Seen, blank

if TYPE_CHECKING:
    from surefoot.optim.loss_aware import LossAware
    from surefoot.optim.loss_weighted import LossWeighted


def check_kind(state_dict: Any, optimizer: Optimizer) -> None:
    """Refuse what no optimizer wrote."""
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        keys = f" with the keys {', '.join(map(str, state_dict))}"[:80] if isinstance(state_dict, dict) else ""
        raise ValueError(
            f"a checkpoint of an optimizer has state and param_groups, this is a {type(state_dict).__name__}{keys}; "
            f"pass what {type(optimizer).__name__}.state_dict() returned"
        )


def completed(state_dict: dict[str, Any], optimizer: LossAware | LossWeighted) -> dict[str, Any]:
    """A copy of the state dict in which every group has all that this optimizer knows."""
    own = optimizer.param_groups
    check_kind(state_dict, optimizer)
    saved = state_dict["param_groups"]
    groups = []
    for i, group in enumerate(saved):
        mine = own[i] if i < len(own) else {}
        known = {k: v for k, v in mine.items() if k not in ("params", "seen", "param_names", "initial_lr")}
        seen = group.get("seen")
        if "eta" in group:
            optimizer.rule.check(float(group["eta"]))  # another rule may have meant something else by it
        groups.append({**known, **group, "seen": blank() if seen is None else checked(seen)})
    return {**state_dict, "param_groups": groups}


def checked(seen: Any) -> Tensor:
    """Loss statistics from a checkpoint, which must be as many numbers as are kept."""
    if not isinstance(seen, Tensor):
        seen = torch.tensor(seen, dtype=torch.float64, device="cpu")
    if seen.numel() != len(Seen._fields):
        raise ValueError(
            f"the checkpoint's loss statistics have {seen.numel()} entries, this version keeps "
            f"{len(Seen._fields)}; load it with the version that wrote it"
        )
    return seen


def unshared(optimizer: LossAware, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A copy that shares no scalar with anything: distributed checkpoints load into it in place, one by one."""
    names = ("step", *optimizer.engine.scalars)
    state = {
        key: {**values, **{name: values[name].clone() for name in names if name in values}}
        for key, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state, "param_groups": portable_groups(optimizer, state_dict)}


def portable_groups(optimizer: Optimizer, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups as any file and device takes them.

    `torch.load(weights_only=True)` takes no NumPy numbers, and Accelerate moves all that is here to the parameters'
    device, which may have no float64.
    """
    homes = [p.device for group in optimizer.param_groups for p in group["params"]]
    dtype = torch.float32 if any(wide(home) is torch.float32 for home in homes) else torch.float64
    groups = []
    for group in state_dict["param_groups"]:  # a wrapped optimizer may write them in its own way
        plain = {name: as_plain(value) for name, value in group.items() if name != "params"}
        seen = {"seen": group["seen"].to(dtype, copy=True)} if "seen" in group else {}
        groups.append({**group, **plain, **seen})
    return groups


def as_plain(value: Any) -> Any:
    """NumPy's number as Python's, also in a pair; anything else as it is."""
    if type(value) in (tuple, list):
        return type(value)(map(as_plain, value))
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


def check_state(optimizer: LossAware, state_dict: dict[str, Any]) -> None:
    """Refuse the state of another kind of optimizer before anything is changed."""
    for saved, group in zip(state_dict["param_groups"], optimizer.param_groups):
        # What comes after the first two (AMSGrad's maximum) starts from zero where it is missing.
        tensors = optimizer.engine.state_names(group)
        # The units of the moments are 1 where nothing is said; other scalars (NAdam's) have no such default.
        own = [name for name in optimizer.engine.scalars if name not in optimizer.engine.units.values()]
        needed = ("step", *tensors[:2], *own)
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
                found = state.get(name) if state else None
                if isinstance(found, Tensor) and found.shape != p.shape:
                    raise ValueError(
                        f"the checkpoint's {name} for parameter {key} has the shape {tuple(found.shape)}, the "
                        f"parameter {tuple(p.shape)}: it is of another model; start without optimizer state instead"
                    )


def restore_scalars(optimizer: LossAware, state_dict: dict[str, Any]) -> None:
    """Put the scalars of the histories back uncast (torch casts them to the parameter's dtype) and share them again."""
    names = ("step", *optimizer.engine.scalars)
    for saved, group in zip(state_dict["param_groups"], optimizer.param_groups):
        shared: dict[Any, dict[str, Tensor]] = {}
        for key, p in zip(saved["params"], group["params"]):
            raw = state_dict["state"].get(key)
            if not raw:
                continue
            absent = [name for name in names if isinstance(raw.get(name), dict)]
            for name in absent:  # what a flattened checkpoint knows nothing of comes back as an empty dict
                del optimizer.state[p][name]
            own = {name: _scalar(raw[name], name) for name in names if name in raw and name not in absent}
            kind = (p.dtype, p.device, *((name, x.item() if not x.is_meta else id(x)) for name, x in own.items()))
            optimizer.state[p].update(shared.setdefault(kind, own))


def _scalar(value: Any, name: str) -> Tensor:
    """A 0-d copy in the dtype the histories use."""
    wide = torch.float32 if name == "step" or getattr(value, "is_mps", False) else torch.float64
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    value = value if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
    return value.detach().to(wide, copy=True).reshape(())
