"""What a search found: the best setting of each optimizer, every trial, and the comparison to make now."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot._extras import require
from surefoot.lab.analyse.verdicts import count, number
from surefoot.lab.report.tables import metric_name
from surefoot.lab.tune.objective import with_options
from surefoot.lab.tune.study import Plan, Studies

#: Seeds of the comparison that follows: enough for a claim.
FRESH_SEEDS = 10


@dataclass(frozen=True)
class TrialResult:
    """One setting: its value (infinite when a seed diverged), "done", "pruned" or "diverged", and epochs trained."""

    slot: int
    options: Mapping[str, Any]
    value: float
    state: str
    epochs: int


@dataclass(frozen=True)
class StudyResult:
    """The trials of one optimizer, in the order in which they ended; `failures` by slot."""

    plan: Plan
    trials: list[TrialResult]
    failures: dict[int, str]

    @property
    def best(self) -> TrialResult | None:
        """The best setting that was trained to the end; None when every one diverged."""
        ended = [one for one in self.trials if one.state == "done"]
        sign = -1 if self.plan.maximize else 1
        return min(ended, key=lambda one: (sign * one.value, one.slot), default=None)

    @property
    def edges(self) -> list[str]:
        """Options whose best value lies on the edge of what was tried."""
        return self.plan.space.on_edge(self.best.options) if self.best else []

    @property
    def epochs(self) -> int:
        return sum(one.epochs for one in self.trials)

    def of(self, state: str) -> int:
        return sum(one.state == state for one in self.trials)

    def edge_note(self) -> str:
        """The warning about the edge, or ''."""
        words = [f"{name} (tried {self.plan.space.options[name]})" for name in self.edges]
        if not words:
            return ""
        return f"{self.plan.label}: the best {' and '.join(words)} is on the edge; a better one may lie beyond it."


@dataclass(frozen=True)
class Tuning:
    """What `tune` found.

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
        return [with_options(study.plan.contestant, study.best.options).spec for study in self.studies if study.best]

    @property
    def warnings(self) -> list[str]:
        edges = [note for study in self.studies if (note := study.edge_note())]
        nothing = [
            f"{study.plan.label}: no setting was trained to the end ({count(study.of('diverged'), 'trial')} diverged)."
            for study in self.studies
            if study.best is None
        ]
        return [*edges, *nothing]

    def rows(self) -> list[list[str]]:
        """The table: optimizer, best setting, its value, trials, epochs trained."""
        return [
            [
                study.plan.label,
                settings_of(study.best.options) + (" (edge)" if study.edges else "") if study.best else "–",
                number(study.best.value) if study.best else "–",
                _trials(study),
                str(study.epochs),
            ]
            for study in self.studies
        ]

    def header(self) -> list[str]:
        plan = self.studies[0].plan
        metric = f"{metric_name(plan.metric)} (mean of {count(len(plan.seeds), 'seed')})"
        return ["optimizer", "best setting", metric, "trials", "epochs trained"]

    def print(self) -> None:
        """Print the table, what to know about it, and the command that follows."""
        table = require("rich.table", extra="lab").Table(title="Best settings", title_justify="left")
        for name in self.header():
            table.add_column(name)
        for row in self.rows():
            table.add_row(*row)
        console = require("rich.console", extra="lab").Console()
        console.print(table)
        for note in [*self.notes, *self.warnings]:
            console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
        if self.command:
            console.print("\nCompare them on seeds that tuning has not seen:")
            console.print(shlex.join(self.command), markup=False, highlight=False, soft_wrap=True)

    def report(self, path: Path | str = "tune.html", command: str = "") -> Path:
        """Write the report, one HTML file that needs no network."""
        from surefoot.lab.tune.report_sections import write_tuning_report

        return write_tuning_report(self, Path(path), command)


def settings_of(options: Mapping[str, Any]) -> str:
    """A setting in a few words.

    >>> settings_of({"eta": 1e-05, "lr": 0.001})
    'eta=1e-05 lr=0.001'
    """
    return " ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in options.items()
    )


def read_study(studies: Studies, plan: Plan) -> StudyResult:
    """The results of a study: what each slot of its budget came to."""
    trials: list[TrialResult] = []
    failures: dict[int, str] = {}
    for one in sorted(studies.trials(plan), key=lambda one: (str(one.datetime_complete or ""), one.number)):
        slot = one.user_attrs.get("slot", -1)
        if not 0 <= slot < plan.budget:  # of a larger budget that was asked for before
            continue
        if one.state.name == "FAIL":
            failures[slot] = one.user_attrs.get("error", "its worker process died again and again")
        elif one.state.is_finished():
            lost = one.value is not None and math.isinf(one.value)
            state = "pruned" if one.state.name == "PRUNED" else "diverged" if lost else "done"
            options = one.user_attrs.get("options", one.params)
            trials.append(TrialResult(slot, options, float(one.value or 0.0), state, one.user_attrs.get("epochs", 0)))
    ended = {trial.slot for trial in trials}
    return StudyResult(plan, trials, {slot: error for slot, error in failures.items() if slot not in ended})


def compare_command(
    spec: str,
    found: Sequence[StudyResult],
    seeds: Sequence[int],
    epochs: int,
    options: Mapping[str, Any],
) -> list[str]:
    """The comparison of the best settings on seeds that tuning has not seen."""
    if not spec or not any(study.best for study in found):
        return []
    words = ["surefoot", "compare", spec]
    for study in found:
        if study.best is not None:
            words += ["-o", with_options(study.plan.contestant, study.best.options).spec]
    first = 0 if min(seeds) >= FRESH_SEEDS else max(seeds) + 1
    words += ["--seeds", str(FRESH_SEEDS), *(["--first-seed", str(first)] if first else []), "--epochs", str(epochs)]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        elif value is not None:
            words += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return words


def _trials(study: StudyResult) -> str:
    parts = [f"{number} {state}" for state in ("pruned", "diverged") if (number := study.of(state))]
    if study.failures:
        parts.append(f"{len(study.failures)} failed")
    return f"{len(study.trials)} of {study.plan.budget}" + (f" ({', '.join(parts)})" if parts else "")
