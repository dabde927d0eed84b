"""The rules in JAX: the same table as PyTorch's, an objective of one's own, and the lower tail."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytest.importorskip("optax")

import surefoot.optax as so  # noqa: E402

ETAS = {"ucb": 0.3, "cb": 0.2, "s": 0.5, "pi": 0.1, "ei": 0.05, "cvar": 0.7}


def test_the_table_mirrors_the_rules_of_pytorch() -> None:
    from surefoot import rules, statistics

    names = set(rules.RULES) - {"plain"}
    assert set(so.RULES) == names
    noise = 0.7
    for name in names:
        ours, theirs = so.RULES[name], rules.RULES[name]
        assert (ours.eta, ours.uses_noise) == (theirs.eta, theirs.uses_noise)
        for count, mean, std, best in [
            (9, 1.5, 0.25, 1.2),
            (9, -2.0, 3.0, -2.5),
            (1, 0.5, 0.0, 0.5),
            (0, 0.0, 0.0, math.inf),
        ]:
            with jax.enable_x64(True):
                seen = so.TiltState(*map(jnp.asarray, (count, mean, std, best, 0.0, 0.0, 1.0, True)))
                tilt = [float(x) for x in ours.tilt(seen, jnp.asarray(ETAS[name]), jnp.asarray(noise))]
            torch_stats = statistics.LossStats(count=count, mean=mean, std=std, best=best)
            assert tilt == pytest.approx([float(x) for x in theirs.tilt(torch_stats, ETAS[name], noise)], rel=1e-9)


def test_expected_improvement_is_stable_far_in_the_tail() -> None:
    for u in (-0.1, -5.0, -9.9, -10.1, -100.0, -1e4, -1e8):
        seen = so.TiltState(*map(jnp.float32, (9, 1.0, 1.0, 1.0 + u, 0.0, 0.0, 1.0, True)))
        tilt = -float(so.RULES["ei"].tilt(seen, 0.0, jnp.zeros(()))[0])
        got = np.float32(1.0 + u) - 1.0
        # The ratio lies between -u and sqrt(u*u + 2); double precision has it directly near the centre.
        if u > -30:
            assert tilt == pytest.approx(norm.pdf(got) / norm.cdf(got), rel=1e-5)
        else:
            assert -got * (1 - 1e-6) <= tilt <= math.sqrt(got * got + 2) * (1 + 1e-6)
