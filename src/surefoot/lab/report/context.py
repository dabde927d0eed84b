"""What the templates of a page are given: a page of sections, and what a section can hold.

The templates escape all text of it. Each kind of content names its template.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from surefoot.lab.analyse.audit import Finding
from surefoot.lab.analyse.comparison import Comparison
from surefoot.lab.analyse.groups import ContestantRuns
from surefoot.lab.analyse.verdicts import Outcome
from surefoot.lab.report.figures import CurvePanel, Panel


@dataclass(frozen=True)
class ReportContext:
    """A whole page: its heading, the line below it, its sections, and tables to save, as CSV by the names of files."""

    title: str
    subtitle: str = ""
    sections: Sequence[Section] = ()
    tables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A part of the page: a title, a sentence, content, panels, and sections inside it.

    Args:
        controls: the switches of learning curves ("inside" for those without a baseline).
        plain: leave out the heading.

    >>> Section("Tuning & more", "What was tried.", [Text("Twelve settings.")]).anchor
    'tuning-more'
    """

    title: str
    lead: str = ""
    content: Sequence[Content] = ()
    panels: Sequence[Panel | CurvePanel] = ()
    sections: Sequence[Section] = ()
    controls: Literal["", "curves", "inside"] = ""
    plain: bool = False

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.panels or self.sections)


class Content:
    """Something that a template shows."""

    template: ClassVar[str]


@dataclass(frozen=True)
class Text(Content):
    """A paragraph, or a list of `items` below a sentence.

    Args:
        style: a class of report.css: lead, short, clear, note, or "flag warning".
        code: what follows the sentence in a fixed-width font.
    """

    template = "text.html"
    text: str
    style: str = ""
    code: str = ""
    items: Sequence[str] = ()


@dataclass(frozen=True)
class Commands(Content):
    """Command lines, with a paragraph below them."""

    template = "commands.html"
    lines: Sequence[str]
    text: str = ""


@dataclass(frozen=True)
class Details(Content):
    """Content that a click unfolds."""

    template = "details.html"
    summary: str
    content: Sequence[Content]
    verdict: str = ""


@dataclass(frozen=True)
class Interval:
    """The interval of a difference on a common scale, in pixels of a small drawing; `zero` is the baseline."""

    label: str
    zero: float
    middle: float | None = None
    ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class TableRow:
    """One row of a table; `series` draws the contestant's line before the first cell, `outcome` is the last cell."""

    cells: Sequence[str]
    series: int | None = None
    note: str = ""
    outcome: Outcome | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class Table(Content):
    """A table; on a phone its rows become cards.

    Args:
        missing: what stands in an empty cell.
        whole: printed on one page.
        ends: what the two ends of the drawn intervals mean; without it there is no column of intervals.
    """

    template = "table.html"
    head: Sequence[str]
    rows: Sequence[TableRow]
    caption: str = ""
    note: str = ""
    missing: str = ""
    whole: bool = False
    ends: tuple[str, str] | None = None


@dataclass(frozen=True)
class Winner(Content):
    """Who won, by how much, and how sure that is, in large letters."""

    template = "winner.html"
    headline: str
    reason: str
    note: str = ""


@dataclass(frozen=True)
class Download(Content):
    """Buttons that save tables of the page, by the names of their files; epochs.csv is made from the curves."""

    template = "download.html"
    files: Sequence[str]


@dataclass(frozen=True)
class Verdicts(Content):
    """What came out: a sentence, then a card per contestant or, without cards, a list with the claims first.

    Args:
        rows: the leading metric's comparison of every contestant.
        series: the number of each contestant's line, by label.
        seeds: how many seeds there are, in words.
        tally: how many contestants have which outcome, in words.
        cards: for each contestant its comparisons on all metrics.
    """

    template = "verdicts.html"
    rows: Sequence[Comparison]
    series: Mapping[str, int]
    seeds: str
    tally: Sequence[tuple[int, str]]
    cards: Sequence[Sequence[Comparison]] = ()


@dataclass(frozen=True)
class Findings(Content):
    """The findings of the audit."""

    template = "findings.html"
    findings: Sequence[Finding]


@dataclass(frozen=True)
class FindingsFlag(Content):
    """A line that points to the findings, because some are errors or warnings, and the first of those."""

    template = "flag.html"
    severity: str
    text: str
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class Legend(Content):
    """The contestants of the figures that follow; a click shows or hides the curves of one.

    Args:
        series: the number of each contestant's line, by label.
        hidden: labels of those that are not shown at first.
    """

    template = "legend.html"
    contestants: Sequence[ContestantRuns]
    series: Mapping[str, int]
    hidden: Collection[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Fact:
    """A name with what is known of it; `code` is shown in a fixed-width font."""

    name: str
    text: str
    code: str = ""


@dataclass(frozen=True)
class Facts(Content):
    """Tables of facts, side by side, by their captions."""

    template = "facts.html"
    tables: dict[str, Sequence[Fact]] = field(default_factory=dict)
