"""Checkpoints: complete what an older or a plain optimizer's lacks, and keep scalars exact where torch would cast them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surefoot.moments import Seen, blank

if TYPE_CHECKING:
    from surefoot.optimizer import LossAware


def completed(state_dict: dict[str, Any], optimizer: LossAware) -> dict[str, Any]:
    """A copy of the state dict in which every group has all that this optimizer knows."""
    own = optimizer.param_groups
    saved = state_dict["param_groups"]
    groups = []
    for i, group in enumerate(saved):
        mine = own[i] if i < len(own) else {}
        known = {k: v for k, v in mine.items() if k not in ("params", "seen", "param_names", "initial_lr")}
        seen = group.get("seen")
        if isinstance(seen, Tensor) and seen.numel() != len(Seen._fields):
            raise ValueError(
                f"the checkpoint's loss statistics have {seen.numel()} entries, this version keeps {len(Seen._fields)}; "
                "load it with the version that wrote it"
            )
        groups.append({**known, **group, "seen": blank() if seen is None else seen})
    return {**state_dict, "param_groups": groups}


def restore_scalars(optimizer: LossAware, state_dict: dict[str, Any]) -> None:
    """Put the scalars of the histories back uncast (torch turns them into the parameter's dtype) and share them again."""
    names = ("step", *optimizer.engine.scalars)
    for saved, group in zip(state_dict["param_groups"], optimizer.param_groups):
        shared: dict[Any, dict[str, Tensor]] = {}
        for key, p in zip(saved["params"], group["params"]):
            raw = state_dict["state"].get(key)
            if not raw:
                continue
            own = {name: _scalar(raw[name], name) for name in names if name in raw}
            kind = (p.dtype, p.device, *((name, x.item() if not x.is_meta else id(x)) for name, x in own.items()))
            optimizer.state[p].update(shared.setdefault(kind, own))


def _scalar(value: Any, name: str) -> Tensor:
    """A 0-d copy in the dtype the histories use."""
    wide = torch.float32 if name == "step" or getattr(value, "is_mps", False) else torch.float64
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return torch.as_tensor(value).detach().to(wide, copy=True).reshape(())
