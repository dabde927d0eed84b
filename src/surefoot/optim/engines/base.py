"""What an engine is given and what it must do.

An engine owns the state of each parameter and applies one update to a bucket: parameters that had gradients at the same
steps, so that they share one set of scalars. The weight of the gradient is a float if the statistics are on the host.
If they are on a device, the weight is a 0-d tensor that is never read back; whether the step is taken is then a tensor
too (``proceed``), because a branch on it would wait for the device.

On the host, Adam and Momentum keep *normalised* moments, divided by the same moments of the weight itself. With w the
weight, ``A = b1*A + (1-b1)*abs(w)`` and ``C = b2*C + (1-b2)*w*w``, the quantities ``N = m/A`` and ``V = v/C`` follow
the plain recurrences on ``sign(w) * g`` with the decays ``b1*A_old/A`` and ``b2*C_old/C`` in each step. So a fused
kernel can run on the raw gradient, no gradient is copied, and tiny weights never underflow in the parameter's dtype.
The division is a free choice of units: state with A = C = 1 holds ordinary moments.
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
from surefoot.statistics import Number, scalar_on, widest_float

_SHAPE = attrgetter("shape")
#: A parameter group: its parameters, options and statistics.
Group = dict[str, Any]
#: A 0-d tensor; on the host it may be HostFloats, which are read and written in the same way.
Scalar = Any


@dataclass(slots=True, eq=False)
class Bucket:
    """What one kernel call updates: lists of equal length, and the scalars that all parameters share.

    ``path`` says by which kernels: "fused", "foreach" or "forloop".
    """

    params: Tensors
    grads: Tensors
    state: list[Tensors]
    step: Scalar
    scalars: Mapping[str, Scalar]
    path: str = "forloop"

    def aligned(self) -> bool:
        """Whether entry i is at the same place in memory in each of a parameter's tensors.

        The fused kernels assume it. On the CPU they do not check: they would mix up a transposed gradient, or write
        beyond a parameter that is a slice, or beyond state of another size.
        """
        shapes = list(map(_SHAPE, self.params))
        if not all(list(map(_SHAPE, column)) == shapes for column in (self.grads, *self.state)):
            return False
        if all(map(Tensor.is_contiguous, chain(self.params, self.grads, *self.state))):
            return True
        # State has no gaps: if its strides are the parameter's, the parameter has none either.
        columns = (self.grads, *self.state)
        return all(all(x.stride() == p.stride() for x, p in zip(column, self.params)) for column in columns)


class Engine:
    """Weighted gradient -> update."""

    name: ClassVar[str]
    #: Whether one of torch's fused kernels can do the update.
    has_fused: ClassVar[bool] = False
    #: Whether torch's optimizer of this name refuses a learning rate or decay rates that are tensors with foreach=True.
    refuses_tensors_with_foreach: ClassVar[bool] = False
    #: Scalars of a parameter beside its step count, and their initial values.
    scalars: ClassVar[dict[str, float]] = {}
    #: State tensors that the host keeps divided by one of the scalars (normalised moments, see above).
    units: ClassVar[dict[str, str]] = {}

    def state_names(self, group: Group) -> tuple[str, ...]:
        """The state tensors of a parameter, in the order of ``Bucket.state``; each starts at zero."""
        raise NotImplementedError

    def momentum(self, group: Group) -> Number:
        """The decay rate of the engine's first moment: the default for the loss statistics."""
        return group["betas"][0]

    def update(self, bucket: Bucket, group: Group, weight: Number, proceed: bool | Tensor) -> None:
        """Apply one step."""
        raise NotImplementedError


def ops_of(path: str) -> Any:
    """The list operations of a path."""
    return ForLoop if path == "forloop" else Foreach


def descent_gradient(bucket: Bucket, group: Group, ops: Any) -> Tensors:
    """The gradient of what is minimized: negated to maximize, with L2 decay added before weighting, as published."""
    decay = 0.0 if group.get("decoupled_weight_decay") else group["weight_decay"]
    if decay:
        h = ops.mul(bucket.params, as_float(decay))
        (ops.sub_ if group["maximize"] else ops.add_)(h, bucket.grads)
        return h
    return ops.neg(bucket.grads) if group["maximize"] else bucket.grads


def weighted_gradient(bucket: Bucket, group: Group, weight: Number, proceed: bool | Tensor, ops: Any) -> Tensors:
    """A copy of the gradient times its weight; zero if the step is skipped, whatever the gradient holds."""
    h = ops.mul(descent_gradient(bucket, group, ops), weight)
    if isinstance(proceed, Tensor):
        # A float64 weight makes the product float64 only for parameters without dimensions.
        h = [x.to(p.dtype) for x, p in zip(masked(h, proceed), bucket.params)]
    return h


def masked(xs: Tensors, proceed: bool | Tensor) -> Tensors:
    """Zero if the step is skipped, whatever was there."""
    return [torch.where(proceed, x, 0.0) for x in xs] if isinstance(proceed, Tensor) else xs


def decay_decoupled(bucket: Bucket, group: Group, lr: Number, proceed: bool | Tensor, ops: Any) -> None:
    """AdamW's decay: shrink the parameters themselves, by lr * weight_decay."""
    if group.get("decoupled_weight_decay") and group["weight_decay"]:
        ops.mul_(bucket.params, 1 - amount_or_zero(lr, proceed) * as_float(group["weight_decay"]))


def decay_or_one(beta: Number, proceed: bool | Tensor) -> Number:
    """The decay of a moment, or 1 if the step is skipped."""
    return _choose(beta, proceed, 1.0)


def amount_or_zero(amount: Number, proceed: bool | Tensor) -> Number:
    """An amount to move by, or 0 if the step is skipped."""
    return _choose(amount, proceed, 0.0)


def _choose(value: Number, proceed: bool | Tensor, otherwise: float) -> Number:
    if not isinstance(proceed, Tensor):
        return as_float(value)
    # A 0-d tensor does not widen what it multiplies, but as float32 it would round the value itself.
    return torch.where(proceed, scalar_on(proceed.device, value), otherwise)


def next_step(bucket: Bucket, proceed: bool | Tensor) -> Number:
    """Count the step and return its number: a float on the host, a tensor (at least 1) on the device."""
    if isinstance(proceed, Tensor):
        bucket.step.add_(proceed)
        return bucket.step.clamp(min=1).to(widest_float(bucket.step.device))
    count = bucket.step.item() + 1
    bucket.step.fill_(count)
    return count


def kernel_is_precise_enough(gain: float, on_cpu: bool) -> bool:
    """Whether 1 - decay is precise enough: the kernel is given the decay only.

    On the CPU the kernel computes it in double precision, elsewhere in float32, where it soon is only rounding error.

    >>> kernel_is_precise_enough(1e-6, on_cpu=True), kernel_is_precise_enough(1e-6, on_cpu=False)
    (True, False)
    """
    return gain > (1e-9 if on_cpu else 1e-4)


def update_weight_moment(moment: Scalar, size: float, beta: float) -> tuple[float, float, float]:
    """Add a weight to its running mean; return the mean, and the decay and the gain of the normalised moment.

    Decay and gain sum to one, but a small gain computed as 1 - decay would be only rounding error.

    >>> mean = torch.zeros((), dtype=torch.float64)
    >>> update_weight_moment(mean, 0.5, 0.75), update_weight_moment(mean, 0.0, 0.75), mean.item()
    ((0.125, 0.0, 1.0), (0.09375, 1.0, 0.0), 0.09375)
    """
    old = moment.item()
    new = beta * old + (1 - beta) * size
    moment.fill_(new)
    return (new, beta * old / new, (1 - beta) * size / new) if new > 0 else (0.0, 1.0, 0.0)


def as_float(value: Number) -> Number:
    """An option as a float (torch allows tensors), unless autograd has to follow it."""
    return value.reshape(()) if isinstance(value, Tensor) and value.requires_grad else float(value)


def betas_of(group: Group) -> tuple[Number, Number]:
    """The decay rates, as floats unless autograd has to follow them."""
    beta1, beta2 = betas = group["betas"]
    return betas if type(beta1) is type(beta2) is float else (as_float(beta1), as_float(beta2))


def eps_of(group: Group) -> float:
    """The eps of a group; for 0 the smallest normal float32, so that a parameter without a gradient is not 0 / 0."""
    return float(group["eps"]) or 2.0**-126


def root(x: Number) -> Number:
    """The square root of a float or a tensor."""
    return x.sqrt() if isinstance(x, Tensor) else math.sqrt(x)
