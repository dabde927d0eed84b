"""Adam's update, computed by hand: the weighted gradients are 1 and -1, the betas 1/2 and 3/4."""

from __future__ import annotations

import math

import pytest

from engine_steps import ON_DEVICE, assert_a_skipped_step_changes_nothing, two_steps
from surefoot.optim.engines import Adam

PATHS = pytest.mark.parametrize("path", ["forloop", "foreach", "fused", ON_DEVICE])


@PATHS
def test_two_steps_by_hand(path: str) -> None:
    # m = 1/2, -1/4 and v = 1/4, 7/16; corrected by 1 - b**t: m_hat = 1, -1/3 and v_hat = 1, 1.
    moves, bucket = two_steps(Adam(), path)
    assert moves == pytest.approx([0.1, -0.1 / 3])
    assert bucket.step.item() == 2


def test_the_host_divides_the_moments_by_those_of_the_weight() -> None:
    # Of the weights 1/2 and -1/4: the mean of abs(w) is 1/4, of w**2 is 1/16.
    _, bucket = two_steps(Adam(), "forloop")
    assert {name: scalar.item() for name, scalar in bucket.scalars.items()} == {
        "weight_mean": 0.25,
        "weight_power": 0.0625,
    }
    assert [column[0].item() for column in bucket.state] == pytest.approx([-0.25 / 0.25, 0.4375 / 0.0625])
    _, on_device = two_steps(Adam(), ON_DEVICE)
    assert [column[0].item() for column in on_device.state] == pytest.approx([-0.25, 0.4375])


@PATHS
def test_eps_is_added_after_bias_correction(path: str) -> None:
    assert two_steps(Adam(), path, eps=1.0)[0] == pytest.approx([0.1 / 2, -0.1 / 3 / 2])


@pytest.mark.parametrize("path", ["forloop", "foreach", ON_DEVICE])
@pytest.mark.parametrize(("amsgrad", "square"), [(False, 3 / 16), (True, 1 / 4)])
def test_amsgrad_divides_by_the_largest_square(path: str, amsgrad: bool, square: float) -> None:
    # After a gradient of 0 m is 1/4 (m_hat = 1/3), and v has shrunk from 1/4 to 3/16; it is corrected by 1 - (3/4)**2.
    moves, _ = two_steps(Adam(), path, gradients=(2.0, 0.0), amsgrad=amsgrad)
    assert moves == pytest.approx([0.1, 0.1 / 3 / math.sqrt(square / (7 / 16))])


@PATHS
def test_decoupled_decay_shrinks_the_parameter_by_itself(path: str) -> None:
    moves, _ = two_steps(Adam(), path, weight_decay=0.5, decoupled_weight_decay=True)
    first = 0.05 * 1.0 + 0.1
    assert moves == pytest.approx([first, 0.05 * (1 - first) - 0.1 / 3])


def test_a_skipped_step_changes_nothing() -> None:
    assert_a_skipped_step_changes_nothing(Adam())
