"""NAdam's update, computed by hand: the weighted gradients are 1 and -1, the betas 1/2 and 3/4."""

from __future__ import annotations

import pytest

from engine_steps import ON_DEVICE, assert_a_skipped_step_changes_nothing, two_steps
from surefoot.optim.engines import NAdam

PATHS = pytest.mark.parametrize("path", ["forloop", "foreach", ON_DEVICE])


@PATHS
def test_two_steps_by_hand(path: str) -> None:
    # Without momentum_decay every mu is 1/4, and their product 1/4, 1/16. m = 1/2, -1/4 and v_hat = 1, 1. So a step is
    # (1 - mu) * g / (1 - product) + mu * m / (1 - product * mu).
    moves, bucket = two_steps(NAdam(), path)
    first = 0.75 / 0.75 + 0.25 * 0.5 / (1 - 1 / 16)
    second = -0.75 / (15 / 16) - 0.25 * 0.25 / (1 - 1 / 64)
    assert moves == pytest.approx([0.1 * first, 0.1 * second])
    assert bucket.scalars["mu_product"].item() == pytest.approx(1 / 16)


@PATHS
def test_the_momentum_warms_up(path: str) -> None:
    # mu_t = b1 * (1 - 0.96**(t * momentum_decay) / 2)
    _, bucket = two_steps(NAdam(), path, momentum_decay=2.0)
    expected = 0.5 * (1 - 0.5 * 0.96**2) * 0.5 * (1 - 0.5 * 0.96**4)
    assert bucket.scalars["mu_product"].item() == pytest.approx(expected)


def test_a_skipped_step_changes_nothing() -> None:
    assert_a_skipped_step_changes_nothing(NAdam())
