"""The command `surefoot demo`: the loss at three scales, on handwritten digits that come with scikit-learn."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from surefoot.cli.command import echo, report_file, takes
from surefoot.lab.spec.options import RunOptions

if TYPE_CHECKING:
    from surefoot.lab.analyse.ranking import Ranking
    from surefoot.lab.results import Results

TASK, SEEDS, EPOCHS = "digits-mlp", 6, 20


@dataclass(frozen=True)
class Part:
    """One comparison of the demo.

    Args:
        name: its folder.
        title: the question.
        text: what is compared.
        optimizers: the contestants, the plain one first.
        won: what to say if a contestant beats the plain one.
        lost: what to say if none does.
        options: options of the task.
        continues: whether it belongs to the part before it, and needs no title on the screen.
    """

    name: str
    title: str
    text: str
    optimizers: Sequence[str]
    won: str
    lost: str
    options: Mapping[str, Any] = field(default_factory=dict)
    continues: bool = False


#: The rate of the second part is the best one for the average among 0.003, 0.01 and 0.03, on tune seeds 1000 to 1005.
PARTS = (
    Part(
        "batches",
        "1. Batches: how far to lean with this batch?",
        "The paper's three optimizers weight a gradient by how unusual its loss is.",
        ("adam", "adamucb", "adamcb", "adams"),
        won="They help here.",
        lost="Why: the weight contains the spread of the loss. Adam removes a constant factor, but the spread falls, "
        "and the steps shrink with it, as with a lower learning rate. Next, AdamS at three times the rate.",
    ),
    Part(
        "rate",
        "1b. Batches: the same with a larger learning rate",
        "AdamS with three times the learning rate.",
        ("adam", "adams:lr=0.003"),
        won="So it was the rate, and Adam gains from a larger one as well (see 2): tune it first.",
        lost="So tune the rate first; Adam gains from a larger one as well (see 2).",
        continues=True,
    ),
    Part(
        "iterates",
        "2. Iterates: which weights are worth keeping?",
        "The any-time average of a run against its end, at a constant rate of 0.01.",
        ("adam:lr=0.01", "adam:lr=0.01,average=anytime"),
        won="It costs a copy of the weights: `optimizer = surefoot.Anytime(optimizer)`.",
        lost="It does not win here with six seeds.",
    ),
    Part(
        "examples",
        "3. Examples: which examples count?",
        "40% of the training labels are wrong. Examples whose loss stays far above the others get less weight.",
        ("adam", "adam:examples=tilted:auto"),
        won='In your own loop: `weigh = surefoot.weigh(optimizer, "tilted")`, then `weigh(losses).backward()`.',
        lost="It does not win here.",
        options={"label_noise": 0.4},
    ),
)


@takes(RunOptions(out=Path("runs/demo")), "out")
def demo(options: RunOptions) -> None:
    """Show the loss at three scales in a minute: batches, iterates and examples, with six paired seeds each.

    Every number is measured on this machine, and every verdict is real: where a part does not win, it says so.
    """
    path = report_file(None, options.out / "report.html")
    from surefoot.lab import experiments
    from surefoot.lab.analyse.ranking import rankings

    failed = False
    done: list[tuple[Part, Results, str]] = []
    for part in PARTS:
        keywords = {**options.keywords(), **part.options, "out": options.out / part.name}
        results = experiments.compare(TASK, part.optimizers, seeds=SEEDS, epochs=EPOCHS, **keywords)
        failed |= not results.ok
        ranked = rankings(results.table())
        done.append((part, results, remark(part, ranked[0]) if ranked else ""))
    write_story(path, done)
    echo(story(done, shutil.get_terminal_size().columns))
    echo(f"\nOpen {path} in a browser.\nYour own comparison: surefoot compare")
    if failed:
        raise typer.Exit(1)


def remark(part: Part, ranking: Ranking) -> str:
    """What follows from the verdicts."""
    from surefoot.lab.analyse.verdicts import Outcome

    better = any(row.verdict.outcome == Outcome.BETTER for row in ranking.rows)
    return part.won if better else part.lost


def story(done: Sequence[tuple[Part, Results, str]], width: int = 80) -> str:
    """The demo as text, for one screen."""
    from surefoot.lab.analyse.ranking import rankings
    from surefoot.lab.analyse.verdicts import plus_minus
    from surefoot.lab.report.tables import MARKS, share

    def lines(text: str) -> list[str]:
        return textwrap.wrap(text, min(width, 100) - 1, initial_indent="   ", subsequent_indent="   ")

    shown = [f"The loss at three scales: {TASK}, {EPOCHS} epochs, {SEEDS} paired seeds"]
    for part, results, comment in done:
        shown += [] if part.continues else ["", part.title, *lines(part.text)]
        for ranking in rankings(results.table()):
            longest = max(len(row.label) for row in ranking.rows)
            for row in () if part.continues else ranking.rows:
                mark = "baseline" if row.is_baseline else "{0.sign} {0.word}".format(MARKS[row.verdict.outcome])
                value = plus_minus(row.values.mean, row.values.std)
                shown.append(f"     {row.label:{longest}}  {value:>13}  {share(row):>6}  {mark}".rstrip())
            shown += lines(ranking.sentence)
        shown += lines(comment)
    return "\n".join(shown)


def write_story(path: Path, done: Sequence[tuple[Part, Results, str]]) -> Path:
    """Write the report: a section per part with its verdict, its picture and its curves."""
    from surefoot.lab.analyse.audit import audit
    from surefoot.lab.report import Story, write_stories

    stories = [
        Story(part.title, part.text, results.table(), audit(results.runs), comment) for part, results, comment in done
    ]
    return write_stories(path, "The loss at three scales", stories, "surefoot demo")
