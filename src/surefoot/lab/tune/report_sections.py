"""The report of a search: best settings, sensitivity, and best so far against the budget."""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surefoot.lab.analyse.verdicts import count, number
from surefoot.lab.report import Figure, Section, escape, write_page
from surefoot.lab.report.tables import metric_name
from surefoot.lab.tune.result import StudyResult, Tuning, settings_of
from surefoot.lab.tune.space import Grid, Range
from surefoot.version import __version__


def _budgets(settings: Sequence[int]) -> str:
    """How many settings were to be tried.

    >>> _budgets([1, 1]), _budgets([1, 20])
    ('1 setting each', '1 to 20 settings each')
    """
    least, most = min(settings), max(settings)
    return f"{count(most, 'setting')} each" if least == most else f"{least} to {most} settings each"


def write_tuning_report(tuning: Tuning, path: Path, command: str = "") -> Path:
    """Write the report of a search as one HTML file that needs no network."""
    plan = tuning.studies[0].plan
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    subtitle = " · ".join(
        [
            count(len(tuning.studies), "optimizer"),
            _budgets([study.plan.budget for study in tuning.studies]),
            f"{count(len(plan.seeds), 'seed')} each",
            count(plan.rungs[-1], "epoch"),
        ]
    )
    return write_page(
        path,
        f"Tuning on {plan.template['task']['name']}",
        tuning_sections(tuning, command),
        subtitle=subtitle,
        footer=f"Written by surefoot {__version__} on {today}. One file, no network: keep it, mail it, print it.",
    )


def tuning_sections(tuning: Tuning, command: str = "") -> list[Section]:
    """The sections of the report, in order."""
    sections = [
        Section("Best settings", _lead(tuning), _table(tuning)),
        Section(
            "Sensitivity",
            "The value of every setting against each option: a flat valley is easy to tune, a narrow one is not.",
            figures=sensitivity(tuning),
        ),
        Section(
            "Best so far against budget",
            "The best value found after so much training, all seeds and pruned trials counted: what a search of any "
            "smaller budget would have found.",
            figures=[best_so_far(tuning)],
        ),
    ]
    commands = [line for line in (command, shlex.join(tuning.command)) if line]
    if commands:
        html = "".join(f"<pre><code>{escape(line)}</code></pre>" for line in commands)
        sections.append(Section("How to go on", "This search again, and the comparison on fresh seeds.", html))
    return sections


def sensitivity(tuning: Tuning) -> list[Figure]:
    """Value against each option that was tried, one colour per optimizer, one marker per trial."""
    names = dict.fromkeys(name for study in tuning.studies for name in study.plan.space.options)
    values = [one.value for study in tuning.studies for one in study.trials if math.isfinite(one.value)]
    if not values:
        return []
    plan = tuning.studies[0].plan
    worst = min(values) if plan.maximize else max(values)
    figures = []
    for name in names:
        tried = [study for study in tuning.studies if name in study.plan.space.options]
        traces = [trace for study in tried for trace in _markers(study, name, worst, tuning.studies.index(study))]
        axis: dict[str, Any] = {"title": {"text": name}, "type": _scale(tried, name)}
        if axis["type"] == "log":
            axis |= {"exponentformat": "power", "dtick": 1}
        figures.append(
            Figure(
                f"{metric_name(plan.metric).capitalize()} against {name}",
                traces,
                {"xaxis": axis, "yaxis": _value_axis(plan.metric, values), "showlegend": True, "hovermode": "closest"},
                f"{'Higher' if plan.maximize else 'Lower'} is better. Full markers: trained to the end, the best one "
                "large; open ones: stopped early, with their value there; ✕: diverged, drawn at the worst value.",
                height=380,
            )
        )
    return figures


def best_so_far(tuning: Tuning) -> Figure:
    """The best value found against the epochs trained until then."""
    traces: list[dict[str, Any]] = []
    for series, study in enumerate(tuning.studies):
        spent, best = 0, math.nan
        x, y, text = [], [], []
        for one in study.trials:
            spent += one.epochs
            better = one.value > best if study.plan.maximize else one.value < best
            if one.state == "done" and (math.isnan(best) or better):
                best = one.value
                x.append(spent)
                y.append(best)
                text.append(f"{escape(study.plan.label)} {escape(settings_of(one.options))}<br>{number(best)}")
        if x and x[-1] < spent:
            x, y, text = [*x, spent], [*y, y[-1]], [*text, text[-1]]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "line": {"shape": "hv"},
                "name": escape(study.plan.label),
                "series": series,
                "x": x,
                "y": y,
                "text": text,
                "hovertemplate": "%{text}<br>after %{x} epochs<extra></extra>",
            }
        )
    metric = tuning.studies[0].plan.metric
    found = [value for trace in traces for value in trace["y"]]
    return Figure(
        f"Best {metric_name(metric)} so far",
        traces,
        {
            "xaxis": {"title": {"text": "epochs trained"}, "rangemode": "tozero"},
            "yaxis": _value_axis(metric, found),
            "showlegend": True,
        },
        height=380,
        wide=True,
    )


def _markers(study: StudyResult, name: str, worst: float, series: int) -> list[dict[str, Any]]:
    x, y, text, symbols, sizes = [], [], [], [], []
    for one in study.trials:
        x.append(one.options[name])
        y.append(one.value if math.isfinite(one.value) else worst)
        value = "diverged" if one.state == "diverged" else number(one.value)
        note = ", stopped early" if one.state == "pruned" else ""
        text.append(f"{escape(study.plan.label)} {escape(settings_of(one.options))}<br>{value}{note}")
        symbols.append({"done": "circle", "pruned": "circle-open", "diverged": "x"}[one.state])
        sizes.append(13 if one is study.best else 7)
    if not x:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(study.plan.label),
            "series": series,
            "x": x,
            "y": y,
            "text": text,
            "marker": {"symbol": symbols, "size": sizes},
            "hovertemplate": "%{text}<extra></extra>",
        }
    ]


def _scale(tried: list[StudyResult], name: str) -> str:
    options = [study.plan.space.options[name] for study in tried]
    if all(isinstance(one, Range) or (one.numeric and one.ends[0] > 0) for one in options):
        return "log"
    return "linear" if all(isinstance(one, Grid) and one.numeric for one in options) else "category"


def _value_axis(metric: str, values: list[float]) -> dict[str, Any]:
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > 10
    return {"title": {"text": metric_name(metric)}, "type": "log" if wide else "linear"}


def _lead(tuning: Tuning) -> str:
    plan = tuning.studies[0].plan
    seeds = f"{plan.seeds[0]} to {plan.seeds[-1]}" if len(plan.seeds) > 1 else f"{plan.seeds[0]}"
    return (
        f"Chosen on seeds {seeds}, which are for tuning alone: the value of a winner is flattered by having been "
        "chosen. Compare the settings on fresh seeds before claiming anything."
    )


def _table(tuning: Tuning) -> str:
    heads = tuning.header()
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f'<td data-label="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(heads[1:], row[1:]))
        + "</tr>"
        for row in tuning.rows()
    )
    spaces = "".join(f"<li>{escape(study.plan.label)}: {escape(_space(study))}</li>" for study in tuning.studies)
    notes = "".join(f'<p class="flag warning">{escape(note)}</p>' for note in tuning.warnings)
    notes += "".join(f"<p>{escape(note)}</p>" for note in tuning.notes)
    return (
        f'<div class="scroll"><table class="stack"><caption>Best settings</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{notes}<p>What was tried:</p><ul>{spaces}</ul>"
    )


def _space(study: StudyResult) -> str:
    return ", ".join(f"{name} {values}" for name, values in study.plan.space.describe().items())
