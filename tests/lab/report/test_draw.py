"""Panels as Plotly and matplotlib draw them."""

from __future__ import annotations

import itertools

from surefoot.lab.report.draw import DASHES, style_of


def test_lines_differ_in_colour_or_dash():
    styles = [style_of(series) for series in range(36)]
    assert len(set(styles)) == 36
    assert all(one[0] != two[0] and one[1] != two[1] for one, two in itertools.pairwise(styles))
    assert len(DASHES) >= 4
