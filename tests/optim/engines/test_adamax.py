"""AdaMax's update, computed by hand: the weighted gradients are 1 and -1, the betas 1/2 and 3/4."""

from __future__ import annotations

import pytest

from engine_steps import ON_DEVICE, assert_a_skipped_step_changes_nothing, two_steps
from surefoot.optim.engines import AdaMax

PATHS = pytest.mark.parametrize("path", ["forloop", "foreach", ON_DEVICE])


@PATHS
def test_two_steps_by_hand(path: str) -> None:
    # m = 1/2, -1/4, corrected by 1 - 1/2**t: 1, -1/3. The largest is 1, then max(3/4, 1).
    moves, bucket = two_steps(AdaMax(), path)
    assert moves == pytest.approx([0.1, -0.1 / 3])
    assert [column[0].item() for column in bucket.state] == pytest.approx([-0.25, 1.0])


@PATHS
def test_eps_is_part_of_the_largest_gradient(path: str) -> None:
    # The largest is 1 + 1, then max(3/2, 1 + 1).
    assert two_steps(AdaMax(), path, eps=1.0)[0] == pytest.approx([0.1 / 2, -0.1 / 3 / 2])


def test_a_skipped_step_changes_nothing() -> None:
    assert_a_skipped_step_changes_nothing(AdaMax())
