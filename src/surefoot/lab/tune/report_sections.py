"""The report of a search: best settings, sensitivity, and best so far against the budget."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from surefoot.lab.analyse.verdicts import count, number
from surefoot.lab.report import ReportContext, Section, write_page
from surefoot.lab.report.context import Commands, Content, Table, TableRow, Text
from surefoot.lab.report.figures import Axis, Line, Markers, Panel
from surefoot.lab.report.tables import metric_name
from surefoot.lab.tune.result import StudyResult, Tuning, settings_of
from surefoot.lab.tune.space import Grid, Range


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
    subtitle = " · ".join(
        [
            count(len(tuning.studies), "optimizer"),
            _budgets([study.plan.budget for study in tuning.studies]),
            f"{count(len(plan.seeds), 'seed')} each",
            count(plan.rungs[-1], "epoch"),
        ]
    )
    title = f"Tuning on {plan.template.task.name}"
    return write_page(path, ReportContext(title, subtitle, tuning_sections(tuning, command)))


def tuning_sections(tuning: Tuning, command: str = "") -> list[Section]:
    """The sections of the report, in order."""
    sections = [
        Section("Best settings", _lead(tuning), _best_settings(tuning)),
        Section(
            "Sensitivity",
            "The value of every setting against each option: a flat valley is easy to tune, a narrow one is not.",
            panels=sensitivity(tuning),
        ),
        Section(
            "Best so far against budget",
            "The best value found after so much training, all seeds and pruned trials counted: what a search of any "
            "smaller budget would have found.",
            panels=[best_so_far(tuning)],
        ),
    ]
    commands = [line for line in (command, shlex.join(tuning.command)) if line]
    if commands:
        lead = "This search again, and the comparison on fresh seeds."
        sections.append(Section("How to go on", lead, [Commands(commands)]))
    return sections


def sensitivity(tuning: Tuning) -> list[Panel]:
    """Value against each option that was tried, one colour per optimizer, one marker per trial."""
    names = dict.fromkeys(name for study in tuning.studies for name in study.plan.space.options)
    values = [trial.value for study in tuning.studies for trial in study.trials if math.isfinite(trial.value)]
    if not values:
        return []
    plan = tuning.studies[0].plan
    worst = min(values) if plan.maximize else max(values)
    panels = []
    for name in names:
        tried = [(series, study) for series, study in enumerate(tuning.studies) if name in study.plan.space.options]
        lines = [_trials(study, name, worst, series) for series, study in tried if study.trials]
        scale = _scale([study for _, study in tried], name)
        panels.append(
            Panel(
                f"{metric_name(plan.metric).capitalize()} against {name}",
                lines,
                Axis(name, scale, powers=scale == "log"),
                _value_axis(plan.metric, values),
                f"{'Higher' if plan.maximize else 'Lower'} is better. Full markers: trained to the end, the best one "
                "large; open ones: stopped early, with their value there; ✕: diverged, drawn at the worst value.",
                height=380,
            )
        )
    return panels


def best_so_far(tuning: Tuning) -> Panel:
    """The best value found against the epochs trained until then."""
    lines = [_best(study, series) for series, study in enumerate(tuning.studies)]
    metric = tuning.studies[0].plan.metric
    return Panel(
        f"Best {metric_name(metric)} so far",
        lines,
        Axis("epochs trained", from_zero=True),
        _value_axis(metric, [value for line in lines for value in line.y]),
        height=380,
        wide=True,
    )


def _best(study: StudyResult, series: int) -> Line:
    spent, best = 0, math.nan
    x: list[int] = []
    y: list[float] = []
    names: list[str] = []
    for trial in study.trials:
        spent += trial.epochs
        better = trial.value > best if study.plan.maximize else trial.value < best
        if trial.state == "done" and (math.isnan(best) or better):
            best = trial.value
            x, y = [*x, spent], [*y, best]
            names.append(f"{study.plan.label} {settings_of(trial.options)}\n{number(best)}")
    if x and x[-1] < spent:
        x, y, names = [*x, spent], [*y, y[-1]], [*names, names[-1]]
    text = [f"{name}\nafter {epochs} epochs" for name, epochs in zip(names, x)]
    return Line(study.plan.label, x, y, series, text=text, markers=Markers(size=6), steps=True)


def _trials(study: StudyResult, name: str, worst: float, series: int) -> Line:
    symbols = {"done": "circle", "pruned": "circle-open", "diverged": "x"}
    text = []
    for trial in study.trials:
        value = "diverged" if trial.state == "diverged" else number(trial.value)
        note = ", stopped early" if trial.state == "pruned" else ""
        text.append(f"{study.plan.label} {settings_of(trial.options)}\n{value}{note}")
    return Line(
        study.plan.label,
        [trial.options[name] for trial in study.trials],
        [trial.value if math.isfinite(trial.value) else worst for trial in study.trials],
        series,
        text=text,
        markers=Markers(
            [symbols[trial.state] for trial in study.trials],
            [13 if trial is study.best else 7 for trial in study.trials],
        ),
        connected=False,
    )


def _scale(tried: list[StudyResult], name: str) -> Literal["linear", "log", "category"]:
    options = [study.plan.space.options[name] for study in tried]
    if all(isinstance(option, Range) or (option.numeric and option.ends[0] > 0) for option in options):
        return "log"
    return "linear" if all(isinstance(option, Grid) and option.numeric for option in options) else "category"


def _value_axis(metric: str, values: Sequence[float]) -> Axis:
    wide = bool(values) and min(values) > 0 and max(values) / min(values) > 10
    return Axis(metric_name(metric), "log" if wide else "linear")


def _lead(tuning: Tuning) -> str:
    plan = tuning.studies[0].plan
    seeds = f"{plan.seeds[0]} to {plan.seeds[-1]}" if len(plan.seeds) > 1 else f"{plan.seeds[0]}"
    return (
        f"Chosen on seeds {seeds}, which are for tuning alone: the value of a winner is flattered by having been "
        "chosen. Compare the settings on fresh seeds before claiming anything."
    )


def _best_settings(tuning: Tuning) -> list[Content]:
    return [
        Table(tuning.header(), [TableRow(row) for row in tuning.rows()], "Best settings"),
        *(Text(warning, "flag warning") for warning in tuning.warnings),
        *(Text(note) for note in tuning.notes),
        Text("What was tried:", items=[f"{study.plan.label}: {_space(study)}" for study in tuning.studies]),
    ]


def _space(study: StudyResult) -> str:
    return ", ".join(f"{name} {values}" for name, values in study.plan.space.describe().items())
