"""`surefoot demo`: what it prints and writes, and that it says so where a part does not win."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import surefoot
from surefoot.cli import demo
from surefoot.lab.analyse.comparison import summarise
from surefoot.lab.analyse.ranking import rankings
from surefoot.lab.store import Run

RECORDED = Path(__file__).parents[2] / "results" / "demo.md"


def test_the_demo_shows_every_part_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SEEDS", 2)
    monkeypatch.setattr(demo, "EPOCHS", 1)
    done = surefoot("demo", "--out", tmp_path, "--quiet")
    assert done.exit_code == 0, done.output
    for part in demo.PARTS:
        assert (part.title in done.stdout) == (not part.continues)
        assert len(list((tmp_path / part.name).rglob("metrics.jsonl"))) == 2 * len(part.optimizers)
    assert " wins on " not in done.stdout  # two seeds decide nothing
    assert done.stdout.count("No winner yet on validation loss") >= 2
    text = " ".join(done.stdout.split())
    assert all(part.lost in text for part in demo.PARTS)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(part.title in page for part in demo.PARTS)
    assert 'id="honesty-checks"' in page
    for part in demo.PARTS:  # what follows stands below the verdict, what weakens it above
        section = page[page.index(f"<h2>{part.title}</h2>") :]
        verdict = section.index('class="winner"')
        assert section.index("see <code>surefoot tune</code>") < section.index("Learning curves")
        assert verdict < section.index(part.lost) < section.index("<figure")
    assert "<code>surefoot demo</code>" in page


def test_the_remark_follows_the_verdict(paired_runs: Callable[..., list[Run]]) -> None:
    part = demo.PARTS[-1]
    for offset, expected in ((-0.05, part.won), (0.05, part.lost), (0.0, part.lost)):
        [ranking] = rankings(summarise(paired_runs({"Adam": 0.0, "B": offset}, seeds=7)))
        assert demo.remark(part, ranking) == expected


def test_the_recorded_demo_fits_a_screen_and_has_every_part() -> None:
    match = re.search(r"```text\n(.*?)```", RECORDED.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    lines = match[1].splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if re.match(r"\d\. ", line)] == [
        part.title for part in demo.PARTS if not part.continues
    ]
