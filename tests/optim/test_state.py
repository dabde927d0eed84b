"""What users do to an optimizer between two steps: move parameters, reset, resize or share state, turn settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from surefoot import AdamCB, AdamUCB, LossWeighted, MomentumUCB, rules, weigh
from surefoot.optim.loss_aware import LossAware

#: The ways through a step: remembered, looked up each time, and as on an accelerator.
WAYS: dict[str, dict[str, Any]] = {"steady": {}, "careful": {"check_gradients": True}, "device": {"capturable": True}}
every_way = pytest.mark.parametrize("way", WAYS)


def make_params(*sizes: int) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, dtype=torch.float64, generator=draw)) for size in sizes]


def run(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: range) -> None:
    for i in steps:
        for j, p in enumerate(params):
            draw = torch.Generator().manual_seed(100 * i + j)
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=draw)
        if isinstance(optimizer, LossAware):
            optimizer.step(loss=1.0 + i % 3)
        else:
            optimizer.step()


def as_torch_does(
    edit: Callable[[Any, list[nn.Parameter]], None], way: str, sizes: tuple[int, ...] = (5, 5, 5)
) -> None:
    """The same edit in the middle of training, of torch's Adam and of ours with nothing to weigh: the same result."""
    ours, theirs = make_params(*sizes), make_params(*sizes)
    first = AdamUCB(ours, lr=0.01, eta=0.0, weighting="unit", **WAYS[way])
    second = torch.optim.Adam(theirs, lr=0.01)
    for optimizer, params in ((first, ours), (second, theirs)):
        run(optimizer, params, range(5))
        edit(optimizer, params)
        run(optimizer, params, range(5, 12))
    for p, q in zip(ours, theirs):
        assert float(first.state[p]["step"]) == float(second.state[q]["step"])
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


# -- parameters that move --------------------------------------------------------------------------------------------


@every_way
def test_a_parameter_moves_to_another_group(way: str) -> None:
    def edit(optimizer: Any, params: list[nn.Parameter]) -> None:
        moved = optimizer.param_groups[0]["params"].pop()
        optimizer.add_param_group({"params": [moved], "lr": 0.02})

    as_torch_does(edit, way)


@every_way
def test_a_parameter_leaves_for_some_steps(way: str) -> None:
    def edit(optimizer: Any, params: list[nn.Parameter]) -> None:
        away = optimizer.param_groups[0]["params"].pop(1)
        run(optimizer, params, range(20, 24))
        optimizer.param_groups[0]["params"].append(away)

    as_torch_does(edit, way)


@every_way
def test_groups_exchange_parameters_while_one_has_no_gradient(way: str) -> None:
    def edit(optimizer: Any, params: list[nn.Parameter]) -> None:
        a, b, c = params
        optimizer.param_groups[0]["params"] = [a]
        optimizer.add_param_group({"params": [b, c], "lr": 0.03})
        run(optimizer, params, range(20, 22))
        a.grad = b.grad = None
        c.grad = torch.ones_like(c)
        optimizer.step(**({"loss": 1.0} if isinstance(optimizer, LossAware) else {}))
        optimizer.param_groups[0]["params"], optimizer.param_groups[1]["params"] = [c], [a, b]

    as_torch_does(edit, way)


# -- state that is edited --------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("which", [0, 1])
def test_emptied_state_starts_anew(way: str, which: int) -> None:
    as_torch_does(lambda optimizer, params: optimizer.state[params[which]].clear(), way)
    as_torch_does(lambda optimizer, params: optimizer.state.pop(params[which]), way)


@every_way
@pytest.mark.parametrize("which", [0, 1])
def test_one_parameter_s_count_is_replaced(way: str, which: int) -> None:
    def edit(optimizer: Any, params: list[nn.Parameter]) -> None:
        optimizer.state[params[which]]["step"] = torch.tensor(100.0)

    as_torch_does(edit, way)


@pytest.mark.parametrize("move", [Tensor.share_memory_, lambda x: setattr(x, "data", x.data.clone())])
def test_scalars_whose_memory_is_moved_go_on_counting(move: Callable[[Tensor], Any]) -> None:
    params, others = make_params(4, 4), make_params(4, 4)
    optimizer, undisturbed = AdamUCB(params), AdamUCB(others)
    run(optimizer, params, range(5))
    for tensor in [*optimizer.state[params[0]].values(), optimizer.param_groups[0]["seen"]]:
        move(tensor)
    run(optimizer, params, range(5, 9))
    run(undisturbed, others, range(9))
    assert optimizer.state[params[0]]["step"] == 9
    assert torch.equal(optimizer.param_groups[0]["seen"], undisturbed.param_groups[0]["seen"])
    assert all(torch.equal(p, q) for p, q in zip(params, others))


# -- sizes that do not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AdamUCB, MomentumUCB])
@pytest.mark.parametrize(("saved_shape", "shape"), [((8,), (1000,)), ((2, 6), (6, 2)), ((1000,), (8,))])
def test_a_checkpoint_of_another_model_is_refused(
    kind: Any, saved_shape: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    p, q = nn.Parameter(torch.ones(saved_shape)), nn.Parameter(torch.ones(shape))
    optimizer, other = kind([p]), kind([q])
    p.grad = torch.ones(saved_shape)
    optimizer.step(loss=1.0)
    with pytest.raises(ValueError, match=r"shape .* another model"):
        other.load_state_dict(optimizer.state_dict())
    assert not other.state


@pytest.mark.parametrize("kind", [AdamUCB, MomentumUCB])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_resized_parameter_never_writes_past_its_state(kind: Any, steps: int) -> None:
    """torch's fused kernels do not look at sizes; the list operations do, and raise as torch's own Adam does."""
    p = nn.Parameter(torch.ones(8))
    optimizer = kind([p])
    for i in range(steps):
        p.grad = torch.ones(8)
        optimizer.step(loss=1.0 + i)
    p.grad = None
    p.data = torch.ones(1000)
    p.grad = torch.ones(1000)
    with pytest.raises(RuntimeError, match="size"):
        optimizer.step(loss=1.5)
    assert torch.equal(p, torch.ones(1000))


# -- settings of other kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AdamUCB, MomentumUCB])
@pytest.mark.parametrize("foreach", [None, True, False])
def test_settings_may_be_tensors(kind: Any, foreach: bool | None) -> None:
    params, others = make_params(4, 4), make_params(4, 4)
    optimizer, plain = kind(params, eta=0.2, foreach=foreach), kind(others, eta=0.2, foreach=foreach)
    run(optimizer, params, range(5))
    optimizer.param_groups[0]["eta"] = torch.tensor(0.2, dtype=torch.float64)
    optimizer.param_groups[0]["loss_beta"] = torch.tensor(0.9, dtype=torch.float64)
    run(optimizer, params, range(5, 9))
    run(plain, others, range(9))
    assert all(torch.equal(p, q) for p, q in zip(params, others))


def test_a_rule_may_compute_with_tensors() -> None:
    rule = rules.Rule("mine", lambda seen, eta, noise: (torch.tensor(0.2, dtype=torch.float64), 1.0), eta=0.2)
    params, others = make_params(4), make_params(4)
    optimizer, plain = AdamUCB(params, eta=0.2), AdamUCB(others, eta=0.2)
    optimizer.rule = rule
    run(optimizer, params, range(6))
    run(plain, others, range(6))
    assert torch.equal(params[0], others[0])


@pytest.mark.parametrize(("kind", "options"), [(MomentumUCB, {"momentum": 0.0}), (AdamUCB, {"betas": (0.0, 0.99)})])
def test_without_momentum_the_loss_is_still_remembered(kind: Any, options: dict[str, Any]) -> None:
    params, others = make_params(4), make_params(4)
    optimizer, explicit = kind(params, eta=0.5, **options), kind(others, eta=0.5, loss_beta=0.9, **options)
    run(optimizer, params, range(6))
    run(explicit, others, range(6))
    assert optimizer.confidence()[0]["std"] > 0
    assert torch.equal(params[0], others[0])


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_later_group_that_does_not_maximize_sees_the_loss_the_right_way_up(wrapped: bool) -> None:
    p, q = make_params(3, 3)
    base = torch.optim.SGD([p], lr=0.1, maximize=True)
    optimizer: Any = LossWeighted(base) if wrapped else AdamUCB([p], maximize=True)
    for loss in (1.0, 2.0, 3.0):
        p.grad = torch.ones_like(p)
        optimizer.step(loss=loss)
    optimizer.add_param_group({"params": [q], "maximize": False})
    first, second = optimizer.confidence()
    assert first["mean"] < 0
    assert second["mean"] == -first["mean"]
    assert second["std"] == first["std"]


@pytest.mark.parametrize("kind", [AdamUCB, MomentumUCB, torch.optim.Adam])
def test_autograd_follows_a_learning_rate(kind: Any) -> None:
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    p = torch.ones(3, dtype=torch.float64, requires_grad=True).clone()
    p.grad = torch.ones(3, dtype=torch.float64)
    ours = issubclass(kind, LossAware)
    optimizer = kind([p], lr=lr, differentiable=True, **({"eta": 0.0, "weighting": "unit"} if ours else {}))
    optimizer.step(**({"loss": 1.0} if ours else {}))
    assert torch.autograd.grad(p.sum(), lr)[0].item() == pytest.approx(-3.0, rel=1e-4)


# -- losses that are too large ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"amsgrad": True}], ids=str)
def test_training_goes_on_after_absurd_losses(options: dict[str, Any]) -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = AdamCB([p], lr=0.01, **options)
    for loss in (1.0, 1.2, *[1e11] * 5):
        p.grad = torch.ones(3)
        optimizer.step(loss=loss)
    for i in range(800):
        p.grad = torch.ones(3)
        optimizer.step(loss=1.0 + i % 3)
    assert all(x.isfinite().all() for x in optimizer.state[p].values())
    if options:  # these keep units of the weight, so such steps are left out, and counted
        assert optimizer.confidence()[0]["skipped"] > 0


@pytest.mark.parametrize("kind", ["AdamUCB", "AdamUCB on a device", "LossWeighted", "weigh"])
def test_a_loss_that_was_constant_for_long_does_not_lock_up(kind: str) -> None:
    """The spread shrinks to nearly nothing, and the next usual loss looks far too large: once."""
    p = nn.Parameter(torch.ones(3))
    base = torch.optim.SGD([p], lr=0.1)
    weigher = weigh(base) if kind == "weigh" else None
    device: dict[str, Any] = {"capturable": True} if "device" in kind else {}
    optimizer: Any = LossWeighted(base) if kind == "LossWeighted" else AdamUCB([p], weighting="unit", **device)
    for loss in (1.0, 2.0, *[1.0] * 2000, 5.0, 5.0, 5.0):
        if weigher is not None:
            optimizer = base
            base.zero_grad()
            weigher(loss + 0.0 * p.sum()).backward()
            base.step()
        else:
            p.grad = torch.full_like(p, 1e-3)
            optimizer.step(loss=loss)
    seen = (weigher or optimizer).confidence()[0]
    assert seen["mean"] > 1.5
    assert seen["skipped"] <= 1
    assert abs(seen["weight"]) < 10
    assert p.isfinite().all()


def test_an_infinite_weight_never_reaches_the_gradient() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    weigher = weigh(optimizer, rules.Rule("endless", lambda seen, eta, noise: (math.inf, 1.0), eta=1.0))
    for i in range(4):
        optimizer.zero_grad()
        weigher((p * (1 + i)).sum()).backward()
        optimizer.step()
    assert p.isfinite().all()
    assert weigher.confidence()[0]["skipped"] >= 3


def test_a_parameter_without_dimensions_keeps_its_dtype() -> None:
    p = nn.Parameter(torch.tensor(1.0))
    base = torch.optim.SGD([{"params": [p], "capturable": True}], lr=0.1)  # as a loss on an accelerator
    optimizer = LossWeighted(base, nonfinite="coast")
    p.grad = torch.tensor(1.0)
    optimizer.step(loss=torch.tensor(1.0))
    assert p.item() == pytest.approx(0.9)


# -- hooks and numbers -----------------------------------------------------------------------------------------------


def test_a_hook_may_put_a_checkpoint_into_another_form() -> None:
    params = make_params(3)
    optimizer = AdamUCB(params)
    run(optimizer, params, range(2))
    handle = optimizer.register_state_dict_post_hook(lambda _, state_dict: {"wrapped": state_dict})
    assert set(optimizer.state_dict()["wrapped"]) == {"state", "param_groups"}
    handle.remove()
    assert set(optimizer.state_dict()) == {"state", "param_groups"}


@pytest.mark.parametrize("weight", [4, 4.0, np.int64(4), np.float32(4), np.float64(4)])
def test_micro_batches_may_be_counted_in_any_number(weight: Any) -> None:
    params = make_params(3)
    optimizer = AdamUCB(params)
    optimizer.record_loss(1.0, weight)
    optimizer.record_loss(3.0, weight)
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    assert optimizer.confidence()[0]["mean"] == 2.0


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, "4", None, [4]])
def test_other_weights_of_micro_batches_are_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="record_loss needs a positive, finite weight, but got"):
        AdamUCB(make_params(3)).record_loss(1.0, weight)
    with pytest.raises(TypeError, match=r"pass weight\.item\(\)"):
        AdamUCB(make_params(3)).record_loss(1.0, torch.tensor(4))  # type: ignore[arg-type]
