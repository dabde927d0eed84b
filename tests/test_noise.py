"""The counter-based noise: it is normal, it has no memory, and every framework computes the same number."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from surefoot.noise import bits, keys, mix, standard_normal, standard_normal_tensor

DRAWS = 200_000
PUBLISHED = [2.4826619394477616, -0.11952477619217552, -0.2577924937227242, -1.4172149746695066]


def stream(seed: int, group: int = 0, draws: int = DRAWS) -> np.ndarray:
    return standard_normal_tensor(seed, torch.arange(1, draws + 1), group).numpy()


@pytest.mark.parametrize("seed", [0, 1, 2, 2**31, 2**63 - 1, -1])
def test_moments_are_those_of_a_standard_normal(seed: int) -> None:
    noise = stream(seed)
    # Each statistic in units of its own standard error.
    assert abs(noise.mean()) * math.sqrt(DRAWS) < 4
    assert abs(noise.var() - 1) * math.sqrt(DRAWS / 2) < 4
    assert abs((noise**3).mean()) * math.sqrt(DRAWS / 15) < 4
    assert abs((noise**4).mean() - 3) * math.sqrt(DRAWS / 96) < 4


@pytest.mark.parametrize("lag", [1, 2, 16, 128])
def test_draws_do_not_remember_earlier_ones(lag: int) -> None:
    noise = stream(seed=3)
    now, before = noise[lag:], noise[:-lag]
    assert abs((now * before).mean()) * math.sqrt(DRAWS) < 4
    assert abs(((now**2 - 1) * (before**2 - 1)).mean() / 2) * math.sqrt(DRAWS) < 4


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((0, 1), (1, 0)), ((5, 0), (5 + 2**32, 0)), ((0, 0), (2**31, 0))],
)
def test_streams_of_other_seeds_and_groups_are_unrelated(first: tuple[int, int], second: tuple[int, int]) -> None:
    a, b = stream(*first), stream(*second)
    assert abs((a * b).mean()) * math.sqrt(DRAWS) < 4
    assert abs((a[1:] * b[:-1]).mean()) * math.sqrt(DRAWS) < 4


def test_first_draws_over_seeds_are_normal() -> None:
    seeds = 20_000
    first = np.array([standard_normal(seed, 1) for seed in range(seeds)])
    assert abs(first.mean()) * math.sqrt(seeds) < 4
    assert abs(first.var() - 1) * math.sqrt(seeds / 2) < 4
    assert abs((first[1:] * first[:-1]).mean()) * math.sqrt(seeds) < 4


def test_every_input_bit_moves_half_of_the_output_bits() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 50_000)
    for bit in range(32):
        moved = mix(words) ^ mix(words ^ (1 << bit))
        share = np.array([(moved >> out & 1).mean() for out in range(32)])
        assert np.abs(share - 0.5).max() < 0.02


@pytest.mark.parametrize("step", [0, 1, 77, 2**24, 2**32 - 1])
@pytest.mark.parametrize("seed", [0, 123456789, 2**40 + 5, -7])
def test_python_and_torch_agree(seed: int, step: int) -> None:
    expected = standard_normal(seed, step, group=2)
    assert math.isfinite(expected)
    as_int = standard_normal_tensor(seed, torch.tensor(step), group=2)
    as_float = standard_normal_tensor(seed, torch.tensor(float(step), dtype=torch.float64), group=2)
    assert as_int.dtype == torch.float64
    assert as_int.shape == ()
    assert as_int.item() == pytest.approx(expected, abs=1e-14)
    assert as_float.item() == as_int.item()


def test_a_float32_counter_is_enough() -> None:
    assert standard_normal_tensor(0, torch.tensor(12345.0)).item() == pytest.approx(
        standard_normal(0, 12345), abs=1e-14
    )


def test_extreme_words_stay_finite() -> None:
    # Radius words 0 and 2**24 - 1 are the ends of (0, 1]: the largest draw and zero.
    assert math.sqrt(-2 * math.log(1 * 2.0**-24)) < 5.8
    assert math.log((2**24 - 1 + 1) * 2.0**-24) == 0.0
    radius, angle = bits(torch.arange(100_000), keys(0, 0))
    for word in (radius, angle):
        assert 0 <= int(word.min()) < 2000
        assert 2**24 - 2000 < int(word.max()) < 2**24


def test_published_values_never_change() -> None:
    # A change here changes every trajectory of the stochastic rules: raise NUMERICS with it.
    drawn = [
        standard_normal(0, 1),
        standard_normal(0, 2),
        standard_normal(1, 1),
        standard_normal(0, 1, group=1),
    ]
    assert drawn == pytest.approx(PUBLISHED, abs=1e-14)


def test_the_noise_needs_no_torch() -> None:
    script = "import sys; import surefoot.noise as n; n.standard_normal(0, 1); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_jax_agrees_to_rounding() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    steps = np.arange(1, 2001, dtype=np.uint32)
    ours = bits(torch.from_numpy(steps.astype(np.int64)), keys(9, 3))
    theirs = bits(jnp.asarray(steps), tuple(map(jnp.uint32, keys(9, 3))), of=jnp.uint32)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.numpy(), np.asarray(b))
