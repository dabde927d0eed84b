"""What engines share: the gradient of what is minimized, its weight, skipped steps, and buckets that fit a kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_steps import OPTIONS
from surefoot.optim.engines.base import (
    Bucket,
    amount_or_zero,
    as_float,
    decay_decoupled,
    decay_or_one,
    descent_gradient,
    eps_of,
    next_step,
    ops_of,
    weighted_gradient,
)

YES, NO = torch.tensor(True), torch.tensor(False)


def bucket(param: Any = (1.0, -2.0), grad: Any = (3.0, 4.0)) -> Bucket:
    tensors = [torch.tensor(values) for values in (param, grad)]
    return Bucket([tensors[0]], [tensors[1]], [[torch.zeros_like(tensors[0])]], torch.tensor(0.0), {})


@pytest.mark.parametrize("path", ["forloop", "foreach"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3.0, 4.0]),
        ({"maximize": True}, [-3.0, -4.0]),
        ({"weight_decay": 0.5}, [3.5, 3.0]),
        ({"weight_decay": 0.5, "maximize": True}, [-2.5, -5.0]),
        ({"weight_decay": 0.5, "decoupled_weight_decay": True}, [3.0, 4.0]),
    ],
)
def test_the_gradient_of_what_is_minimized(path: str, options: dict[str, Any], expected: list[float]) -> None:
    full = bucket()
    [gradient] = descent_gradient(full, {**OPTIONS, **options}, ops_of(path))
    assert gradient.tolist() == expected
    assert full.grads[0].tolist() == [3.0, 4.0]


def test_a_skipped_gradient_is_zero_whatever_it_holds() -> None:
    full = bucket(grad=(float("nan"), float("inf")))
    weight = torch.tensor(0.5, dtype=torch.float64)
    [gradient] = weighted_gradient(full, OPTIONS, weight, NO, ops_of("forloop"))
    assert gradient.tolist() == [0.0, 0.0]
    [gradient] = weighted_gradient(bucket(), OPTIONS, weight, YES, ops_of("forloop"))
    assert gradient.tolist() == [1.5, 2.0]


def test_a_float64_weight_keeps_the_dtype_of_a_parameter_without_dimensions() -> None:
    [gradient] = weighted_gradient(
        bucket(1.0, 3.0), OPTIONS, torch.tensor(0.5, dtype=torch.float64), YES, ops_of("forloop")
    )
    assert gradient.dtype == torch.float32


@pytest.mark.parametrize(("proceed", "expected"), [(True, [0.95, -1.9]), (YES, [0.95, -1.9]), (NO, [1.0, -2.0])])
def test_decoupled_decay(proceed: Any, expected: list[float]) -> None:
    full = bucket()
    group = {**OPTIONS, "weight_decay": 0.5, "decoupled_weight_decay": True}
    decay_decoupled(full, group, 0.1, proceed, ops_of("forloop"))
    assert full.params[0].tolist() == pytest.approx(expected)


def test_a_skipped_step_has_decay_one_and_amount_zero() -> None:
    assert (decay_or_one(0.9, True), amount_or_zero(0.1, True)) == (0.9, 0.1)
    assert (float(decay_or_one(0.9, YES)), float(amount_or_zero(0.1, YES))) == (0.9, 0.1)
    assert (float(decay_or_one(0.9, NO)), float(amount_or_zero(0.1, NO))) == (1.0, 0.0)


def test_steps_are_counted_from_one_and_skipped_ones_are_not() -> None:
    full = bucket()
    assert float(next_step(full, NO)) == 1.0  # no step has number 0, by which a bias correction would divide
    assert full.step.item() == 0.0
    assert next_step(full, True) == 1.0
    assert float(next_step(full, YES)) == 2.0


def test_options_may_be_tensors() -> None:
    assert as_float(torch.tensor(0.5)) == 0.5
    followed = torch.tensor(0.5, requires_grad=True)
    assert as_float(followed).requires_grad
    assert eps_of({"eps": 0.0}) > 0
    assert eps_of({"eps": torch.tensor(0.25)}) == 0.25


def test_a_fused_kernel_needs_the_same_order_in_memory() -> None:
    full = bucket([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]])
    assert full.aligned()
    full.grads[0] = full.grads[0].T
    assert not full.aligned()
    full.params[0], full.state[0][0] = full.params[0].T, full.state[0][0].T
    assert full.aligned()  # the same order everywhere, whichever it is
    full.state[0][0] = torch.zeros(3)
    assert not full.aligned()
