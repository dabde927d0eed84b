"""The any-time comparison for readers: what is printed, and the sections of its page."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from surefoot.lab.analyse.audit import Finding
from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.analyse.horizons import compare_at_horizons
from surefoot.lab.analyse.verdicts import Outcome
from surefoot.lab.report import ReportContext, write_page
from surefoot.lab.report.context import Findings, FindingsFlag, Table, Text, Winner
from surefoot.lab.report.horizons import HorizonTables, differences


@pytest.fixture
def tables(paired_runs):
    """The first contestant is worse than the second one, by 0.02 or a fifth at the end."""
    [group] = group_runs(paired_runs({"Adam average=anytime": 0.02, "Adam": 0.0, "SGD": 0.05}, epochs=4, seeds=8))
    cut = {
        epochs: replace(
            group,
            contestants=tuple(
                replace(entry, runs=tuple(run.cut_to(epochs) for run in entry.runs)) for entry in group.contestants
            ),
        )
        for epochs in (1, 2, 4)
    }
    return HorizonTables(compare_at_horizons(cut, "valid_loss", "1%"), cut, "Learning rates: the best of two.")


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_the_verdict_first_and_no_line_is_too_long(tables, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(tables)
    lines = console.export_text().splitlines()
    assert lines[0].startswith(f"{tables.table.task}: Adam average=anytime is worse than the best peer after 1, 2, 4")
    assert max(map(len, lines)) <= width
    assert "Worst regret in validation loss: " in " ".join(line.strip() for line in lines)
    assert [line.split()[0] for line in lines if "not shown" in line] == ["1", "2", "4"]
    assert sum(line.startswith(" ▼ after ") for line in lines) == 3
    assert not any("|" in line for line in lines)  # no Markdown
    assert " ▼ against Adam: worse" in lines
    assert " ▲ against SGD: better" in lines


def test_the_sections_have_the_verdict_the_picture_and_the_tables(tables):
    short, every, *_ = tables.sections("surefoot anytime")
    assert isinstance(short.content[0], Winner)
    assert "is worse than the best peer" in short.content[0].headline
    heads = [table.head[0] for table in every.content if isinstance(table, Table)]
    assert heads == ["after", "peer", "optimizer"]
    assert [row.cells[0] for row in every.content[0].rows] == ["1 epoch", "2 epochs", "4 epochs"]  # on a phone, a title
    assert every.content[2].head[1:] == ["1 epoch", "2 epochs", "4 epochs"]
    assert [row.outcome for row in every.content[0].rows] == [Outcome.WORSE] * 3
    over_all = [(row.cells[0], row.outcome) for row in every.content[1].rows]
    assert over_all == [("Adam", Outcome.WORSE), ("SGD", Outcome.BETTER)]
    titles = [section.title for section in tables.sections("x")[2:]]
    assert titles == ["Honesty checks", "Provenance", "How to get it again"]


def test_the_page_shows_each_outcome_by_the_same_badge(tables, tmp_path):
    page = write_page(tmp_path / "page.html", ReportContext("t", "", tables.sections("x"))).read_text()
    badge = '<td data-label="{}" class="is-{}"><span class="badge"><span aria-hidden="true">{}</span> {}</span></td>'
    assert page.count(badge.format("verdict (Holm over horizons)", "worse", "▼", "worse")) == 3
    assert page.count(badge.format("verdict (Holm over peers)", "worse", "▼", "worse")) == 1
    assert page.count(badge.format("verdict (Holm over peers)", "better", "▲", "better")) == 1


def test_the_first_screen_has_the_regret_in_percent_and_what_speaks_against_the_verdict(tables):
    task = tables.table.task
    warning, note = Finding("few-seeds", "warning", f"{task}: few."), Finding("untuned", "note", f"{task}: untuned.")
    short, _, honest, *_ = replace(tables, findings=[warning, note]).sections("x")
    flag, winner, below, *_ = short.content
    assert isinstance(flag, FindingsFlag)
    assert (flag.text, list(flag.findings)) == ("1 warning", [warning])
    assert isinstance(winner, Winner)
    assert winner.reason.startswith("Worst regret in validation loss: 0.0196 (")
    assert winner.reason.endswith(", 3.6% of the best peer's value, after 1 epoch.")
    assert isinstance(below, Text)
    assert below.text == f"{task}: untuned."
    [findings] = honest.content
    assert isinstance(findings, Findings)
    assert list(findings.findings) == [warning, note]


def test_the_picture_has_every_horizon_its_interval_and_the_margin(tables):
    zero, *bars, means = differences(tables.table).lines
    assert list(means.x) == [1, 2, 4]
    assert list(means.y) == [row.comparison.difference for row in tables.table.horizons]
    assert [tuple(bar.y) for bar in bars] == [row.comparison.interval for row in tables.table.horizons]
    expected = [0.01 * row.best for row in tables.table.horizons]  # 1% of the best peer, on average over the seeds
    assert [high for _, high in zero.band] == pytest.approx(expected)
