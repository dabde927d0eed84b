"""The HTML of a report's parts: verdict cards, tables, legends, findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from surefoot.lab.analyse.audit import Finding
from surefoot.lab.analyse.comparison import Comparison, Summary, TimeToTarget, TrainingTime
from surefoot.lab.analyse.groups import TaskGroup
from surefoot.lab.analyse.verdicts import Outcome, count, number
from surefoot.lab.report.draw import style_of
from surefoot.lab.report.figures import CurveData
from surefoot.lab.report.page import escape, swatch
from surefoot.lab.report.tables import COLUMNS, MARKS, headline, metric_name

if TYPE_CHECKING:
    from surefoot.lab.store import Run

#: More contestants than this and the headline becomes a list, those without a claim folded away.
MANY = 8
_WORDS = {
    Outcome.BETTER: "better",
    Outcome.WORSE: "worse",
    Outcome.LEANING: "no claim yet",
    Outcome.UNDECIDED: "undecided",
    Outcome.SAME: "the same",
    Outcome.TOO_FEW: "too few seeds",
    Outcome.DIVERGED: "diverged",
    Outcome.UNPAIRED: "not compared",
}


def verdicts(each: TaskGroup, summary: Summary, series: dict[str, int]) -> str:
    """What came out, in words: one card per contestant, claims first when there are many."""
    if not any(run.finished for run in each.runs):
        return f'<p class="short">{escape(none_ended(each.runs))}</p>{_first_error(each.runs)}'
    rows = [row for row in summary.select(task=each.name) if not row.is_baseline]
    if not rows:
        return f'<p class="short">Only {escape(each.baseline.label)} ran: nothing to compare with yet.</p>'
    leading = [row for row in rows if row.metric == rows[0].metric]
    tally = Counter(row.verdict.outcome for row in leading)
    words = ", ".join(f"<strong>{tally[name]}</strong> {_WORDS[name]}" for name in _WORDS if tally[name])
    pairs = sorted({row.pairs for row in leading})
    seeds = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    short = (
        f'<p class="short">Against <strong>{escape(each.baseline.label)}</strong> on '
        f"{escape(metric_name(rows[0].metric))}, over {seeds} paired {'seed' if pairs == [1] else 'seeds'}: "
        f"{words}.</p>"
    )
    if len(leading) > MANY:
        claims = [row for row in leading if row.verdict.outcome.is_claim]
        rest = [row for row in leading if not row.verdict.outcome.is_claim]
        folded = f"<details><summary>{len(rest)} without a claim</summary>{_lines(rest)}</details>"
        return short + _lines(claims) + (folded if rest else "")
    cards = [_card([other for other in rows if other.label == row.label], series) for row in leading]
    columns = 2 if len(cards) in (1, 2, 4) else 3
    return f'{short}<div class="cards" style="--columns:{columns}">{"".join(cards)}</div>'


def none_ended(runs: Sequence[Run]) -> str:
    """That no run came to an end, and what became of them."""
    failed = sum(bool(run.error) for run in runs)
    states = [f"{failed} failed"] if failed else []
    states += [f"{len(runs) - failed} unfinished"] if failed < len(runs) else []
    return f"No run ended: {', '.join(states)}."


def _first_error(runs: Sequence[Run]) -> str:
    for run in runs:
        lines = [line.strip() for line in (run.error or "").splitlines() if line.strip()]
        if lines:
            # a traceback ends with what went wrong
            said = lines[-1] if lines[0].startswith("Traceback") else lines[0]
            return f"<p>{escape(run.label)}, seed {run.seed}: <code>{escape(said)}</code></p>"
    return ""


def _lines(rows: Iterable[Comparison]) -> str:
    items = "".join(f'<li class="{_css(row.verdict.outcome)}">{_mark(row)}{escape(headline(row))}</li>' for row in rows)
    return f'<ul class="verdicts">{items}</ul>' if items else ""


def _mark(row: Comparison) -> str:
    return f'<span class="mark" aria-hidden="true">{MARKS[row.verdict.outcome][0]}</span>'


def _card(rows: list[Comparison], series: dict[str, int]) -> str:
    first = rows[0]
    lines = []
    for row in rows:
        # the first line tells of divergences, the others need not say it again
        sentence = row.verdict.sentence if row is first else row.verdict.claim
        lines.append(
            f'<li class="{_css(row.verdict.outcome)}">{_mark(row)}<span><b>{escape(_title(row))}:</b> '
            f"{escape(sentence)}</span></li>"
        )
    return (
        f'<article class="card {_css(first.verdict.outcome)}"><header>{swatch(series[first.label])}'
        f"<h4>{escape(first.label)}</h4>"
        f'<span class="badge"><span aria-hidden="true">{MARKS[first.verdict.outcome][0]}</span> '
        f"{_WORDS[first.verdict.outcome]}</span></header><ul>{''.join(lines)}</ul></article>"
    )


def _title(row: Comparison) -> str:
    return metric_name(row.metric).capitalize()


def _css(outcome: str) -> str:
    return "is-" + outcome.replace(" ", "-")


def results_table(rows: Sequence[Comparison], series: dict[str, int]) -> str:
    """One metric of one task as a table, with the interval drawn in each row."""
    first = rows[0]
    better = "higher is better" if first.higher_is_better else "lower is better"
    shown = [name for name in COLUMNS if name not in ("verdict", "optimizer", "to target: epochs / steps / s")]
    if not any(row.counts.diverged for row in rows):
        shown.remove("diverged")
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in shown)
    forest = _Forest(rows)
    body = []
    for row in rows:
        cells = "".join(_cell(name, COLUMNS[name](row)) for name in shown)
        note = '<span class="note">baseline</span>' if row.is_baseline else ""
        none = " none" if row.is_baseline else ""
        number_of = series[row.label]
        body.append(
            f'<tr class="{_css(row.verdict.outcome)}"><th scope="row">{swatch(number_of)}'
            f"<span>{escape(row.label)}{note}</span>"
            f'</th>{cells}<td class="forest{none}" data-label="95% interval">{forest.draw(row, number_of)}</td></tr>'
        )
    return (
        f'<div class="scroll{_whole(rows)}"><table class="stack results"><caption>{escape(_title(first))} '
        f'<span class="note">{better}, at the end of training</span></caption>'
        f'<thead><tr><th scope="col">optimizer</th>{heads}<th scope="col">{forest.heading()}</th></tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _whole(rows: Sequence[Comparison]) -> str:
    return " whole" if len(rows) <= 8 else ""  # printed on one page; a longer table would leave half of one empty


def _cell(name: str, text: str) -> str:
    # What says nothing takes no room on a phone.
    none = ' class="none"' if not text or (name == "diverged" and text == "0") else ""
    return f'<td data-label="{escape(name)}"{none}>{escape(text) or "–"}</td>'


class _Forest:
    """Intervals drawn on one scale, zero (the baseline) marked."""

    width, height = 150, 20

    def __init__(self, rows: Sequence[Comparison]) -> None:
        edges = [edge for row in rows for edge in (*(row.interval or ()), row.difference) if edge is not None]
        self.low, self.high = min([0.0, *edges]), max([0.0, *edges])
        self.higher_is_better = rows[0].higher_is_better

    def heading(self) -> str:
        worse, better = ("worse", "better") if self.higher_is_better else ("better", "worse")
        return f'<span class="ends"><span>← {worse}</span><span>{better} →</span></span>'

    def x(self, value: float) -> float:
        reach = (self.high - self.low) or 1.0
        return 8 + (self.width - 16) * (value - self.low) / reach

    def draw(self, row: Comparison, series: int) -> str:
        middle, zero = self.height / 2, self.x(0.0)
        parts = [f'<line class="zero" x1="{zero:.1f}" y1="0" x2="{zero:.1f}" y2="{self.height}"/>']
        label = "baseline"
        if row.difference is not None:
            x, colour = self.x(row.difference), f"var(--s{style_of(series)[0]})"
            label = COLUMNS["difference (95%)"](row)
            if row.interval is not None:
                low, high = row.interval
                parts.append(
                    f'<line stroke="{colour}" stroke-width="2.5" x1="{self.x(low):.1f}" y1="{middle}" '
                    f'x2="{self.x(high):.1f}" y2="{middle}"/>'
                )
            parts.append(f'<circle fill="{colour}" cx="{x:.1f}" cy="{middle}" r="4.5"/>')
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">'
            f"{''.join(parts)}</svg>"
        )


def target_table(rows: Sequence[Comparison], series: dict[str, int], parallel: bool) -> str:
    """Median time to target; a miss is infinite."""
    heads = ["epochs", "steps", "seconds" + (" *" if parallel else ""), "reached by"]
    body = []
    for row in rows:
        target = row.target or TimeToTarget(math.nan)
        time = target.median or TrainingTime(math.nan, math.nan, math.nan)
        cells = [
            number(time.epochs, 6),
            number(time.steps, 7),
            number(time.seconds, 3),
            f"{target.reached} of {row.counts.ended} runs",
        ]
        tds = "".join(f'<td data-label="{head}">{escape(cell)}</td>' for head, cell in zip(heads, cells))
        body.append(f'<tr><th scope="row">{swatch(series[row.label])}<span>{escape(row.label)}</span></th>{tds}</tr>')
    first = rows[0]
    sign = "≥" if first.higher_is_better else "≤"
    note = '<p class="note">* taken with several runs at once: seconds are not comparable.</p>' if parallel else ""
    return (
        f'<div class="scroll{_whole(rows)}"><table class="stack"><caption>Median training until '
        f"{escape(metric_name(first.metric))} {sign} {number(target.value)} "
        f'<span class="note">∞: half of the runs or more never got there</span></caption><thead><tr>'
        f'<th scope="col">optimizer</th>{"".join(f"""<th scope="col">{head}</th>""" for head in heads)}'
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>{note}"
    )


def legend(each: TaskGroup, data: CurveData, metrics: Sequence[str], series: dict[str, int]) -> str:
    """The contestants as buttons: a click shows or hides one in every figure of this task."""
    drawn = {entry["label"] for entry in data.entries if any(metric in entry["values"] for metric in metrics)}
    entries = [entry for entry in each.contestants if entry.label in drawn]
    chips = "".join(
        f'<button type="button" class="chip" data-label="{escape(entry.label)}" '
        f'aria-pressed="{"false" if entry.label in data.hidden else "true"}">'
        f"{swatch(series[entry.label])}<span>{escape(entry.label)}</span>{_lost(len(entry.diverged))}</button>"
        for entry in entries
    )
    tools = (
        '<button type="button" class="link" data-all="true">all</button>'
        '<button type="button" class="link" data-all="false">none</button>'
    )
    first = (
        f'<p class="note">Shown first: the baseline and the best {len(each.contestants) - len(data.hidden) - 1} '
        f"of {len(each.contestants) - 1}; the others are a click away.</p>"
    )
    return (
        f'{first if data.hidden else ""}<div class="legend" role="group" aria-label="Optimizers shown">{chips}'
        f'{tools if len(entries) > 3 else ""}<span class="hint">Click: show or hide. Double click: only this '
        "one. Drag in a figure to zoom, double click to zoom out.</span></div>"
    )


def _lost(diverged: int) -> str:
    return f'<span class="lost">✕ {diverged} diverged</span>' if diverged else ""


def flags(findings: Sequence[Finding]) -> str:
    """One line that points to the honesty checks when there is something to know."""
    tally = Counter(finding.severity for finding in findings)
    words = " and ".join(count(tally[kind], kind) for kind in ("error", "warning") if tally[kind])
    if not words:
        return ""
    level = "error" if tally["error"] else "warning"
    return f'<p class="flag {level}">Before you quote this: <a href="#honesty-checks">{words}</a>.</p>'


def findings_list(findings: Sequence[Finding]) -> str:
    """The honesty findings, or that there are none."""
    if not findings:
        return '<p class="clear">✓ No findings: equal budgets, paired seeds, nothing dropped.</p>'
    signs = {"error": "✕", "warning": "!", "note": "i"}
    items = "".join(
        f'<li class="{finding.severity}"><span class="sign" aria-hidden="true">{signs[finding.severity]}</span>'
        f"<span><b>{finding.severity.capitalize()}.</b> {escape(finding.sentence)} "
        f"<code>{escape(finding.code)}</code></span></li>"
        for finding in findings
    )
    return f'<ul class="findings">{items}</ul>'


def divergence_table(fields: Sequence[TaskGroup]) -> str:
    """Every run that diverged, with the epoch and the last losses."""
    lines = [
        f'<tr><th scope="row">{escape(entry.label)}</th><td data-label="task">{escape(each.name)}</td>'
        f'<td data-label="seed">{run.seed}</td><td data-label="in epoch">{run.epochs[-1]["epoch"]}</td>'
        f'<td data-label="last training loss">{number(_last(run.epochs, "train_loss"))}</td></tr>'
        for each in fields
        for entry in each.contestants
        for run in entry.diverged
    ]
    runs = [run for each in fields for run in each.runs]
    if not any(run.finished for run in runs):
        return f"<p>{escape(none_ended(runs))}</p>"
    if not lines:
        return '<p class="clear">✓ No run diverged.</p>'
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in ("optimizer", "task", "seed", "in epoch", "last training loss")
    )
    return (
        f'<div class="scroll"><table class="stack"><caption>Runs that diverged <span class="note">each counts as '
        f"a result; none is dropped or filled in</span></caption><thead><tr>{heads}</tr></thead><tbody>"
        f"{''.join(lines)}</tbody></table></div>"
    )


def _last(epochs: Sequence[dict], metric: str) -> float | None:
    values = [record[metric] for record in epochs if record.get(metric) is not None]
    return float(values[-1]) if values else None
