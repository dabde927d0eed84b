"""The sections of a report on runs: what came out, tables, figures, findings, and where the numbers come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from surefoot.lab.analyse.across_tasks import across_tasks
from surefoot.lab.analyse.anytime_valid import DECISIVE
from surefoot.lab.analyse.audit import SEVERITIES, Finding
from surefoot.lab.analyse.comparison import Comparison, Summary
from surefoot.lab.analyse.course import Course, courses
from surefoot.lab.analyse.groups import TaskGroup, higher_is_better, metric_name
from surefoot.lab.analyse.ranking import Ranking, rank, ranked
from surefoot.lab.analyse.verdicts import count, number, plus_minus, span, with_interval
from surefoot.lab.report.context import (
    Commands,
    Content,
    Download,
    Fact,
    Facts,
    Findings,
    FindingsFlag,
    Interval,
    Legend,
    Section,
    Table,
    TableRow,
    Text,
    Verdicts,
    Winner,
)
from surefoot.lab.report.figures import BUDGET, CurveData, CurvePanel, Panel, curve_data, series_of
from surefoot.lab.report.panels import differences_panel, profiles_panel, sensitivity, time_to_target_panel
from surefoot.lab.report.tables import (
    COLUMNS,
    MARKS,
    ONE_LOOK,
    difference,
    e_value,
    one_look,
    share,
    step_time,
    unbroken,
)
from surefoot.lab.store import column

if TYPE_CHECKING:
    from surefoot.lab.store import Run

#: With more contestants than this the verdicts become a list, and those without a claim are folded.
MANY = 8
#: Tables of up to so many rows are printed on one page; a longer one would leave a quarter of a page empty.
_WHOLE = 5
#: Errors and warnings that are repeated below the verdict.
MOST_URGENT = 3
#: What an optimizer records about itself: the key, the title, a caption, and whether a log scale makes sense.
_INSIDE = [
    ("tilt", "Tilt", "Above zero: pushes harder on batches worse than usual; below: on better ones.", False),
    ("weight", "Weight of the gradient", "What the last gradient of the epoch was multiplied by.", False),
    ("mean", "Loss seen: mean", "The optimizer's running mean of the mini-batch loss.", True),
    ("std", "Loss seen: standard deviation", "Its running spread: how uncertain the loss is.", True),
]


def report_sections(
    summary: Summary,
    findings: Sequence[Finding],
    extra: Sequence[Section] = (),
    command: str | None = None,
    budget: int = BUDGET,
) -> list[Section]:
    """The sections of a report, in order; the curves take about `budget` bytes at most."""
    groups = summary.groups
    if not groups:
        return [*extra, honesty_section(findings)]
    series = series_of(groups)
    inside = [name for name, *_ in _INSIDE]
    data = curve_data(groups, [*summary.metrics, *inside], series, budget)
    sections = [
        _in_short(summary, findings, series),
        _results(summary, series),
        _across_tasks(summary, series),
        _learning_curves(summary, data, series),
        _inside_optimizers(groups, data, series),
        _sensitivity(summary, series),
        _time_to_target(summary, series),
        *extra,
        honesty_section(findings),
        Section("Divergences", content=[_divergences(groups)]),
        Section("Provenance", content=[provenance(groups)]),
        Section("How to get it again", content=[how_to_repeat(groups, command)]),
    ]
    return [section for section in sections if not section.is_empty]


@dataclass(frozen=True)
class Story:
    """A comparison that is one part of a page: a title, what is compared, the numbers, and what follows from them."""

    title: str
    text: str
    summary: Summary
    findings: Sequence[Finding]
    remark: str = ""


def story_sections(stories: Sequence[Story], command: str | None = None) -> list[Section]:
    """A section per comparison, with its verdict, its picture and its curves; findings and provenance of all follow."""
    sections: list[Section] = []
    for story in stories:
        groups = story.summary.groups
        series = series_of(groups)
        data = curve_data(groups, story.summary.metrics, series, BUDGET // max(1, len(stories)))
        short = _in_short(story.summary, story.findings, series)
        curves = _learning_curves(story.summary, data, series)
        if sections:  # how to read a picture is said once, in the first story
            short, curves = _without_captions(short), replace(curves, lead="")
        *before, verdict = short.sections
        if story.remark:
            verdict = replace(verdict, content=[*verdict.content, Text(story.remark)])
        parts = [*before, verdict, *([] if curves.is_empty else [curves])]
        sections.append(Section(story.title, story.text, sections=parts))
    compared = [group for story in stories for group in story.summary.groups]
    findings = dict.fromkeys(finding for story in stories for finding in story.findings)
    return [
        *sections,
        honesty_section(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))),
        Section("Provenance", content=[provenance(compared)]),
        Section("How to get it again", content=[how_to_repeat(compared, command)]),
    ]


def _without_captions(section: Section) -> Section:
    """The same pictures without their captions."""
    return replace(
        section,
        panels=[replace(panel, caption="") for panel in section.panels],
        sections=[_without_captions(inner) for inner in section.sections],
    )


def honesty_section(findings: Sequence[Finding]) -> Section:
    """All findings of the audit, the worst first."""
    lead = "What would make this comparison unfair, incomplete or weaker than it looks."
    return Section("Honesty checks", lead, [Findings(findings)])


def findings_flag(findings: Sequence[Finding]) -> list[Content]:
    """A flag for the verdict, with the first errors and warnings; empty if there are none."""
    tally = Counter(finding.severity for finding in findings)
    words = " and ".join(count(tally[severity], severity) for severity in ("error", "warning") if tally[severity])
    return [FindingsFlag("error" if tally["error"] else "warning", words, _urgent(findings))] if words else []


def notes_below_verdicts(findings: Sequence[Finding], task: str) -> list[Content]:
    """What the verdicts on a task rest on, where the flag does not say it."""
    urgent = _urgent(findings)
    return [
        Text(finding.sentence, "note")
        for finding in findings
        if finding.belongs_below_verdicts(task) and finding not in urgent
    ]


def _urgent(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity != "note"][:MOST_URGENT]


def default_title(summary: Summary) -> str:
    """The tasks' names, with where a fork began."""
    names = [", ".join(filter(None, [group.name, _fork_start(group)])) for group in summary.groups]
    return f"Optimizers on {', '.join(names) or 'nothing yet'}"


def subtitle(summary: Summary) -> str:
    """How large the comparison is."""
    runs = [run for group in summary.groups for run in group.runs]
    if not runs:
        return "No runs."
    labels = {contestant.label for group in summary.groups for contestant in group.contestants}
    return " · ".join(
        [
            count(len(summary.groups), "task"),
            count(len(labels), "optimizer"),
            count(len({run.seed for run in runs}), "seed"),
            span([run.config.epochs - run.config.first_epoch for run in runs], "epoch"),
            count(len(runs), "run"),
        ]
    )


def _per_task(
    group: TaskGroup,
    groups: Sequence[TaskGroup],
    content: Sequence[Content] = (),
    panels: Sequence[Panel | CurvePanel] = (),
) -> Section:
    return Section(group.name, content=content, panels=panels, plain=len(groups) == 1)


def _in_short(summary: Summary, findings: Sequence[Finding], series: dict[str, int]) -> Section:
    flag = findings_flag(findings)
    sections = []
    for group in summary.groups:
        lead = [Text(sentence, "lead")] if (sentence := _fork_sentence(group)) else []
        below = notes_below_verdicts(findings, group.name)
        ranking = rank(summary, group.name)
        won = [_winner(ranking)] if ranking else []
        picture = differences_panel(ranking.rows, series) if ranking else None
        verdicts = Section("Verdicts", content=_verdicts(group, summary, series), plain=True)
        sections.append(
            Section(
                group.name,
                content=[*lead, *won, *below],
                panels=[picture] if picture else [],
                sections=[verdicts],
                plain=len(summary.groups) == 1,
            )
        )
    return Section("In short", sections=[Section("Before", content=flag, plain=True), *sections] if flag else sections)


def _winner(ranking: Ranking) -> Winner:
    known = [gap.e for gap in ranking.gaps if gap.is_compared and gap.e == gap.e]
    sure = ""
    if known and ranking.winner:
        sure = f"How sure: the smallest e-value of its comparisons is {e_value(min(known))}; {DECISIVE:.0f} is a claim."
    return Winner(
        f"{ranking.headline}.",
        f"{ranking.reason[:1].upper()}{ranking.reason[1:]}.",
        " ".join(filter(None, [sure, ranking.lost])),
    )


def _fork_start(group: TaskGroup) -> str:
    """Where the runs of a fork continued from, to follow the task's name; empty if they are no fork."""
    fork = next((run.config.fork for run in group.runs if run.config.fork), None)
    if fork is None:
        return ""
    place = f"continued from epoch {fork.epoch}" if fork.epoch else "forked at the initial weights"
    return f"{place} of {fork.label or group.baseline.label}"


def _fork_sentence(group: TaskGroup) -> str:
    """The same as a sentence, with what became of the baseline's state; empty if it is no fork."""
    start = _fork_start(group)
    if not start:
        return ""
    keeping = [
        contestant.label
        for contestant in group.contestants
        if any(run.config.fork is not None and run.config.fork.state == "kept" for run in contestant.runs)
    ]
    if not keeping:
        state = "with a fresh state"
    elif len(keeping) == len(group.contestants):
        state = "with the state that it had there"
    else:
        names = keeping[0] if len(keeping) == 1 else f"{', '.join(keeping[:-1])} and {keeping[-1]}"
        state = f"{names} with the state that it had there, the others with a fresh one"
    return f"A fork: every optimizer {start}, from the same weights and over the same batches, {state}."


def _verdicts(group: TaskGroup, summary: Summary, series: dict[str, int]) -> list[Content]:
    if not any(run.finished for run in group.runs):
        return [Text(_none_ended(group.runs), "short"), *_first_error(group.runs)]
    rows = [row for row in summary.select(task=group.name) if not row.is_baseline]
    if not rows:
        return [Text(f"Only {group.baseline.label} ran: nothing to compare with yet.", "short")]
    rows = ranked(summary, rows)
    leading = [row for row in rows if row.metric == summary.metrics[0]] or rows
    tally = Counter(row.verdict.outcome for row in leading)
    cards = [[row for row in rows if row.label == first.label] for first in leading]
    return [
        Verdicts(
            leading,
            series,
            span([row.pairs for row in leading], "paired seed"),
            [(tally[outcome], mark.word) for outcome, mark in MARKS.items() if tally[outcome]],
            cards if len(leading) <= MANY else (),
        )
    ]


def _none_ended(runs: Sequence[Run]) -> str:
    failed = sum(bool(run.error) for run in runs)
    states = [f"{failed} failed"] if failed else []
    states += [f"{len(runs) - failed} unfinished"] if failed < len(runs) else []
    return f"No run ended: {', '.join(states)}."


def _first_error(runs: Sequence[Run]) -> list[Text]:
    for run in runs:
        lines = [line.strip() for line in (run.error or "").splitlines() if line.strip()]
        if lines:
            # the last line of a traceback says what went wrong
            message = lines[-1] if lines[0].startswith("Traceback") else lines[0]
            return [Text(f"{run.label}, seed {run.seed}:", code=message)]
    return []


def _results(summary: Summary, series: dict[str, int]) -> Section:
    family = max((row.family for row in summary.comparisons), default=0)
    lead = (
        "Mean ± standard deviation over seeds, and the difference from the baseline on the same seeds with its "
        "95% interval, which holds whenever one looks: seeds may be added at any time. A claim needs an e-value of 20, "
        f"adjusted by Holm's method for {count(family, 'comparison')} per metric. What is valid for one look "
        "holds if the number of seeds was fixed in advance: Student's interval, the p-value of the t-test (Holm) and "
        "the exact one, which flips signs and assumes nothing of normality."
    )
    sections = []
    for group in summary.groups:
        rows_of_metrics = [summary.select(metric=metric, task=group.name) for metric in summary.metrics]
        tables = [_results_table(ranked(summary, rows), series) for rows in rows_of_metrics if rows]
        if tables:
            sections.append(_per_task(group, summary.groups, [*tables, _course_table(group, summary, series)]))
    return Section("Results", lead, [Download(["results.csv", "epochs.csv"])], sections=sections)


def _course_table(group: TaskGroup, summary: Summary, series: dict[str, int]) -> Table:
    """The last epoch beside the best one and the whole curve, and what an epoch costs."""
    metric = summary.metrics[0]
    cells: dict[str, Callable[[Course], str]] = {
        "last epoch": lambda course: plus_minus(course.last.mean, course.last.std),
        "best epoch": lambda course: plus_minus(course.best.mean, course.best.std),
        "when": lambda course: "" if course.best_epoch is None else unbroken(f"epoch {number(course.best_epoch)}"),
        "area under the curve": lambda course: plus_minus(course.area.mean, course.area.std),
        "seconds per epoch": lambda course: number(course.seconds.mean, 3),
        "peak memory": lambda course: "" if course.memory is None else f"{course.memory / 2**20:.0f} MB",
    }
    paths = courses(group, metric)
    shown = [name for name, cell in cells.items() if any(cell(course) not in ("", "–") for course in paths)]
    order = {
        row.label: place for place, row in enumerate(ranked(summary, summary.select(metric=metric, task=group.name)))
    }
    rows = [
        TableRow([course.label, *(cells[name](course) for name in shown)], series[course.label])
        for course in sorted(paths, key=lambda course: order.get(course.label, len(order)))
    ]
    return Table(
        ["optimizer", *shown],
        rows,
        f"{metric_name(metric).capitalize()} along the way, and what an epoch costs",
        "area: the mean over all epochs; the best epoch was chosen on the validation data, which flatters it"
        + _memory_note(paths),
        missing="–",
        whole=len(rows) <= _WHOLE,
    )


def _memory_note(paths: Sequence[Course]) -> str:
    """Which contestants have no peak memory; empty if all have."""
    unknown = [course.label for course in paths if course.memory is None]
    if not unknown:
        return ""
    whose = "these runs" if len(unknown) == len(paths) else f"the runs of {', '.join(unknown)}"
    return f"; peak memory was not recorded with {whose}, which are older or imported"


def _results_table(rows: Sequence[Comparison], series: dict[str, int]) -> Table:
    first = rows[0]
    left_out = {"verdict", "to target: epochs / steps / s"} | (
        {"diverged"} if not any(r.counts.diverged for r in rows) else set()
    )
    columns = {name: cell for name, cell in COLUMNS.items() if name not in left_out}
    columns["difference (95%)"] = lambda row: " ".join(filter(None, [unbroken(difference(row)), share(row)]))
    columns[ONE_LOOK] = lambda row: unbroken(one_look(row))
    intervals = _intervals(rows)
    return Table(
        list(columns),
        [
            TableRow(
                [cell(row) for cell in columns.values()],
                series[row.label],
                "baseline" if row.is_baseline else "",
                interval=interval,
            )
            for row, interval in zip(rows, intervals)
        ],
        metric_name(first.metric).capitalize(),
        f"{'higher' if first.higher_is_better else 'lower'} is better, at the end of training",
        missing="–",
        whole=len(rows) <= _WHOLE,
        ends=("worse", "better") if first.higher_is_better else ("better", "worse"),
    )


def _intervals(rows: Sequence[Comparison]) -> list[Interval]:
    """The intervals of all rows on one scale of 150 pixels with a margin of 8."""
    edges = [edge for row in rows for edge in (*(row.interval or ()), row.difference) if edge is not None]
    low, high = min([0.0, *edges]), max([0.0, *edges])

    def x(value: float) -> float:
        return round(8 + 134 * (value - low) / ((high - low) or 1.0), 1)

    return [
        Interval(
            COLUMNS["difference (95%)"](row) or ("baseline" if row.is_baseline else "no interval"),
            x(0.0),
            None if row.difference is None else x(row.difference),
            None if row.interval is None else (x(row.interval[0]), x(row.interval[1])),
        )
        for row in rows
    ]


def _across_tasks(summary: Summary, series: dict[str, int]) -> Section:
    """What several tasks say together, on the leading metric; empty for a single task."""
    together = across_tasks(summary.groups, summary.metrics[0]) if summary.metrics else None
    if together is None:
        return Section("Across tasks")
    rows = [
        TableRow([row.label, with_interval(row.probability, row.low, row.high)], series[row.label])
        for row in together.improvements
    ]
    baseline = together.profiles[0].label
    table = Table(
        ["optimizer", f"probability of improvement on {baseline} (95%)"],
        rows,
        f"{metric_name(summary.metrics[0]).capitalize()}, {count(together.tasks, 'task')}",
        "the probability that a run is better than one of the baseline, on a task drawn at random",
        whole=len(rows) <= _WHOLE,
    )
    return Section(
        "Across tasks",
        "Contestants that ran on every task. Intervals and bands are those of a bootstrap over the runs of each task, "
        "and valid for one look.",
        [table],
        [profiles_panel(together, series)],
    )


def _learning_curves(summary: Summary, data: Sequence[CurveData], series: dict[str, int]) -> Section:
    stride = max(block.stride for block in data)
    note = f" To keep this file small, curves show every {stride}th epoch." if stride > 1 else ""
    lead = (
        "The mean over seeds; a run that diverged leaves the mean at its ✕. Where curves lie on each other, "
        f"look at them minus the baseline, seed by seed.{note}"
    )
    metrics = sorted(summary.metrics, key=lambda metric: not metric.startswith("train"))
    sections = []
    for group, block in zip(summary.groups, data):
        if not block.epochs:
            continue
        panels = []
        for metric in metrics:
            if block.has(metric):
                higher = higher_is_better(metric, group.task)
                caption = "Higher is better." if higher else "Lower is better."
                panels.append(CurvePanel(metric_name(metric).capitalize(), block, metric, caption, log=not higher))
        legend = _legend(group, block, summary.metrics, series)
        sections.append(_per_task(group, summary.groups, [legend], panels))
    return Section("Learning curves", lead, controls="curves", sections=sections)


def _inside_optimizers(groups: Sequence[TaskGroup], data: Sequence[CurveData], series: dict[str, int]) -> Section:
    sections = []
    for group, block in zip(groups, data):
        panels = [
            CurvePanel(title, block, name, caption, log=log, inside=True, height=260)
            for name, title, caption, log in _INSIDE
            if block.has(name)
        ]
        if panels:
            legend = _legend(group, block, [name for name, *_ in _INSIDE], series)
            sections.append(_per_task(group, groups, [legend], panels))
    return Section(
        "What the optimizers saw",
        "The loss as a noisy reading: its running mean and spread, the tilt that the rule made of them, and the "
        "weight given to the gradient. Plain optimizers have none.",
        controls="inside",
        sections=sections,
    )


def _legend(group: TaskGroup, data: CurveData, metrics: Sequence[str], series: dict[str, int]) -> Legend:
    drawn = {entry["label"] for entry in data.entries if any(metric in entry["values"] for metric in metrics)}
    others = len(group.contestants) - 1
    note = (
        f"Shown first: the baseline and the best {others - len(data.hidden)} of {others}; the others are a click away."
    )
    contestants = [contestant for contestant in group.contestants if contestant.label in drawn]
    return Legend(contestants, series, data.hidden, note if data.hidden else "")


def _sensitivity(summary: Summary, series: dict[str, int]) -> Section:
    metrics = [metric for metric in summary.metrics if not metric.startswith("train")] or summary.metrics
    sections = []
    for group in summary.groups:
        panels = [panel for metric in metrics for panel in sensitivity(group, metric, series)]
        if panels:
            sections.append(_per_task(group, summary.groups, panels=panels))
    return Section("Sensitivity", "Contestants that differ in one option alone.", sections=sections)


def _time_to_target(summary: Summary, series: dict[str, int]) -> Section:
    sections = []
    for group in summary.groups:
        rows = summary.select(metric=summary.metrics[0], task=group.name) if summary.metrics else []
        if panel := time_to_target_panel(group, rows, series):
            sections.append(_per_task(group, summary.groups, _target_content(group, rows, series), [panel]))
    return Section(
        "Time to target",
        "How much training until the target was first reached; a run that never got there counts as infinite. "
        "Unless given, the target is what every run of the baseline had reached at its end.",
        sections=sections,
    )


def _target_content(group: TaskGroup, rows: Sequence[Comparison], series: dict[str, int]) -> list[Content]:
    parallel = any((jobs or 1) > 1 for run in group.runs for jobs in column(run.epochs, "jobs"))
    table_rows = []
    timed = any(row.time for row in rows)
    for row in rows:
        steps, epochs, seconds = (row.target and row.target.median) or (None, None, None)
        times = [number(epochs, 6), number(steps, 7), number(seconds, 3)]
        reached = row.target.reached if row.target else 0
        cells = [row.label, *times, f"{reached} of {row.counts.ended} runs", *([step_time(row)] if timed else [])]
        table_rows.append(TableRow(cells, series[row.label]))
    first = rows[0]
    target = number(first.target.value if first.target else None)
    table = Table(
        [
            *("optimizer", "epochs", "steps", "seconds" + (" *" if parallel else ""), "reached by"),
            *(["seconds per step / baseline's, paired (95%)"] if timed else []),
        ],
        table_rows,
        f"Median training until {metric_name(first.metric)} {'≥' if first.higher_is_better else '≤'} {target}",
        "∞: half of the runs or more never got there",
        whole=len(rows) <= _WHOLE,
    )
    note = Text("* taken with several runs at once: seconds are not comparable.", "note")
    return [table, note] if parallel else [table]


def _divergences(groups: Sequence[TaskGroup]) -> Content:
    runs = [run for group in groups for run in group.runs]
    if not any(run.finished for run in runs):
        return Text(_none_ended(runs))
    rows = []
    for group in groups:
        for contestant in group.contestants:
            for run in contestant.diverged:
                losses = [record["train_loss"] for record in run.epochs if record.get("train_loss") is not None]
                last = number(losses[-1] if losses else None)
                cells = [contestant.label, group.name, str(run.seed), str(run.epochs[-1]["epoch"]), last]
                rows.append(TableRow(cells))
    if not rows:
        return Text("✓ No run diverged.", "clear")
    return Table(
        ["optimizer", "task", "seed", "in epoch", "last training loss"],
        rows,
        "Runs that diverged",
        "each counts as a result; none is dropped or filled in",
    )


def provenance(groups: Sequence[TaskGroup]) -> Facts:
    """Software, hardware and data of the runs, and the options of every contestant."""
    runs = [run for group in groups for run in group.runs]
    facts: dict[str, Callable[[Run], Any]] = {
        "surefoot": lambda run: run.config.provenance.surefoot,
        "numerics version": lambda run: run.config.numerics,
        "commit": lambda run: run.config.provenance.commit,
        "torch": lambda run: run.config.provenance.torch,
        "Python": lambda run: run.config.provenance.python,
        "platform": lambda run: run.config.provenance.platform,
        "processor": lambda run: run.config.provenance.cpu,
        "device": lambda run: run.config.device,
        "threads per run": lambda run: run.config.threads,
        "runs at once": lambda run: max((jobs or 1 for jobs in column(run.epochs, "jobs")), default=None),
        "batch size": lambda run: run.config.task.batch_size,
        "data (sha256)": lambda run: run.config.task.data[:16],
        "computed": lambda run: run.config.provenance.time[:10],
    }
    contestants: dict[str, Fact] = {}
    for group in groups:
        for contestant in group.contestants:
            optimizer = contestant.optimizer
            options = {**optimizer.options, **optimizer.lab_options}
            text = " ".join(f"{name}={value}" for name, value in options.items())
            contestants.setdefault(contestant.label, Fact(contestant.label, text, optimizer.class_path))
    return Facts(
        {
            "Software, hardware and data": [Fact(name, _distinct(map(read, runs))) for name, read in facts.items()],
            "Contestants as they were built": list(contestants.values()),
        }
    )


def _distinct(values: Iterable[Any]) -> str:
    texts = list(dict.fromkeys(str(value) for value in values if value))
    return (", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")) or "–"


def how_to_repeat(groups: Sequence[TaskGroup], command: str | None) -> Commands:
    """The commands that were recorded with the runs, or the one that is given."""
    recorded = [run.config.provenance.command for group in groups for run in group.runs]
    lines = command.splitlines() if command else [line for line in dict.fromkeys(recorded) if line]
    if not lines:
        return Commands(
            [],
            "No command was recorded with these runs. The same configuration, versions, threads and processor give the "
            "same numbers, bit for bit.",
        )
    text = (
        "Runs are named by their full configuration: the same command computes only what is missing, and the same "
        "versions, threads and processor give the same numbers, bit for bit."
    )
    if not command and any(map(_is_nameless, groups)):
        text += " A task or optimizer of your own is named by its file or import path; write that in its place."
    return Commands(lines, text)


def _is_nameless(group: TaskGroup) -> bool:
    """Whether the task or an optimizer was given as an object that no command can find."""
    specs = [contestant.optimizer.spec for contestant in group.contestants]
    local = any(mark in spec for spec in specs for mark in ("__main__:", "<locals>", " at 0x"))
    return local or bool(group.task.code and not group.task.spec)
