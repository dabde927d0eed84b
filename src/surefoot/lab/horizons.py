"""`anytime`: is a contestant good at every moment? Against the best of its peers at several horizons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from surefoot.lab.analyse.audit import SEVERITIES, Finding, audit
from surefoot.lab.analyse.comparison import check_margin
from surefoot.lab.analyse.groups import ContestantRuns, TaskGroup, metric_name, value_at
from surefoot.lab.analyse.horizons import HEAD, OVERALL_HEAD, HorizonComparison, compare_at_horizons
from surefoot.lab.analyse.verdicts import count
from surefoot.lab.experiments import Setup, compute, prepare
from surefoot.lab.report import ReportContext, write_page
from surefoot.lab.report.horizons import HorizonTables
from surefoot.lab.report.tables import MARKS, markdown_table
from surefoot.lab.results import read_record
from surefoot.lab.run.pool import RunJob
from surefoot.lab.spec.config import OptimizerConfig, Purpose
from surefoot.lab.spec.contestant import Contestant, parse_all
from surefoot.lab.spec.options import FIRST_TUNE_SEED, MOST_EPOCHS, check_count, shows_options
from surefoot.lab.spec.schedules import depends_on_length
from surefoot.lab.spec.task import Task
from surefoot.lab.store import HorizonRecord, Run, StoreError, is_recorded, read_run, write_atomic
from surefoot.lab.terminal import console


@dataclass(frozen=True)
class HorizonResults:
    """What `anytime` found.

    Args:
        groups: for each horizon the contestants with their runs.
        margin: what counts as not inferior.
        failures: what went wrong, by run folder.
        command: what to type to get the same again.
        rates: how the learning rates were chosen, if they were.
        recorded: everything in the folder of these runs, with trials and what is not shown; the checks look at it.
        unreadable: why the folder cannot be read as a whole, if so.
    """

    #: The file of the report: not that of `compare`, which may use the same folder.
    page: ClassVar[str] = "anytime.html"

    groups: dict[int, TaskGroup]
    margin: str
    failures: dict[str, str]
    command: str
    rates: str = ""
    recorded: Sequence[Run] = ()
    unreadable: str = ""

    @classmethod
    def read(cls, folder: Path, recorded: Sequence[Run]) -> HorizonResults | None:
        """The results in a folder that `anytime` wrote to; None if it holds results of something else, too.

        Args:
            folder: the folder.
            recorded: everything in it.
        """
        record = HorizonRecord.read(folder)
        if record is None:
            return None
        runs = {run.config.key: run for run in recorded}
        keys = {key for entries in record.contestants.values() for part in entries.values() for key in part}
        shown = {runs[key].folder for key in keys & runs.keys()}
        if any(run.config.purpose == Purpose.RESULT and run.folder not in shown for run in recorded):
            return None
        if missing := len(keys - runs.keys()):
            raise StoreError(
                f"{folder} lacks {missing} of the {count(len(keys), 'run')} that 'surefoot anytime' compared; "
                f"run it again: {record.command}"
            )
        groups = {}
        for epochs, entries in record.contestants.items():
            newest = {label: runs[part[-1]].config for label, part in entries.items()}
            contestants = [
                _contestant(label, newest[label].optimizer, part, epochs, runs) for label, part in entries.items()
            ]
            task = next(iter(newest.values())).task
            groups[epochs] = TaskGroup(task.name, task, tuple(contestants))
        return cls(groups, record.margin, {}, record.command, record.rates, recorded)

    def table(self, metric: str = "valid_loss", label: str = "") -> HorizonComparison:
        """The first contestant, or the one with this label, against the best of the others at each horizon."""
        return compare_at_horizons(self.groups, metric, self.margin, label)

    def tables(self, metric: str = "valid_loss") -> HorizonTables:
        """The tables, for the terminal and the page."""
        return HorizonTables(self.table(metric), self.groups, self.rates, self.check())

    def check(self) -> list[Finding]:
        """What makes the comparison unfair, incomplete or weaker than it looks, at any horizon, the worst first."""
        shown = {run.folder for group in self.groups.values() for run in group.runs}
        *_, last = self.groups.values()
        longest = {run.config.key for run in last.runs}
        # What is shown at one horizon is not hidden at the others; only behind the last one is something left out.
        others = [run for run in self.recorded if run.folder not in shown]
        behind = [run for run in self.recorded if run.folder in shown and run.config.key in longest]
        findings = [Finding("unreadable-runs", "error", self.unreadable)] if self.unreadable else []
        for group in self.groups.values():
            of_group = audit(group.runs, recorded=[*others, *(behind if group is last else [])])
            # Rates are chosen over all horizons at once, so that only the last one is as long as the search.
            findings += [finding for finding in of_group if group is last or finding.code != "tuned-at-other-length"]
        return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))

    def sentences(self) -> list[str]:
        """The verdict and the largest regret."""
        return [f"{self.table().task}: {self.table().verdict}. {self.tables().worst}"]

    def print(self) -> None:
        """Print the verdict and the tables, the findings of the checks, and how to get all that again."""
        output = console()
        output.print(self.tables())
        for finding in self.check():
            output.print(str(finding), markup=False, highlight=False, soft_wrap=True)
        output.print()
        output.print(self.command, markup=False, highlight=False, soft_wrap=True)

    def to(self, format: str) -> str:
        """The tables as text, which can only be "md" (Markdown)."""
        if format != "md":
            raise ValueError(f"the tables of 'surefoot anytime' can be printed as md, not as {format}")
        return self.to_markdown()

    def to_markdown(self, metric: str = "valid_loss") -> str:
        """The table, the worst regret, the verdict, and how to get it again."""
        table, tables = self.table(metric), self.tables(metric)
        over_all = [[*row[:-1], MARKS[row.outcome].word] for row in tables.over_all()]
        return "\n".join(
            [
                f"{table.task}: {metric_name(metric)}, {table.label} against the best of its peers at each horizon\n",
                markdown_table(HEAD, table.rows()),
                f"worst regret: {table.worst_regret}, after {table.worst.epochs} epochs\n",
                f"{table.verdict}\n",
                f"{table.label} over all horizons together: the geometric mean, so that each counts the same\n",
                markdown_table(OVERALL_HEAD, over_all),
                markdown_table(tables.means_head(), tables.means()),
                *([f"{self.rates}\n"] if self.rates else []),
                f"```\n{self.command}\n```\n",
            ]
        )

    def write(self, path: Path) -> None:
        """Write that as a Markdown file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.to_markdown().encode())

    def report(self, path: Path | str = page) -> Path:
        """Write the report, one HTML file that needs no network."""
        table, contestants = self.table(), next(iter(self.groups.values())).contestants
        subtitle = [count(len(contestants), "optimizer"), count(len(self.groups), "horizon")]
        subtitle += [count(table.worst.comparison.pairs, "paired seed"), f"margin {self.margin}"]
        title = f"{table.label} at any time on {table.task}"
        return write_page(path, ReportContext(title, " · ".join(subtitle), self.tables().sections(self.command)))


@shows_options
def anytime(
    task: str | Task,
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]],
    *,
    horizons: Sequence[int] = (1, 2, 4, 8, 16),
    seeds: int | Sequence[int] = 6,
    margin: float | str = "1%",
    rates: Sequence[float] = (),
    tune_seeds: int | Sequence[int] = 3,
    purpose: str = "report",
    **options: Any,
) -> HorizonResults:
    """Compare the first optimizer with the best of the others after each number of epochs.

    An optimizer with a schedule that depends on the length of the run is trained once per horizon, every other one
    once, and all averages of one base ride on one training run. At each horizon the best peer is chosen on the same
    seeds, which makes the comparison hard on the first optimizer.

    Args:
        task: A name, a file, an import path or a Task.
        optimizers: Contestants; the first one is compared with the best of the others.
        horizons: Numbers of epochs.
        seeds: How many seeds (0, 1, ...), or which; six are the fewest that can support a claim.
        margin: What counts as not inferior: a number, or a share of the best peer's value such as "1%".
        rates: Learning rates to choose from, on other seeds, for every optimizer that does not set its own. The chosen
            one has the lowest loss over all horizons; a schedule is tuned for each of them.
        tune_seeds: How many seeds to choose rates on (1000, 1001, ...), or which.
        purpose: "report", or "tune" for runs that only choose a setting.
        options: The fields of `RunOptions`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     asked = {"horizons": [1, 2], "seeds": 2, "out": out, "progress": False}
    ...     results = anytime("digits-lr", ["adam:average=anytime", "adam", "adam:schedule=cosine"], **asked)
    >>> [row.epochs for row in results.table().horizons]
    [1, 2]
    """
    check_margin(margin)
    lengths = sorted(set(horizons))
    if not lengths:
        raise ValueError("horizons must be numbers of epochs, such as 1,2,4,8,16")
    for epochs in lengths:
        check_count("a horizon", epochs, MOST_EPOCHS)
    chosen = None
    if rates:
        chosen = choose_rates(task, optimizers, rates, horizons=lengths, seeds=tune_seeds, **options)
    setup = prepare(task, chosen.contestants if chosen else optimizers, seeds=seeds, epochs=lengths[-1], **options)
    if len(setup.contestants) < 2:
        raise ValueError("there is no peer to compare with; give at least two optimizers, the first one is compared")
    more = ["--horizons", ",".join(map(str, lengths)), "--margin", str(margin)]
    command = setup.command("anytime", setup.seeds[0], None, *more)
    jobs: list[RunJob] = []
    for seed in setup.seeds:
        for position, carrier in enumerate(carriers(setup.contestants)):
            for epochs in lengths if depends_on_length(carrier.schedule) else lengths[-1:]:
                recorded = command if purpose == Purpose.RESULT else ""
                config = setup.config(carrier, seed, epochs, purpose=purpose, position=position, command=recorded)
                jobs.append(setup.job(len(jobs), config, carrier))
    failures = compute(setup, jobs)
    failed = {str(jobs[k].folder): text for k, text in failures.items()}
    sentence = chosen.sentence if chosen else ""
    keys = _keys(setup, lengths, purpose)
    if purpose == Purpose.RESULT:
        with suppress(StoreError):  # a folder that is read-only: the results are there all the same
            HorizonRecord(keys, str(margin), command, sentence).write(setup.options.out)
    groups = _groups(setup, keys, jobs)
    return HorizonResults(groups, str(margin), failed, command, sentence, *read_record(setup.options.out))


@dataclass(frozen=True)
class ChosenRates:
    """Contestants with the learning rates that were best on the tune seeds, and a sentence on the choice."""

    contestants: list[Contestant]
    sentence: str


def choose_rates(
    task: str | Task,
    optimizers: Sequence[str | Contestant | type[torch.optim.Optimizer]],
    rates: Sequence[float],
    *,
    horizons: Sequence[int],
    seeds: int | Sequence[int],
    **options: Any,
) -> ChosenRates:
    """Give every contestant without a learning rate the one with the lowest validation loss over the horizons.

    A contestant whose schedule depends on the length of the run is given each rate that is the best at some horizon.
    """
    given = parse_all(optimizers)
    grid = sorted(set(rates))
    candidates = {
        contestant.label: [contestant.with_options({"lr": rate}) for rate in grid]
        for contestant in given
        if "lr" not in contestant.kwargs
    }
    numbers = range(FIRST_TUNE_SEED, FIRST_TUNE_SEED + seeds) if isinstance(seeds, int) else seeds
    tried = [candidate for entries in candidates.values() for candidate in entries]
    results = anytime(task, tried, horizons=horizons, seeds=numbers, purpose=Purpose.TUNING, **options)
    if results.failures:
        raise RuntimeError(f"a run on a tune seed failed: {next(iter(results.failures.values()))}")
    chosen: list[Contestant] = []
    at_an_edge: list[str] = []
    for contestant in given:
        entries = candidates.get(contestant.label)
        if entries is None:
            chosen.append(contestant)
            continue
        losses = [[_mean_loss(results.groups[epochs], entry.label, epochs) for epochs in horizons] for entry in entries]
        best = best_rates(losses, for_each=depends_on_length(contestant.schedule))
        chosen += [entries[index] for index in best]
        at_an_edge += [entries[index].label for index in best if index in (0, len(grid) - 1)]
    sentence = (
        f"Learning rates: the best of {', '.join(f'{rate:g}' for rate in grid)} over the horizons, on the seeds "
        f"{', '.join(map(str, numbers))}. At an edge of the grid: {', '.join(at_an_edge) or 'none'}."
    )
    return ChosenRates(chosen, sentence)


def best_rates(losses: Sequence[Sequence[float]], *, for_each: bool) -> list[int]:
    """Which rates to take, by the losses of each rate at each horizon: the best over all horizons, or for each of them.

    Over all horizons that is the one whose losses are, relative to the best at each, the lowest on average.

    >>> losses = [[1.0, 0.8], [0.9, 0.9], [0.95, 0.81]]
    >>> best_rates(losses, for_each=False), best_rates(losses, for_each=True)
    ([2], [0, 1])
    """
    columns = list(zip(*losses))
    if for_each:
        return sorted({column.index(min(column)) for column in columns})
    lowest = [min(column) for column in columns]
    regrets = [sum((x - low) / (abs(low) or 1.0) for x, low in zip(row, lowest)) for row in losses]
    return [min(range(len(losses)), key=lambda index: math.inf if math.isnan(regrets[index]) else regrets[index])]


def _mean_loss(group: TaskGroup, label: str, epochs: int) -> float:
    """The mean validation loss of a contestant; infinite if a run has none, because it diverged."""
    runs = next(entry for entry in group.contestants if entry.label == label).runs
    values = [value_at(run, "valid_loss", epochs) for run in runs]
    return math.inf if None in values or not values else sum(filter(None, values)) / len(values)


def carriers(contestants: Sequence[Contestant]) -> list[Contestant]:
    """The runs to be trained: the averages of one base ride on one of them.

    >>> specs = ["adam:average=anytime", "sgd", "adam:average=poly:8", "adam"]
    >>> [(carrier.label, carrier.riders) for carrier in carriers([Contestant.parse(spec) for spec in specs])]
    [('Adam', ('anytime', 'poly:8')), ('SGD', ())]
    """
    bases: dict[str, tuple[Contestant, list[str]]] = {}
    for contestant in contestants:
        base = contestant.without_average()
        _, averages = bases.setdefault(base.spec if base.given is None else base.label, (base, []))
        averages += [contestant.average] if contestant.average else []
    return [replace(base, riders=tuple(sorted(averages))) for base, averages in bases.values()]


def _keys(setup: Setup, lengths: Sequence[int], purpose: str) -> dict[int, dict[str, list[str]]]:
    """For each horizon every contestant by its label, with the keys of its runs, a seed each."""
    return {
        epochs: {
            contestant.label: [setup.config(contestant, seed, epochs, purpose=purpose).key for seed in setup.seeds]
            for contestant in setup.contestants
        }
        for epochs in lengths
    }


def _groups(
    setup: Setup, keys: Mapping[int, Mapping[str, Sequence[str]]], jobs: Sequence[RunJob]
) -> dict[int, TaskGroup]:
    """For each horizon every contestant with its runs."""
    runs: dict[str, Run] = {}
    for job in jobs:
        if is_recorded(job.folder):
            run = read_run(job.folder)
            runs |= {part.config.key: part for part in (run.without_riders(), *run.riders())}
    groups = {}
    for epochs, entries in keys.items():
        optimizers = [setup.config(contestant, setup.seeds[0], epochs).optimizer for contestant in setup.contestants]
        contestants = [
            _contestant(label, optimizer, entries[label], epochs, runs) for label, optimizer in zip(entries, optimizers)
        ]
        groups[epochs] = TaskGroup(setup.task.name, setup.task_config, tuple(contestants))
    return groups


def _contestant(
    label: str, optimizer: OptimizerConfig, keys: Sequence[str], epochs: int, runs: Mapping[str, Run]
) -> ContestantRuns:
    """A contestant with those of its runs that are there, as they were after so many epochs."""
    return ContestantRuns(label, optimizer, tuple(runs[key].cut_to(epochs) for key in keys if key in runs))
