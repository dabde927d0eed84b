"""What a search found: the best setting of each optimizer, every trial, and the comparison to make now."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.lab.spec.options import RunOptions
from surefoot.lab.tune.study import StudyResult

#: Seeds of the comparison that follows: enough for a claim.
FRESH_SEEDS = 10


@dataclass(frozen=True)
class Tuning:
    """What `tune` found. Tables and pages are imported when they are asked for, not by a search.

    Args:
        studies: One per optimizer.
        notes: What a reader should know about spaces and budgets.
        command: The comparison of the best settings on fresh seeds, as words; empty when there is none to make.
    """

    studies: list[StudyResult]
    notes: list[str]
    command: list[str]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Trials that failed: the optimizer, and what went wrong."""
        return [(study.plan.label, message) for study in self.studies for message in study.failures.values()]

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """The best setting by optimizer."""
        return {study.plan.label: dict(study.best.options) for study in self.studies if study.best}

    @property
    def specs(self) -> list[str]:
        """The best settings as `compare` reads them."""
        return _best_specs(self.studies)

    @property
    def warnings(self) -> list[str]:
        """Best values on the edge of what was tried, and optimizers without any."""
        from surefoot.lab.tune.report import warnings

        return warnings(self.studies)

    def rows(self) -> list[list[str]]:
        """The table: optimizer, best setting, its value, trials, epochs trained."""
        from surefoot.lab.tune.report import table_rows

        return table_rows(self.studies)

    def header(self) -> list[str]:
        """The names of the table's columns."""
        from surefoot.lab.tune.report import table_header

        return table_header(self.studies)

    def print(self) -> None:
        """Print the table, what to know about it, and the command that follows."""
        from surefoot.lab.tune.report import print_tuning

        print_tuning(self.studies, self.notes, self.command)

    def report(self, path: Path | str = "tune.html", command: str = "") -> Path:
        """Write the report, one HTML file that needs no network."""
        from surefoot.lab.tune.report import write_tuning_report

        commands = [line for line in (command, shlex.join(self.command)) if line]
        return write_tuning_report(Path(path), self.studies, self.notes, commands)


def _best_specs(studies: Sequence[StudyResult]) -> list[str]:
    return [study.plan.contestant.with_options(study.best.options).spec for study in studies if study.best]


def compare_command(
    spec: str, studies: Sequence[StudyResult], seeds: Sequence[int], epochs: int, options: RunOptions
) -> list[str]:
    """The comparison of the best settings on seeds that tuning has not seen."""
    best = _best_specs(studies)
    if not spec or not best:
        return []
    first = 0 if min(seeds) >= FRESH_SEEDS else max(seeds) + 1
    return options.command("compare", spec, best, range(first, first + FRESH_SEEDS), epochs)
