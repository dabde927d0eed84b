"""The same few operations on lists of tensors, one kernel for all of them or one after the other.

An engine's formula is written once against these names; ``Foreach`` hands the lists to torch's multi-tensor kernels,
``ForLoop`` walks through them with ordinary operations, which autograd follows. A scalar may be a float or a 0-d
tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

Tensors = list[Tensor]


class Foreach:
    """Lists at once."""

    mul, mul_ = torch._foreach_mul, torch._foreach_mul_
    add_, sub_ = torch._foreach_add_, torch._foreach_sub_
    div, div_ = torch._foreach_div, torch._foreach_div_
    neg, sqrt, abs = torch._foreach_neg, torch._foreach_sqrt, torch._foreach_abs
    maximum_ = torch._foreach_maximum_


def _saved(x: Any) -> Any:
    """What autograd remembers must not be the state itself, which the next step changes in place."""
    return x.clone() if torch.is_grad_enabled() and isinstance(x, Tensor) else x


def _product(x: Tensor, y: Any) -> Tensor:
    return (_saved(x) if isinstance(y, Tensor) and y.requires_grad else x) * y


def _of_one(operation: Callable[[Tensor], Tensor]) -> Any:
    return staticmethod(lambda xs: [operation(x) for x in xs])


def _of_two(operation: Callable[[Tensor, Any], Tensor]) -> Any:
    def apply(xs: Tensors, y: Any) -> Tensors:
        ys = y if isinstance(y, (list, tuple)) else repeat(y)
        return [operation(x, b) for x, b in zip(xs, ys)]

    return staticmethod(apply)


class ForLoop:
    """One after the other."""

    mul, mul_ = _of_two(_product), _of_two(Tensor.mul_)
    add_, sub_ = _of_two(Tensor.add_), _of_two(Tensor.sub_)
    div, div_ = _of_two(lambda x, y: _saved(x) / _saved(y)), _of_two(Tensor.div_)
    neg, sqrt, abs = _of_one(torch.neg), _of_one(torch.sqrt), _of_one(torch.abs)
    maximum_ = _of_two(lambda x, y: x.copy_(torch.maximum(_saved(x), y)))


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
