"""Two steps of an engine on one parameter, for values that are computed by hand."""

from __future__ import annotations

from typing import Any

import torch

from surefoot.optim.engines import Bucket, Engine

#: The weighted gradients are 1 and -1.
GRADIENTS, WEIGHTS = (2.0, 4.0), (0.5, -0.25)
OPTIONS: dict[str, Any] = {
    "lr": 0.1,
    "betas": (0.5, 0.75),
    "eps": 0.0,
    "momentum": 0.5,
    "nesterov": False,
    "amsgrad": False,
    "weight_decay": 0.0,
    "decoupled_weight_decay": False,
    "maximize": False,
    "momentum_decay": 0.0,
}
ON_DEVICE = "foreach, with the weight as a tensor"


def make_bucket(engine: Engine, group: dict[str, Any], path: str = "forloop") -> Bucket:
    """One parameter at 1, with new state."""
    param = torch.ones(1, dtype=torch.float64)
    state = [[torch.zeros_like(param)] for _ in engine.state_names(group)]
    scalars = {name: torch.tensor(value, dtype=torch.float64) for name, value in engine.scalars.items()}
    return Bucket([param], [torch.zeros_like(param)], state, torch.tensor(0.0), scalars, path)


def two_steps(
    engine: Engine, path: str, gradients: tuple[float, float] = GRADIENTS, **options: Any
) -> tuple[list[float], Bucket]:
    """How far the parameter went down in each of two steps, and the bucket after them."""
    group = {**OPTIONS, **options}
    on_device = path == ON_DEVICE
    bucket = make_bucket(engine, group, "foreach" if on_device else path)
    moves = []
    for gradient, weight in zip(gradients, WEIGHTS):
        before = bucket.params[0].item()
        bucket.grads[0].fill_(gradient)
        if on_device:
            engine.update(bucket, group, torch.tensor(weight, dtype=torch.float64), torch.tensor(True))
        else:
            engine.update(bucket, group, weight, True)
        moves.append(before - bucket.params[0].item())
    return moves, bucket


def assert_a_skipped_step_changes_nothing(engine: Engine) -> None:
    """On a device a step is skipped by a tensor; even a gradient that is NaN leaves no trace."""
    _, bucket = two_steps(engine, ON_DEVICE)
    tensors = [*bucket.params, *(column[0] for column in bucket.state), bucket.step, *bucket.scalars.values()]
    before = [tensor.clone() for tensor in tensors]
    bucket.grads[0].fill_(float("nan"))
    engine.update(bucket, OPTIONS, torch.tensor(0.5, dtype=torch.float64), torch.tensor(False))
    assert all(map(torch.equal, tensors, before))
