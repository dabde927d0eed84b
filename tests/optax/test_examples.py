"""surefoot.optax.weigh_examples: the weights that surefoot.weigh gives in torch, under jit and scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
jnp = jax.numpy

import surefoot.examples  # noqa: E402
import surefoot.optax as so  # noqa: E402
import surefoot.otsu  # noqa: E402
from surefoot.optax import examples as ours  # noqa: E402
from surefoot.weighing import Weigher  # noqa: E402


class OnDevice(Weigher):
    """Looks for groups at every step, as JAX does."""

    def _reads(self, values: torch.Tensor) -> bool:
        return False


def batches(wrong: float, steps: int = 120, size: int = 96) -> np.ndarray:
    """Losses that fall to the tail of a classifier, and high ones of wrong labels."""
    random = np.random.default_rng(3)
    fall = 3 * 0.9 ** np.arange(steps)[:, None]
    high = 4 + 0.6 * random.standard_normal((steps, size))
    is_wrong = random.random((steps, size)) < wrong
    return fall + np.where(is_wrong, high, random.exponential(0.5, (steps, size)))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("tilted", {"eta": -3.0}),
        ("tilted", {"eta": "auto"}),
        ("tilted", {"eta": 1.0, "warmup": 30}),
        ("trimmed", {"eta": 0.3}),
        ("cvar", {"eta": 0.5}),
        ("ucb", {"eta": 0.5}),
        ("ucb", {"eta": -2.0, "signed": True, "warmup": 5}),
        ("s", {"eta": 0.3}),
        ("ei", {}),
    ],
)
def test_weights_and_statistics_are_those_of_torch(rule: str, options: dict[str, Any]) -> None:
    with jax.enable_x64(True):
        weigh, torchs = so.weigh_examples(rule, **options), OnDevice(rule=rule, **options)
        step = jax.jit(jax.value_and_grad(weigh.apply, has_aux=True))
        state, mask = weigh.init(), np.arange(96) % 7 > 0
        for row in batches(0.3, steps=60 if options.get("eta") != "auto" else 150):
            (value, state), grad = step(jnp.asarray(row), state, mask)
            losses = torch.tensor(row, requires_grad=True)
            loss = torchs(losses, mask=torch.tensor(mask))
            loss.backward()
            torchs.update()
            assert losses.grad is not None
            np.testing.assert_allclose(value, loss.item(), rtol=1e-10)
            np.testing.assert_allclose(grad, losses.grad, rtol=1e-6, atol=1e-9)
        stats = state.stats
        np.testing.assert_allclose([stats.count, stats.mean, stats.std, stats.best], torchs.seen[:4], rtol=1e-9)
        np.testing.assert_allclose(state.strength, torchs.confidence()[0]["strength"], rtol=1e-8)
        assert float(state.strength) > 0.1


def test_auto_finds_wrong_labels_and_leaves_clean_ones_alone_inside_a_scan() -> None:
    weigh = so.weigh_examples()

    def run(wrong: float) -> Any:
        step = jax.jit(lambda state, losses: (weigh.apply(losses, state)[1], None))
        return jax.lax.scan(step, weigh.init(), jnp.asarray(batches(wrong, steps=250, size=128), jnp.float32))[0]

    found, clean = run(0.4), run(0.0)
    assert float(found.strength) > 0.9
    assert float(found.above) == pytest.approx(0.4, abs=0.05)
    assert float(clean.strength) == 0


def test_both_cuts_are_those_of_torch() -> None:
    with jax.enable_x64(True):
        histogram = np.random.default_rng(4).exponential(size=ours.BINS) * np.linspace(3, 0, ours.BINS)
        first, torchs = ours.otsu(jnp.asarray(histogram)), surefoot.otsu.otsu(torch.tensor(histogram))
        np.testing.assert_allclose(first, torchs, rtol=1e-12)
        second = ours.otsu(jnp.asarray(histogram), first[2])
        np.testing.assert_allclose(second, surefoot.otsu.otsu(torch.tensor(histogram), torchs.upper_mean), rtol=1e-12)
        assert second[0] > first[0]


def test_two_groups_that_a_long_tail_hides_are_found_as_in_torch() -> None:
    random, size = np.random.default_rng(5), (200, 96)
    logit = 1.6 + 0.6 * random.standard_normal(size)
    losses = np.log1p(np.exp(np.where(random.random(size) < 0.2, logit, -logit)))
    losses += np.where(random.random(size) < 0.15, random.exponential(1.5, size), 0.0)
    losses += 3 * 0.9 ** np.arange(200)[:, None]
    with jax.enable_x64(True):
        weigh, torchs = so.weigh_examples(), OnDevice(rule="tilted")
        step = jax.jit(lambda state, row: weigh.apply(row, state)[1])
        state = weigh.init()
        for row in losses:
            state = step(state, jnp.asarray(row))
            torchs(torch.tensor(row, requires_grad=True)).backward()
            torchs.update()
        assert float(ours.otsu(state.histogram)[0]) < ours.SHARE_OF_VARIANCE[0], "the first cut sees nothing here"
        assert float(state.strength) > 0.9
        np.testing.assert_allclose(state.strength, torchs.confidence()[0]["strength"], rtol=1e-8)


def test_losses_that_are_not_finite_count_nowhere() -> None:
    weigh = so.weigh_examples("tilted", -3.0, warmup=1)
    clean, spoilt = weigh.init(), weigh.init()
    for row in batches(0.3, steps=4, size=6).astype(np.float32):
        value, clean = weigh.apply(jnp.asarray(row), clean)
        (other, spoilt), grad = jax.value_and_grad(weigh.apply, has_aux=True)(
            jnp.asarray([*row, np.nan, np.inf]), spoilt
        )
        assert float(other) == pytest.approx(float(value))
        assert grad[-2:].tolist() == [0, 0]
    assert float(clean.stats.std) == pytest.approx(float(spoilt.stats.std))
    assert int(spoilt.skipped) == 8


def test_the_constants_are_those_of_torch() -> None:
    assert (ours.PATIENCE, ours.MIN_MEAN_WEIGHT) == (surefoot.examples.PATIENCE, surefoot.examples.MIN_MEAN_WEIGHT)
    assert surefoot.examples.EXAMPLE_RULES["tilted"].eta == ours.AUTO_ETA
    for name in (
        "BINS",
        "LOWEST",
        "HIGHEST",
        "MEMORY",
        "LEARNT",
        "FULL",
        "SHARE_OF_VARIANCE",
        "SHARE_ABOVE",
        "SHARE_WITHOUT_TAIL",
        "SHARE_ABOVE_WITHOUT_TAIL",
        "EVIDENCE",
    ):
        assert getattr(ours, name) == getattr(surefoot.otsu, name)
    assert ours.PATIENCE == surefoot.otsu.PATIENCE


@pytest.mark.parametrize(
    ("rule", "options"),
    [("tilted", {"eta": "strong"}), ("trimmed", {"eta": 1.0}), ("ucb", {"eta": "auto"}), ("tilted", {"loss_beta": 1})],
)
def test_what_means_nothing_is_refused(rule: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        so.weigh_examples(rule, **options)
    with pytest.raises(ValueError, match="mask has shape"):
        so.weigh_examples().apply(jnp.ones(3), so.weigh_examples().init(), jnp.ones(2))
