"""The same few operations on lists of tensors, one kernel for all of them or one after the other.

An engine's formula is written once against these names; ``Foreach`` hands the lists to torch's multi-tensor kernels,
``ForLoop`` walks through them with ordinary operations, which autograd follows. A scalar may be a float or a 0-d
tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Tensors = list[Tensor]


class Foreach:
    """Lists at once."""

    mul = staticmethod(torch._foreach_mul)
    mul_ = staticmethod(torch._foreach_mul_)
    add = staticmethod(torch._foreach_add)
    add_ = staticmethod(torch._foreach_add_)
    div = staticmethod(torch._foreach_div)
    div_ = staticmethod(torch._foreach_div_)
    neg = staticmethod(torch._foreach_neg)
    sqrt = staticmethod(torch._foreach_sqrt)
    abs = staticmethod(torch._foreach_abs)
    sub_ = staticmethod(torch._foreach_sub_)
    maximum_ = staticmethod(torch._foreach_maximum_)


class ForLoop:
    """One after the other."""

    @staticmethod
    def mul(xs: Tensors, y: Any) -> Tensors:
        return [x * b for x, b in _pairs(xs, y)]

    @staticmethod
    def mul_(xs: Tensors, y: Any) -> None:
        for x, b in _pairs(xs, y):
            x.mul_(b)

    @staticmethod
    def add(xs: Tensors, y: Any) -> Tensors:
        return [x + b for x, b in _pairs(xs, y)]

    @staticmethod
    def add_(xs: Tensors, y: Any) -> None:
        for x, b in _pairs(xs, y):
            x.add_(b)

    @staticmethod
    def div(xs: Tensors, y: Any) -> Tensors:
        return [_saved(x) / _saved(b) for x, b in _pairs(xs, y)]

    @staticmethod
    def div_(xs: Tensors, y: Any) -> None:
        for x, b in _pairs(xs, y):
            x.div_(b)

    @staticmethod
    def neg(xs: Tensors) -> Tensors:
        return [-x for x in xs]

    @staticmethod
    def sqrt(xs: Tensors) -> Tensors:
        return [x.sqrt() for x in xs]

    @staticmethod
    def abs(xs: Tensors) -> Tensors:
        return [x.abs() for x in xs]

    @staticmethod
    def sub_(xs: Tensors, y: Any) -> None:
        for x, b in _pairs(xs, y):
            x.sub_(b)

    @staticmethod
    def maximum_(xs: Tensors, y: Any) -> None:
        for x, b in _pairs(xs, y):
            x.copy_(torch.maximum(_saved(x), b))


def _saved(x: Any) -> Any:
    """What autograd remembers must not be the state itself, which the next step changes in place."""
    return x.clone() if torch.is_grad_enabled() and isinstance(x, Tensor) else x


def _pairs(xs: Tensors, y: Any) -> Any:
    return zip(xs, y) if isinstance(y, (list, tuple)) else ((x, y) for x in xs)


def square_into(ops: Any, kept: Tensors, xs: Tensors, gain: Any) -> None:
    """kept += gain * xs**2, without a second temporary where the scalar allows it."""
    if ops is Foreach and not isinstance(gain, Tensor):
        torch._foreach_addcmul_(kept, xs, xs, gain)
    else:
        ops.add_(kept, ops.mul(ops.mul(xs, xs), gain))


def add_scaled(ops: Any, kept: Tensors, xs: Tensors, gain: Any) -> None:
    """kept += gain * xs, without a temporary where the scalar allows it."""
    if ops is Foreach and not isinstance(gain, Tensor):
        torch._foreach_add_(kept, xs, alpha=gain)
    else:
        ops.add_(kept, ops.mul(xs, gain))
