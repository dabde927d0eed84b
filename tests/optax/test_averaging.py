"""surefoot.optax.anytime: the same average as in torch, under jit, scan and vmap; the base takes its own steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy
optax = pytest.importorskip("optax")

import surefoot  # noqa: E402
import surefoot.optax as so  # noqa: E402

RNG = np.random.default_rng(0)
TARGETS = RNG.standard_normal((60, 3)).astype(np.float32) + np.linspace(3, 1, 60, dtype=np.float32)[:, None]
START = {"w": jnp.zeros(3), "b": jnp.zeros(())}


def loss(params: Any, target: Any) -> Any:
    return jnp.mean((params["w"] + params["b"] - target) ** 2)


def step_of(optimizer: Any) -> Any:
    def step(carry: Any, target: Any) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, target)
        updates, state = optimizer.update(grads, state, params, value=value)
        params = optax.apply_updates(params, updates)
        return (params, state), so.averaged_params(state, params)

    return step


def train(optimizer: Any, targets: Any = TARGETS) -> tuple[Any, Any, list[Any]]:
    step, carry, averages = jax.jit(step_of(optimizer)), (START, optimizer.init(START)), []
    for target in targets:
        carry, average = step(carry, target)
        averages.append(average)
    return *carry, averages


@pytest.mark.parametrize("every", [1, 4])
def test_the_average_is_that_of_torch(every: int) -> None:
    w, b = (torch.nn.Parameter(torch.zeros(shape)) for shape in (3, ()))
    optimizer = surefoot.Anytime(torch.optim.SGD([w, b], lr=0.1), every=every)
    *_, averages = train(so.anytime(optax.sgd(0.1), every=every))
    for target, average in zip(TARGETS, averages, strict=True):
        optimizer.zero_grad()
        value = (w + b - torch.from_numpy(target)).pow(2).mean()
        value.backward()
        optimizer.step(loss=value)
        with optimizer.averaged():
            np.testing.assert_allclose(average["w"], w.detach().numpy(), rtol=2e-3, atol=2e-4)
            np.testing.assert_allclose(average["b"], b.detach().numpy(), rtol=2e-3, atol=2e-4)


def test_the_base_takes_its_own_steps() -> None:
    for base in (optax.adam(0.1), so.adam_s(0.1, eta=0.3)):
        params, state, _ = train(so.anytime(base, every=3))

        def step(carry: Any, target: Any, base: Any = base) -> Any:
            value, grads = jax.value_and_grad(loss)(carry[0], target)
            more = {"value": value} if hasattr(base.update, "__wrapped__") or base is not None else {}
            updates, after = optax.with_extra_args_support(base).update(grads, carry[1], carry[0], **more)
            return (optax.apply_updates(carry[0], updates), after), None

        carry, compiled = (START, base.init(START)), jax.jit(step)
        for target in TARGETS:
            carry, _ = compiled(carry, target)
        jax.tree.map(np.testing.assert_array_equal, params, carry[0])
        jax.tree.map(np.testing.assert_array_equal, state.base_state, carry[1])


def test_the_rate_falls_with_the_span_of_the_average() -> None:
    """With a constant gradient and loss each step is as long as the rate; the span is then the number of steps."""
    optimizer = so.anytime(optax.sgd(0.1), every=1, rate_span=10.0)
    params, state = jnp.zeros(()), optimizer.init(jnp.zeros(()))
    moves = []
    for _ in range(30):
        updates, state = optimizer.update(jnp.ones(()), state, params, value=1.0)
        moves.append(float(-updates))
        params = optax.apply_updates(params, updates)
    assert moves == pytest.approx([0.1 / (1 + steps / 10) for steps in range(30)])
    weights = torch.nn.Parameter(torch.zeros(()))
    anytime = surefoot.Anytime(torch.optim.SGD([weights], lr=0.1), every=1)
    for _ in range(30):
        weights.grad = torch.ones(())
        anytime.step(loss=1.0)
    assert float(state.numbers.span(1)) == pytest.approx(anytime.span, abs=1)


def test_scan_takes_the_same_steps_and_the_state_can_be_donated() -> None:
    optimizer = so.anytime(optax.adam(0.1), every=3)
    params, state, averages = train(optimizer)
    (scanned, _), every_average = jax.lax.scan(step_of(optimizer), (START, optimizer.init(START)), TARGETS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), scanned, params)
    np.testing.assert_allclose(every_average["w"][-1], averages[-1]["w"], rtol=1e-4)
    donated = jax.jit(step_of(optimizer), donate_argnums=0)
    (again, _), _ = donated((jax.tree.map(jnp.copy, params), jax.tree.map(jnp.copy, state)), TARGETS[0])
    assert np.isfinite(again["w"]).all()
    starts = jax.tree.map(lambda x: jnp.stack([x, x + 1]), START)
    many = jax.vmap(lambda p: jax.lax.scan(step_of(optimizer), (p, optimizer.init(p)), TARGETS)[1]["w"][-1])(starts)
    np.testing.assert_allclose(many[0], averages[-1]["w"], rtol=1e-4)


def test_what_is_not_finite_never_enters() -> None:
    optimizer = so.anytime(optax.sgd(0.1), every=1)
    params, state, averages = train(optimizer, TARGETS[:10])
    broken = jax.tree.map(lambda x: x * math.nan, params)
    for _ in range(3):
        _, state = optimizer.update(START, state, broken, value=math.nan)
    assert int(state.numbers.skipped) == 3
    average = so.averaged_params(state, broken)
    np.testing.assert_allclose(average["w"], averages[-1]["w"], rtol=0.2)


@pytest.mark.parametrize("rate", [1.1, 2.0, 1e6])
def test_a_divergence_leaves_the_average_where_it_was(rate: float) -> None:
    optimizer = so.anytime(optax.identity(), every=1)
    update = jax.jit(lambda state, params, value: optimizer.update(params, state, params, value=value)[1])
    params, state = jnp.ones(1), optimizer.init(jnp.ones(1))
    for i in range(300):
        state = update(state, params, 1 + 0.1 * math.sin(i))
    for i in range(1, 60):
        exploded = min(rate ** min(i, 50), 1e15)
        state = update(state, jnp.full(1, exploded), exploded**2)
    assert float(so.averaged_params(state, params)[0]) == pytest.approx(1, abs=0.05)


def test_precision_and_other_leaves() -> None:
    params = {"half": jnp.ones(2, jnp.bfloat16), "complex": jnp.ones(2, jnp.complex64), "index": jnp.arange(2)}
    optimizer = so.anytime(optax.identity(), every=1)
    state = optimizer.init(params)
    assert state.average["half"].dtype == jnp.float32
    for value in (1.0, 1.0, 1.0):
        _, state = optimizer.update(params, state, params, value=value)
    average = so.averaged_params(state, params)
    jax.tree.map(np.testing.assert_array_equal, average, params)
    assert average["half"].dtype == jnp.bfloat16


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="Invalid every: 0"):
        so.anytime(optax.sgd(0.1), every=0)
    with pytest.raises(ValueError, match="Invalid kappa value: 0"):
        so.anytime(optax.sgd(0.1), kappa=0)
    with pytest.raises(ValueError, match="Invalid loss_beta value: 1"):
        so.anytime(optax.sgd(0.1), loss_beta=1)
    optimizer = so.anytime(optax.sgd(0.1))
    state = optimizer.init(START)
    with pytest.raises(ValueError, match=r"anytime averages the parameters: pass them"):
        optimizer.update(START, state, value=1.0)
    with pytest.raises(ValueError, match=r"update\(\) got no loss"):
        optimizer.update(START, state, START)
    with pytest.raises(ValueError, match=r"needs the state of one anytime\(...\), but this state has 0"):
        so.averaged_params(optax.sgd(0.1).init(START), START)
