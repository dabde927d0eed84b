"""Which parameters share a history, and the state that goes with it.

A parameter's step count and the moments of its weights belong to its own history: the steps at which it had a gradient.
Nearly always all parameters of a group share one, so the scalars are *the same tensor objects* in each of their states
and are updated once; a parameter that sits a step out keeps the old ones, and those that go on get new ones.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from surefoot.optim.engines.base import Engine, Members, wide
from surefoot.statistics import Cell

CPU = torch.device("cpu")
States = MutableMapping[Tensor, dict[str, Any]]


def names(engine: Engine, group: dict[str, Any], on_device: bool) -> tuple[str, ...]:
    """What is collected of each parameter's state: the engine's tensors, then its scalars."""
    return (*engine.state_names(group), *_scalar_names(engine, on_device))


def _scalar_names(engine: Engine, on_device: bool) -> list[str]:
    # On a device the moments are ordinary ones: units would have to be read back.
    return [name for name in engine.scalars if not (on_device and name in engine.units.values())]


def prepare(
    engine: Engine, states: States, group: dict[str, Any], *, on_device: bool, apart: bool = False
) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """The parameters that have a gradient, and their states, complete and in the place where this step works.

    ``apart`` gives every parameter scalars of its own, as a compiled graph needs them.
    """
    params = [p for p in group["params"] if p.grad is not None]
    found = [states.get(p) for p in params]
    idle: set[int] = set()
    if len(params) < len(group["params"]):
        waiting = [states[p] for p in group["params"] if p.grad is None and p in states]
        idle = {id(state["step"]) for state in waiting if state}
    if not all(found):
        _create(engine, states, group, [p for p, state in zip(params, found) if not state], on_device, apart)
    own: list[dict[str, Any]] = [state or states[p] for p, state in zip(params, found)]
    if params and (idle or apart or not _in_order(engine, group, params[0], own, on_device)):
        _settle(engine, group, list(zip(params, own)), idle, on_device, apart)
    return params, own


def part(engine: Engine, states: States, params: list[Tensor]) -> None:
    """Give these parameters scalars that nobody else has: some may have come from another group, or gone to one."""
    copies: dict[int, dict[str, Tensor]] = {}
    for state in filter(None, map(states.get, params)):
        known = copies.setdefault(id(state["step"]), {})
        for name in ("step", *engine.scalars):
            if name in state and name not in known:
                known[name] = state[name].clone()
        state.update(known)


def _in_order(engine: Engine, group: dict[str, Any], p: Tensor, states: list[dict[str, Any]], on_device: bool) -> bool:
    """Whether all share one history that is in place: the steady state of nearly every training run."""
    first = states[0]
    step = first["step"]
    if step.device != (p.device if on_device else CPU):
        return False
    wanted = names(engine, group, on_device)
    if not all(name in first for name in wanted) or (on_device and any(u in first for u in engine.units.values())):
        return False
    return all(state["step"] is step for state in states)


def _create(
    engine: Engine, states: States, group: dict[str, Any], params: list[Tensor], on_device: bool, apart: bool
) -> None:
    """State for parameters that get their first gradient; those of one device and dtype start a history together."""
    fresh: dict[Any, dict[str, Tensor]] = {}
    for p in params:
        kind = id(p) if apart else (p.device, p.dtype)
        if kind not in fresh:
            fresh[kind] = _new_scalars(engine, p, on_device)
        states[p] = {**fresh[kind], **{name: _zeros(p) for name in engine.state_names(group)}}


def _new_scalars(engine: Engine, p: Tensor, on_device: bool) -> dict[str, Tensor]:
    home = p.device if on_device else CPU
    scalars = {"step": torch.zeros((), dtype=torch.float32, device=home)}
    for name in _scalar_names(engine, on_device):
        scalars[name] = torch.full((), engine.scalars[name], dtype=wide(home), device=home)
    return scalars


def _zeros(p: Tensor) -> Tensor:
    return torch.zeros_like(p, memory_format=torch.preserve_format)


def _settle(
    engine: Engine,
    group: dict[str, Any],
    active: list[tuple[Tensor, dict[str, Any]]],
    idle: set[int],
    on_device: bool,
    apart: bool,
) -> None:
    """Bring existing states in order; in the steady state this finds nothing to do."""
    unit = next(iter(engine.units.values()), None)
    kept = engine.state_names(group)
    shared = _scalar_names(engine, on_device)
    moved: dict[int, dict[str, Tensor]] = {}
    owner: dict[int, int] = {}
    taken: set[int] = set()
    for p, state in active:
        step = state["step"]
        known = id(step) in taken
        taken.add(id(step))
        # Where a user replaced one parameter's count, its other scalars still belong to the old history as well.
        lent = any(owner.setdefault(id(state[x]), id(step)) != id(step) for x in shared if x in state)
        if known and not moved and not apart and not lent:
            continue  # the first of this history was in order, so this one is
        wrong_home = step.device != p.device if on_device else step.device.type != "cpu"
        wrong_units = unit is not None and (unit in state) == on_device
        if not (wrong_home or wrong_units or lent or (apart and known) or id(step) in idle):
            continue
        if id(step) not in moved or apart:
            home = p.device if on_device else CPU
            moved[id(step)] = {"step": step.to(home, torch.float32, copy=True)} | {
                name: _copied(state.get(name, 1.0), home) for name in shared
            }
        if wrong_units and on_device:
            _to_ordinary_units(engine, state)
        state.update(moved[id(step)])
    for name in kept[2:]:  # AMSGrad switched on for a state that came without it
        for p, state in active:
            if name not in state:
                state[name] = _zeros(p)


def _copied(scalar: Tensor | float, home: torch.device) -> Tensor:
    if isinstance(scalar, Tensor):
        return scalar.to(home, wide(home), copy=True)
    return torch.full((), scalar, dtype=wide(home), device=home)


def _to_ordinary_units(engine: Engine, state: dict[str, Any]) -> None:
    """Multiply the units back into the moments."""
    for name, unit in engine.units.items():
        state[name].mul_(state[unit].to(state[name].device))
    for unit in set(engine.units.values()):
        del state[unit]


#: What decides which state there is, by which path a group steps, and whether its steady state is remembered at all.
_DECIDES = ("amsgrad", "foreach", "fused", "capturable", "differentiable", "reference", "check_gradients")
_RARE = slice(_DECIDES.index("capturable"), None)
_LAYOUT = operator.attrgetter("layout")
_DENSE = {torch.strided}


class Roster:
    """Parameters that all share one history, remembered from one step to the next: the steady state, checked cheaply.

    Whatever a user may change is looked up again: gradients, options, the state of each parameter and the tensors in
    it. What is saved is the way there, and the calls into torch that reading and writing scalars would take.
    In training the caches are cold at each step, so what counts here is how little is called.
    """

    def __init__(
        self, engine: Engine, group: dict[str, Any], params: list[Tensor], states: list[dict[str, Any]], path: str
    ) -> None:
        self.params, self.states, self.path = params, states, path
        self.deciding = operator.itemgetter(*(name for name in _DECIDES if name in group))
        self.options = self.deciding(group)
        first = states[0]
        self.step = Cell(first["step"])
        self.cells = {name: Cell(first[name]) for name in engine.scalars}
        own = {"step": self.step.tensor} | {name: cell.tensor for name, cell in self.cells.items()}
        for state in states:
            state.update(own)
        names = (*own, *engine.state_names(group))
        self.of_state = operator.itemgetter(*names)
        self.held = list(chain.from_iterable(map(self.of_state, states)))
        self.kept = [self.held[i :: len(names)] for i in range(len(own), len(names))]
        self.placed = [*own.values(), *chain.from_iterable(self.kept)]
        self.places = list(map(Tensor.data_ptr, self.placed))
        self.sizes = 2 * list(map(Tensor.numel, params))

    @classmethod
    def of(
        cls, engine: Engine, group: dict[str, Any], states: States, members: list[Members], path: str = ""
    ) -> Roster | None:
        """A roster, where one bucket holds every parameter as it is and nothing is out of the ordinary."""
        params = group["params"]
        alone = len(members) == 1 and len(members[0].params) == len(params)
        if not alone or not all(map(operator.is_, members[0].params, params)):
            return None
        if not members[0].aligned():  # the path was a detour
            return None
        first = states[params[0]]
        kept = all(first[name].dtype in Cell.CODES for name in ("step", *engine.scalars))
        if not kept or any(list(map(group.get, _DECIDES))[_RARE]) or torch.compiler.is_compiling():
            return None
        return cls(engine, group, list(params), [states[p] for p in params], path)

    def members(self, group: dict[str, Any], states: States) -> Members | None:
        """What to update now, by ``path``; None when something is not as it was."""
        params, own = self.params, self.states
        try:
            if (
                self.deciding(group) != self.options
                or len(group["params"]) != len(params)
                or not all(map(operator.is_, group["params"], params))
            ):
                return None
            # Nearly always the states lie there in the order of the parameters; a look-up takes a call of the hash.
            in_order = len(states) == len(own) and all(map(operator.is_, states.values(), own))
            if not (in_order or all(map(operator.is_, map(states.get, params), own))):
                return None
            if not all(map(operator.is_, chain.from_iterable(map(self.of_state, own)), self.held)):
                return None
            grads: list[Any] = [p.grad for p in params]
            if set(map(_LAYOUT, grads)) != _DENSE:
                return None
        except (KeyError, AttributeError):  # a state was emptied, an option is gone, there is no gradient
            return None
        # share_memory_() and tensor.data = ... move a tensor that stays the same object.
        if list(map(Tensor.data_ptr, self.placed)) != self.places:
            return None
        members = Members(params, grads, self.kept, self.step, self.cells)
        if self.path != "fused":
            return members
        # The fused kernels look at nothing. All fitted together before, so sizes and contiguity tell nearly all.
        every = [*params, *grads]
        if list(map(Tensor.numel, every)) != self.sizes:
            return None
        return members if all(map(Tensor.is_contiguous, every)) or members.aligned() else None


def bucket(
    engine: Engine,
    group: dict[str, Any],
    params: list[Tensor],
    grads: list[Tensor],
    steps: list[Tensor],
    lists: list[list[Tensor]],
    *,
    on_device: bool,
    singly: bool = False,
) -> Iterator[Members]:
    """Put together what one kernel call can update: parameters with the same scalars, so of one device and dtype."""
    kept = len(engine.state_names(group))
    scalar_names = _scalar_names(engine, on_device)
    columns = [params, grads, *lists[:kept]]
    # Tensor subclasses (sharded parameters) are looked at one by one, and nothing else is.
    special = not {type(p) for p in params} <= {Tensor, Parameter}
    for indices in _together(steps, singly):
        first = indices[0]
        whole = len(indices) == len(params)
        own = [column if whole else [column[i] for i in indices] for column in columns]
        if special:
            own[1] = [_placed_as(p, grad) for p, grad in zip(own[0], own[1])]
            own = [[x.to_local() if hasattr(x, "to_local") else x for x in tensors] for tensors in own]
        if own[0][0].is_complex():  # all are of one dtype
            own = [[torch.view_as_real(x.resolve_conj()) for x in tensors] for tensors in own]
        scalars = {name: column[first] for name, column in zip(scalar_names, lists[kept:])}
        yield Members(own[0], own[1], own[2:], steps[first], scalars)


def _placed_as(p: Any, grad: Any) -> Any:
    """The gradient where its parameter is: in tensor parallel training it may be a sum that still has to be made."""
    placements = getattr(p, "placements", None)
    moves = placements is not None and getattr(grad, "placements", placements) != placements
    return grad.redistribute(p.device_mesh, placements) if moves else grad


def _together(steps: list[Tensor], singly: bool) -> list[list[int]] | list[range]:
    """The indices of parameters that share a step counter."""
    if singly:
        return [[i] for i in range(len(steps))]
    by_history: dict[int, list[int]] = {}
    for i, step in enumerate(map(id, steps)):
        if step in by_history:
            by_history[step].append(i)
        else:
            by_history[step] = [i]
    return list(by_history.values())
