"""The tilt in JAX: its statistics and its noise, losses that are too large, and a std that shrank to nearly zero."""

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
from surefoot.noise import standard_normal  # noqa: E402

RNG = np.random.default_rng(0)
VANISHED = [1.0, 2.0] + [0.0] * 600 + list(1 + 0.1 * RNG.standard_normal(60))
BEYOND = [1.0, 2.0, 1.5, 1e30, -1e25, 1.8, 1.2]


def scanned(optimizer: Any, losses: list[float]) -> tuple[np.ndarray, np.ndarray, Any]:
    """The parameter and the weight after every step with a gradient of one, and the last state."""

    def body(carry: Any, loss: Any) -> Any:
        params, state = carry
        updates, state = optimizer.update(jnp.ones(1), state, params, value=loss)
        params = params + updates
        return (params, state), (params[0], so.confidence(state)[0]["weight"])

    start = jnp.zeros(1)
    (_, state), (places, weights) = jax.lax.scan(body, (start, optimizer.init(start)), jnp.asarray(losses))
    return np.asarray(places), np.asarray(weights), state


def stepped(optimizer: Any, losses: list[float]) -> tuple[list[float], list[float]]:
    [p] = optimizer.param_groups[0]["params"]
    places, weights = [], []
    for loss in losses:
        p.grad = torch.ones_like(p)
        optimizer.step(loss=loss)
        places.append(p.item())
        weights.append(float(optimizer.confidence()[0]["weight"]))
    return places, weights


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize("losses", [VANISHED, BEYOND], ids=["vanished", "beyond"])
@pytest.mark.parametrize(
    ("theirs", "ours", "options"),
    [
        (so.momentum_ucb, surefoot.MomentumUCB, {"eta": 0.1}),
        (so.momentum_cb, surefoot.MomentumCB, {"eta": 0.1}),
        (so.adam_ucb, surefoot.AdamUCB, {"eta": 0.1, "weighting": "unit"}),
        (so.adam_ucb, surefoot.AdamUCB, {"eta": 0.1}),
        (so.adam_pi, surefoot.AdamPI, {"eta": 0.1}),
    ],
    ids=["momentum_ucb", "momentum_cb", "adam_ucb unit", "adam_ucb", "adam_pi"],
)
def test_training_goes_on_as_it_does_in_torch(theirs: Any, ours: Any, options: dict[str, Any], losses: Any) -> None:
    optimizer = ours([parameter()], lr=0.1, **options)
    places, weights = stepped(optimizer, losses)
    with jax.enable_x64(True):
        theirs_places, theirs_weights, state = scanned(theirs(0.1, **options), losses)
        seen = so.confidence(state)[0]
    np.testing.assert_allclose(theirs_weights[-5:], weights[-5:], rtol=1e-6)
    np.testing.assert_allclose(theirs_places, places, rtol=1e-6, atol=1e-9)
    assert int(seen["skipped"]) == int(optimizer.confidence()[0]["skipped"])
    assert float(seen["std"]) == pytest.approx(float(optimizer.confidence()[0]["std"]), rel=1e-6)
    assert theirs_places[-1] != theirs_places[-5]


def test_in_single_precision_a_vanished_spread_comes_back() -> None:
    places, _, state = scanned(so.momentum_ucb(0.1, eta=0.1), VANISHED)
    assert int(so.confidence(state)[0]["skipped"]) < 5
    assert abs(places[-1] - places[-20]) > 1


def test_without_momentum_the_statistics_still_have_a_memory() -> None:
    losses = [1.0, 2.0, 1.5, 3.0, 0.5]
    _, weights = stepped(surefoot.MomentumUCB([parameter()], lr=0.1, momentum=0, eta=0.5), losses)
    with jax.enable_x64(True):
        for beta in (0.0, jnp.zeros(())):
            np.testing.assert_allclose(scanned(so.momentum_ucb(0.1, eta=0.5, beta=beta), losses)[1], weights, rtol=1e-6)
        plain = stepped(surefoot.AdamUCB([parameter()], lr=0.1, betas=(0.0, 0.99), eta=0.5), losses)[1]
        np.testing.assert_allclose(scanned(so.adam_ucb(0.1, eta=0.5, b1=0.0, b2=0.99), losses)[1], plain, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_one_outlier_leaves_the_moments_finite(dtype: Any) -> None:
    weight = jnp.zeros(2, dtype)
    optimizer = so.adam_ucb(0.01, 0.01)
    state = optimizer.init(weight)
    for step in range(40):
        x = jnp.asarray([1e6 if step == 20 else 1.0 + 0.1 * (step % 3), 1.0], dtype)
        value, grads = jax.value_and_grad(lambda w: jnp.mean((w * x - 2 * x) ** 2).astype(float))(weight)  # noqa: B023
        updates, state = optimizer.update(grads, state, weight, value=value)
        weight = optax.apply_updates(weight, updates)
    assert so.confidence(state)[0]["skipped"] == 0
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.inner_state[2]))
    assert jnp.abs(updates).min() > 0  # it goes on moving


def test_the_scale_of_the_loss_does_not_get_into_a_chain_of_ones_own() -> None:
    tilt = so.scale_by_tilt("ucb", 0.1)
    for scale in (1.0, 1000.0):
        state = tilt.init(jnp.ones(1))
        for value in (1.0, 3.0, 2.5):
            updates, state = tilt.update(jnp.ones(1), state, value=scale * value)
        assert float(updates[0]) == pytest.approx(1.0448, abs=1e-4)


@pytest.mark.parametrize("weighting", ["paper", "unit"])
def test_the_weight_overflows_no_dtype_and_hides_nothing(weighting: Any) -> None:
    tilt = so.scale_by_tilt("ucb", 1.0, weighting=weighting)
    state = tilt.init(jnp.ones(1))
    for value in (1.0, 3.0):
        _, state = tilt.update(jnp.ones(1), state, value=value)
    gradients = {
        "half": jnp.asarray([6e4, jnp.inf, jnp.nan, -1.0], jnp.float16),
        "complex": jnp.asarray([3e38 + 1e38j, 1.0 + 2.0j], jnp.complex64),
    }
    weighted, state = tilt.update(gradients, state, value=100.0)
    weight = float(state.weight)
    assert weight > 50
    assert weighted["half"][0] == jnp.finfo(jnp.float16).max
    assert jnp.isposinf(weighted["half"][1])
    assert jnp.isnan(weighted["half"][2])
    assert weighted["complex"][0] == 1e19 + 1e19j
    np.testing.assert_allclose(weighted["complex"][1], weight * (1 + 2j), rtol=1e-6)


def test_noise_is_that_of_the_other_frameworks() -> None:
    steps = np.arange(300)
    for seed, group in [(0, 0), (123456, 2), (-5, 1), (2**31 - 1, 0)]:
        expected = [standard_normal(seed, int(step), group) for step in steps]
        static = so.standard_normal(seed, steps, group)
        assert jnp.array_equal(static, so.standard_normal(np.int64(seed), steps, np.int64(group)))
        traced = jax.jit(so.standard_normal)(seed, steps, group)
        assert static.dtype == jnp.float32
        np.testing.assert_allclose(static, expected, atol=2e-6)
        np.testing.assert_array_equal(static, traced)
    np.testing.assert_allclose(so.standard_normal(2**40 + 3, 9), standard_normal(2**40 + 3, 9), atol=2e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999, 0.99999])
def test_statistics_hold_in_single_precision(beta: float) -> None:
    levels = np.array([[1.0, 0.3], [1e4, 1.0], [1e-25, 3e-26], [1e18, 1e17], [-5.0, 2.0]])
    rng = np.random.default_rng(0)
    losses = (levels[:, :1] + levels[:, 1:] * rng.standard_normal((len(levels), 200))).astype(np.float32)
    tilt = so.scale_by_tilt("ucb", 0.1, weighting="unit", loss_beta=beta)

    def body(state: Any, value: Any) -> Any:
        _, state = tilt.update(jnp.ones(1, jnp.float32), state, value=value)
        return state, (state.mean, state.std)

    run = jax.vmap(lambda values: jax.lax.scan(body, tilt.init(jnp.ones(1)), values)[1])
    every_mean, every_std = run(jnp.asarray(losses))
    for (_, wobble), seen, means, stds in zip(levels, losses.astype(np.float64), every_mean, every_std, strict=True):
        for t in (1, 2, 3, 10, 200):
            shares = beta ** np.arange(t - 1, -1, -1.0)
            shares /= shares.sum()
            mean = shares @ seen[:t]
            std = math.sqrt(shares @ (seen[:t] - mean) ** 2)
            rounding = 1e-4 * wobble if t > 1 and beta else 0.0
            assert float(means[t - 1]) == pytest.approx(mean, rel=1e-5)
            assert float(stds[t - 1]) == pytest.approx(std, rel=2e-3, abs=rounding)


def test_a_bare_tilt_keeps_its_statistics_from_a_loss_that_is_not_finite() -> None:
    tilt = so.scale_by_tilt("ucb", 0.1)
    _, before = tilt.update(jnp.ones(2), tilt.init(jnp.ones(2)), value=1.0)
    updates, after = tilt.update(jnp.ones(2), before, value=jnp.nan)
    assert not after.taken
    assert after._replace(taken=before.taken) == before
    assert updates.tolist() == [0.0, 0.0]
