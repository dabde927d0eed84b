"""What is tried: ranges, grids, their settings and their edges."""

from __future__ import annotations

import math

import pytest

from surefoot.lab.tune.space import STARTUP, Grid, Range, Space, parse_values

pytest.importorskip("optuna", reason="Optuna is not installed; pip install 'surefoot[tune]'")


@pytest.mark.parametrize("text", ["", "1:0", "0:1", "-1:1", "1:2:3", "a:b", "1e-3:inf", ",", "1,1.0"])
def test_values_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"lr=.*give"):
        parse_values("lr", text)


def test_words_of_yes_and_no_are_not_texts() -> None:
    assert parse_values("amsgrad", "no,True") == Grid((False, True))
    assert parse_values("weighting", "paper,none") == Grid(("paper", None))


def test_whole_numbers_stay_whole_where_an_option_may_want_them() -> None:
    assert parse_values("ns_steps", "3,7") == Grid((3, 7))
    assert repr(parse_values("lr", "1,2")) == "Grid(values=(1.0, 2.0))"
    space = Space({"ns_steps": Grid((3, 7))})
    assert not space.bounded
    [chosen] = space.distributions().values()
    assert (type(chosen).__name__, chosen.low, chosen.high) == ("IntDistribution", 3, 7)
    assert repr(space.rounded({"ns_steps": 5})) == "{'ns_steps': 5}"
    assert Space({"nesterov": Grid((0, 1))}).bounded  # nothing lies between


def test_settings_of_a_range_are_spread_and_rounded() -> None:
    space = Space({"eta": Range(1e-6, 1.0), "lr": Range(1e-4, 1e-2)})
    settings = [space.setting(slot) for slot in range(STARTUP)]
    assert space.setting(STARTUP) == {}  # the sampler's
    for name, low, high in (("eta", 1e-6, 1.0), ("lr", 1e-4, 1e-2)):
        values = [setting[name] for setting in settings]
        assert len(set(values)) == STARTUP
        assert all(low <= value <= high and value == float(f"{value:.3g}") for value in values)
        halves = [math.log(value / low) / math.log(high / low) > 0.5 for value in values]
        assert 3 <= sum(halves) <= 7
