"""Draws the same panels twice: as Plotly's JSON for the page, and with matplotlib for documents (PNG and PDF)."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surefoot._extras import require
from surefoot.lab.report.figures import LIGHTER, Axis, Figure, Line, Markers, Panel

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

#: Colours that colour-blind readers can distinguish, ink first for the baseline; report.css has the same.
PALETTE = ("#17232c", "#0072b2", "#d55e00", "#009e73", "#a8438f", "#bf8600", "#3d9fd3", "#6b6a1e")
#: Dashes in pixels; with the colours they make 35 styles, and neighbours differ in both.
DASHES = ("solid", "9px,3px", "3px,3px", "9px,3px,2px,3px", "15px,4px")
#: Height of a named row of a panel in inches.
ROW_HEIGHT = 0.42
#: Width of the page's lines in pixels: its dashes are in pixels, those of matplotlib in widths of the line.
_WIDTH = 2.2


#: The scale of values, from dark to light.
SEQUENTIAL = ("#0b2e4f", "#10598a", "#2b86b5", "#6cb1cf", "#b5d8e6", "#eaf4f8")


class Style(NamedTuple):
    """How a series is drawn: the number of its colour, its dash, and how much of the colour, from 0 to 1, is left."""

    colour: int
    dash: str
    strength: float = 1.0


def style_of(series: int) -> Style:
    """The style of a series; only the baseline is drawn in ink.

    >>> style_of(0), style_of(1), style_of(8 + 40 * LIGHTER)
    (Style(colour=0, dash='solid', strength=1.0), Style(colour=1, dash='9px,3px', strength=1.0), \
Style(colour=1, dash='9px,3px,2px,3px', strength=0.6))
    """
    lighter, place = divmod(series, LIGHTER)
    colour = 0 if place == 0 else 1 + (place - 1) % (len(PALETTE) - 1)
    return Style(colour, DASHES[place % len(DASHES)], 1 - lighter / 100)


def colour_of(series: int) -> str:
    """The colour of a series on white paper.

    >>> colour_of(1), colour_of(1 + 50 * LIGHTER)
    ('#0072b2', '#80b8d8')
    """
    style = style_of(series)
    parts = [255 - style.strength * (255 - part) for part in _parts(PALETTE[style.colour])]
    return "#" + "".join(f"{round(part):02x}" for part in parts)


def _parts(code: str) -> tuple[int, int, int]:
    """Red, green and blue of a colour."""
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def plotly(panel: Panel) -> dict[str, Any]:
    """Data, layout and rows of a panel for report.js, which adds the colours of each trace's `series`.

    Plotly reads HTML in every text, so all of them are escaped here.
    """
    listed = any(line.label and line.listed for line in panel.lines)
    layout = {"xaxis": _plotly_axis(panel.x), "yaxis": _plotly_axis(panel.y), "showlegend": listed}
    figure: dict[str, Any] = {"data": [trace for line in panel.lines for trace in _traces(line)], "layout": layout}
    if panel.x.sides:
        figure["sides"] = [_plotly_text(side) for side in panel.x.sides]
    if panel.rows:
        figure["rows"] = [[_plotly_text(name), _plotly_text(note)] for name, note in panel.rows]
    return figure


def _plotly_axis(axis: Axis) -> dict[str, Any]:
    layout: dict[str, Any] = {"title": {"text": _plotly_text(axis.title)}, "type": axis.scale}
    if axis.whole:
        layout["tickformat"] = "d"
    if axis.ticks:
        layout |= {"tickvals": list(axis.ticks), "ticktext": [f"{tick:g}" for tick in axis.ticks]}
    if axis.powers:
        layout |= {"exponentformat": "power", "dtick": 1}
    if axis.span:
        layout["range"] = list(axis.span)
    if axis.from_zero:
        layout["rangemode"] = "tozero"
    return layout


def _traces(line: Line) -> list[dict[str, Any]]:
    mode = "+".join([*(["lines"] if line.connected else []), *(["markers"] if line.markers else [])])
    x = [_plotly_text(value) if isinstance(value, str) else value + line.shift for value in line.x]
    trace: dict[str, Any] = {"type": "scatter", "mode": mode, "series": line.series, "x": x, "y": list(line.y)}
    if line.label:
        trace["name"] = _plotly_text(line.label)
    if not line.label or not line.listed:
        trace["showlegend"] = False
    if line.dash is not None:
        trace["line"] = {"dash": DASHES[line.dash]}
    if line.steps:
        trace["line"] = {"shape": "hv"}
    if line.width is not None:
        trace["line"] = {**trace.get("line", {}), "width": line.width}
    if line.faint:
        trace["opacity"] = 0.25
    if line.text:
        trace |= {"text": [_plotly_text(text) for text in line.text], "hovertemplate": "%{text}<extra></extra>"}
    if line.error:
        trace["error_y"] = {"type": "data", "array": list(line.error), "thickness": 1.2, "width": 3}
    if line.markers:
        marker = {"symbol": line.markers.symbol, "size": line.markers.size, "opacity": line.markers.opacity}
        trace["marker"] = {name: value for name, value in marker.items() if value is not None}
        if line.markers.line_width is not None:
            trace["marker"]["line"] = {"width": line.markers.line_width}
        if line.markers.values:
            del trace["series"]
            trace["marker"] |= _scale(line.markers)
    return [*_band_trace(line), trace]


def _scale(markers: Markers) -> dict[str, Any]:
    """The sequential colours of points, with a bar beside the panel that explains them."""
    shades = [[place / (len(SEQUENTIAL) - 1), colour] for place, colour in enumerate(SEQUENTIAL)]
    bar = {"title": {"text": _plotly_text(markers.scale), "side": "right"}, "thickness": 12, "outlinewidth": 0}
    return {
        "color": list(markers.values),
        "colorscale": shades,
        "reversescale": not markers.dark_is_low,
        "colorbar": bar,
        "line": {"width": 1, "color": "#7d8b95"},
    }


def _band_trace(line: Line) -> list[dict[str, Any]]:
    if not any(low < high for low, high in line.band):
        return []
    low, high = zip(*line.band)
    outline = {"x": [*line.x, *reversed(line.x)], "y": [*high, *reversed(low)], "fill": "toself"}
    shade = {"mode": "lines", "line": {"width": 0}, "series": line.series, "hoverinfo": "skip"}
    return [{"type": "scatter", **outline, **shade, "showlegend": False}]


def _plotly_text(text: str) -> str:
    """Text as Plotly shows it literally.

    >>> _plotly_text("a <b>\\nc")
    'a &lt;b&gt;<br>c'
    """
    return html.escape(text).replace("\n", "<br>")


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure as PNG and PDF; the same figure gives the same bytes."""
    drawn = draw(figure)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.png", folder / f"{figure.name}.pdf"]
    drawn.savefig(paths[0], dpi=110, metadata={"Software": None})
    drawn.savefig(paths[1], metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return paths


def draw(figure: Figure) -> matplotlib.figure.Figure:
    """A figure as matplotlib's, without touching pyplot's state."""
    module = require("matplotlib.figure", extra="lab")
    columns = max(len(row) for row in figure.rows)
    heights = [max(3.1, *(0.35 + ROW_HEIGHT * len(panel.rows) for panel in row)) for row in figure.rows]
    is_wide = any(panel.wide for row in figure.rows for panel in row)
    size = (max(8.4 if is_wide else 5.6, 4.2 * columns), 0.9 + sum(heights))
    drawn: matplotlib.figure.Figure = module.Figure(figsize=size, layout="constrained")
    drawn.suptitle(figure.title)
    handles: dict[str, Any] = {}
    for row, panels in zip(drawn.subplots(len(figure.rows), columns, squeeze=False), figure.rows):
        for axes, panel in zip(row, panels):
            in_panel = draw_panel(axes, panel)
            handles |= {label: handle for label, handle in in_panel.items() if label not in handles}
            if len(figure.rows) > 1:
                axes.legend(in_panel.values(), in_panel.keys(), fontsize=6)
    if len(figure.rows) == 1:
        columns = min(4, len(handles), int(size[0] / 2.4))
        drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, fontsize=8)
    return drawn


def draw_panel(axes: Axes, panel: Panel) -> dict[str, Any]:
    """Draw a panel on matplotlib's axes; returns what a legend shows, by label."""
    handles: dict[str, Any] = {}
    for line in panel.lines:
        handle = _draw_line(axes, line)
        if line.label:
            handles.setdefault(line.label, handle)
    axes.set(title=panel.title, xlabel=panel.x.title, ylabel=panel.y.title)
    ticker = require("matplotlib.ticker", extra="lab")
    if panel.x.whole:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    for scale, set_scale in ((panel.x.scale, axes.set_xscale), (panel.y.scale, axes.set_yscale)):
        if scale == "log":
            set_scale("log")
    axes.set_ylim(*y_limits(panel))
    if panel.x.span:
        axes.set_xlim(*panel.x.span)
    if panel.rows:
        _name_rows(axes, panel)
    for scale, axis in ((panel.x.scale, axes.xaxis), (panel.y.scale, axes.yaxis)):
        if scale == "log":
            axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axis.set_minor_formatter(ticker.NullFormatter())
            if axis.get_view_interval()[1] < 3 * axis.get_view_interval()[0]:  # 1, 2 and 5 would be too few
                axis.set_major_locator(ticker.MaxNLocator(7, steps=[1, 2, 5, 10]))
    if panel.x.sides:
        axes.axvline(0.0, color=PALETTE[0], linewidth=0.8)
        for place, (words, align) in enumerate(zip(panel.x.sides, ("left", "right"))):
            axes.text(place, 1.01, words, transform=axes.transAxes, ha=align, va="bottom", fontsize=8)
    if panel.rows:
        axes.set_yticks(range(len(panel.rows)), [name for name, _ in panel.rows])
        axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.grid(alpha=0.25, linewidth=0.5)
    return handles


def _name_rows(axes: Axes, panel: Panel) -> None:
    """The rows from top to bottom: names on the left, notes on the right, and every second row shaded."""
    axes.set_yticks(range(len(panel.rows)), [name for name, _ in panel.rows], fontsize=8)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    for row, (_, note) in enumerate(panel.rows):
        axes.annotate(
            note, (1.01, row), xycoords=axes.get_yaxis_transform(), va="center", fontsize=8, annotation_clip=False
        )
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color=PALETTE[0], alpha=0.04, linewidth=0)


def y_limits(panel: Panel) -> tuple[float, float]:
    """From the lowest to the highest line or point; a band or an error bar that leaves the panel is cut there."""
    log = panel.y.scale == "log"
    values = [y for line in panel.lines for y in line.y if y > 0 or not log]
    if not values:
        return (0.1, 1.0)
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** 0.08 if high > low else 1.1
        return low / room, high * room
    room = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    return low - room, min(high + room, max(panel.y.largest, high))


def _draw_line(axes: Axes, line: Line) -> Any:
    dash = style_of(line.series).dash
    colour = colour_of(line.series)
    if line.markers and line.markers.values:
        from matplotlib.colors import LinearSegmentedColormap

        shades = SEQUENTIAL if line.markers.dark_is_low else SEQUENTIAL[::-1]
        colours = LinearSegmentedColormap.from_list("sequential", shades)
        points = axes.scatter(
            line.x, line.y, c=line.markers.values, cmap=colours, s=60, edgecolor="#7d8b95", label=line.label
        )
        axes.figure.colorbar(points, ax=axes, label=line.markers.scale)
        return points
    if not line.connected:
        return axes.errorbar(
            [x + line.shift for x in line.x], line.y, line.error or None, fmt="o", label=line.label, color=colour,
            markerfacecolor="white" if _is_open(line) else colour, markersize=4, capsize=2, linewidth=0.8,
        )  # fmt: skip
    [handle] = axes.plot(
        line.x,
        line.y,
        label=line.label,
        linestyle=_pattern(dash if line.dash is None else DASHES[line.dash]),
        drawstyle="steps-post" if line.steps else "default",
        marker="o" if line.markers else "",
        color=colour,
        alpha=0.25 if line.faint else 1.0,
        linewidth=line.width or (0.8 if line.faint else 1.4),
    )
    if line.band:
        low, high = zip(*line.band)
        axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    return handle


def _is_open(line: Line) -> bool:
    return line.markers is not None and str(line.markers.symbol).endswith("-open")


def _pattern(dash: str) -> Any:
    """A dash of the page as matplotlib takes it.

    >>> _pattern("solid"), _pattern("11px,2.2px")
    ('solid', (0, [5.0, 1.0]))
    """
    if dash == "solid":
        return dash
    return 0, [round(float(part.removesuffix("px")) / _WIDTH, 2) for part in dash.split(",")]
