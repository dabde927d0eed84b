"""The scorecard: every claim with its verdict and evidence, and every published cell beside ours, as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from surefoot.lab.analyse.stats import MeanStd
from surefoot.paper.cells import Cell, Replication, cells
from surefoot.paper.claims import judge_all
from surefoot.paper.contrasts import Verdict
from surefoot.paper.published import METRICS, SEEDS, Configuration, configurations

HEADS = {"train_loss": "train loss", "val_loss": "val. loss", "val_acc": "val. acc. (%)"}
EVIDENCE = ["paired by seed", "claimed", "ours (95% interval)", "published", "verdict"]


def scorecard(replication: Replication, notes: Sequence[str] = ()) -> str:
    """The whole scorecard.

    Args:
        replication: our runs.
        notes: sentences for the end, such as which figures were left out.
    """
    every, verdicts = cells(replication), judge_all(replication)
    parts = [
        "# Scorecard: the paper, cell by cell\n",
        "Written by `surefoot paper --export` from the runs in `runs.jsonl`; nothing here is typed by hand.\n",
        "## In short\n",
        tally_table(every),
        "## Claims\n",
        claims_table(verdicts),
        *(evidence(one) for one in verdicts),
        *_reference_claims(replication),
        "## Cells\n",
        f"Ours ± std (n seeds) beside theirs ± std (n = {SEEDS}); the difference is in pooled standard errors, and a "
        "cell matches when it is within Student's t at 5%. One cell in twenty differs by chance alone, and a match "
        "says no more than that the difference is within the noise of so few seeds.\n",
        *(cells_table(one, every) for one in configurations()),
    ]
    if notes:
        parts += ["## Not there\n", "\n".join(f"- {note}" for note in notes) + "\n"]
    return "\n".join(parts)


def tally_table(every: Sequence[Cell]) -> str:
    """How many cells match, differ and were not run, by configuration."""
    usual = [cell for cell in every if cell.variant == "default"]
    lines = [_tally(one.name, [cell for cell in usual if cell.row.configuration == one]) for one in configurations()]
    return table(["configuration", "cells", "match", "differ", "not run", "n"], [*lines, _tally("together", usual)])


def _tally(name: str, group: Sequence[Cell]) -> list[str]:
    found = Counter(cell.verdict for cell in group)
    seeds = sorted({cell.ours.n for cell in group if cell.ours.n})
    shown = "" if not seeds else str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return [name, str(len(group)), *(str(found[word]) for word in ("matches", "differs", "not run")), shown]


def claims_table(verdicts: Iterable[Verdict]) -> str:
    """One line per claim."""
    return table(["claim", "verdict", "evidence"], [[one.claim.title, one.word, one.sentence] for one in verdicts])


def evidence(verdict: Verdict) -> str:
    """The lines behind one claim."""
    claim = verdict.claim
    rows = [[one.line.statement, one.line.wish, one.ours, one.theirs, one.verdict] for one in verdict.lines]
    note = f" {claim.note}" if claim.note else ""
    head = f"### {claim.title}: {verdict.word}\n\n{claim.source}.{note}\n"
    return f"{head}\n{table(EVIDENCE, rows)}"


def _reference_claims(replication: Replication) -> list[str]:
    """The claims once more for the published recipe, where that was run."""
    found = [one for one in judge_all(replication, "reference") if one.word != "not run"]
    if not found:
        return []
    lead = (
        "The same lines with `reference=True`: signed first steps, one noise draw per tensor, eps before bias "
        "correction.\n"
    )
    return ["## Claims under the published recipe\n", lead, claims_table(found), *(evidence(one) for one in found)]


def cells_table(configuration: Configuration, every: Sequence[Cell]) -> str:
    """The cells of one configuration, laid out as in the paper."""
    own = [cell for cell in every if cell.row.configuration == configuration]
    rows = []
    for first in range(0, len(own), len(METRICS)):
        group = own[first : first + len(METRICS)]
        name = group[0].row.optimizer + (" (reference)" if group[0].variant == "reference" else "")
        line = [str(group[0].row.epoch), name]
        for cell in group:
            line += cell_texts(cell)
        rows.append(line)
    head = ["epoch", "optimizer"]
    for metric in METRICS:
        head += [f"{HEADS[metric]}: ours", "theirs", "difference"]
    etas = ", ".join(
        f"{name} {eta:g}"
        for name, eta in dict.fromkeys((cell.row.optimizer, cell.row.eta) for cell in own)
        if eta is not None
    )
    return f"### {configuration.name} ({configuration.task}; eta: {etas})\n\n{table(head, rows)}"


def ours_text(ours: MeanStd, lost: int = 0) -> str:
    """Our mean and deviation with n, and how many runs diverged.

    >>> ours_text(MeanStd(3, 0.25, 0.001)), ours_text(MeanStd(0, math.nan, math.nan))
    ('0.250 ± 0.001 (3)', 'not run')
    """
    if not ours.n:
        return f"all {lost} diverged" if lost else "not run"
    spread = "" if math.isnan(ours.std) else f" ± {ours.std:.3f}"
    return f"{ours.mean:.3f}{spread} ({ours.n}" + (f", {lost} diverged)" if lost else ")")


def cell_texts(cell: Cell) -> list[str]:
    """Ours, theirs, and the difference with what it amounts to."""
    verdict = "" if cell.verdict == "not run" else cell.verdict
    if cell.difference is not None:
        verdict = f"{cell.difference:+.1f} {verdict}"
    return [ours_text(cell.ours, cell.lost), f"{cell.theirs.mean:.3f} ± {cell.theirs.std:.3f}", verdict]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "2|3"]]))
    | a | b |
    | --- | --- |
    | 1 | 2\\|3 |
    <BLANKLINE>
    """
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
