"""Honesty checks: what makes a comparison unfair, incomplete or weaker than it looks."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

from surefoot.lab.analyse.groups import (
    ContestantRuns,
    TaskGroup,
    contestant_identity,
    group_runs,
    higher_is_better,
    is_number,
    on_edge,
    recorded_metrics,
    sweeps,
    task_identity,
    value_at,
)
from surefoot.lab.analyse.stats import fewest_seeds, mean_std, smallest_exact_p
from surefoot.lab.analyse.verdicts import count
from surefoot.lab.spec.config import Purpose
from surefoot.lab.spec.options import MOST_SEEDS
from surefoot.lab.store import column, last_epoch
from surefoot.lab.terminal import one_line

if TYPE_CHECKING:
    from surefoot.lab.store import Run

Severity = Literal["error", "warning", "note"]
Code = Literal[
    "no-runs", "unreadable-runs", "edited-runs", "unchained-runs", "unequal-epochs", "unequal-steps",
    "unequal-gradients", "cut-epochs", "unequal-tuning", "tuned-elsewhere", "tuned-at-other-length",
    "unequal-chances", "tuned-on-reported-seeds", "untuned", "untuned-rates", "unequal-decay", "edge-of-grid",
    "edge-of-sweep", "few-seeds", "picked-seeds", "unshown-settings", "parallel-timings", "failed-runs",
    "unfinished-runs", "dropped-runs", "decided-early", "missing-values", "diverged-runs", "unusual-direction",
    "foreign-runs", "mixed-numerics", "mixed-torch", "mixed-threads", "mixed-device", "mixed-cpu", "mixed-commit",
]  # fmt: skip
#: The codes of all findings that there are.
CODES: tuple[Code, ...] = get_args(Code)
#: What is said where no learning rate was tuned, also below the verdicts.
UNTUNED = "no learning rate was tuned; see `surefoot tune`."
#: The severities, the worst first.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
#: Metrics of which less, and of which more is better in nearly all of their uses.
USUALLY_LOWER = {
    "ce", "cross_entropy", "err", "error", "error_rate", "fid", "loss", "mae", "mape", "mse", "nll", "perplexity",
    "ppl", "rmse", "wer",
}  # fmt: skip
USUALLY_HIGHER = {
    "acc", "accuracy", "ap", "auc", "auroc", "bleu", "dice", "em", "exact_match", "f1", "f1_score", "iou", "map",
    "miou", "mrr", "ndcg", "precision", "psnr", "r2", "recall", "return", "reward", "roc_auc", "rouge", "ssim", "top1",
    "top5", "top_1", "top_5",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """Something that a reader should know: a code, its severity, and a sentence.

    An error makes the comparison unfair or incomplete, a warning weakens what may be said, a note informs.
    """

    code: Code
    severity: Severity
    sentence: str

    def __str__(self) -> str:
        return one_line(f"{self.severity}: {self.sentence} [{self.code}]")

    def belongs_below_verdicts(self, task: str) -> bool:
        """Whether the verdicts on this task rest on learning rates that nobody tuned."""
        return self.code in ("untuned", "untuned-rates") and self.sentence.startswith(f"{task}: ")


@dataclass(frozen=True)
class Record:
    """What is recorded on the task of a group, shown or not.

    Args:
        results: The runs to be reported.
        tuning: The runs that chose a setting.
    """

    results: Sequence[Run]
    tuning: Sequence[Run]

    def settings_tried(self, contestant: ContestantRuns) -> list[Mapping[str, Any]]:
        """The options of all trials of an optimizer."""
        trials = [run.config.optimizer for run in self.tuning]
        return [trial.options for trial in trials if (trial.class_path or trial.label) == contestant.class_path]


def audit(runs: Sequence[Run], baseline: str | None = None, recorded: Sequence[Run] = ()) -> list[Finding]:
    """All findings on these runs, errors first.

    Args:
        runs: What is shown.
        baseline: The label to compare with; the first contestant when not given.
        recorded: Everything in the folder of these runs, with trials and what is not shown.

    >>> audit([])
    [Finding(code='no-runs', severity='error', sentence='There is no run to report.')]
    """
    groups = group_runs(runs, baseline)
    if not groups:
        return [Finding("no-runs", "error", "There is no run to report.")]
    everything = [*recorded, *runs]
    results: dict[str, list[Run]] = {}
    for run in everything:
        if run.config.purpose == Purpose.RESULT:
            results.setdefault(task_identity(run), []).append(run)
    trials = [run for run in everything if run.config.purpose == Purpose.TUNING]
    findings = []
    for group in groups:
        tuning = [run for run in trials if run.task == group.task.name]
        record = Record(results[task_identity(group.runs[0])], tuning)
        for check in _CHECKS:
            for finding in check(group, record):
                findings.append(replace(finding, sentence=f"{group.name}: {finding.sentence}"))
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))


# Each check takes a group and what is recorded on its task. Its sentences go behind the name of the group.


def _budgets(group: TaskGroup, record: Record) -> Iterable[Finding]:
    def first_steps(run: Run) -> int | None:
        """The steps of the first epoch; a run that diverged in it stopped early, which is no smaller budget."""
        return run.epochs[0].get("step") if run.epochs and not run.epochs[0].get("diverged") else None

    def values(read: Callable[[Run], int | None]) -> dict[str, list[int]]:
        return {
            contestant.label: sorted({value for run in contestant.runs if (value := read(run)) is not None})
            for contestant in group.contestants
        }

    def listed(budgets: Mapping[str, list[int]]) -> str:
        return _first_of([f"{label} {'/'.join(map(str, numbers))}" for label, numbers in budgets.items()])

    epochs, steps = values(lambda run: run.config.epochs), values(first_steps)
    if len(set().union(*epochs.values())) > 1:
        yield Finding("unequal-epochs", "error", f"unequal budgets, epochs: {listed(epochs)}.")
    if len(set().union(*steps.values())) > 1:
        yield Finding("unequal-steps", "error", f"unequal budgets, steps per epoch: {listed(steps)}.")


def _tuning_budgets(group: TaskGroup, record: Record) -> Iterable[Finding]:
    if not record.tuning:
        return
    numbers = {
        contestant.class_name: len(
            {json.dumps(options, sort_keys=True, default=str) for options in record.settings_tried(contestant)}
        )
        for contestant in group.contestants
    }
    if len(set(numbers.values())) > 1:
        listed = ", ".join(f"{name} {number}" for name, number in numbers.items())
        yield Finding("unequal-tuning", "error", f"unequal tuning, the number of settings tried was: {listed}.")


def _tuned_on_reported_seeds(group: TaskGroup, record: Record) -> Iterable[Finding]:
    overlap = {run.seed for run in record.tuning} & {run.seed for run in group.runs}
    if overlap:
        yield Finding(
            "tuned-on-reported-seeds",
            "error",
            f"settings were tuned on {_seeds(overlap)}, which the results also use; "
            "report on seeds that tuning has not seen.",
        )


def _edges_of_grids(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """A setting on the edge of the values that tuning tried: the optimum may be beyond it."""
    for contestant in group.contestants:
        chosen = contestant.optimizer.options
        for name, values in _tried(contestant, record).items():
            value = chosen.get(name)
            if is_number(value) and on_edge(value, values):
                yield Finding(
                    "edge-of-grid",
                    "warning",
                    f"{contestant.label} uses {name}={value:g}, the edge of the tuned grid "
                    f"({min(values):g} to {max(values):g}); a better value may lie beyond it.",
                )


def _tuned_elsewhere(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """A setting that the recorded search did not try, of an optimizer that it tuned."""
    for contestant in group.contestants:
        names = [*_tried(contestant, record)]
        settings = {tuple(options.get(name) for name in names) for options in record.settings_tried(contestant)}
        chosen = tuple(contestant.optimizer.options.get(name) for name in names)
        if names and chosen not in settings:
            used = " ".join(f"{name}={value}" for name, value in zip(names, chosen))
            yield Finding(
                "tuned-elsewhere",
                "warning",
                f"{contestant.label} uses {used}, which is none of the {len(settings)} settings tried here.",
            )


def _tuned_at_other_length(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """A search whose longest run is not as long as the results: the best setting may depend on the length."""
    searched = max((run.config.epochs for run in record.tuning), default=0)
    shown = max(run.config.epochs for run in group.runs)
    if searched and searched != shown:
        yield Finding(
            "tuned-at-other-length",
            "warning",
            f"settings were tuned over {count(searched, 'epoch')}, and the results have {shown}; "
            "the best setting may depend on the length.",
        )


def _tried(contestant: ContestantRuns, record: Record) -> dict[str, set[float]]:
    """The numbers that tuning tried for an optimizer, by option; only options of which there are several values."""
    options = record.settings_tried(contestant)
    names = dict.fromkeys(name for option in options for name in option)
    values = {name: {float(option[name]) for option in options if is_number(option.get(name))} for name in names}
    return {name: tried for name, tried in values.items() if len(tried) > 1}


def _learning_rates(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Learning rates that nobody tuned: a verdict is one on the rates as much as on the optimizers."""
    rates: dict[str, set[float]] = {}
    for contestant in group.contestants:
        if is_number(rate := contestant.optimizer.options.get("lr")):
            rates.setdefault(contestant.class_path, set()).add(float(rate))
    tuned = [contestant for contestant in group.contestants if "lr" in _tried(contestant, record)]
    if len(group.contestants) < 2 or not rates or tuned:
        return
    if any(values != next(iter(rates.values())) for values in rates.values()):
        listed = [
            f"{contestant.label} {rate:g}"
            for contestant in group.contestants
            if is_number(rate := contestant.optimizer.options.get("lr"))
        ]
        sentence = f"the learning rates differ ({_first_of(listed)}) and none was tuned here; see `surefoot tune`."
        yield Finding("untuned-rates", "warning", sentence)
    elif any(len(values) == 1 for values in rates.values()):
        yield Finding("untuned", "note", UNTUNED)


def _weight_decay(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Weight decay of different kinds or sizes: L2 is scaled by the gradients' size, decoupled decay is not."""
    decays: dict[str, set[tuple[str, float]]] = {}
    for contestant in group.contestants:
        if (decay := _decay_of(contestant)) is not None:
            decays.setdefault(contestant.class_path, set()).add(decay)
    tuned = all("weight_decay" in _tried(contestant, record) for contestant in group.contestants)
    if not tuned and any(kinds != next(iter(decays.values())) for kinds in decays.values()):
        listed = [
            f"{contestant.label} {f'{decay[1]:g} ({decay[0]})' if decay[1] else 'none'}"
            for contestant in group.contestants
            if (decay := _decay_of(contestant)) is not None
        ]
        yield Finding("unequal-decay", "warning", f"the weight decay differs: {_first_of(listed)}.")


def _decay_of(contestant: ContestantRuns) -> tuple[str, float] | None:
    """The kind and size of an optimizer's weight decay; None if the size is not known."""
    options, name = contestant.optimizer.options, contestant.class_name.split()[0]
    decoupled = name.startswith(("AdamW", "LossAwareAdamW")) or name in ("Adafactor", "Lion", "Muon")
    known = contestant.class_path.startswith(("torch.", "surefoot."))
    usual = {"Adafactor": 0.0, "Muon": 0.1}.get(name, 0.01 if decoupled else 0.0)
    value = options.get("weight_decay", usual if known else None)
    if not is_number(value):
        return None
    kind = "decoupled" if options.get("decoupled_weight_decay", decoupled) else "L2"
    return (kind, float(value)) if value else ("", 0.0)


def _edges_of_sweeps(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """The best of the values shown is on their edge."""
    metric = (recorded_metrics([group]) or ["valid_loss"])[0]
    for option, points in sweeps(group):
        means = [mean_std(contestant.final_values(metric)).mean for _, contestant in points]
        known = [mean for mean in means if math.isfinite(mean)]
        if len(known) < 3:
            continue
        best = means.index(max(known) if higher_is_better(metric, group.task) else min(known))
        if best in (0, len(means) - 1):
            value, contestant = points[best]
            yield Finding(
                "edge-of-sweep",
                "note",
                f"the best {option} shown for {contestant.class_name}, {value:g}, is the edge of what was "
                f"tried ({points[0][0]:g} to {points[-1][0]:g}).",
            )


def _unequal_chances(group: TaskGroup, record: Record) -> Iterable[Finding]:
    settings = Counter(contestant.class_name for contestant in group.contestants)
    if len(group.contestants) > 2 and len(set(settings.values())) > 1:
        most, least = max(settings, key=settings.__getitem__), min(settings, key=settings.__getitem__)
        yield Finding(
            "unequal-chances",
            "note",
            f"{most} is shown with {count(settings[most], 'setting')} and {least} with "
            f"{settings[least]}; picking the best one afterwards favours {most}.",
        )


def _seeds_shown(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Seeds that were run, or asked for, or lie between the others, and are not shown."""
    shown = {run.seed for run in group.runs}
    contestants = {contestant_identity(run) for run in group.runs}
    hidden = {run.seed for run in record.results if contestant_identity(run) in contestants} - shown
    if hidden:
        sentence = f"{_seeds(hidden)} ran with the same settings and {_are(hidden)} not shown."
        yield Finding("picked-seeds", "warning", sentence)
    asked = set().union(*(_Command.read(run).seeds for run in record.results))
    gone = asked - shown - {run.seed for run in record.results}
    if gone:
        sentence = f"the recorded command asks for {_seeds(gone)}, which no optimizer has a run of."
        yield Finding("dropped-runs", "error", sentence)
    known = shown | hidden | gone
    holes = max(known) - min(known) + 1 - len(known)
    if 0 < holes <= len(known):
        between = {*range(min(known), max(known))} - known
        sentence = f"{_seeds(between)} {_are(between)} left out of the seeds; say why, or run them."
        yield Finding("picked-seeds", "warning", sentence)
    elif holes:
        sentence = f"the seeds are no unbroken range ({_seeds(known)}); say how they were chosen."
        yield Finding("picked-seeds", "note", sentence)


def _settings_shown(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Settings that were run on this task and are not shown."""
    shown = {contestant_identity(run) for run in group.runs}
    hidden = {contestant_identity(run): run for run in record.results if contestant_identity(run) not in shown}
    classes = {contestant.class_path for contestant in group.contestants}
    for severity, is_shown in (("warning", True), ("note", False)):
        optimizers = [run.config.optimizer for run in hidden.values()]
        labels = [option.label for option in optimizers if ((option.class_path or option.label) in classes) == is_shown]
        if labels:
            what = "other settings of the same optimizers" if is_shown else "other optimizers"
            sentence = f"{what} ran on this task and are not shown: {_first_of(sorted(labels))}."
            yield Finding("unshown-settings", "warning" if severity == "warning" else "note", sentence)


def _epochs_shown(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Runs that go on behind the last epoch that is shown, or that were to go on."""
    lengths = {run.config.key: max(last_epoch(run.epochs), run.config.epochs) for run in record.results}
    for run in record.results:
        longest = max(last_epoch(run.epochs), run.config.epochs, _Command.read(run).epochs)
        lengths[run.config.key] = max(longest, lengths[run.config.key])
    longer = [run for run in group.runs if lengths.get(run.config.key, 0) > run.config.epochs and not run.diverged]
    if longer:
        labels = _first_of(list(dict.fromkeys(run.label for run in longer)))
        yield Finding(
            "cut-epochs",
            "warning",
            f"the runs of {labels} are shown up to epoch {min(run.config.epochs for run in longer)} "
            f"and go on to epoch {max(lengths[run.config.key] for run in longer)}.",
        )


@dataclass(frozen=True)
class _Command:
    """What the recorded command of a run asks for: its seeds, and the last epoch."""

    seeds: frozenset[int] = frozenset()
    epochs: int = 0

    @classmethod
    def read(cls, run: Run) -> _Command:
        return cls._parse(run.config.provenance.command)

    @classmethod
    @cache
    def _parse(cls, command: str) -> _Command:
        try:
            words = shlex.split(command)
            given = {name: int(value) for name, value in pairwise(words) if name in _COUNTED}
        except ValueError:  # a command that somebody wrote by hand
            return cls()
        first = given.get("--first-seed", 0)
        number = min(given.get("--seeds", 0), MOST_SEEDS)
        return cls(frozenset(range(first, first + number)), given.get("--epochs", 0) + given.get("--at", 0))


_COUNTED = ("--seeds", "--first-seed", "--epochs", "--at")


def _gradients(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Several gradients per step, as of LBFGS: equal steps are not equal work."""
    numbers = {
        contestant.label: max(
            (number or 1 for run in contestant.runs for number in column(run.epochs, "gradients_per_step")), default=1
        )
        for contestant in group.contestants
    }
    if len(set(numbers.values())) > 1:
        listed = _first_of([f"{label} {number:.3g}" for label, number in numbers.items()])
        sentence = f"unequal work, gradient evaluations per step: {listed}; compare seconds as well."
        yield Finding("unequal-gradients", "error", sentence)


def _edited(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Records that contradict their hashes, and records that have none."""
    runs = [*group.runs, *record.tuning]
    if edited := [f"{run.label} with seed {run.seed} ({run.edited})" for run in runs if run.edited]:
        sentence = (
            f"records are not as they were written: {_first_of(edited)}; delete these runs to compute them again."
        )
        yield Finding("edited-runs", "error", sentence)
    if plain := sum(not run.chained for run in group.runs):
        sentence = f"{count(plain, 'run')} without hashes, of an earlier version: an edit would not be noticed."
        yield Finding("unchained-runs", "note", sentence)


def _directions(group: TaskGroup, record: Record) -> Iterable[Finding]:
    for metric in recorded_metrics([group]):
        name = metric.removeprefix("valid_").removeprefix("train_").removeprefix("test_").lower()
        higher = higher_is_better(metric, group.task)
        if name in (USUALLY_LOWER if higher else USUALLY_HIGHER):
            counts, other = ("more", "less") if higher else ("less", "more")
            how = f"say so with higher_is_better={{{name!r}: {not higher}}} of the Task"
            if not group.runs[0].config.provenance.surefoot:  # runs of a table
                how = f"{'leave out' if higher else 'add'} --higher-is-better {name}"
            yield Finding("unusual-direction", "note", f"{counts} {name} counts as better; if {other} is, {how}.")


def _foreign(group: TaskGroup, record: Record) -> Iterable[Finding]:
    if not any(run.config.provenance.surefoot for run in group.runs):
        yield Finding(
            "foreign-runs",
            "note",
            "these runs are not of the lab: that runs of one seed share their initial weights and batches, and how "
            "settings were chosen, cannot be checked.",
        )


def _few_seeds(group: TaskGroup, record: Record) -> Iterable[Finding]:
    if len(group.contestants) < 2:
        return
    baseline, *others = ({run.seed for run in runs.runs if run.state == "done"} for runs in group.contestants)
    pairs = min(len(baseline & seeds) for seeds in others)
    if pairs < fewest_seeds():
        yield Finding(
            "few-seeds",
            "warning",
            f"{count(pairs, 'paired seed')} cannot support a claim, the smallest exact paired "
            f"p is {smallest_exact_p(pairs):.2g}; use at least {fewest_seeds()}.",
        )


def _timings(group: TaskGroup, record: Record) -> Iterable[Finding]:
    jobs = max((number or 1 for run in group.runs for number in column(run.epochs, "jobs")), default=1)
    if jobs > 1:
        yield Finding(
            "parallel-timings",
            "warning",
            f"seconds were taken with up to {jobs} runs at once and are not comparable; "
            "steps and epochs are. Use --jobs 1 to compare seconds.",
        )


def _incomplete(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Runs that failed, are not finished, are missing, or diverged."""
    seeds = {run.seed for run in group.runs}
    for contestant in group.contestants:
        label = contestant.label
        if failed := contestant.failed:
            yield Finding("failed-runs", "error", f"{label} failed with an error on {_seeds_of(failed)}.")
        if unfinished := contestant.unfinished:
            sentence = f"{label} is not finished on {_seeds_of(unfinished)}; run the same command again."
            yield Finding("unfinished-runs", "error", sentence)
        missing = seeds - {run.seed for run in contestant.runs}
        if missing and _ended_when_decided(contestant.runs, missing):
            sentence = f"{label} was decided and has no run for {_seeds(missing)}, which others needed."
            yield Finding("decided-early", "note", sentence)
        elif missing:
            yield Finding("dropped-runs", "error", f"{label} has no run for {_seeds(missing)}, which others have.")
        if diverged := contestant.diverged:
            yield Finding("diverged-runs", "note", f"{label} diverged on {_seeds_of(diverged)}.")


def _ended_when_decided(runs: Sequence[Run], missing: set[int]) -> bool:
    """Whether the missing seeds come after all others of a contestant that got seeds until it was decided."""
    asked = any("--until-decided" in run.config.provenance.command for run in runs)
    return asked and min(missing) > max(run.seed for run in runs)


def _missing_values(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """A metric that is not a number: its seed is left out of the pairs, as after a divergence."""
    for metric in recorded_metrics([group]):
        ended = [run for run in group.runs if run.state == "done"]
        if all(value_at(run, metric) is None for run in ended):
            continue  # no contestant has this metric
        for contestant in group.contestants:
            missing = [run for run in contestant.runs if run.state == "done" and value_at(run, metric) is None]
            if missing:
                yield Finding(
                    "missing-values",
                    "error",
                    f"{contestant.label} ended without a number for {metric} on {_seeds_of(missing)}; "
                    "what is said of that metric leaves them out.",
                )


def _mixtures(group: TaskGroup, record: Record) -> Iterable[Finding]:
    """Runs of one comparison should differ in the optimizer and the seed alone."""
    facts: list[tuple[Code, Severity, str, Callable[[Run], Any]]] = [
        ("mixed-numerics", "error", "numerics versions", lambda run: run.config.numerics),
        ("mixed-torch", "warning", "torch versions", lambda run: run.config.provenance.torch),
        ("mixed-threads", "warning", "thread counts", lambda run: run.config.threads),
        ("mixed-device", "warning", "devices", lambda run: run.config.device),
        ("mixed-cpu", "note", "processors", lambda run: run.config.provenance.cpu),
        ("mixed-commit", "note", "commits", lambda run: run.config.provenance.commit),
    ]
    for code, severity, name, read in facts:
        values = sorted({str(read(run)) for run in group.runs if read(run)})
        if len(values) > 1:
            yield Finding(code, severity, f"runs of different {name} are mixed: {_first_of(values)}.")


_CHECKS: list[Callable[[TaskGroup, Record], Iterable[Finding]]] = [
    _edited, _budgets, _gradients, _epochs_shown, _tuning_budgets, _tuned_on_reported_seeds, _tuned_elsewhere,
    _tuned_at_other_length, _edges_of_grids, _edges_of_sweeps, _unequal_chances, _weight_decay, _learning_rates,
    _few_seeds, _seeds_shown,
    _settings_shown, _timings, _incomplete, _missing_values, _directions, _mixtures, _foreign,
]  # fmt: skip


def _seeds_of(runs: Sequence[Run]) -> str:
    return _seeds({run.seed for run in runs})


def _seeds(seeds: set[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + _first_of([str(seed) for seed in sorted(seeds)], 12)


def _are(things: Collection[Any]) -> str:
    return "is" if len(things) == 1 else "are"


def _first_of(words: Sequence[str], limit: int = 6) -> str:
    """The first few words, and how many more there are."""
    return ", ".join(words[:limit]) + (f" and {len(words) - limit} more" if len(words) > limit else "")
