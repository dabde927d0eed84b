"""Nothing that a user wrote becomes HTML, in whichever place it is shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from snapshots import embedded_data
from surefoot.lab.analyse.audit import Finding
from surefoot.lab.analyse.comparison import Comparison, RunCounts
from surefoot.lab.analyse.groups import ContestantRuns
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.analyse.verdicts import Outcome, Verdict
from surefoot.lab.report import ReportContext, Section, write_report
from surefoot.lab.report.context import (
    Commands,
    Content,
    Details,
    Download,
    Fact,
    Facts,
    Findings,
    FindingsFlag,
    Interval,
    Legend,
    Table,
    TableRow,
    Text,
    Verdicts,
    Winner,
)
from surefoot.lab.report.draw import plotly
from surefoot.lab.report.figures import Axis, Line, Panel
from surefoot.lab.report.page import render
from surefoot.lab.spec.config import OptimizerConfig
from surefoot.lab.store import Run

PAYLOAD = """</script><script>alert()</script></td></table><img src=x onerror="alert()">'"&{{data}}{% raw %}"""
MakeRun = Callable[..., Run]


class _Structure(HTMLParser):
    """The tags of a page and the names of their attributes, in order; what is inside them does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}",))


def structure(page: str) -> list[tuple[str, ...]]:
    parser = _Structure()
    parser.feed(page)
    return parser.tags


def contents(text: str) -> list[Content]:
    """One content of every kind, with this text in every place."""
    counts = RunCounts(1, 0, 0, 0)
    verdict = Verdict(Outcome.WORSE, text, text)
    row = Comparison(text, text, text, text, False, mean_std([1.0]), counts, verdict=verdict)
    others = [row, replace(row, verdict=replace(verdict, outcome=Outcome.UNDECIDED))]
    return [
        Text(text, text, text, [text]),
        Commands([text], text),
        Details(text, [Text(text)], text),
        Table(
            [text, text],
            [TableRow([text, text], 1, text, Outcome.BETTER, Interval(text, 1.0, 2.0, (1.0, 3.0)))],
            text,
            text,
            missing=text,
            ends=(text, text),
        ),
        Verdicts([row], {text: 1}, text, [(1, text)], [[row, row]]),
        Verdicts(others, {text: 1}, text, [(1, text)]),
        Findings([Finding(text, "error", text)]),  # type: ignore[arg-type]
        FindingsFlag(text, text, [Finding(text, "error", text)]),  # type: ignore[arg-type]
        Winner(text, text, text),
        Download([text]),
        Legend([ContestantRuns(text, OptimizerConfig(text), ())], {text: 1}, [text], text),
        Facts({text: [Fact(text, text, text)]}),
    ]


def test_every_kind_of_content_is_tested() -> None:
    assert {type(content) for content in contents("")} == set(Content.__subclasses__())


@pytest.mark.parametrize("kind", range(len(contents(""))))
def test_content_is_text(kind: int) -> None:
    pages = [
        render(ReportContext("", "", [Section("Part", content=[contents(text)[kind]])])) for text in ("plain", PAYLOAD)
    ]
    assert structure(pages[0]) == structure(pages[1])


def test_titles_are_text() -> None:
    pages = []
    for text in ("plain", PAYLOAD):
        panel = Panel(text, [Line(text, [1], [1], text=[text])], Axis(text), Axis(text), text, rows=[(text, text)])
        section = Section(text, text, panels=[panel], sections=[Section(text)])
        pages.append(render(ReportContext(text, text, [section])))
    assert structure(pages[0]) == structure(pages[1])


def test_texts_of_a_figure_are_text() -> None:
    axis = Axis(PAYLOAD)
    drawn = plotly(Panel("", [Line(PAYLOAD, [1], [1], text=[PAYLOAD])], axis, axis, rows=[(PAYLOAD, PAYLOAD)]))
    assert "alert" in json.dumps(drawn)
    assert_no_tags(drawn)


def assert_no_tags(figures: Any) -> None:
    """Plotly may be given line breaks, and nothing else that it takes for HTML."""
    assert not re.search(r"<(?!br>|extra>|/extra>)", json.dumps(figures))


def with_error(run: MakeRun, text: str, tmp_path: Path) -> list[Run]:
    (tmp_path / "error.txt").write_text(text)
    return [replace(run("Adam", 0, folder=tmp_path), epochs=[])]


#: The places of a run where a user's words can stand; each makes the runs of a report with such words.
PLACES: dict[str, Callable[[MakeRun, str, Path], list[Run]]] = {
    "label": lambda run, text, _: [run(label, seed) for label in ("Adam", text) for seed in range(2)],
    "label of a contestant that diverged": lambda run, text, _: [
        run(label, seed, diverged=seed == 0, done=1 if seed == 0 else None)
        for label in ("Adam", text)
        for seed in range(2)
    ],
    "label of the only contestant": lambda run, text, _: [run(text, 0)],
    "label among many": lambda run, text, _: [
        run(label, seed, final=0.1 * k + 0.001 * seed)
        for k, label in enumerate(["Adam", text, *(f"AdamS {i}" for i in range(9))])
        for seed in range(7)
    ],
    "label of a sweep": lambda run, text, _: [
        run(f"{text}{eta}", seed, optimizer="surefoot.AdamS", kwargs={"eta": eta}) for eta in (1, 2) for seed in (0, 1)
    ],
    "metric": lambda run, text, _: [
        replace(made, epochs=[{**row, f"valid_{text}": row["valid_loss"]} for row in made.epochs])
        for made in (run(label, seed) for label in ("Adam", "AdamS") for seed in range(2))
    ],
    "task": lambda run, text, _: [
        run("Adam", 0, task={"name": name, "batch_size": 1, "data": "d", "settings": {}}) for name in (text, "other")
    ],
    "settings of a task": lambda run, text, _: [
        run("Adam", 0, task={"name": "odd", "batch_size": 1, "data": text, "settings": {"of": value}, "code": text})
        for value in (text, "other")
    ],
    "option": lambda run, text, _: [run("Adam", 0, kwargs={text: text})],
    "class": lambda run, text, _: [run("Adam", 0, optimizer=text)],
    "machine": lambda run, text, _: [run("Adam", 0, provenance={"cpu": text, "commit": text, "platform": text})],
    "fork": lambda run, text, _: [
        run("Adam", 0, fork={"base": "b", "label": text, "epoch": 2, "state": "fresh", "family": "f"})
    ],
    "error": with_error,
}


@pytest.mark.parametrize("place", PLACES)
def test_report_is_the_same_but_for_the_words(place: str, run: MakeRun, tmp_path: Path) -> None:
    pages = []
    for text in ("plain", PAYLOAD):
        path = write_report(PLACES[place](run, text, tmp_path), tmp_path / "report.html", findings=[])
        pages.append(path.read_text())
    assert "alert()" in pages[1].partition("<script>window.PlotlyConfig")[0]
    assert structure(pages[0]) == structure(pages[1])
    figures = embedded_data(pages[1])["figures"]
    assert_no_tags([[figure.get(part) for part in ("data", "layout", "rows")] for figure in figures])


@pytest.mark.parametrize("place", ["title", "command", "finding", "section"])
def test_what_a_caller_gives_is_text(place: str, run: MakeRun, tmp_path: Path) -> None:
    pages = []
    for text in ("plain", PAYLOAD):
        given: dict[str, Any] = {
            "title": {"title": text},
            "command": {"command": text},
            "finding": {"findings": [Finding(text, "warning", text)]},  # type: ignore[arg-type]
            "section": {"sections": [Section(text, text, contents(text))]},
        }[place]
        runs: Sequence[Run] = [run("Adam", 0)]
        pages.append(write_report(runs, tmp_path / "report.html", **{"findings": [], **given}).read_text())
    assert structure(pages[0]) == structure(pages[1])


def test_the_data_of_a_page_cannot_end_its_script() -> None:
    panel = Panel(PAYLOAD, [Line(PAYLOAD, [1], [1])])
    page = render(ReportContext("", "", [Section("Part", panels=[panel])]))
    assert embedded_data(page)["figures"][0]["title"] == PAYLOAD
    assert page.count("</script>") == 4
