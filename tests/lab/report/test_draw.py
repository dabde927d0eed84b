"""Panels as Plotly and matplotlib draw them."""

from __future__ import annotations

import itertools

from surefoot.lab.report.draw import DASHES, PALETTE, draw, plotly, save, style_of
from surefoot.lab.report.figures import Axis, Figure, Line, Markers, Panel


def test_lines_differ_in_colour_or_dash():
    styles = [style_of(series) for series in range(36)]
    assert len(set(styles)) == 36
    assert all(style[0] != after[0] and style[1] != after[1] for style, after in itertools.pairwise(styles))
    assert len(DASHES) >= 4


def test_points_steps_and_errors_as_plotly_draws_them():
    points = Line("a", [1, 2], [3, 4], 2, error=[0.1, 0.2], markers=Markers("x", 9, 0.5, 3), connected=False, shift=0.5)
    stairs = Line("", [1, 2], [3, 4], markers=Markers(), steps=True)
    drawn = plotly(Panel("", [points, stairs], Axis("x", "log", powers=True), Axis(span=(0, 5), from_zero=True)))
    first, second = drawn["data"]
    assert (first["mode"], first["x"], first["error_y"]["array"]) == ("markers", [1.5, 2.5], [0.1, 0.2])
    assert first["marker"] == {"symbol": "x", "size": 9, "opacity": 0.5, "line": {"width": 3}}
    assert (second["mode"], second["line"], second["showlegend"]) == ("lines+markers", {"shape": "hv"}, False)
    assert drawn["layout"]["xaxis"] == {"title": {"text": "x"}, "type": "log", "exponentformat": "power", "dtick": 1}
    assert (drawn["layout"]["yaxis"]["range"], drawn["layout"]["yaxis"]["rangemode"]) == ([0, 5], "tozero")
    assert drawn["layout"]["showlegend"] is True
    assert plotly(Panel("", [stairs]))["layout"]["showlegend"] is False


def test_a_band_without_width_is_not_drawn():
    flat, wide = (Line("a", [1, 2], [3, 3], band=[(3, 3), (3, high)]) for high in (3, 4))
    assert len(plotly(Panel("", [flat]))["data"]) == 1
    shade, line = plotly(Panel("", [wide]))["data"]
    assert (shade["x"], shade["y"], shade["fill"]) == ([1, 2, 2, 1], [3, 4, 3, 3], "toself")
    assert line["name"] == "a"


def test_matplotlib_draws_the_same_lines():
    lines = [
        Line("curve", [1, 2], [0.5, 0.25], band=[(0.4, 0.6), (0.2, 0.3)]),
        Line("stairs", [1, 2], [0.5, 0.4], 1, markers=Markers(), steps=True),
        Line("points", [1, 2], [0.3, 0.3], 2, connected=False, shift=0.25),
    ]
    panel = Panel("title", lines, y=Axis("loss", "log"))
    axes = draw(Figure("name", "whole", [[panel]])).axes[0]
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("title", "epoch", "loss")
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    curve, stairs = axes.get_lines()[:2]
    assert [curve.get_color(), stairs.get_color()] == list(PALETTE[:2])
    assert (stairs.get_drawstyle(), stairs.get_marker()) == ("steps-post", "o")
    assert list(axes.containers[0].lines[0].get_xdata()) == [1.25, 2.25]
    assert len(axes.collections) >= 1  # the band


def test_figures_are_saved_with_the_same_bytes(tmp_path):
    figure = Figure("name", "title", [[Panel("", [Line("a", [1, 2], [3, 4])])]])
    paths = save(figure, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["name.png", "name.pdf"]
    before = [path.read_bytes() for path in paths]
    save(figure, tmp_path / "new" / "folder")
    assert [path.read_bytes() for path in paths] == before


def test_zero_rows_and_a_scale_are_drawn_by_both():
    axis = Axis("difference", span=(-1.0, 1.0), sides=("better", "worse"))
    points = Line("", [0.5, -0.5], [0, 1], markers=Markers(size=8), connected=False)
    panel = Panel("Differences", [points], axis, rows=[("AdamS", "+1%"), ("AdamCB", "")])
    assert plotly(panel)["sides"] == ["better", "worse"]
    [axes] = draw(Figure("x", "x", [[panel]])).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["AdamS", "AdamCB"]
    assert {"better", "worse"} <= {text.get_text() for text in axes.texts}
    heat = Markers("square", values=[1.0, 2.0], scale="loss")
    panel = Panel("Both", [Line("", [1.0, 2.0], [3.0, 4.0], markers=heat, connected=False)])
    [trace] = plotly(panel)["data"]
    assert (trace["marker"]["color"], trace["marker"]["colorbar"]["title"]["text"]) == ([1.0, 2.0], "loss")
    assert "series" not in trace  # its colours are those of the scale
    assert [axes.get_ylabel() for axes in draw(Figure("x", "x", [[panel]])).axes] == ["", "loss"]
