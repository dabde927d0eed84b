"""Result tables: in the terminal, and as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from surefoot._extras import require
from surefoot.lab.analyse.comparison import Row, Summary
from surefoot.lab.analyse.verdicts import number, plus_minus

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

#: How each outcome is shown: a mark that does not need colour, and a colour.
MARKS = {
    "better": ("▲", "green"),
    "worse": ("▼", "red"),
    "leaning": ("△", "yellow"),
    "undecided": ("◇", "cyan"),
    "same": ("=", "cyan"),
    "too few": ("◇", "cyan"),
    "diverged": ("✕", "red"),
    "unpaired": ("–", "cyan"),
}


def metric_name(metric: str) -> str:
    """A metric's name in words.

    >>> metric_name("valid_loss"), metric_name("train_loss"), metric_name("valid_top5")
    ('validation loss', 'training loss', 'validation top5')
    """
    for short, word in (("valid_", "validation "), ("train_", "training ")):
        if metric.startswith(short):
            metric = word + metric.removeprefix(short)
    return metric.replace("_", " ")


def caption(row: Row) -> str:
    """What a table shows: task, metric, which way is better, and the target."""
    better = "higher" if row.higher_is_better else "lower"
    target = "" if row.target is None else f"; target {number(row.target)}"
    return f"{row.task}: {metric_name(row.metric)}, {better} is better{target}"


def difference(row: Row) -> str:
    """The paired difference with the half width of its 95% interval."""
    if row.difference is None:
        return ""
    half_width = math.nan if row.high is None else row.high - row.difference
    sign = "+" if row.difference > 0 else ""
    text = plus_minus(row.difference, half_width)
    return f"({sign}{text[1:]}" if text.startswith("(") else sign + text


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


def time_to_target(row: Row) -> str:
    """Median epochs, steps and seconds to the target, and how many runs reached it when not all did."""
    if row.target is None or row.epochs_to_target is None:
        return ""
    times = (row.epochs_to_target, row.steps_to_target, row.seconds_to_target)
    text = " / ".join(number(time, 7) if i < 2 else number(time, 3) for i, time in enumerate(times))
    if all(time is not None and math.isinf(time) for time in times):
        text = "∞"
    return text if row.reached == row.ended else f"{text} ({row.reached} of {row.ended})"


def diverged(row: Row) -> str:
    """How many of the runs diverged."""
    return f"{row.diverged} of {row.runs}" if row.diverged else "0"


#: The columns of a table for reading: heading, and what stands in a row.
COLUMNS: dict[str, Callable[[Row], str]] = {
    "optimizer": lambda row: row.label,
    "n": lambda row: str(row.n),
    "mean±std": lambda row: plus_minus(row.mean, row.std) + ("" if row.epoch is None else f" (epoch {row.epoch})"),
    "difference (95%)": difference,
    "p (Holm)": lambda row: p_value(row.p_holm),
    "p (exact)": lambda row: p_value(row.p_exact),
    "diverged": diverged,
    "to target: epochs / steps / s": time_to_target,
    "verdict": lambda row: row.verdict,
}


def headline(row: Row) -> str:
    """The verdict as a sentence that stands alone: it names the contestant."""
    named = row.outcome in ("better", "worse", "leaning", "same", "unpaired")
    return row.verdict if named else f"{row.label}: {row.verdict}"


class TerminalTables:
    """The tables as Rich prints them, the verdicts below each; columns give way in a narrow terminal."""

    def __init__(self, summary: Summary) -> None:
        require("rich", extra="lab")
        self.summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text

        for rows in _tables(self.summary):
            yield Text(caption(rows[0]), style="bold")
            yield from _terminal(rows, options.max_width)
            yield Text("")


def to_rich(summary: Summary) -> TerminalTables:
    """The tables for the terminal: ``rich.print(to_rich(summary))``."""
    return TerminalTables(summary)


def _terminal(rows: list[Row], width: int) -> Iterator[Any]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = [name for name in COLUMNS if name not in ("verdict", "p (exact)")]
    if not any(row.diverged for row in rows):
        shown.remove("diverged")
    # A number cut short would be a wrong number: leave columns out instead (the verdict tells divergences).
    for name in ("to target: epochs / steps / s", "diverged", "p (Holm)"):
        if name in shown and 12 + sum(2 + _width(column, rows) for column in shown[1:]) > width:
            shown.remove(name)
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for name in shown:
        if name == "optimizer":
            table.add_column(name, overflow="fold")
        else:
            table.add_column(_heading(name), justify="right", no_wrap=True)
    lines = Table.grid(padding=(0, 1))
    for row in rows:
        table.add_row(*(Text(COLUMNS[name](row)) for name in shown))
        if not row.is_baseline:
            mark, colour = MARKS[row.outcome]
            lines.add_row(Text(f" {mark}", style=colour), Text(headline(row)))
    yield table
    yield lines


def _heading(name: str) -> str:
    return name.replace(": ", "\n").replace(" (", "\n(")


def _width(name: str, rows: list[Row]) -> int:
    return max(len(text) for text in [*_heading(name).split("\n"), *(COLUMNS[name](row) for row in rows)])


def to_markdown(summary: Summary) -> str:
    """The tables as Markdown, one per task and metric."""
    parts = []
    for rows in _tables(summary):
        lines = [[*COLUMNS], ["---" if name == "optimizer" else "---:" for name in COLUMNS]]
        lines[1][-1] = "---"
        lines += [[_markdown(cell(row)) for cell in COLUMNS.values()] for row in rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"**{_markdown(caption(rows[0]))}**\n\n{body}\n")
    return "\n".join(parts)


def to_latex(summary: Summary) -> str:
    """The tables as LaTeX, with booktabs' rules; one per task and metric."""
    parts = []
    for rows in _tables(summary):
        shown = [name for name in COLUMNS if name != "verdict"]
        lines = [[_latex(name) for name in shown]]
        lines += [[_latex(COLUMNS[name](row)) for name in shown] for row in rows]
        printed = [" & ".join(line) + r" \\" for line in lines]
        parts.append(
            "\n".join(
                [
                    "% needs \\usepackage{booktabs}",
                    r"\begin{table}",
                    r"  \centering",
                    rf"  \caption{{{_latex(caption(rows[0]))}. {_latex(_sentences(rows))}}}",
                    rf"  \begin{{tabular}}{{l{'r' * (len(shown) - 1)}}}",
                    r"    \toprule",
                    f"    {printed[0]}",
                    r"    \midrule",
                    *(f"    {line}" for line in printed[1:]),
                    r"    \bottomrule",
                    r"  \end{tabular}",
                    r"\end{table}",
                    "",
                ]
            )
        )
    return "\n".join(parts)


def to_csv(summary: Summary) -> str:
    """Every row with all its numbers as CSV; a time to target that was missed is ``inf``.

    >>> to_csv(Summary((), (), ())).split(",")[:3]
    ['task', 'metric', 'label']
    """
    out = io.StringIO()
    names = list(Row.__dataclass_fields__)
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for row in summary.rows:
        writer.writerow({name: _plain(value) for name, value in asdict(row).items()})
    return out.getvalue()


def to_json(summary: Summary) -> str:
    """Every row with all its numbers as JSON; what is infinite or undefined is null (see ``reached``)."""
    rows = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row}
        for row in (asdict(row).items() for row in summary.rows)
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


#: The written formats, by the ending of a file.
WRITERS: dict[str, Callable[[Summary], str]] = {
    "md": to_markdown,
    "tex": to_latex,
    "csv": to_csv,
    "json": to_json,
}


def _tables(summary: Summary) -> Iterator[list[Row]]:
    for each in summary.fields:
        for metric in summary.metrics:
            rows = summary.select(metric=metric, task=each.name)
            if rows:
                yield rows


def _plain(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value


def _sentences(rows: list[Row]) -> str:
    return " ".join(f"{row.label}: {row.verdict}." for row in rows if not row.is_baseline)


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", text).replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"$<$", ">": r"$>$",
    "±": r"$\pm$", "∞": r"$\infty$", "–": "--", "\n": " ",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
