"""What an engine is given and what it must do.

An engine owns the per-parameter state and applies one update to parameters that share a history: they had gradients at
the same steps, so one set of scalars serves them all. The weight of the gradient is a float when the statistics live
on the host, and a 0-d tensor that is never read back when they live on an accelerator; a step to be skipped is then a
tensor too (``proceed``), because a branch on it would wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.optim.engines.tensor_lists import Foreach, ForLoop, Tensors
from surefoot.statistics import Number

_SHAPE = attrgetter("shape")
#: A 0-d tensor; on the host it may be a Cell, which is read and written in the same way.
Scalar = Any


@dataclass(slots=True)
class Members:
    """Parameters that are updated together: lists of equal length, and the scalars that they share."""

    params: Tensors
    grads: Tensors
    kept: list[Tensors]
    step: Scalar
    scalars: Mapping[str, Scalar]

    def aligned(self) -> bool:
        """Whether entry i lies at the same place in memory in each of a parameter's tensors.

        The fused kernels take it for granted; on the CPU they do not look, and would mix up a transposed gradient or
        write past the edges of a parameter that is a slice, or of state that is another parameter's.
        """
        shapes = list(map(_SHAPE, self.params))
        if not all(list(map(_SHAPE, column)) == shapes for column in (self.grads, *self.kept)):
            return False
        if all(map(Tensor.is_contiguous, chain(self.params, self.grads, *self.kept))):
            return True
        # State has no gaps: where its strides are the parameter's, the parameter has none either.
        columns = (self.grads, *self.kept)
        return all(all(x.stride() == p.stride() for x, p in zip(column, self.params)) for column in columns)


class Engine:
    """Weighted gradient -> update."""

    name: ClassVar[str]
    #: Whether one of torch's fused kernels serves this engine.
    has_fused: ClassVar[bool] = False
    #: Scalars of a parameter's history beside the step count, and where they start.
    scalars: ClassVar[dict[str, float]] = {}
    #: State tensors that the host keeps divided by one of the scalars (see normalised.py).
    units: ClassVar[dict[str, str]] = {}

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The state tensors of a parameter, in the order of ``Members.kept``; each starts at zero."""
        raise NotImplementedError

    def momentum(self, group: dict[str, Any]) -> float:
        """The decay rate of the engine's first moment: the default for the loss statistics."""
        return float(group["betas"][0])

    def update(self, members: Members, group: dict[str, Any], weight: Number, proceed: Number, path: str) -> None:
        """Apply one step; ``path`` is "fused", "foreach" or "forloop"."""
        raise NotImplementedError


def ops_of(path: str) -> Any:
    """The list operations of a path."""
    return ForLoop if path == "forloop" else Foreach


def descent(members: Members, group: dict[str, Any], ops: Any) -> Tensors:
    """The gradient to go down: turned around to maximize, with L2 decay added before weighting, as published."""
    decay = 0.0 if group.get("decoupled_weight_decay") else group["weight_decay"]
    if decay:
        h = ops.mul(members.params, decay)
        (ops.sub_ if group["maximize"] else ops.add_)(h, members.grads)
        return h
    return ops.neg(members.grads) if group["maximize"] else members.grads


def weighted(members: Members, group: dict[str, Any], weight: Number, proceed: Number, ops: Any) -> Tensors:
    """A copy of the gradient times its weight; zero where the step is to be skipped, whatever the gradient holds."""
    h = ops.mul(descent(members, group, ops), weight)
    if isinstance(proceed, Tensor):
        # Only among parameters without dimensions does the weight's float64 spread to the product.
        h = [x.to(p.dtype) for x, p in zip(masked(h, proceed), members.params)]
    return h


def masked(xs: Tensors, proceed: Number) -> Tensors:
    """Zero where the step is to be skipped, whatever was there."""
    return [torch.where(proceed, x, 0.0) for x in xs] if isinstance(proceed, Tensor) else xs


def decay_decoupled(members: Members, group: dict[str, Any], lr: Number, proceed: Number, ops: Any) -> None:
    """AdamW's decay: shrink the parameters themselves, by lr * weight_decay."""
    if group.get("decoupled_weight_decay") and group["weight_decay"]:
        ops.mul_(members.params, 1 - applied(lr, proceed) * group["weight_decay"])


def keep(beta: Number, proceed: Number) -> Number:
    """The decay of a moment, or 1 where the step is skipped."""
    return _choose(beta, proceed, 1.0)


def applied(amount: Number, proceed: Number) -> Number:
    """An amount to move by, or 0 where the step is skipped."""
    return _choose(amount, proceed, 0.0)


def _choose(value: Number, proceed: Number, otherwise: float) -> Number:
    if not isinstance(proceed, Tensor):
        return plain(value)
    # A 0-d tensor does not widen what it multiplies, but as float32 it would round the value itself.
    return torch.where(proceed, scalar_on(proceed.device, value), otherwise)


def counted(members: Members, proceed: Number) -> Number:
    """Count the step and return its number: a float on the host, a tensor (at least 1) on the device."""
    if isinstance(proceed, Tensor):
        members.step.add_(proceed)
        return members.step.clamp(min=1).to(wide(members.step.device))
    count = members.step.item() + 1
    members.step.fill_(count)
    return count


def plain(value: Number) -> Number:
    """A setting as a float (torch allows tensors), unless autograd has to follow it."""
    return value if isinstance(value, Tensor) and value.requires_grad else float(value)


def betas_of(group: dict[str, Any]) -> tuple[float, float]:
    """The decay rates as floats; torch allows tensors."""
    beta1, beta2 = group["betas"]
    return float(beta1), float(beta2)


def eps_of(group: dict[str, Any]) -> float:
    """The eps of a group; for 0 the least normal float32, so that what has no gradient yet is not 0 / 0."""
    return float(group["eps"]) or 2.0**-126


def scalar_on(device: torch.device, value: Number) -> Tensor:
    """A number as a 0-d tensor on a device: a float is filled in there, because copying it over would wait."""
    if isinstance(value, Tensor):
        return value.to(device, wide(device), non_blocking=True).reshape(())
    return torch.full((), value, dtype=wide(device), device=device)


def wide(device: torch.device) -> torch.dtype:
    """The widest float of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def root(x: Number) -> Number:
    """The square root of a float or a tensor."""
    return x.sqrt() if isinstance(x, Tensor) else math.sqrt(x)
