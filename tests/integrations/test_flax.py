"""Flax's train state and its nnx optimizer, against bare Optax loops: equal to the last bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training import train_state

import surefoot.optax as so
from surefoot.integrations.flax import TrainState

INPUTS = jax.random.normal(jax.random.key(1), (6, 8, 3))
TARGETS = jnp.sin(INPUTS.sum(-1, keepdims=True))
MODEL = linen.Dense(1)
PARAMS = MODEL.init(jax.random.key(0), INPUTS[0])


def loss_of(params, x, y):
    return jnp.mean((MODEL.apply(params, x) - y) ** 2)


def by_hand(optimizer, with_value=True):
    params, state = PARAMS, optimizer.init(PARAMS)
    for x, y in zip(INPUTS, TARGETS):
        value, grads = jax.value_and_grad(loss_of)(params, x, y)
        extra = {"value": value} if with_value else {}
        updates, state = optimizer.update(grads, state, params, **extra)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_same(mine, theirs, atol=0.0):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), mine, theirs)


@pytest.mark.parametrize("jit", [False, True])
def test_a_train_state_passes_the_loss_on(jit):
    optimizer = so.adamw_s(0.05, eta=0.5)
    state = TrainState.create(apply_fn=MODEL.apply, params=PARAMS, tx=optimizer)

    def step(state, x, y):
        value, grads = jax.value_and_grad(loss_of)(state.params, x, y)
        return state.apply_gradients(grads=grads, value=value)

    step = jax.jit(step) if jit else step
    for x, y in zip(INPUTS, TARGETS):
        state = step(state, x, y)
    params, expected = by_hand(optimizer)
    assert_same(state.params, params, atol=1e-6 if jit else 0.0)
    assert state.tx is optimizer
    assert int(state.step) == len(INPUTS)
    assert float(so.confidence(state.opt_state)[0]["mean"]) == pytest.approx(float(so.confidence(expected)[0]["mean"]))


def test_a_train_state_of_ones_own_keeps_its_fields_and_plain_optimizers_work():
    class Counting(TrainState):
        seen: int = 0

    state = Counting.create(apply_fn=MODEL.apply, params=PARAMS, tx=optax.adam(0.05))
    for x, y in zip(INPUTS, TARGETS):
        value, grads = jax.value_and_grad(loss_of)(state.params, x, y)
        state = state.apply_gradients(grads=grads, value=value, seen=state.seen + 8)
    assert state.seen == 48
    assert_same(state.params, by_hand(optax.adam(0.05), with_value=False)[0])


def test_the_plain_train_state_says_where_to_look():
    state = train_state.TrainState.create(apply_fn=MODEL.apply, params=PARAMS, tx=so.adam_s(0.05))
    value, grads = jax.value_and_grad(loss_of)(PARAMS, INPUTS[0], TARGETS[0])
    with pytest.raises(ValueError, match=r"got no loss; .*surefoot\.integrations\.flax\.TrainState"):
        state.apply_gradients(grads=grads, value=value)
    with pytest.raises(ValueError, match="got no loss"):
        TrainState.create(apply_fn=MODEL.apply, params=PARAMS, tx=so.adam_s(0.05)).apply_gradients(grads=grads)


def test_the_average_of_an_nnx_optimizer():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, so.anytime(optax.adam(0.1)), wrt=nnx.Param)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    tx = so.anytime(optax.adam(0.1))
    state = tx.init(params)
    for x, y in zip(INPUTS, TARGETS):
        value, grads = nnx.value_and_grad(lambda model, x=x, y=y: jnp.mean((model(x) - y) ** 2))(model)
        updates, state = tx.update(nnx.to_pure_dict(grads), state, params, value=value)
        params = optax.apply_updates(params, updates)
        optimizer.update(model, grads, value=value)
    average = so.averaged_params(optimizer.opt_state, nnx.state(model, nnx.Param))
    expected = so.averaged_params(state, params)
    assert_same(average["kernel"][...], expected["kernel"], atol=1e-6)
    assert float(jnp.abs(expected["kernel"] - params["kernel"]).max()) > 1e-3
    nnx.update(model, average)
    assert_same(model.bias[...], expected["bias"], atol=1e-6)
    other = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="averaged_params needs the parameters that the optimizer trains, 2 arrays"):
        so.averaged_params(optimizer.opt_state, nnx.state(other, nnx.Param))


def test_nnx_passes_the_loss_by_itself():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    start = nnx.state(model, nnx.Param)
    params = {"params": {name: jnp.asarray(start[name][...]) for name in ("kernel", "bias")}}
    optimizer = nnx.Optimizer(model, so.adamw_s(0.05, eta=0.5), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        value, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, grads, value=value)

    tx = so.adamw_s(0.05, eta=0.5)
    state = tx.init(params)
    for x, y in zip(INPUTS, TARGETS):
        step(model, optimizer, x, y)
        value, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = tx.update(grads, state, params, value=value)
        params = optax.apply_updates(params, updates)
    assert_same(model.kernel[...], params["params"]["kernel"], atol=1e-6)
    with pytest.raises(ValueError, match=r"got no loss; .*nnx\.Optimizer"):
        optimizer.update(model, nnx.state(model, nnx.Param))
