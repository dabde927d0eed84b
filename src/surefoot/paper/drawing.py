"""Draws pictures with matplotlib, for documents (PNG and PDF)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot._extras import require
from surefoot.lab.report.page import DASHES, style_of
from surefoot.paper.panels import Line, Panel, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: The report's colours (see report.css), which colour-blind readers can tell apart; ink first, for the baseline.
PALETTE = ("#17232c", "#0072b2", "#d55e00", "#009e73", "#a8438f", "#bf8600", "#3d9fd3", "#6b6a1e")
#: Pixels that the report's lines are wide: its dashes are in pixels, matplotlib's in widths of the line.
_WIDTH = 2.2


def save(picture: Picture, folder: Path) -> list[Path]:
    """Write a picture as PNG and PDF; the same picture gives the same bytes."""
    figure = draw(picture)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{picture.name}.png", folder / f"{picture.name}.pdf"]
    figure.savefig(paths[0], dpi=110, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return paths


def draw(picture: Picture) -> Figure:
    """A picture as a matplotlib figure, without touching pyplot's state."""
    module = require("matplotlib.figure", extra="lab")
    columns = max(len(row) for row in picture.rows)
    size = (max(5.6, 4.2 * columns), 0.9 + 3.1 * len(picture.rows))
    figure: Figure = module.Figure(figsize=size, layout="constrained")
    figure.suptitle(picture.title)
    axes = figure.subplots(len(picture.rows), columns, squeeze=False)
    labels: dict[str, Any] = {}
    for row, panels in zip(axes, picture.rows):
        for pair, panel in zip(row, panels):
            _draw_panel(pair, panel, labels, own=len(picture.rows) > 1)
    if len(picture.rows) == 1:
        columns = min(4, len(labels), int(size[0] / 2.4))
        figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=columns, fontsize=8)
    return figure


def _draw_panel(axes: Axes, panel: Panel, labels: dict[str, Any], *, own: bool) -> None:
    handles: dict[str, Any] = {}
    for line in panel.lines:
        handle = _draw_line(axes, line)
        labels.setdefault(line.label, handle)
        handles.setdefault(line.label, handle)
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    ticker = require("matplotlib.ticker", extra="lab")
    if panel.x == "epoch":
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
    for axis, log in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        if log:
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axes.set_ylim(*y_limits(panel))
    for axis, log in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        if log:
            axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axis.set_minor_formatter(ticker.NullFormatter())
            if axis.get_view_interval()[1] < 3 * axis.get_view_interval()[0]:  # 1, 2 and 5 would be too few
                axis.set_major_locator(ticker.MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.25, linewidth=0.5)
    if own:
        axes.legend(handles.values(), handles.keys(), fontsize=6)


def y_limits(panel: Panel) -> tuple[float, float]:
    """From the lowest to the highest line or point; a band or an error bar that leaves the panel is cut there."""
    values = [y for line in panel.lines for y in line.y if y > 0 or not panel.log_y]
    if not values:
        return (0.1, 1.0)
    low, high = min(values), max(values)
    if panel.log_y:
        room = (high / low) ** 0.08 if high > low else 1.1
        return low / room, high * room
    room = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    return low - room, min(high + room, max(panel.most, high))


def _draw_line(axes: Axes, line: Line) -> Any:
    number, dash = style_of(line.series)
    colour = PALETTE[number]
    if line.marks:
        return axes.errorbar(
            [x + line.shift for x in line.x], line.y, line.spread, fmt="o", color=colour, markerfacecolor="white",
            markersize=4, capsize=2, linewidth=0.8,
        )  # fmt: skip
    [handle] = axes.plot(
        line.x,
        line.y,
        linestyle=_pattern(dash if line.dash is None else DASHES[line.dash]),
        color=colour,
        alpha=0.25 if line.faint else 1.0,
        linewidth=0.8 if line.faint else 1.4,
    )
    if line.band:
        low, high = zip(*line.band)
        axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    return handle


def _pattern(dash: str) -> Any:
    """A dash of the report as matplotlib takes it.

    >>> _pattern("solid"), _pattern("11px,2.2px")
    ('solid', (0, [5.0, 1.0]))
    """
    if dash == "solid":
        return dash
    return 0, [round(float(part.removesuffix("px")) / _WIDTH, 2) for part in dash.split(",")]
