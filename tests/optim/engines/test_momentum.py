"""The update of Momentum, computed by hand: the weighted gradients are 1 and -1, the momentum is 1/2."""

from __future__ import annotations

import pytest

from engine_steps import ON_DEVICE, OPTIONS, assert_a_skipped_step_changes_nothing, two_steps
from surefoot.optim.engines import Momentum

PATHS = pytest.mark.parametrize("path", ["forloop", "foreach", "fused", ON_DEVICE])


@PATHS
def test_two_steps_by_hand(path: str) -> None:
    # m = 1/2, -1/4, corrected by 1 - 1/2**t: 1, -1/3.
    assert two_steps(Momentum(), path)[0] == pytest.approx([0.1, -0.1 / 3])


@PATHS
def test_nesterov_looks_one_step_ahead(path: str) -> None:
    # m/2 + g/2 = 3/4, -5/8, with the same correction: 3/2, -5/6.
    assert two_steps(Momentum(), path, nesterov=True)[0] == pytest.approx([0.15, -0.1 * 5 / 6])


@PATHS
def test_maximize_climbs(path: str) -> None:
    assert two_steps(Momentum(), path, maximize=True)[0] == pytest.approx([-0.1, 0.1 / 3])


@PATHS
def test_l2_decay_is_weighted_as_the_gradient_is(path: str) -> None:
    # In the first step the gradient is 2 + 1/2 * 1, its weight 1/2.
    assert two_steps(Momentum(), path, weight_decay=0.5)[0][0] == pytest.approx(0.1 * 1.25)


def test_the_loss_statistics_take_its_momentum() -> None:
    assert Momentum().momentum({**OPTIONS, "momentum": 0.7}) == 0.7


def test_a_skipped_step_changes_nothing() -> None:
    assert_a_skipped_step_changes_nothing(Momentum())
