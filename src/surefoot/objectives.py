"""What is asked of an objective ``a(mean, std, eta)`` before it becomes a rule, in PyTorch and in JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: The (mean, std) at which the slopes of an objective are looked at: usual losses, with a large and a small spread.
PROBES = ((1.0, 1.0), (0.5, 2.0), (2.0, 0.1))


def check_slopes(
    name: str,
    by_mean: Sequence[float | None],
    by_std: Sequence[float | None],
    library: str,
    *,
    is_flat: bool = False,
) -> None:
    """Refuse an objective without a slope, or one that is meant to be maximized.

    Args:
        name: of the objective.
        by_mean: its derivatives by the mean at some points; None where none is seen.
        by_std: those by the std.
        library: what it must be computed with, so that derivatives are seen.
        is_flat: no eta was given, and with an eta of 0 the std changes nothing.

    >>> check_slopes("risk", [1.0, 1.0], [0.5, 2.0], "torch")
    """
    hint = f"compute it with {library} alone, since math.log, float() and .item() hide what they are given"
    if not any(by_mean):
        raise ValueError(
            f"the objective {name} does not depend on the mean of the loss, so its tilt, a_std / a_mean, is infinite "
            f"and every step would be skipped; add the mean, as in mean + eta * std, or {hint}"
        )
    if all(slope is None for slope in by_std):
        raise ValueError(
            f"the objective {name} does not depend on the std of the loss, so its tilt, a_std / a_mean, is 0: it is "
            f"the plain optimizer, without a rule; if there is a std in it, {hint}"
        )
    signed = [slope for slope in by_mean if slope is not None and not math.isnan(slope)]
    if signed and max(signed) <= 0:
        raise ValueError(
            f"the objective {name} falls where the mean of the loss rises, but objectives are minimized; give it the "
            "other sign: for -mean + eta * std write mean - eta * std"
        )
    if is_flat:
        raise ValueError(
            f"the objective {name} does not depend on the std where eta is 0, so a rule without an eta would be the "
            f"plain optimizer; give its strength, as in from_objective({name.strip('<>')}, eta=0.1)"
        )


def check_is_no_objective(rule: Any, module: str) -> None:
    """Refuse a function in the place of a rule, and say how it becomes one."""
    if callable(rule):
        raise ValueError(
            f"a rule is a name or a {module}.Rule, but got the function {getattr(rule, '__name__', repr(rule))}; if it "
            f"is an objective of (mean, std, eta), make a rule of it: {module}.from_objective(objective, eta=0.1)"
        )
