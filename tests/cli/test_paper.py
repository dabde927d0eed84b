"""`surefoot paper`: what it prints, what it writes and how it exits."""

from __future__ import annotations

from pathlib import Path

from command_line import surefoot
from surefoot.cli.paper import PaperPart
from surefoot.paper.plan import PARTS


def test_paper_runs_plans_and_exports(mnist: Path, tmp_path: Path) -> None:
    out, results = tmp_path / "runs", tmp_path / "results"
    options = ("--seeds", 1, "--epochs", 1, "--out", out, "--data-dir", mnist, "-q")
    ran = surefoot("paper", "lr", *options, "--export", results)
    assert ran.exit_code == 0, ran.output
    assert f"written: {results / 'cells.csv'}" in ran.output
    planned = surefoot("paper", "lr", *options, "--plan")
    assert "4 of 4 runs done" in planned.output
    idle = surefoot("paper")
    assert idle.exit_code == 2
    assert "nothing to do; name a part (surefoot paper lr), or --export a folder" in idle.output
    steps = surefoot("paper", "steps", "--plan")
    assert "leave --plan out" in steps.output
    nothing = surefoot("paper", "lr", "--model", "cnn")
    assert "lr has nothing for the model cnn; leave --model out" in nothing.output


def test_the_parts_of_the_command_are_those_of_the_plan() -> None:
    assert {part.value for part in PaperPart} == {*PARTS, "steps"}
