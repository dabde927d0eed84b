"""Short training runs whose checkpoint and result are recorded in ``tests/fixtures/optim/states.bin``."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

import surefoot

FILE = Path(__file__).parent.parent / "fixtures" / "optim" / "states.bin"
DTYPES = {"float64": torch.float64, "float32": torch.float32}
SHAPES = [(2, 3), (5,), ()]
#: Losses before and after the checkpoint; in each part one is not finite.
LOSSES = [[2.0, 1.2, math.nan, 2.6, 1.9], [0.4, 2.2, math.inf, 1.5, 1.6]]
#: (part, step) at which the second tensor has no gradient, so that histories differ within a group.
MISSING = [(0, 3), (1, 1)]


def named_optimizers() -> dict[str, type[surefoot.LossAware]]:
    """Every optimizer that has a name of its own, from the public names alone."""
    public = {name: getattr(surefoot, name) for name in surefoot.__all__ if name != "rules"}
    return {
        name: cls
        for name, cls in public.items()
        if isinstance(cls, type) and issubclass(cls, surefoot.LossAware) and not name.startswith("LossAware")
    }


def defaults_then(name: str) -> dict[str, Any]:
    """The defaults of the version that wrote the file, where they are others today."""
    weighting = {"weighting": "paper"} if name.startswith("AdaMax") else {}
    return weighting if name.startswith("Momentum") else {"gain": None, **weighting}


def optimizer_cases(as_recorded: bool = True) -> dict[str, Callable[[list[Any]], Any]]:
    """How to build each recorded optimizer from its parameter groups."""

    def build(name: str, **options: Any) -> Callable[[list[Any]], Any]:
        then = defaults_then(name) if as_recorded else {}
        return lambda groups: getattr(surefoot, name)(groups, lr=0.05, **then, **options)

    def wrap(**options: Any) -> Callable[[list[Any]], Any]:
        return lambda groups: surefoot.LossWeighted(
            torch.optim.SGD(groups, lr=0.05, momentum=0.9), "s", eta=0.4, seed=3, **options
        )

    cases = {name: build(name, eta=0.4, weight_decay=0.01) for name in named_optimizers()}
    return cases | {
        "AdamUCB capturable": build("AdamUCB", eta=0.4, capturable=True),
        "AdamUCB amsgrad": build("AdamUCB", eta=0.4, amsgrad=True, weight_decay=0.1, decoupled_weight_decay=True),
        "MomentumS nesterov": build("MomentumS", eta=0.4, seed=5, nesterov=True, maximize=True, foreach=True),
        "LossWeighted": wrap(),
        "LossWeighted paper": wrap(weighting="paper", nonfinite="coast"),
    }


def tensors(dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Numbers made by integer arithmetic, the same with every version of torch."""
    return [
        (torch.arange(math.prod(shape)).add(7 * seed + 3 * i).mul(2654435761).remainder(2**16).double() / 2**15 - 1)
        .reshape(shape)
        .to(dtype)
        for i, shape in enumerate(SHAPES)
    ]


def make(case: str, params: list[Tensor], as_recorded: bool = True) -> Any:
    """The optimizer of a case, on two groups, with the defaults of the version that wrote the file or with today's."""
    return optimizer_cases(as_recorded)[case]([{"params": params[:2]}, {"params": params[2:], "lr": 0.02, "eta": 0.2}])


def parameters(values: list[Tensor]) -> list[Parameter]:
    return [Parameter(value.clone()) for value in values]


def train(optimizer: Any, params: list[Parameter], part: int) -> None:
    """The steps before the checkpoint (part 0) or after it (part 1)."""
    for step, loss in enumerate(LOSSES[part]):
        for i, (p, grad) in enumerate(zip(params, tensors(params[0].dtype, 1 + 10 * part + step))):
            p.grad = None if i == 1 and (part, step) in MISSING else grad
        optimizer.step(loss=loss)


def statistics(optimizer: Any) -> list[dict[str, float]]:
    return [{name: float(x) for name, x in group.items()} for group in optimizer.confidence()]


WEIGHERS: dict[str, dict[str, Any]] = {
    "unit": {"rule": "ucb", "eta": 0.3},
    "paper": {"rule": "cb", "eta": 0.3, "weighting": "paper", "loss_beta": 0.8},
    "noise": {"rule": "s", "eta": 0.3, "seed": 9},
}


def weigh_all(weigh: Any, part: int) -> list[float]:
    """The weights of two micro-batches per step."""
    weights = []
    for loss in LOSSES[part]:
        for value in (loss, loss + 0.25):
            x = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            weigh(x, share=1 + value % 1 if math.isfinite(value) else 1).backward()
            weights.append(x.grad.item())
        weigh.update()
    return weights
