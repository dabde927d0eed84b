"""What a search found, for readers: the table of best settings, and the page with figures."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from surefoot.lab import terminal
from surefoot.lab.analyse.groups import metric_name
from surefoot.lab.analyse.ranking import percent
from surefoot.lab.analyse.verdicts import count, number, span
from surefoot.lab.report import ReportContext, Section, write_page
from surefoot.lab.report.context import Commands, Content, Table, TableRow, Text, Winner
from surefoot.lab.report.figures import Axis, Line, Markers, Panel
from surefoot.lab.report.tables import terminal_table
from surefoot.lab.tune.space import Grid, Range
from surefoot.lab.tune.study import StudyResult


def print_tuning(studies: Sequence[StudyResult], notes: Sequence[str], command: Sequence[str]) -> None:
    """Print the table, what to know about it, and the command that follows."""
    plan, rows = studies[0].plan, table_rows(studies)
    direction = "higher" if plan.maximize else "lower"
    name = f"{plan.template.task.name}: {metric_name(plan.metric)}, mean of {count(len(plan.seeds), 'tune seed')}"
    console = terminal.console()
    console.print(f"{plan.template.task.name}: {best_sentence(studies)}\n", style="bold", markup=False, highlight=False)
    console.print(f"{name}, {direction} is better", markup=False, highlight=False)
    head = ["optimizer", metric_name(plan.metric), "best setting", "trials", "epochs"]
    cells = [[label, value, setting, trials, epochs] for label, setting, value, trials, epochs in rows]
    console.print(*terminal_table(head, cells, console.width, spare=("epochs", "trials")), sep="\n")
    for note in [*notes, *warnings(studies)]:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if command:
        console.print("\nCompare them on seeds that tuning has not seen:")
        console.print(shlex.join(command), markup=False, highlight=False, soft_wrap=True)


def best_sentence(studies: Sequence[StudyResult]) -> str:
    """Which optimizer has the best setting, and by how much; no claim, since the seeds chose it."""
    ended = [(study.plan.label, study.best) for study in studies if study.best]
    if not ended:
        return "No setting was trained to the end."
    plan = studies[0].plan
    ended.sort(key=lambda pair: -pair[1].value if plan.maximize else pair[1].value)
    label, best = ended[0]
    text = f"{label} has the best setting, {settings_of(best.options)}: {metric_name(plan.metric)} {number(best.value)}"
    if len(ended) > 1:
        other, second = ended[1]
        share = percent(second.value - best.value, second.value)
        text += f", {other}'s best {number(second.value)}" + (f" ({share} behind)" if share else "")
    return f"{text}. That is no claim, since these seeds chose the setting."


def table_header(studies: Sequence[StudyResult]) -> list[str]:
    """The names of the table's columns."""
    plan = studies[0].plan
    metric = f"{metric_name(plan.metric)} (mean of {count(len(plan.seeds), 'seed')})"
    return ["optimizer", "best setting", metric, "trials", "epochs trained"]


def table_rows(studies: Sequence[StudyResult]) -> list[list[str]]:
    """The table: optimizer, best setting, its value, trials, epochs trained."""
    return [
        [
            study.plan.label,
            settings_of(study.best.options) + (" (edge)" if study.edges else "") if study.best else "–",
            number(study.best.value) if study.best else "–",
            _trial_counts(study),
            str(study.epochs),
        ]
        for study in studies
    ]


def _trial_counts(study: StudyResult) -> str:
    parts = [f"{number} {state}" for state in ("pruned", "diverged") if (number := study.of(state))]
    if study.failures:
        parts.append(f"{len(study.failures)} failed")
    return f"{len(study.trials)} of {study.plan.budget}" + (f" ({', '.join(parts)})" if parts else "")


def warnings(studies: Sequence[StudyResult]) -> list[str]:
    """Best values on the edge of what was tried, and optimizers without any."""
    edges = [note for study in studies if (note := study.edge_note())]
    nothing = [
        f"{study.plan.label}: no setting was trained to the end ({count(study.of('diverged'), 'trial')} diverged)."
        for study in studies
        if study.best is None
    ]
    return [*edges, *nothing]


def settings_of(options: Mapping[str, Any]) -> str:
    """A setting in a few words.

    >>> settings_of({"eta": 1e-05, "lr": 0.001})
    'eta=1e-05 lr=0.001'
    """
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in options.items()
    )


def write_tuning_report(
    path: Path, studies: Sequence[StudyResult], notes: Sequence[str], commands: Sequence[str]
) -> Path:
    """Write the report of a search as one HTML file that needs no network."""
    plan = studies[0].plan
    subtitle = " · ".join(
        [
            count(len(studies), "optimizer"),
            f"{span([study.plan.budget for study in studies], 'setting')} each",
            f"{count(len(plan.seeds), 'seed')} each",
            count(plan.rungs[-1], "epoch"),
        ]
    )
    title = f"Tuning on {plan.template.task.name}"
    return write_page(path, ReportContext(title, subtitle, tuning_sections(studies, notes, commands)))


def tuning_sections(studies: Sequence[StudyResult], notes: Sequence[str], commands: Sequence[str]) -> list[Section]:
    """The sections of the report, in order."""
    sections = [
        Section("Best settings", _lead(studies), _best_settings(studies, notes)),
        Section(
            "Sensitivity",
            "The value of every setting against each option: a flat valley is easy to tune, a narrow one is not.",
            panels=sensitivity(studies),
        ),
        *_heat_maps(studies),
        Section(
            "Best so far against budget",
            "The best value found after so much training, all seeds and pruned trials counted: what a search of any "
            "smaller budget would have found.",
            panels=[best_so_far(studies)],
        ),
    ]
    if commands:
        lead = "This search again, and the comparison on fresh seeds."
        sections.append(Section("How to go on", lead, [Commands(commands)]))
    return sections


def sensitivity(studies: Sequence[StudyResult]) -> list[Panel]:
    """Value against each option that was tried, one colour per optimizer, one marker per trial."""
    names = dict.fromkeys(name for study in studies for name in study.plan.space.options)
    values = [trial.value for study in studies for trial in study.trials if math.isfinite(trial.value)]
    if not values:
        return []
    plan = studies[0].plan
    worst = min(values) if plan.maximize else max(values)
    panels = []
    for name in names:
        tried = [(series, study) for series, study in enumerate(studies) if name in study.plan.space.options]
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


def _heat_maps(studies: Sequence[StudyResult]) -> list[Section]:
    panels = [panel for study in studies if (panel := heat_map(study))]
    lead = (
        "Each mark is a setting that was tried: the more it stands out from the page, the better. A stripe along a "
        "diagonal says that the two options replace each other."
    )
    return [Section("Two options together", lead, panels=panels)] if panels else []


def heat_map(study: StudyResult) -> Panel | None:
    """The value over eta and lr, or over the first two numeric options; None if fewer than two were tried."""
    options = study.plan.space.options
    numeric = [name for name in options if _scale([study], name) != "category"]
    names = sorted(numeric, key=lambda name: (name not in ("eta", "lr"), name))[:2]
    trials = [trial for trial in study.trials if math.isfinite(trial.value)]
    if len(names) < 2 or len(trials) < 3:
        return None
    y, x = names
    wide = _value_axis(study.plan.metric, [trial.value for trial in trials]).scale == "log"
    shown = [math.log10(trial.value) if wide else trial.value for trial in trials]
    name = metric_name(study.plan.metric)
    markers = Markers(
        ["square" if trial.state == "done" else "circle" for trial in trials],
        [24 if trial is study.best else 16 if trial.state == "done" else 9 for trial in trials],
        opacity=1.0,
        values=shown,
        scale=f"log10 of {name}" if wide else name,
        dark_is_low=not study.plan.maximize,
    )
    text = [f"{settings_of(trial.options)}\n{number(trial.value)}" for trial in trials]
    places = [[trial.options[axis] for trial in trials] for axis in (x, y)]
    scales = [_scale([study], axis) for axis in (x, y)]
    return Panel(
        f"{study.plan.label}: {y} and {x}",
        [Line("", places[0], places[1], text=text, markers=markers, connected=False)],
        Axis(x, scales[0], powers=scales[0] == "log"),
        Axis(y, scales[1], powers=scales[1] == "log"),
        "The best setting is the largest mark; the small ones were stopped early, with their value there.",
        height=400,
        wide=True,
    )


def best_so_far(studies: Sequence[StudyResult]) -> Panel:
    """The best value found against the epochs trained until then."""
    lines = [_best(study, series) for series, study in enumerate(studies)]
    metric = studies[0].plan.metric
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
    points: list[tuple[int, float, str]] = []
    for trial in study.trials:
        spent += trial.epochs
        better = trial.value > best if study.plan.maximize else trial.value < best
        if trial.state == "done" and (math.isnan(best) or better):
            best = trial.value
            points.append((spent, best, f"{study.plan.label} {settings_of(trial.options)}\n{number(best)}"))
    if points and points[-1][0] < spent:
        points.append((spent, *points[-1][1:]))
    x, y = [epochs for epochs, _, _ in points], [value for _, value, _ in points]
    text = [f"{name}\nafter {epochs} epochs" for epochs, _, name in points]
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


def _lead(studies: Sequence[StudyResult]) -> str:
    plan = studies[0].plan
    seeds = f"{plan.seeds[0]} to {plan.seeds[-1]}" if len(plan.seeds) > 1 else f"{plan.seeds[0]}"
    return (
        f"Chosen on seeds {seeds}, which are for tuning alone: the value of a winner is flattered by having been "
        "chosen. Compare the settings on fresh seeds before claiming anything."
    )


def _best_settings(studies: Sequence[StudyResult], notes: Sequence[str]) -> list[Content]:
    who, _, why = best_sentence(studies).partition(": ")
    return [
        Winner(f"{who.removesuffix('.')}.", f"{why[:1].upper()}{why[1:]}"),
        Table(table_header(studies), [TableRow(row) for row in table_rows(studies)], "Best settings"),
        *(Text(warning, "flag warning") for warning in warnings(studies)),
        *(Text(note) for note in notes),
        Text("What was tried:", items=[f"{study.plan.label}: {_space(study)}" for study in studies]),
    ]


def _space(study: StudyResult) -> str:
    return ", ".join(f"{name} {values}" for name, values in study.plan.space.describe().items())
