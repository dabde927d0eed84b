"""torch.compile(optimizer.step): the same steps as without it, compiled once."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import Parameter

from surefoot import Anytime, LossAware
from surefoot.optim.named import OPTIMIZERS

LOSSES = [2.0, 1.0, float("nan"), 3.0, 0.5, 0.7, 1.1]


@pytest.fixture(autouse=True)
def clean_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def start(
    cls: type[LossAware], options: dict[str, Any], shapes: tuple[tuple[int, ...], ...] = ((2, 3),)
) -> tuple[list[Tensor], LossAware]:
    params = [Parameter(torch.full(shape, 0.5)) for shape in shapes]
    return params, cls(params, lr=0.01, **options)


def set_gradients(params: list[Tensor], t: int) -> None:
    generator = torch.Generator().manual_seed(t)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)


def compare(
    name: str,
    options: dict[str, Any],
    backend: str = "aot_eager",
    compiled_at: Callable[[int], bool] = lambda t: True,
    as_loss: Callable[[float], Any] = torch.tensor,
    **more: Any,
) -> None:
    params, optimizer = start(OPTIMIZERS[name], options, **more)
    others, eager = start(OPTIMIZERS[name], options, **more)
    step = torch.compile(optimizer.step, backend=backend)
    for t, loss in enumerate(LOSSES):
        set_gradients(params, t)
        set_gradients(others, t)
        (step if compiled_at(t) else optimizer.step)(loss=as_loss(loss))
        eager.step(loss=as_loss(loss))
        for p, q in zip(params, others):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
            assert optimizer.state[p]["step"] == eager.state[q]["step"]
    for compiled_group, eager_group in zip(optimizer.param_groups, eager.param_groups):
        torch.testing.assert_close(compiled_group["seen"], eager_group["seen"], rtol=1e-12, atol=1e-12)
        assert compiled_group["seen"][4] == 1


def test_a_loss_that_is_a_plain_number_is_compiled_too() -> None:
    compare("AdamUCB", {}, as_loss=float)


@pytest.mark.parametrize("name", ["AdamCVaR", "AdamEI", "MomentumCB", "AdaMaxUCB", "NAdamS"])
def test_compiled_steps_are_the_same_steps(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # a compiler that stumbles says so
        warnings.filterwarnings("ignore", message=".*(Profiler|functorch|graph break).*")
        compare(name, {"capturable": True})
    # The first call may find state missing; after that a steady run has one graph.
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("options", [{"fused": True, "capturable": True}, {"amsgrad": True, "weight_decay": 0.1}])
def test_options_under_a_compiler(options: dict[str, Any]) -> None:
    compare("AdamUCB", options)


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler")
def test_inductor() -> None:
    compare("AdamUCB", {"capturable": True}, "inductor")
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("name", ["MomentumS", "AdaMaxUCB"])
def test_compiled_and_eager_steps_may_alternate(name: str) -> None:
    compare(name, {}, compiled_at=lambda t: t in (2, 3, 5), shapes=((2,), (), (3,)))


def test_groups_under_a_compiler() -> None:
    params, others = ([Parameter(torch.ones(2)), Parameter(torch.ones(3))] for _ in range(2))
    make = OPTIMIZERS["MomentumUCB"]
    compiled, eager = (
        make([{"params": ps[:1], "eta": 0.5}, {"params": ps[1:], "lr": 0.05}]) for ps in (params, others)
    )
    step = torch.compile(compiled.step, backend="aot_eager")
    for t, loss in enumerate(LOSSES):
        set_gradients(params, t)
        set_gradients(others, t)
        step(loss=torch.tensor(loss))
        eager.step(loss=torch.tensor(loss))
    for p, q in zip(params, others):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_a_changing_tensor_learning_rate_compiles_once() -> None:
    p = Parameter(torch.ones(3))
    lr = torch.tensor(0.1)
    optimizer = OPTIMIZERS["MomentumUCB"]([p], lr=lr, capturable=True)
    step = torch.compile(optimizer.step, backend="aot_eager")
    moved = []
    for t in range(6):
        p.grad = torch.ones(3)
        before = p.detach().clone()
        lr.fill_(0.1 / (t + 1))
        step(loss=torch.tensor(1.0))
        moved.append((before - p.detach())[0].item())
    assert moved == pytest.approx([0.1 / (t + 1) for t in range(6)], rel=1e-5)
    assert counters["stats"]["unique_graphs"] <= 2


def test_an_average_beside_a_compiled_step() -> None:
    def make() -> tuple[Parameter, Anytime]:
        p = Parameter(torch.full((2, 3), 0.5))
        return p, Anytime(torch.optim.AdamW([p], lr=0.01), every=2)

    (p, optimizer), (q, eager) = make(), make()
    step = torch.compile(optimizer.step, backend="aot_eager")
    for t, loss in enumerate(LOSSES):
        set_gradients([p], t)
        set_gradients([q], t)
        step(loss=torch.tensor(loss))
        eager.step(loss=torch.tensor(loss))
        torch.testing.assert_close(p, q)
        with optimizer.averaged(), eager.averaged():
            torch.testing.assert_close(p, q)
