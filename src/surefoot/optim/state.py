"""The state of each parameter, and which parameters share their scalars.

A parameter's step count and the moments of its weights belong to its history: the steps at which it had a gradient.
Nearly always all parameters of a group share one history. Then the scalars are *the same tensor objects* in each of
their states, and are updated once. A parameter without a gradient keeps the old scalars; the others get new ones.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import _get_scalar_dtype

from surefoot.optim.engines.base import Bucket, Engine, Group
from surefoot.optim.options import choose_path
from surefoot.statistics import widest_float

CPU = torch.device("cpu")
ParamState = dict[str, Any]
States = MutableMapping[Tensor, ParamState]


def state_names(engine: Engine, group: Group, on_device: bool) -> tuple[str, ...]:
    """What is collected of each parameter's state: the engine's tensors, then its scalars."""
    return (*engine.state_names(group), *_scalar_names(engine, on_device)[1:])


def _scalar_names(engine: Engine, on_device: bool) -> list[str]:
    # On a device the moments are ordinary ones: to normalise them, the weight would have to be read back.
    return ["step", *(name for name in engine.scalars if not (on_device and name in engine.units.values()))]


def prepare(
    engine: Engine, states: States, group: Group, *, on_device: bool, separate: bool = False
) -> tuple[list[Tensor], list[ParamState]]:
    """The parameters that have a gradient, and their states: complete, and on the right device.

    ``separate`` gives every parameter scalars of its own, as a compiled graph needs them.
    """
    params = [p for p in group["params"] if p.grad is not None]
    existing = [states.get(p) for p in params]
    if not all(existing):
        _create(engine, states, group, [p for p, state in zip(params, existing) if not state], on_device, separate)
    active = [state or states[p] for p, state in zip(params, existing)]
    idle: list[ParamState] = []
    if len(params) < len(group["params"]):
        idle = [states[p] for p in group["params"] if p.grad is None and states.get(p)]
    if params and (idle or separate or not _is_settled(engine, group, params[0], active, on_device)):
        _repair_scalars(engine, list(zip(params, active)), idle, on_device, separate)
        _add_missing_tensors(engine, group, params, active)
    return params, active


def _create(
    engine: Engine, states: States, group: Group, params: list[Tensor], on_device: bool, separate: bool
) -> None:
    """State for parameters with their first gradient; those of one device and dtype share their scalars."""
    shared: dict[Any, ParamState] = {}
    for p in params:
        kind = id(p) if separate else (p.device, p.dtype)
        if kind not in shared:
            device = p.device if on_device else CPU
            step = torch.zeros((), dtype=_get_scalar_dtype(group.get("fused")), device=CPU)  # as torch counts
            initial: dict[str, Any] = {"step": step, **engine.scalars}
            shared[kind] = {name: _scalar(name, initial[name], device) for name in _scalar_names(engine, on_device)}
        states[p] = {**shared[kind], **{name: _zeros(p) for name in engine.state_names(group)}}


def _scalar(name: str, value: Tensor | float, device: torch.device) -> Tensor:
    """A new 0-d tensor; a step count stays float64 if it is."""
    dtype = widest_float(device)
    if name == "step" and getattr(value, "dtype", None) != torch.float64:
        dtype = torch.float32
    if isinstance(value, Tensor):
        return value.to(device, dtype, copy=True)
    return torch.full((), value, dtype=dtype, device=device)


def _zeros(p: Tensor) -> Tensor:
    return torch.zeros_like(p, memory_format=torch.preserve_format)


def _is_settled(engine: Engine, group: Group, p: Tensor, states: list[ParamState], on_device: bool) -> bool:
    """Whether all share their scalars, on the right device and in the right units: so it is in nearly every step."""
    first, scalars = states[0], _scalar_names(engine, on_device)
    if not all(name in first for name in (*engine.state_names(group), *scalars)):
        return False
    if first["step"].device != (p.device if on_device else CPU):
        return False
    if on_device and any(unit in first for unit in engine.units.values()):
        return False
    return all(all(map(operator.is_, [state.get(x) for state in states], repeat(first[x]))) for x in scalars)


def _repair_scalars(
    engine: Engine, active: list[tuple[Tensor, ParamState]], idle: list[ParamState], on_device: bool, separate: bool
) -> None:
    """Give parameters that no longer share a history scalars of their own, on the right device.

    Usually nothing has to change.
    """
    names = _scalar_names(engine, on_device)
    taken = {id(state[name]) for state in idle for name in names if name in state}
    for ids, members in _by_history(active, names).items():
        p, state = members[0]
        device = p.device if on_device else CPU
        wrong_units = any((unit in state) == on_device for unit in engine.units.values())
        is_shared = not taken.isdisjoint(ids) or (separate and len(members) > 1)
        taken.update(ids)
        if not (wrong_units or is_shared or state["step"].device != device):
            continue
        if wrong_units and on_device:
            for _, state in members:
                _to_ordinary_units(engine, state)
        _replace_scalars([state for _, state in members], names, device, separate)


def _by_history(
    active: Iterable[tuple[Tensor, ParamState]], names: Sequence[str]
) -> dict[tuple[int, ...], list[tuple[Tensor, ParamState]]]:
    """States that have all their scalars in common, by the ids of these."""
    groups: dict[tuple[int, ...], list[tuple[Tensor, ParamState]]] = {}
    for p, state in active:
        ids = tuple(id(state[name]) for name in names if name in state)
        groups.setdefault(ids, []).append((p, state))
    return groups


def _replace_scalars(states: list[ParamState], names: Sequence[str], device: torch.device, separate: bool) -> None:
    """Put copies in place of the scalars: one set for all states, or one for each."""
    for i, state in enumerate(states):
        if i == 0 or separate:
            copies = {name: _scalar(name, state.get(name, 1.0), device) for name in names}
        state.update(copies)


def unshare_scalars(engine: Engine, states: States, params: list[Tensor]) -> None:
    """Give these parameters scalars that no other has: some may have moved from or to another group."""
    existing = [(p, states[p]) for p in params if states.get(p)]
    names = ("step", *engine.scalars)
    for members in _by_history(existing, names).values():
        state = members[0][1]
        copies = {name: state[name].clone() for name in names if name in state}
        for _, state in members:
            state.update(copies)


def _to_ordinary_units(engine: Engine, state: ParamState) -> None:
    """Multiply the units back into the moments."""
    for name, unit in engine.units.items():
        state[name].mul_(state[unit].to(state[name].device))
    for unit in set(engine.units.values()):
        del state[unit]


def _add_missing_tensors(engine: Engine, group: Group, params: list[Tensor], states: list[ParamState]) -> None:
    """AMSGrad may be switched on for state that was created without its maximum."""
    for name in engine.state_names(group)[2:]:
        for p, state in zip(params, states):
            if name not in state:
                state[name] = _zeros(p)


def make_buckets(
    engine: Engine,
    group: Group,
    params: list[Tensor],
    grads: list[Tensor],
    steps: list[Tensor],
    columns: list[list[Tensor]],
    *,
    on_device: bool,
    separate: bool = False,
) -> Iterator[Bucket]:
    """Put together what one kernel call can update: parameters with the same scalars, so of one device and dtype.

    ``columns`` are lists in the order of `state_names`, with an entry for each parameter.
    """
    tensors = len(engine.state_names(group))
    scalar_names = _scalar_names(engine, on_device)[1:]
    # Tensor subclasses (sharded parameters) need a closer look.
    special = not {type(p) for p in params} <= {Tensor, Parameter}
    for indices in _by_step(steps, separate):
        first = indices[0]
        chosen = [params, grads, *columns[:tensors]]
        if len(indices) < len(params):
            chosen = [[column[i] for i in indices] for column in chosen]
        if special:
            chosen[1] = [_placed_as(p, grad) for p, grad in zip(chosen[0], chosen[1])]
            chosen = [[x.to_local() if hasattr(x, "to_local") else x for x in column] for column in chosen]
        if chosen[0][0].is_complex():  # all are of one dtype
            chosen = [[torch.view_as_real(x.resolve_conj()) for x in column] for column in chosen]
        scalars = {name: column[first] for name, column in zip(scalar_names, columns[tensors:])}
        bucket = Bucket(chosen[0], chosen[1], chosen[2:], steps[first], scalars)
        bucket.path = choose_path(group, engine, bucket)
        yield bucket


def _placed_as(p: Any, grad: Any) -> Any:
    """The gradient placed as its parameter is: in tensor parallel training it may be a sum still to be computed."""
    placements = getattr(p, "placements", None)
    moves = placements is not None and getattr(grad, "placements", placements) != placements
    return grad.redistribute(p.device_mesh, placements) if moves else grad


def _by_step(steps: list[Tensor], separate: bool) -> list[list[int]]:
    """The indices of parameters that share a step counter, and so all scalars."""
    if separate:
        return [[i] for i in range(len(steps))]
    groups: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        groups.setdefault(id(step), []).append(i)
    return list(groups.values())
