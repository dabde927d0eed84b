"""surefoot.optax under jit, scan, vmap, grad and sharding, and inside optax's own wrappers."""

from __future__ import annotations

import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
optax = pytest.importorskip("optax")

import surefoot.optax as so  # noqa: E402

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(3)
INPUTS = RNG.standard_normal((12, 16, 4)).astype(np.float32)
TARGETS = (INPUTS @ np.array([1.0, -2.0, 0.5, 3.0], np.float32)) + 0.1 * RNG.standard_normal((12, 16)).astype(
    np.float32
)
PARAMS = {"w": jnp.zeros(4), "b": jnp.zeros(())}


def loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def step_of(optimizer: Any) -> Any:
    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(grads, state, params, value=value)
        return (optax.apply_updates(params, updates), state), value

    return step


def train(optimizer: Any, steps: int = len(INPUTS), compiled: bool = True, carry: Any = None, start: int = 0) -> Any:
    step = jax.jit(step_of(optimizer)) if compiled else step_of(optimizer)
    carry = (PARAMS, optimizer.init(PARAMS)) if carry is None else carry
    for batch in list(zip(INPUTS, TARGETS, strict=True))[start : start + steps]:
        carry, _ = step(carry, batch)
    return carry


def assert_close(ours: Any, theirs: Any, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol),
        ours,
        theirs,
    )


def assert_equal(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), ours, theirs)


def test_jit_and_scan_take_the_eager_steps() -> None:
    optimizer = so.adam_s(0.1, eta=0.5)
    eager = train(optimizer, compiled=False)
    assert_close(train(optimizer), eager)
    scanned, _ = jax.lax.scan(step_of(optimizer), (PARAMS, optimizer.init(PARAMS)), (INPUTS, TARGETS))
    assert_close(scanned, eager)
    assert jax.tree.structure(scanned) == jax.tree.structure(eager)


def test_the_state_can_be_donated() -> None:
    optimizer = so.accumulate(so.adam_s(0.1, eta=0.5), 1)
    step = jax.jit(step_of(optimizer), donate_argnums=0)
    carry = jax.tree.map(jnp.copy, PARAMS), optimizer.init(PARAMS)
    for batch in zip(INPUTS, TARGETS, strict=True):
        carry, _ = step(carry, batch)
    assert_close(carry[0], train(so.adam_s(0.1, eta=0.5))[0])


def test_vmap_runs_a_sweep_of_seeds_and_etas() -> None:
    def run(seed: Any, eta: Any) -> Any:
        optimizer = so.adam_s(0.1, eta=eta, seed=seed)
        return jax.lax.scan(step_of(optimizer), (PARAMS, optimizer.init(PARAMS)), (INPUTS, TARGETS))[0]

    seeds, etas = [0, 1, 5], [0.1, 0.5, 1.0]
    params, state = jax.jit(jax.vmap(run))(jnp.array(seeds), jnp.array(etas))
    assert so.confidence(state)[0]["weight"].shape == (3,)
    for row, (seed, eta) in enumerate(zip(seeds, etas, strict=True)):
        alone, _ = train(so.adam_s(0.1, eta=eta, seed=seed))
        assert_close(jax.tree.map(lambda x, row=row: x[row], params), alone)


def test_gradients_flow_through_training_to_eta() -> None:
    with jax.enable_x64(True):
        params = {"w": jnp.zeros(4), "b": jnp.zeros(())}
        batches = INPUTS[:5].astype(np.float64), TARGETS[:5].astype(np.float64)

        @jax.jit
        def final(eta: Any) -> Any:
            optimizer = so.adam_ucb(0.1, eta=eta)
            carry, _ = jax.lax.scan(step_of(optimizer), (params, optimizer.init(params)), batches)
            return loss(carry[0], INPUTS[0], TARGETS[0])

        slope, gap = float(jax.grad(final)(0.3)), 1e-5
        assert slope == pytest.approx(float(final(0.3 + gap) - final(0.3 - gap)) / (2 * gap), rel=1e-5)


def test_hyperparameters_can_be_injected() -> None:
    injected = optax.inject_hyperparams(so.adam_s)(learning_rate=0.1, eta=0.5, seed=4, weight_decay=0.01)
    carry = train(injected)
    assert_close(carry[0], train(so.adam_s(0.1, eta=0.5, seed=4, weight_decay=0.01))[0])
    assert float(carry[1].hyperparams["eta"]) == 0.5

    state = injected.init(PARAMS)
    state.hyperparams["eta"], state.hyperparams["learning_rate"] = jnp.asarray(0.0), jnp.asarray(0.0)
    assert_equal(train(injected, carry=(PARAMS, state))[0], PARAMS)


def test_schedules_of_eta_and_learning_rate() -> None:
    rate, eta = optax.linear_schedule(0.1, 0.0, 12), optax.linear_schedule(0.5, 0.1, 12)
    direct = train(so.adam_ucb(rate, eta))
    injected = train(optax.inject_hyperparams(so.adam_ucb)(learning_rate=rate, eta=eta))
    assert_close(direct[0], injected[0])
    assert float(so.confidence(direct[1])[0]["tilt"]) == pytest.approx(float(eta(11)))


def test_defaults_survive_injection() -> None:
    state = optax.inject_hyperparams(so.adam_cb)(learning_rate=0.1).init(PARAMS)
    assert float(state.hyperparams["eta"]) == pytest.approx(so.RULES["cb"].eta)


def micro_batches(optimizer: Any, splits: int, spoil: tuple[int, int] | None = None, steps: int = 6) -> Any:
    """Train with each batch cut into micro-batches of equal size; `spoil` makes one of them not finite."""
    step = jax.jit(step_of(optimizer))
    carry = PARAMS, optimizer.init(PARAMS)
    for i, batch in enumerate(list(zip(INPUTS, TARGETS, strict=True))[:steps]):
        for j, (x, y) in enumerate(zip(*(np.split(part, splits) for part in batch), strict=True)):
            carry, _ = step(carry, (x, np.full_like(y, np.nan) if (i, j) == spoil else y))
    return carry


def test_accumulated_micro_batches_are_the_whole_batch() -> None:
    whole = train(so.adam_s(0.1, eta=0.5), 6)
    params, state = micro_batches(so.accumulate(so.adam_s(0.1, eta=0.5), 4), 4)
    assert_close(params, whole[0])
    assert_close(so.confidence(state), so.confidence(whole[1]))


def test_multisteps_alone_sees_the_last_micro_batch() -> None:
    inner = so.scale_by_tilt("ucb", 0.5)
    state = optax.MultiSteps(inner, 2).init(PARAMS)
    for value in (1.0, 5.0, 2.0, 7.0):
        _, state = optax.MultiSteps(inner, 2).update(PARAMS, state, PARAMS, value=jnp.asarray(value))
    assert float(state.inner_opt_state.best) == 5.0
    assert int(state.inner_opt_state.count) == 2


def test_multisteps_with_the_running_mean_is_accumulate() -> None:
    # What docs/jax.md tells those to do who keep optax.MultiSteps.
    plain, ours = optax.MultiSteps(so.adam_ucb(0.1, 0.5), 2), so.accumulate(so.adam_ucb(0.1, 0.5), 2)
    step, our_step = jax.jit(plain.update), jax.jit(ours.update)
    a, b = plain.init(PARAMS), ours.init(PARAMS)
    grads = {"w": jnp.ones(4), "b": jnp.ones(())}
    for first, second in [(1.0, 3.0), (2.0, 8.0), (0.5, 0.1)]:
        _, a = step(grads, a, PARAMS, value=first)
        expected, a = step(grads, a, PARAMS, value=(first + second) / 2)
        _, b = our_step(grads, b, PARAMS, value=first)
        updates, b = our_step(grads, b, PARAMS, value=second)
        assert_close(expected, updates)


def test_a_spoiled_micro_batch_costs_one_step_and_nothing_more() -> None:
    optimizer = so.accumulate(so.adam_ucb(0.1, 0.5), 4)
    params, state = micro_batches(optimizer, 4, spoil=(2, 1))
    assert int(so.confidence(state)[0]["skipped"]) == 1
    assert int(state.steps.gradient_step) == 6
    # The same run without the third batch.
    kept = [0, 1, 3, 4, 5]
    carry, step = (PARAMS, so.adam_ucb(0.1, 0.5).init(PARAMS)), jax.jit(step_of(so.adam_ucb(0.1, 0.5)))
    for i in kept:
        carry, _ = step(carry, (INPUTS[i], TARGETS[i]))
    assert_close(params, carry[0])


def test_accumulate_leaves_out_what_optax_skips() -> None:
    optimizer = so.accumulate(so.scale_by_tilt("ucb", 0.5), 2, should_skip_update_fn=optax.skip_not_finite)
    state = optimizer.init(PARAMS)
    good, bad = {"w": jnp.ones(4), "b": jnp.ones(())}, {"w": jnp.full(4, jnp.nan), "b": jnp.ones(())}
    for grads, value in [(good, 1.0), (bad, 100.0), (good, 3.0)]:
        _, state = optimizer.update(grads, state, PARAMS, value=jnp.asarray(value))
    assert float(so.confidence(state)[0]["mean"]) == 2.0


def test_masked_parameters_are_left_alone() -> None:
    carry = train(
        optax.chain(
            optax.masked(so.adam_ucb(0.1, 0.5), {"w": True, "b": False}),
            optax.masked(optax.set_to_zero(), {"w": False, "b": True}),
        )
    )
    assert float(carry[0]["b"]) == 0.0
    assert float(jnp.abs(carry[0]["w"]).min()) > 0.0
    assert len(so.confidence(carry[1])) == 1


def test_groups_have_their_own_rules() -> None:
    labels = {"w": "calm", "b": "wild"}
    grouped = optax.partition({"calm": so.adam_ucb(0.1, 0.1), "wild": so.adam_s(0.1, 1.0, group=1)}, labels)
    params, state = train(grouped, 3)
    assert_close([float(seen["mean"]) for seen in so.confidence(state)], [float(so.confidence(state)[0]["mean"])] * 2)
    assert so.confidence(state)[0]["weight"] != so.confidence(state)[1]["weight"]
    assert float(params["b"]) != 0.0


def test_the_tilt_goes_before_any_optimizer() -> None:
    tilted = so.skip_nonfinite(optax.chain(so.scale_by_tilt("ucb", 0.5, weighting="unit"), optax.lion(0.05)))
    params, state = train(tilted)
    assert float(loss(params, INPUTS[0], TARGETS[0])) < float(loss(PARAMS, INPUTS[0], TARGETS[0]))
    assert len(so.confidence(state)) == 1


def test_an_objective_makes_a_rule() -> None:
    rule = so.from_objective(lambda mean, std, eta: mean + eta * std, eta=0.3)
    assert_close(train(so.adam(rule, 0.1))[0], train(so.adam_ucb(0.1, 0.3))[0])


def test_an_objective_without_a_slope_at_no_spread_still_starts() -> None:
    params, state = train(so.adam(so.from_objective(lambda mean, std, eta: mean / std), 0.1), 3)
    assert int(so.confidence(state)[0]["skipped"]) == 0
    assert float(jnp.abs(params["w"]).max()) > 0.0


def test_resume_is_the_uninterrupted_run(tmp_path: Path) -> None:
    optimizer = so.adam_s(0.1, eta=0.5)
    whole = train(optimizer)
    leaves, structure = jax.tree.flatten(train(optimizer, 5))
    np.savez(tmp_path / "checkpoint.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "checkpoint.npz") as saved:
        carry = jax.tree.unflatten(structure, [jnp.asarray(saved[name]) for name in saved.files])
    assert_equal(train(optimizer, carry=carry, start=5), whole)


def test_low_precision_gradients_keep_their_dtype() -> None:
    params = {"w": jnp.ones(4, jnp.bfloat16), "b": jnp.zeros((), jnp.float16)}
    optimizer = so.adam_ucb(0.1, 0.5, weight_decay=0.1)
    state = optimizer.init(params)
    for value in (1.0, 2.0, jnp.bfloat16(1.5)):
        updates, after = optimizer.update(params, state, params, value=value)
        assert jax.tree.map(lambda x: x.dtype, updates) == jax.tree.map(lambda x: x.dtype, params)
        assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
        state = after
    assert so.confidence(state)[0]["mean"].dtype == jnp.float32


def step_with(value: Any) -> Any:
    optimizer = so.adam_ucb(0.1)
    return optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS, value=value)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (lambda: so.adam_ucb(0.1).update(PARAMS, so.adam_ucb(0.1).init(PARAMS), PARAMS), "value=loss"),
        (
            lambda: so.adam_ucb(0.1).update(PARAMS, so.adam_ucb(0.1).init(PARAMS), value=jnp.ones(3)),
            r"shape \(3,\)",
        ),
        (lambda: step_with(np.complex64(1 + 2j)), "a real loss but got complex64; pass its real part"),
        (lambda: step_with(jnp.ones((), jnp.complex64)), "a real loss but got complex64"),
        (lambda: jax.jit(step_with)(1 + 2j), "a real loss but got complex64"),
        (lambda: step_with("1"), "takes the loss as a number but got str"),
        (lambda: step_with(10**400), "takes the loss as a number but got int"),
        (lambda: so.scale_by_tilt("ucc", 0.1), "Unknown rule 'ucc'; take one of ucb, cb"),
        (lambda: so.scale_by_tilt(min, 0.1), "got the function min; .*surefoot.optax.from_objective"),
        (lambda: so.adam_cvar(0.1, eta=1.0), "Invalid eta value: 1.0"),
        (lambda: so.adam_s(0.1, eta=-1.0), "Invalid eta value: -1.0"),
        (lambda: so.adam_ucb(0.1, eta=math.nan), "Invalid eta value: nan"),
        (lambda: so.adam_ucb(0.1, weighting="papr"), "Invalid weighting: 'papr'"),
        (lambda: so.adam_ucb(0.1, loss_beta=1.0), "Invalid loss_beta value: 1.0"),
    ],
)
def test_errors_say_what_to_do(broken: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        broken()


def python(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np, optax
import surefoot.optax as so
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert jax.device_count() == 2 and "torch" not in sys.modules
mesh = Mesh(np.array(jax.devices()), ("data",))
x = np.random.default_rng(0).standard_normal((8, 16, 4)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 0.5, 3.0], np.float32) + 0.3
optimizer = so.adam_s(0.1, eta=0.5)

def run(batch_spec, param_spec, spoil):
    place = lambda tree, spec: jax.device_put(tree, NamedSharding(mesh, spec))
    params = place(jnp.zeros(4), param_spec)
    state = jax.jit(optimizer.init)(params)

    @jax.jit
    def step(params, state, x, y):
        value, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p - y) ** 2))(params)
        updates, state = optimizer.update(grads, state, params, value=value)
        return optax.apply_updates(params, updates), state

    for i in range(8):
        target = y[i].copy()
        target[15] = np.nan if i == spoil else target[15]  # on the second device only
        params, state = step(params, state, place(x[i], batch_spec), place(target, batch_spec))
    return np.asarray(params), {k: float(v) for k, v in so.confidence(state)[0].items()}

alone, seen = run(P(), P(), 3)
assert seen["skipped"] == 1 and np.isfinite(alone).all() and np.abs(alone).min() > 0
for specs in ((P("data"), P()), (P("data"), P("data"))):
    params, also_seen = run(*specs, 3)
    np.testing.assert_allclose(params, alone, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(list(also_seen.values()), list(seen.values()), rtol=1e-3, atol=1e-6)
print("same")
"""


def test_sharded_batches_and_parameters_take_the_same_steps() -> None:
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    assert python(SHARDED, XLA_FLAGS=flags, JAX_PLATFORMS="cpu").strip() == "same"


def test_a_missing_extra_is_one_clear_sentence() -> None:
    script = (
        "import sys; sys.modules['{}'] = None\ntry: import surefoot.optax\nexcept ImportError as error: print(error)"
    )
    for package in ("jax", "optax"):
        message = python(script.format(package))
        assert message.startswith(f"{package} is needed")
        assert "pip install '.[jax]'" in message


def test_the_example_learns() -> None:
    assert runpy.run_path(str(ROOT / "examples" / "jax_optax.py"))["main"]() > 0.95


def test_the_page_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "jax.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 5
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/jax.md", "exec"), names)
    assert float(names["loss"](names["params"], *next(names["batches"](1)))) < 0.1


@pytest.mark.parametrize("eta", [0.0, 0.5])
@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda mean, std, eta: mean + eta * math.log(1 + std), "must take .* JAX can differentiate"),
        (lambda mean, std: mean + std, r"must take \(mean, std, eta\)"),
        (lambda mean, std, eta: mean, "does not depend on the std .* compute it with jax.numpy alone"),
        (lambda mean, std, eta: std + eta, "does not depend on the mean"),
        (lambda mean, std, eta: -mean + eta * std, r"falls where the mean .* write mean - eta \* std"),
    ],
)
def test_an_objective_is_looked_at_when_it_becomes_a_rule(objective: Any, message: str, eta: float) -> None:
    with pytest.raises(ValueError, match=message):
        so.from_objective(objective, eta=eta)
    so.from_objective(lambda mean, std, eta: mean - eta * std, eta=eta)


def test_an_objective_that_is_flat_without_eta_needs_one() -> None:
    with pytest.raises(ValueError, match=r"where eta is 0.*from_objective\(lambda, eta=0\.1\)"):
        so.from_objective(lambda mean, std, eta: mean + eta * std)
    with pytest.raises(ValueError, match=r"got the function check_\w+; .*surefoot\.optax\.from_objective\(objective"):
        so.adam(so.rules.check_is_no_objective, 0.1)
