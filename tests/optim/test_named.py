"""The optimizers by name."""

from __future__ import annotations

import pytest

from surefoot.optim.named import OPTIMIZERS


@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_help_of_a_named_optimizer_lists_its_arguments(cls: type) -> None:
    assert cls.__doc__ is not None
    assert "args" in cls.__doc__.lower()
