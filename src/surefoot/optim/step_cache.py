"""The step cache: what the last step has put together for a group, verified cheaply and used again.

It is never more than a shortcut. `StepCache.look_up` checks everything that a user may have changed since the last
step: options, parameters, states, the tensors in them, gradients, addresses and sizes. If anything differs, it returns
None and changes nothing, and the step collects all of it again. In training the processor's caches are cold at each
step, so the fewer functions are called, the better.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from struct import pack_into
from typing import Any

import torch
from torch import Tensor

from surefoot.optim.engines.base import Bucket, Engine, Group
from surefoot.optim.state import ParamState, States

#: With one of these set, nothing is cached.
_UNCACHED_OPTIONS = ("capturable", "differentiable", "reference", "check_gradients")
#: The options that decide what state there is and by which kernels it is updated.
_PATH_OPTIONS = ("amsgrad", "foreach", "fused", *_UNCACHED_OPTIONS)
_LAYOUT = operator.attrgetter("layout")
_DENSE = {torch.strided}


class HostFloats:
    """Floats on the host that Python reads and writes without calling into torch; ``tensor`` shares their memory.

    A single float has ``item`` and ``fill_``, like the 0-d tensor that it stands for.

    >>> step = HostFloats(torch.tensor(2.0))
    >>> step.fill_(step.item() + 1)
    >>> step.tensor
    tensor(3.)
    """

    __slots__ = ("address", "fill_", "format", "item", "tensor", "values")
    CODES = {torch.float32: "f", torch.float64: "d"}

    def __init__(self, tensor: Tensor) -> None:
        self.values = array(self.CODES[tensor.dtype], tensor.reshape(-1).tolist())
        self.tensor = torch.frombuffer(self.values, dtype=tensor.dtype).view(tensor.shape)
        self.address = self.tensor.data_ptr()
        self.format = f"{len(self.values)}{self.values.typecode}"
        # Not methods: a partial of a built-in function is called without a frame of Python.
        self.item: Callable[[], float] = partial(self.values.__getitem__, 0)  # type: ignore[call-overload]
        self.fill_: Callable[[float], None] = partial(self.values.__setitem__, 0)

    def write(self, values: Iterable[float]) -> None:
        """Replace all floats."""
        pack_into(self.format, self.values, 0, *values)


class CachedBucket:
    """The bucket of a group whose parameters all share one history, and what it was made of."""

    def __init__(self, engine: Engine, group: Group, states: States, path: str) -> None:
        self.params = list(group["params"])
        self.states: list[ParamState] = [states[p] for p in self.params]
        self.path = path
        self.options_of = operator.itemgetter(*(name for name in _PATH_OPTIONS if name in group))
        self.options = self.options_of(group)
        first = self.states[0]
        self.step = HostFloats(first["step"])
        self.scalars = {name: HostFloats(first[name]) for name in engine.scalars}
        shared = {"step": self.step.tensor} | {name: floats.tensor for name, floats in self.scalars.items()}
        for state in self.states:
            state.update(shared)
        names = (*shared, *engine.state_names(group))
        self.tensors_of = operator.itemgetter(*names)
        self.tensors = list(chain.from_iterable(map(self.tensors_of, self.states)))
        self.columns = [self.tensors[i :: len(names)] for i in range(len(shared), len(names))]
        self.placed = [*shared.values(), *chain.from_iterable(self.columns)]
        self.addresses = list(map(Tensor.data_ptr, self.placed))
        self.sizes = 2 * list(map(Tensor.numel, self.params))

    def verified(self, group: Group, states: States) -> Bucket | None:
        """The bucket with the gradients of this step; None if anything is not as it was."""
        params, own_states = self.params, self.states
        try:
            if (
                self.options_of(group) != self.options
                or len(group["params"]) != len(params)
                or not all(map(operator.is_, group["params"], params))
            ):
                return None
            # Nearly always the states are in the order of the parameters; a look-up calls the hash of each.
            in_order = len(states) == len(own_states) and all(map(operator.is_, states.values(), own_states))
            if not (in_order or all(map(operator.is_, map(states.get, params), own_states))):
                return None
            if not all(map(operator.is_, chain.from_iterable(map(self.tensors_of, own_states)), self.tensors)):
                return None
            grads: list[Any] = [p.grad for p in params]
            if set(map(_LAYOUT, grads)) != _DENSE:
                return None
        except (KeyError, AttributeError):  # a state was emptied, an option is gone, there is no gradient
            return None
        # share_memory_() and tensor.data = ... move a tensor that stays the same object.
        if list(map(Tensor.data_ptr, self.placed)) != self.addresses:
            return None
        bucket = Bucket(params, grads, self.columns, self.step, self.scalars, self.path)
        if self.path != "fused":
            return bucket
        # The fused kernels check nothing. All was aligned before, so sizes and contiguity are nearly always enough.
        updated = [*params, *grads]
        if list(map(Tensor.numel, updated)) != self.sizes:
            return None
        return bucket if all(map(Tensor.is_contiguous, updated)) or bucket.aligned() else None


class StepCache:
    """What the last step has put together, by the index of the group."""

    def __init__(self) -> None:
        self.buckets: dict[int, CachedBucket | None] = {}
        self.vectors: dict[int, HostFloats] = {}
        self.powers: dict[int, HostFloats] = {}

    def look_up(self, groups: list[Group], states: States) -> list[Bucket | None]:
        """For each group its bucket of the last step with the gradients of this one, or None."""
        buckets = []
        for index, group in enumerate(groups):
            cached = self.buckets.get(index)
            buckets.append(None if cached is None else cached.verified(group, states))
        return buckets

    def keep(self, index: int, group: Group, states: States, engine: Engine, buckets: list[Bucket]) -> None:
        """Keep the bucket of a group on the host, if there is exactly one and nothing about it is unusual."""
        self.buckets[index] = None
        params = group["params"]
        if len(buckets) != 1 or torch.compiler.is_compiling() or any(map(group.get, _UNCACHED_OPTIONS)):
            return
        [bucket] = buckets
        if len(bucket.params) != len(params) or not all(map(operator.is_, bucket.params, params)):
            return
        first = states[params[0]]
        can_share_memory = all(first[name].dtype in HostFloats.CODES for name in ("step", *engine.scalars))
        if can_share_memory and bucket.aligned():  # otherwise the path was a detour
            self.buckets[index] = CachedBucket(engine, group, states, bucket.path)

    def drop(self, index: int) -> None:
        """Forget the bucket of a group."""
        if self.buckets.get(index) is not None:
            self.buckets[index] = None

    def vector(self, index: int, group: Group) -> HostFloats:
        """The statistics of a group on the host; a vector that is new or was moved came with a checkpoint or a copy.

        The mean square of its weights, which belongs to them, is then in ``powers``.
        """
        power, stored = self.powers.get(index), group["gain_power"]
        if power is None or stored is not power.tensor or stored.data_ptr() != power.address:
            power = self.powers[index] = HostFloats(stored.to("cpu", torch.float64))
            group["gain_power"] = power.tensor
        floats = self.vectors.get(index)
        stored = group["seen"]
        if floats is None or stored is not floats.tensor or stored.data_ptr() != floats.address:
            floats = self.vectors[index] = HostFloats(stored.to("cpu", torch.float64))
            group["seen"] = floats.tensor
        return floats
