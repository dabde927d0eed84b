"""Result tables: in the terminal and in notebooks, and as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from surefoot._extras import require
from surefoot.lab.analyse.comparison import RECORD_COLUMNS, Comparison, Summary
from surefoot.lab.analyse.groups import metric_name
from surefoot.lab.analyse.ranking import percent, rank, ranked
from surefoot.lab.analyse.verdicts import Outcome, number, plus_minus, with_interval

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable


class Mark(NamedTuple):
    """How an outcome is shown: a sign that does not need colour, a colour, and a word."""

    sign: str
    colour: str
    word: str


MARKS = {
    Outcome.BETTER: Mark("▲", "green", "better"),
    Outcome.WORSE: Mark("▼", "red", "worse"),
    Outcome.EQUAL: Mark("≈", "green", "equal"),
    Outcome.LEANING: Mark("△", "yellow", "no claim yet"),
    Outcome.UNDECIDED: Mark("◇", "cyan", "undecided"),
    Outcome.SAME: Mark("=", "cyan", "the same"),
    Outcome.TOO_FEW: Mark("◇", "cyan", "too few seeds"),
    Outcome.DIVERGED: Mark("✕", "red", "diverged"),
    Outcome.UNPAIRED: Mark("–", "cyan", "not compared"),
}
_NAMES_CONTESTANT = {Outcome.BETTER, Outcome.WORSE, Outcome.EQUAL, Outcome.LEANING, Outcome.SAME, Outcome.UNPAIRED}


def caption(row: Comparison) -> str:
    """What a table shows: task, metric, which direction is better, and the target."""
    better = "higher" if row.higher_is_better else "lower"
    target = "" if row.target is None else f"; target {number(row.target.value)}"
    return f"{row.task}: {metric_name(row.metric)}, {better} is better{target}"


def difference(row: Comparison) -> str:
    """The paired difference with its 95% interval, valid whenever one looks."""
    if row.difference is None:
        return ""
    low, high = row.interval or (-math.inf, math.inf)
    return _signed(with_interval(row.difference, low, high), row.difference)


def share(row: Comparison) -> str:
    """The difference as a signed share of the baseline's mean on the same seeds."""
    if row.difference is None or not (text := percent(row.difference, row.values.mean - row.difference)):
        return ""
    return f"{'+' if row.difference > 0 else '-' if row.difference < 0 else ''}{text}"


def one_look(row: Comparison) -> str:
    """The paired difference with half the width of Student's interval, and p of the t-test and of the exact test.

    They hold for one look at a number of seeds that was fixed in advance.
    """
    if row.paired is None or row.difference is None:
        return ""
    text = _signed(plus_minus(row.difference, row.paired.half_width), row.difference)
    p_values = [p_value(p) for p in (row.p_holm, row.paired.p_exact) if p is not None]
    return f"{text}, p {' / '.join(p_values)}" if p_values else text


def unbroken(text: str) -> str:
    """Numbers that stay on one line, on paper too; only what is behind a comma may go to the next.

    >>> unbroken("+0.2±0.1, p 0.04 / 0.03").split(" ")
    ['+0.2±0.1,', 'p\\xa00.04\\xa0/\\xa00.03']
    """
    return ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in text.split(", "))


def _signed(text: str, value: float) -> str:
    sign = "+" if value > 0 else ""
    return f"({sign}{text[1:]}" if text.startswith("(") else sign + text


def e_value(e: float | None) -> str:
    """An e-value as it is printed.

    >>> e_value(0.0213), e_value(19.96), e_value(43.7), e_value(3e7), e_value(None)
    ('0.021', '19.9', '43', '>9999', '')
    """
    if e is None:
        return ""
    if e > 9999:
        return ">9999"
    if e < 1:
        return f"{e:.2g}"
    return f"{math.floor(10 * e) / 10:g}" if e < 20 else str(math.floor(e))  # on which side of 20 must be visible


def p_value(p: float | None) -> str:
    """A p-value as it is printed.

    >>> p_value(0.0213), p_value(0.00001), p_value(0.0499), p_value(None)
    ('0.021', '<0.0001', '0.0499', '')
    """
    if p is None:
        return ""
    if p < 1e-4:
        return "<0.0001"
    return f"{p:.4f}" if 0.045 < p < 0.055 else f"{p:.2g}"  # on which side of 0.05 must be visible


def time_to_target(row: Comparison) -> str:
    """Median epochs, steps and seconds to the target, and how many runs reached it if not all did."""
    if row.target is None or row.target.median is None:
        return ""
    time, reached, ended = row.target.median, row.target.reached, row.counts.ended
    text = f"{number(time.epochs, 7)} / {number(time.steps, 7)} / {number(time.seconds, 3)}"
    if all(map(math.isinf, time)):
        text = "∞"
    return text if reached == ended else f"{text} ({reached} of {ended})"


def step_time(row: Comparison) -> str:
    """The seconds of a step over those of the baseline, in pairs, with the 95% interval."""
    return "" if row.time is None else with_interval(row.time.ratio, row.time.low, row.time.high)


def step_times(rows: Sequence[Comparison]) -> str:
    """The same for a whole table, as a sentence of those that have an interval; empty if none has."""
    times = [f"{row.label} {step_time(row)}" for row in rows if row.time and math.isfinite(row.time.high)]
    return f"Seconds per step, in pairs, over those of {rows[0].baseline}: {', '.join(times)}." if times else ""


def diverged(row: Comparison) -> str:
    """How many of the runs diverged."""
    return f"{row.counts.diverged} of {row.counts.runs}" if row.counts.diverged else "0"


#: The column of the tests that do not allow a second look: Student's interval, p of the t-test (Holm) and exact p.
ONE_LOOK = "valid for one look: difference, p (Holm / exact)"
#: The columns of a table for reading: heading, and the text of a row.
COLUMNS: dict[str, Callable[[Comparison], str]] = {
    "optimizer": lambda row: row.label,
    "n": lambda row: str(row.values.n),
    "mean±std": lambda row: (
        plus_minus(row.values.mean, row.values.std) + ("" if row.epoch is None else f" (epoch {row.epoch})")
    ),
    "difference (95%)": difference,
    "e (Holm)": lambda row: e_value(row.support.e if row.support else None),
    "diverged": diverged,
    "to target: epochs / steps / s": time_to_target,
    ONE_LOOK: one_look,
    "verdict": lambda row: row.verdict.sentence,
}


def headline(row: Comparison) -> str:
    """The verdict as a sentence that stands alone: it names the contestant."""
    sentence = row.verdict.sentence
    return sentence if row.verdict.outcome in _NAMES_CONTESTANT else f"{row.label}: {sentence}"


class Tables(Summary):
    """A summary that terminals (with Rich) and notebooks show as tables."""

    @classmethod
    def of(cls, summary: Summary) -> Tables:
        return cls(**vars(summary))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text

        for rows in self.tables():
            is_leading = rows[0].metric == self.metrics[0]
            if is_leading and (ranking := rank(self, rows[0].task)):
                yield Text(f"{rows[0].task}: {ranking.sentence}\n", style="bold")
            yield Text(caption(rows[0]), style="" if is_leading else "bold")
            yield from _terminal_table(ranked(self, rows), options.max_width)
            for line in below_table(rows) if is_leading else ():
                yield Text(f" {line}")
            yield Text("")

    def _repr_markdown_(self) -> str:
        return to_markdown(self)


#: With more contestants, what has no column is left to the report.
MOST_IN_SENTENCES = 6


def below_table(rows: Sequence[Comparison]) -> list[str]:
    """What the leading metric's table has no columns for, as sentences: time to target, seconds, tests for one look."""
    if len(rows) > MOST_IN_SENTENCES:
        return []
    times = [f"{row.label} {time}" for row in rows if (time := time_to_target(row))]
    once = [f"{row.label} {text}" for row in rows if (text := one_look(row))]
    lines = [step_times(rows)]
    if times and rows[0].target:
        lines.append(f"To {number(rows[0].target.value)}, epochs / steps / seconds: {', '.join(times)}.")
    if once:
        lines.append(f"Valid for one look, p by Holm / exact: {'; '.join(once)}.")
    return [line for line in lines if line]


def _terminal_table(rows: list[Comparison], width: int) -> Iterator[Any]:
    """The table and below it the verdicts; it looks the same at 80 columns and beyond."""
    columns = {**COLUMNS, "difference (95%)": lambda row: "baseline" if row.is_baseline else difference(row), "": share}
    shown = ["optimizer", "n", "mean±std", "difference (95%)", "", "e (Holm)", "diverged"]
    if not any(row.counts.diverged for row in rows):
        shown.remove("diverged")
    cells = [[columns[name](row) for name in shown] for row in rows]
    # The verdict has divergences and the difference as well.
    yield from terminal_table(shown, cells, width, spare=("n", "diverged", "e (Holm)", "", "difference (95%)"))
    yield verdict_list((MARKS[row.verdict.outcome], headline(row)) for row in rows if not row.is_baseline)


def terminal_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, spare: Sequence[str] = ()
) -> Iterator[Any]:
    """A table for a terminal, names on the left and numbers on the right; the one look of all commands.

    Where there is no room, columns are left out instead of cutting numbers short, and named below the table.

    Args:
        head: the headings; a colon or a parenthesis begins a new line.
        rows: the cells.
        width: the columns of the terminal.
        spare: the headings that may be left out, the first one first.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    cells = {name: [row[place] for row in rows] for place, name in enumerate(head)}
    first, *others = head
    longest = max(len(word) for text in (first, *cells[first]) for word in text.split() or [""])  # no word is broken
    widths = {name: max(map(len, [*_heading(name).split("\n"), *cells[name]])) for name in others}
    left_out = []
    for name in spare:
        if name in widths and longest + 1 + sum(2 + column for column in widths.values()) > width:
            del widths[name]
            left_out += [] if name == "n" else [name or "percent"]  # the verdicts have n as well
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column(_heading(first), overflow="fold", min_width=min(longest, width // 2))
    for name in widths:
        table.add_column(_heading(name), justify="right", no_wrap=True)
    for texts in zip(*(cells[name] for name in (first, *widths))):
        table.add_row(*map(Text, texts))
    yield table
    if left_out:
        yield Text(f" columns left out: {', '.join(left_out)}; see the report", style="dim")


def verdict_list(verdicts: Iterable[tuple[Mark, str]]) -> RichTable:
    """A line per verdict, with its sign."""
    from rich.table import Table
    from rich.text import Text

    lines = Table.grid(padding=(0, 1))
    for mark, sentence in verdicts:
        lines.add_row(Text(f" {mark.sign}", style=mark.colour), Text(sentence))
    return lines


def _heading(name: str) -> str:
    return name.replace(": ", "\n").replace(" (", "\n(")


def to_markdown(summary: Summary) -> str:
    """The tables as Markdown, one per task and metric."""
    parts = []
    for rows in summary.tables():
        cells = [[_escape_markdown(cell(row)) for cell in COLUMNS.values()] for row in rows]
        numbers = list(COLUMNS)[1:-1]
        parts.append(f"**{_escape_markdown(caption(rows[0]))}**\n\n{markdown_table(list(COLUMNS), cells, numbers)}")
        if rows[0].metric == summary.metrics[0] and (times := step_times(rows)):
            parts.append(_escape_markdown(times) + "\n")
    return "\n".join(parts)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> str:
    """A Markdown table; the columns named in `right` are aligned to the right.

    >>> print(markdown_table(["name", "n"], [["a|b", "2"]], right=["n"]), end="")
    | name | n |
    | --- | ---: |
    | a\\|b | 2 |
    """
    lines = [head, ["---:" if name in right else "---" for name in head], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def to_html(summary: Summary) -> str:
    """Who won and the tables as HTML, for a notebook; the best contestant first."""
    parts = []
    for rows in summary.tables():
        if rows[0].metric == summary.metrics[0] and (ranking := rank(summary, rows[0].task)):
            parts.append(f"<p>{html.escape(rows[0].task)}: <b>{html.escape(ranking.sentence)}</b></p>")
        frame = _readable(ranked(summary, rows))
        for name in ("difference (95%)", ONE_LOOK):
            frame[name] = frame[name].map(unbroken)
        if not any(row.counts.diverged for row in rows):
            frame = frame.drop(columns="diverged")
        parts.append(f"<p><b>{html.escape(caption(rows[0]))}</b></p>\n{frame.to_html(index=False, border=0)}")
    return "\n".join(parts)


def to_latex(summary: Summary) -> str:
    """The tables as LaTeX, with booktabs' rules; one per task and metric. The verdicts are in the captions."""
    parts = []
    for rows in summary.tables():
        frame = _readable(rows).drop(columns="verdict").map(_escape_latex).rename(columns=_escape_latex)
        verdicts = " ".join(f"{row.label}: {row.verdict.sentence}." for row in rows if not row.is_baseline)
        parts += [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escape_latex(f'{caption(rows[0])}. {verdicts}')}}}",
            frame.to_latex(index=False, escape=False, column_format="l" + "r" * (frame.shape[1] - 1)).rstrip(),
            r"\end{table}",
            "",
        ]
    return "\n".join(parts)


def to_csv(summary: Summary) -> str:
    """All comparisons with all their numbers as CSV; a time to target that was missed is ``inf``.

    >>> to_csv(Summary((), (), ())).split(",")[:3]
    ['task', 'metric', 'label']
    """
    return csv_text([row.record() for row in summary.comparisons], RECORD_COLUMNS)


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as CSV, by default with the columns in the order of the first row.

    >>> csv_text([{"a": 1, "b": 0.5}, {"a": "", "b": True}])
    'a,b\\n1,0.5\\n,True\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0] if rows else ()), lineterminator="\n")
    writer.writeheader()
    # an undefined number is an empty cell
    writer.writerows([{name: "" if value != value else value for name, value in row.items()} for row in rows])
    return text.getvalue()


def to_json(summary: Summary) -> str:
    """All comparisons with all their numbers as JSON; what is infinite or undefined is null (see ``reached``)."""
    records = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in items}
        for items in (row.record().items() for row in summary.comparisons)
    ]
    # Not by pandas, which rounds to 15 decimals.
    return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _readable(rows: Sequence[Comparison]) -> DataFrame:
    """The table of `COLUMNS` as a frame of texts."""
    return _pandas().DataFrame({name: [cell(row) for row in rows] for name, cell in COLUMNS.items()})


def _pandas() -> Any:
    return require("pandas", extra="lab")


def _escape_markdown(text: str) -> str:
    """Text that means itself in Markdown; `markdown_table` escapes the bar."""
    return re.sub(r"([\\*_`<\[\]])", r"\\\1", text).replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"$<$", ">": r"$>$",
    "±": r"$\pm$", "∞": r"$\infty$", "–": "--", "\n": " ",
}  # fmt: skip


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
