"""The figures as they are drawn: bands, limits, dashes, points and legends."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from surefoot.lab.report.draw import draw, plotly, y_limits
from surefoot.lab.report.figures import Axis, Figure, Line, Panel, band
from surefoot.lab.store import Run
from surefoot.paper.cells import Replication
from surefoot.paper.figures import comparison, curve, surface
from surefoot.paper.published import OPTIMIZERS, configurations

LR = configurations()[0]
MakeRun = Callable[..., Run]


@pytest.fixture
def jumpy(paper_run: MakeRun) -> list[Run]:
    """Three seeds of every optimizer of which one jumps: mean - std is below zero, mean + std above 100 %."""
    luck = [(0.001, 0.999), (0.001, 0.999), (0.9, 0.3)]
    return [
        paper_run(LR, name, seed, final=final, accuracy=accuracy)
        for name in OPTIMIZERS
        for seed, (final, accuracy) in enumerate(luck)
    ]


def figure_of(runs: list[Run]) -> Figure:
    figure = comparison(Replication(runs), LR)
    assert figure is not None
    return figure


def test_bands_end_where_the_seeds_end(jumpy: list[Run]) -> None:
    assert band([1.0, 3.0, 2.0]) == (1.0, 3.0)
    for metric, least, most in (("train_loss", 0.0, math.inf), ("val_acc", 30.0 - 1e-9, 99.9 + 1e-9)):
        line = curve(jumpy[:3], metric, "Adam", 0)
        assert line is not None
        assert all(least < low <= y <= high <= most for y, (low, high) in zip(line.y, line.band))
    shown = [plotly(panel)["data"][0]["y"] for panel in figure_of(jumpy).rows[0]]  # the first band
    assert min(shown[0]) > 0
    assert max(shown[2]) <= 99.9 + 1e-9


def test_the_axis_ends_where_lines_and_points_end(jumpy: list[Run]) -> None:
    figure = figure_of(jumpy)
    for axes, panel in zip(draw(figure).axes, figure.rows[0]):
        values = [y for line in panel.lines for y in line.y]
        low, high = axes.get_ylim()
        assert low < min(values) <= max(values) <= high
        if panel.y.scale == "log":
            assert low > 0.5 * min(values)
        else:
            assert high <= 100
    level = Panel("", [Line("", [1.0], [99.9]), Line("", [1.0], [50.0])], y=Axis(largest=100.0))
    assert y_limits(level)[1] == 100.0
    assert y_limits(Panel("", [Line("", [1.0], [0.0])], y=Axis(scale="log"))) == (0.1, 1.0)
    assert y_limits(Panel("", [Line("", [1.0], [2.0])]))[0] < 2.0


def test_lines_differ_in_dash_and_points_stand_side_by_side(jumpy: list[Run]) -> None:
    figure = figure_of(jumpy)
    axes = draw(figure).axes[0]
    points = [one for one in axes.containers if one.get_label() != ""]
    places = [float(one.lines[0].get_xdata()[0]) for one in points]
    assert len(places) == len(set(places)) == 4
    assert all(abs(place - 3.0) < 0.5 for place in places)
    marks = {id(part) for one in points for part in (one.lines[0], *one.lines[1])}
    lines = [line for line in axes.get_lines() if id(line) not in marks]
    assert len({str(line._dash_pattern) for line in lines}) == 4  # type: ignore[attr-defined]
    traces = [trace for trace in plotly(figure.rows[0][0])["data"] if trace["mode"] == "markers"]
    assert [trace["x"][0] for trace in traces] == pytest.approx(places)
    assert traces[0]["text"][0] == "published, epoch 3: 0.284 ± 0"


def test_a_dash_of_its_own_is_drawn_in_the_page_too() -> None:
    lines = plotly(surface().rows[0][0])["data"][-3:]
    assert [(line["series"], line.get("line", {}).get("dash")) for line in lines] == [
        (0, None), (1, "solid"), (3, "9px,3px"),
    ]  # fmt: skip


def test_the_legend_fits_the_figure() -> None:
    figure = draw(surface())
    figure.draw_without_rendering()
    [legend] = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert box.x0 > 0.05 * whole.width
    assert box.x1 < 0.95 * whole.width
