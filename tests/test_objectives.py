"""What is asked of an objective; tests/test_rules.py and tests/optax/test_wrappers.py ask it of real ones."""

from __future__ import annotations

import math

import pytest

from surefoot.objectives import PROBES, check_slopes


@pytest.mark.parametrize(
    ("by_mean", "by_std", "message"),
    [
        ([None, None], [1.0, 1.0], "does not depend on the mean"),
        ([0.0, 0.0], [1.0, 1.0], "does not depend on the mean"),
        ([1.0, 1.0], [None, None], "does not depend on the std"),
        ([-1.0, -2.0], [1.0, 1.0], "falls where the mean"),
        ([-1.0, math.nan], [1.0, 1.0], "falls where the mean"),
    ],
)
def test_slopes_that_make_no_rule(by_mean: list[float | None], by_std: list[float | None], message: str) -> None:
    with pytest.raises(ValueError, match=f"the objective risk {message}"):
        check_slopes("risk", by_mean, by_std, "torch")


def test_doubtful_slopes_are_accepted() -> None:
    check_slopes("risk", [-1.0, 1.0], [0.0, 0.0], "torch")
    check_slopes("risk", [math.nan, math.nan], [math.nan, None], "torch")
    assert all(mean > 0 and std > 0 for mean, std in PROBES)
