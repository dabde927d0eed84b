"""The figures of a report that are not curves: sensitivity to an option, and time to target."""

from __future__ import annotations

import math
from typing import Any

from surefoot.lab.analyse.audit import sweeps
from surefoot.lab.analyse.comparison import Row, time_to_target
from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, higher_is_better, value_at
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.analyse.verdicts import number, plus_minus
from surefoot.lab.report.labels import shortened
from surefoot.lab.report.page import Figure, escape
from surefoot.lab.report.tables import metric_name


def sensitivity(each: TaskGroup, metric: str, series: dict[str, int]) -> list[Figure]:
    """Final metric against eta or lr, one line per optimizer, when contestants differ in that option alone."""
    figures = []
    found = sweeps(each)
    for option in dict.fromkeys(name for name, _ in found):
        lines = [entries for name, entries in found if name == option]
        swept = {id(entry) for entries in lines for _, entry in entries}
        traces = [_sweep(option, entries, metric, series) for entries in lines]
        values = sorted({value for entries in lines for value, _ in entries})
        if id(each.baseline) not in swept:
            traces = [*_level(each.baseline, metric, values, series), *traces]
        axis: dict[str, Any] = {"title": {"text": option}, "type": "log" if values[0] > 0 else "linear"}
        if values[0] > 0:
            axis |= {"tickvals": values, "ticktext": [f"{value:g}" for value in values]}
        figures.append(
            Figure(
                f"{metric_name(metric).capitalize()} against {option}",
                traces,
                {"xaxis": axis, "yaxis": {"title": {"text": f"final {metric_name(metric)}"}}, "showlegend": True},
                "Mean ± std over the runs that ended. "
                + ("Higher is better. " if higher_is_better(metric, each.task) else "Lower is better. ")
                + "An empty marker: some runs diverged at this value.",
                height=360,
            )
        )
    return figures


def _sweep(
    option: str, entries: list[tuple[float, ContestantRuns]], metric: str, series: dict[str, int]
) -> dict[str, Any]:
    x, y, spread, text, symbols = [], [], [], [], []
    for value, entry in entries:
        seen = _final(entry, metric)
        if seen.n == 0:
            continue
        x.append(value)
        y.append(seen.mean)
        spread.append(seen.std if seen.n > 1 else 0.0)
        lost = f", {len(entry.diverged)} diverged" if entry.diverged else ""
        text.append(f"{escape(entry.label)}<br>{plus_minus(seen.mean, seen.std)} (n={seen.n}{lost})")
        symbols.append("circle-open" if entry.diverged else "circle")
    first = entries[0][1]
    name = str(first.optimizer.get("class", first.label)).rpartition(".")[2].rpartition(":")[2]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escape(name),
        "series": series[first.label],
        "x": x,
        "y": y,
        "error_y": {"type": "data", "array": spread, "thickness": 1.2, "width": 4},
        "marker": {"symbol": symbols, "size": 8},
        "text": text,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _level(entry: ContestantRuns, metric: str, values: list[float], series: dict[str, int]) -> list[dict[str, Any]]:
    seen = _final(entry, metric)
    if seen.n == 0:
        return []
    text = f"{escape(entry.label)}<br>{plus_minus(seen.mean, seen.std)} (n={seen.n})"
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"{escape(entry.label)} (baseline)",
            "series": series[entry.label],
            "x": [values[0], values[-1]],
            "y": [seen.mean, seen.mean],
            "text": [text, text],
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]


def _final(entry: ContestantRuns, metric: str) -> Any:
    return mean_std([value for run in entry.runs if (value := value_at(run, metric)) is not None])


def race(each: TaskGroup, rows: list[Row], series: dict[str, int]) -> Figure | None:
    """Epochs to target, run by run: a dot for a run that reached it, a tick at the median."""
    target = rows[0].target
    if target is None:
        return None
    traces: list[dict[str, Any]] = []
    first = min((run.epochs[0]["epoch"] for run in each.runs if run.epochs), default=1)
    last = max((run.epochs[-1]["epoch"] for run in each.runs if run.epochs), default=1)
    for place, (entry, row) in enumerate(zip(each.contestants, rows)):
        ended = [run for run in entry.runs if run.finished or run.diverged]
        times = [(run.seed, time_to_target(run, row.metric, target, row.higher_is_better)[1]) for run in ended]
        hit = [(seed, time) for seed, time in times if math.isfinite(time)]
        label = escape(entry.label)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "series": series[entry.label],
                "x": [time for _, time in hit],
                "y": [place] * len(hit),
                "text": [f"{label}, seed {seed}<br>epoch {number(time)}" for seed, time in hit],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"size": 9, "opacity": 0.55},
                "showlegend": False,
            }
        )
        if row.epochs_to_target is not None and math.isfinite(row.epochs_to_target):
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "series": series[entry.label],
                    "x": [row.epochs_to_target],
                    "y": [place],
                    "marker": {"symbol": "line-ns-open", "size": 20, "line": {"width": 3}},
                    "hovertemplate": f"{label}<br>median: epoch %{{x}}<extra></extra>",
                    "showlegend": False,
                }
            )
    return Figure(
        f"Epochs to {metric_name(rows[0].metric)} {number(target)}",
        traces,
        {
            "xaxis": {
                "title": {"text": "epoch"},
                "range": [first - 1, last + 0.03 * (last - first + 1)],
                "tickformat": "d",
            },
            "hovermode": "closest",
        },
        "A dot is a run, the tick its optimizer's median (none when half of the runs missed).",
        height=90 + 26 * len(rows),
        wide=True,
        rows=[(escape(name), _missed(row)) for name, row in zip(shortened([row.label for row in rows]), rows)],
    )


def _missed(row: Row) -> str:
    return f"{row.ended - row.reached} of {row.ended} missed" if row.reached < row.ended else ""
