"""The aliases: equal to the chain that they stand for, and compiled to no more than optax.adam and one more read."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import surefoot.optax as so

LOSSES = [2.0, 1.5, 2.5, math.nan, 0.3, 1.1, 3.0]
PARAMS = {"w": jnp.linspace(-1.0, 2.0, 6).reshape(2, 3), "b": jnp.asarray([0.5, -0.25])}


def gradients(step: int, bad: bool = False) -> Any:
    w = jnp.cos(jnp.arange(6.0).reshape(2, 3) + step)
    return {"w": w.at[0, 0].set(jnp.inf) if bad else w, "b": jnp.sin(jnp.arange(2.0) - step)}


def driven(optimizer: Any) -> Any:
    params, state = PARAMS, optimizer.init(PARAMS)
    for step, loss in enumerate(LOSSES):
        updates, state = optimizer.update(gradients(step, bad=step == 5), state, params, value=loss)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_an_alias_is_the_chain_that_it_stands_for(name: str, decay: float, decoupled: bool) -> None:
    rate = optax.linear_schedule(0.1, 0.01, 10)
    engine = optax.scale_by_adam() if name == "adam" else optax.ema(0.9)
    decaying = optax.add_decayed_weights(decay) if decay else optax.identity()
    tilt = so.scale_by_tilt("s", 0.3, weighting="unit", seed=2)
    parts = (tilt, engine, decaying) if decoupled else (decaying, tilt, engine)
    chain = so.skip_nonfinite(optax.chain(*parts, optax.scale_by_learning_rate(rate)))
    options = {"weight_decay": decay, "decoupled_weight_decay": decoupled, "weighting": "unit", "seed": 2}
    options["check_gradients"] = True
    alias = getattr(so, name)("s", rate, 0.3, **options)
    with jax.enable_x64(True):
        ours, theirs = driven(alias), driven(chain)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), ours, theirs)
    assert int(so.confidence(ours[1])[0]["skipped"]) == 2


def compiled_lines(optimizer: Any, params: Any) -> list[str]:
    """What a compiled step computes, one operation per line."""
    optimizer = optax.with_extra_args_support(optimizer)

    def step(params: Any, state: Any, grads: Any, value: Any) -> Any:
        updates, state = optimizer.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, optimizer.init(params), params, 1.0).compile()
    text = compiled.as_text()
    return text[text.index("ENTRY") :].splitlines()


@pytest.mark.parametrize("name", ["adam_ucb", "adamw_s", "momentum_cb"])
def test_a_compiled_step_copies_no_moment(name: str) -> None:
    params = [jnp.ones((64, 32)), jnp.ones((128, 16))]
    lines = compiled_lines(getattr(so, name)(1e-3), params)
    made = [line for line in lines if re.search(r"= f32\[(64,32|128,16)\]\S* (?!parameter)", line)]
    assert not [line for line in made if " copy(" in line]
    # The moments and the parameter of each tensor, in place; the weighted gradient is never written.
    assert len(made) == len(params) * (2 if "momentum" in name else 3)


@pytest.mark.parametrize("check_gradients", [False, True])
def test_a_compiled_step_weighs_the_loss_once_and_not_for_every_tensor(check_gradients: bool) -> None:
    params = [jnp.ones((8, 8)) for _ in range(12)]
    lines = compiled_lines(so.adam_ucb(1e-3, check_gradients=check_gradients), params)
    made = [line for line in lines if re.search(r"= f32\[8,8\]\S* fusion\(", line)]
    assert len(made) == 3 * len(params)
    # A parameter, its moments, and a few numbers: not the statistics of the loss, not the sums of other gradients.
    operands = [line.split("fusion(")[1].split(")")[0].count("%") for line in made]
    assert max(operands) <= 7, max(operands)


@pytest.mark.parametrize("name", ["adam_ucb", "momentum_ucb"])
def test_gradients_are_checked_only_where_that_is_asked_for(name: str) -> None:
    for check_gradients in (False, True):
        optimizer = getattr(so, name)(0.1, check_gradients=check_gradients)
        state = optimizer.init(PARAMS)
        updates, state = optimizer.update(gradients(0, bad=True), state, PARAMS, value=1.0)
        assert int(so.confidence(state)[0]["skipped"]) == check_gradients
        # As with optax.adam, what is not finite shows.
        assert all(bool(jnp.isfinite(u).all()) for u in jax.tree.leaves(updates)) == check_gradients


def test_steps_outside_of_jit_compile_nothing_anew() -> None:
    optimizer = so.adam_s(0.1)
    state = optimizer.init(PARAMS)
    compiled: list[str] = []
    for step in range(6):
        if step == 3:
            jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
        _, state = optimizer.update(gradients(0), state, PARAMS, value=1.0 + step)
    assert not [name for name in compiled if "backend_compile" in name]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_a_gradient_is_finite_if_its_squares_are(dtype: Any) -> None:
    largest = min(float(jnp.finfo(dtype).max), 1e18)
    optimizer = so.adam_ucb(0.1, weighting="unit", check_gradients=True)
    state = optimizer.init(jnp.zeros(3, dtype))
    for value, skipped in [(largest, 0), (jnp.nan, 1), (-jnp.inf, 2)]:
        grads = jnp.asarray([1.0, value, 2.0], dtype)
        updates, state = optimizer.update(grads, state, jnp.zeros(3, dtype), value=1.0)
        assert jnp.isfinite(updates).all()
        assert int(so.confidence(state)[0]["skipped"]) == skipped
    updates, state = optimizer.update(jnp.asarray([1e30, 0.0, 0.0]), optimizer.init(jnp.zeros(3)), value=1.0)
    assert int(so.confidence(state)[0]["skipped"]) == 1  # Adam could not hold its square
    assert not updates.any()


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_a_skipped_first_step_moves_nothing(eps: float, decoupled: bool) -> None:
    """The moments are 0 then, so without an eps the direction would be 0 / 0."""
    optimizer = so.adam_ucb(0.1, eps=eps, weight_decay=0.001, decoupled_weight_decay=decoupled)
    step = jax.jit(optimizer.update)
    updates, state = step(gradients(0, bad=True), optimizer.init(PARAMS), PARAMS, value=math.nan)
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
    updates, state = step(gradients(2), state, PARAMS, value=1.0)
    assert all(bool(jnp.isfinite(leaf).all()) and bool(leaf.any()) for leaf in jax.tree.leaves(updates))
    assert int(state.skipped) == 1


@pytest.mark.parametrize("weighting", ["paper", "unit"])
def test_float16_gradients_near_their_largest_stay_finite(weighting: str) -> None:
    """The product with the weight is kept inside float16."""
    params = {"w": jnp.ones(3, jnp.float16)}
    optimizer = so.momentum_ucb(0.001, eta=0.5, weighting=weighting)
    state = optimizer.init(params)
    for loss in (1.0, 2.0, 1.0, 9.0):
        updates, state = optimizer.update({"w": jnp.full(3, 6e4, jnp.float16)}, state, params, value=loss)
        assert bool(jnp.isfinite(updates["w"]).all())
