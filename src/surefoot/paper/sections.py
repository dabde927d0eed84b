"""The paper's part of the HTML report: claims, cells and figures, as sections of the report's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from surefoot.lab.report import Figure, Section, escape
from surefoot.lab.report.page import DASHES, style_of
from surefoot.paper.cells import Cell, Replication, cells
from surefoot.paper.claims import judge_all
from surefoot.paper.contrasts import Verdict
from surefoot.paper.drawing import PALETTE
from surefoot.paper.panels import Line, Panel, Picture
from surefoot.paper.pictures import Gallery
from surefoot.paper.published import METRICS, configurations
from surefoot.paper.scorecard import EVIDENCE, HEADS, cell_texts


def paper_sections(replication: Replication, gallery: Gallery) -> list[Section]:
    """The sections: the claims, every cell, and the figures of the paper."""
    every = cells(replication)
    missing = f"Not drawn, for want of runs: {', '.join(gallery.missing)}." if gallery.missing else ""
    return [
        Section(
            "The paper's claims",
            "Each claim as contrasts that are taken seed by seed; fewer than six seeds can lean, but not decide.",
            "".join(_claim(one) for one in judge_all(replication)),
        ),
        Section(
            "The paper, cell by cell",
            "Ours beside the published mean ± std of three seeds; differences in pooled standard errors.",
            "".join(
                _configuration(one.name, [cell for cell in every if cell.row.configuration == one])
                for one in configurations()
            ),
        ),
        Section("The paper's figures", missing, sections=[picture_section(one) for one in gallery.pictures]),
    ]


def _claim(verdict: Verdict) -> str:
    rows = [[one.line.statement, one.line.wish, one.ours, one.theirs, one.verdict] for one in verdict.lines]
    note = f"<p>{escape(verdict.claim.note)}</p>" if verdict.claim.note else ""
    return (
        f"<details><summary><strong>{escape(verdict.word)}</strong>: {escape(verdict.claim.title)}</summary>"
        f"<p>{escape(verdict.sentence)}</p>{note}{_table(EVIDENCE, rows)}</details>"
    )


def _configuration(name: str, own: Sequence[Cell]) -> str:
    words = {word: sum(cell.verdict == word for cell in own) for word in ("matches", "differs", "not run")}
    tally = ", ".join(f"{number} {word}" for word, number in words.items() if number)
    head = ["optimizer", "epoch", "variant"]
    for metric in METRICS:
        head += [HEADS[metric], "theirs", "difference"]
    rows = []
    for first in range(0, len(own), len(METRICS)):
        group = own[first : first + len(METRICS)]
        line = [group[0].row.optimizer, str(group[0].row.epoch), group[0].variant]
        for cell in group:
            line += cell_texts(cell)
        rows.append(line)
    return f"<details><summary>{escape(name)}: {escape(tally)}</summary>{_table(head, rows)}</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td data-label="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head[1:], row[1:]))
        + "</tr>"
        for row in rows
    )
    inner = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="stack">{inner}</table></div>'


def picture_section(picture: Picture) -> Section:
    """A picture as a section of Plotly figures, one per panel."""
    figures = [_figure(panel) for row in picture.rows for panel in row]
    return Section(picture.title, picture.caption, figures=figures)


def _figure(panel: Panel) -> Figure:
    traces = [trace for line in panel.lines for trace in _traces(line)]
    whole = {"tickformat": "d"} if panel.x == "epoch" else {}
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": panel.x}, "type": "log" if panel.log_x else "linear", **whole},
        "yaxis": {"title": {"text": panel.y}, "type": "log" if panel.log_y else "linear"},
        "showlegend": True,
    }
    return Figure(panel.title or "Loss surface", traces, layout, height=380)


def _traces(line: Line) -> list[Mapping[str, Any]]:
    name = escape(line.label)
    common: dict[str, Any] = {"type": "scatter", "x": list(line.x), "y": list(line.y), "name": name}
    common |= {"series": line.series} | ({"line": {"dash": DASHES[line.dash]}} if line.dash is not None else {})
    if line.marks:
        error = {"type": "data", "array": list(line.spread), "thickness": 1.2, "width": 3}
        look = {"mode": "markers", "marker": {"symbol": "circle-open", "size": 7}, "showlegend": False}
        text = [f"{name}, epoch {x:g}: {y:g} ± {s:g}" for x, y, s in zip(line.x, line.y, line.spread)]
        told = {"text": text, "hovertemplate": "%{text}<extra></extra>", "x": [x + line.shift for x in line.x]}
        return [{**common, **look, **told, "error_y": error}]
    if line.faint:
        return [{**common, "mode": "lines", "opacity": 0.25, "showlegend": False}]
    drawn: list[Mapping[str, Any]] = [{**common, "mode": "lines"}]
    if any(low < high for low, high in line.band):
        low, high = zip(*line.band)
        band = {"x": [*line.x, *reversed(line.x)], "y": [*high, *reversed(low)], "fill": "toself"}
        shade = {"mode": "lines", "line": {"width": 0}, "fillcolor": _faint(line.series), "hoverinfo": "skip"}
        drawn = [{"type": "scatter", **band, **shade, "showlegend": False}, *drawn]
    return drawn


def _faint(series: int) -> str:
    """The colour of a series, nearly transparent.

    >>> _faint(1)
    'rgba(0,114,178,0.14)'
    """
    code = PALETTE[style_of(series)[0]]
    red, green, blue = (int(code[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"
