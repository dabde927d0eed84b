"""The tables of the replication: the scorecard and the ablation as Markdown, cells and curves as CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from surefoot.lab.analyse.groups import group_runs
from surefoot.lab.analyse.stats import MeanStd, holm, holm_levels, paired
from surefoot.lab.analyse.verdicts import Side, decide_once
from surefoot.lab.report.tables import csv_text, markdown_table
from surefoot.lab.store import Run
from surefoot.paper import why
from surefoot.paper.ablation import HORIZONS, IMAGES, RATES, at_horizon, runs_by_rate, runs_by_variant
from surefoot.paper.cells import (
    ACCURACY_MARGIN,
    LOSS_MARGIN,
    VERDICTS,
    Replication,
    TableCell,
    by_row,
    paired_differences,
    spread_at,
    table_cells,
)
from surefoot.paper.claims import judge_all
from surefoot.paper.contrasts import LINE_VERDICTS, ClaimVerdict, from_to
from surefoot.paper.published import METRICS, SEEDS, Configuration, configurations, plain_configurations

HEADS = {"train_loss": "train loss", "val_loss": "val. loss", "val_acc": "val. acc. (%)"}
#: How a cell is judged, for a reader.
CELL_VERDICTS = (
    f"A cell is *equivalent* if two one-sided t-tests at 5% show our mean to be within {ACCURACY_MARGIN:g} points of "
    f"accuracy, or {LOSS_MARGIN:.0%} of the loss, of theirs. It *differs* if it is not, and a t-test at 5% shows a "
    "difference. Otherwise it is *inconclusive*: three seeds are few. One seed alone is not judged."
)
EVIDENCE = ["paired by seed", "claimed", "ours (95% interval)", "published", "verdict"]


def scorecard(replication: Replication, notes: Sequence[str] = ()) -> str:
    """Every claim with its verdict and evidence, and every published cell beside ours.

    Args:
        replication: our runs.
        notes: sentences for the end, such as which figures were left out.
    """
    cells, verdicts = table_cells(replication), judge_all(replication)
    parts = [
        "# Scorecard: the paper, cell by cell\n",
        "Written by `surefoot paper --export` from the runs in `runs.jsonl`; nothing here is typed by hand.\n",
        "## In short\n",
        tally_table(cells),
        "## Claims\n",
        claims_table(verdicts),
        *map(_evidence, verdicts),
        *_reference_claims(replication),
        "## Cells\n",
        f"Ours ± std (n seeds) beside theirs ± std (n = {SEEDS}); the difference is in pooled standard errors. "
        f"{CELL_VERDICTS}\n",
        *(_cells_table(configuration, cells) for configuration in configurations()),
    ]
    if notes:
        parts += ["## Not there\n", "\n".join(f"- {note}" for note in notes) + "\n"]
    return "\n".join(parts)


def counts_sentence(cells: Sequence[TableCell]) -> str:
    """How many cells were measured, and what became of them."""
    ours = [cell for cell in cells if cell.recipe == "default"]
    counts = Counter(cell.verdict for cell in ours)
    parts = [f"{counts[verdict]} {name}" for verdict, name in _IN_A_SENTENCE.items() if counts[verdict]]
    measured = f"Of the {len(ours)} published cells {len(ours) - counts['not run']} were measured"
    if not counts["not run"]:
        measured = f"All {len(ours)} published cells were measured"
    return f"{measured}: {', '.join(parts)}."


#: What is counted of the cells that were run.
_IN_A_SENTENCE = {
    "equivalent": "are equivalent to the published ones",
    "inconclusive": "are inconclusive",
    "differs": "differ",
    "one seed": "have one seed, which is not judged",
}


def tally_table(cells: Sequence[TableCell]) -> str:
    """How many cells have which verdict, by configuration."""
    ours = [cell for cell in cells if cell.recipe == "default"]
    rows = [
        _tally(configuration.name, [cell for cell in ours if cell.row.configuration == configuration])
        for configuration in configurations()
    ]
    return markdown_table(["configuration", "cells", *VERDICTS, "n"], [*rows, _tally("together", ours)])


def _tally(name: str, cells: Sequence[TableCell]) -> list[str]:
    counts = Counter(cell.verdict for cell in cells)
    seeds = from_to([cell.ours.n for cell in cells if cell.ours.n])
    return [name, str(len(cells)), *(str(counts[verdict]) for verdict in VERDICTS), seeds]


def claims_table(verdicts: Iterable[ClaimVerdict]) -> str:
    """One line per claim."""
    rows = [[verdict.claim.title, verdict.word, verdict.sentence] for verdict in verdicts]
    return markdown_table(["claim", "verdict", "evidence"], rows)


def claims_tally(verdicts: Sequence[ClaimVerdict]) -> str:
    """How many lines of evidence of each claim have which verdict, and how many paired seeds they have."""
    counting = [[result for result in verdict.results if result.contrast.in_the_tables] for verdict in verdicts]
    occurring = {result.verdict for results in counting for result in results}
    columns = [verdict for verdict in LINE_VERDICTS if verdict in occurring]
    rows = []
    for verdict, results in zip(verdicts, counting):
        counts = Counter(result.verdict for result in results)
        together = len(verdict.results)
        lines = str(together) if len(results) == together else f"{len(results)} of {together}"
        seeds = from_to([result.paired.n for result in results])
        rows.append([verdict.claim.title, verdict.word, lines, *(str(counts[name]) for name in columns), seeds])
    return markdown_table(["claim", "verdict", "lines", *columns, "seeds"], rows)


def _evidence(verdict: ClaimVerdict) -> str:
    claim = verdict.claim
    note = f" {claim.note}" if claim.note else ""
    table = markdown_table(EVIDENCE, [result.texts for result in verdict.results])
    return f"### {claim.title}: {verdict.word}\n\n{claim.source}.{note}\n\n{table}"


def _reference_claims(replication: Replication) -> list[str]:
    """The claims once more for the published recipe, where that was run."""
    verdicts = [verdict for verdict in judge_all(replication, "reference") if verdict.word != "not run"]
    if not verdicts:
        return []
    lead = (
        "The same lines with `reference=True`: signed first steps, one noise draw per tensor, eps before bias "
        "correction.\n"
    )
    return ["## Claims under the published recipe\n", lead, claims_table(verdicts), *map(_evidence, verdicts)]


def _cells_table(configuration: Configuration, cells: Sequence[TableCell]) -> str:
    """The cells of one configuration, laid out as in the paper."""
    here = [cell for cell in cells if cell.row.configuration == configuration]
    rows = []
    for row in by_row(here):
        name = row[0].row.optimizer + (" (reference)" if row[0].recipe == "reference" else "")
        rows.append([str(row[0].row.epoch), name, *(text for cell in row for text in cell_texts(cell))])
    head = ["epoch", "optimizer"]
    for metric in METRICS:
        head += [f"{HEADS[metric]}: ours", "theirs", "difference"]
    etas = ", ".join(
        f"{name} {eta:g}"
        for name, eta in dict.fromkeys((cell.row.optimizer, cell.row.eta) for cell in here)
        if eta is not None
    )
    return f"### {configuration.name} ({configuration.task}; eta: {etas})\n\n{markdown_table(head, rows)}"


def cell_texts(cell: TableCell) -> list[str]:
    """Ours, theirs, and the difference with what it amounts to."""
    verdict = "" if cell.verdict in ("one seed", "not run") else cell.verdict
    if cell.difference is not None:
        verdict = f"{cell.difference:+.1f} {verdict}"
    return [spread_text(cell.ours, cell.diverged), f"{cell.theirs.mean:.3f} ± {cell.theirs.std:.3f}", verdict]


def spread_text(ours: MeanStd, diverged: int = 0) -> str:
    """Our mean and standard deviation with n, and how many runs diverged.

    >>> spread_text(MeanStd(3, 0.25, 0.001)), spread_text(MeanStd(0, math.nan, math.nan))
    ('0.250 ± 0.001 (3)', 'not run')
    """
    if not ours.n:
        return f"all {diverged} diverged" if diverged else "not run"
    spread = "" if math.isnan(ours.std) else f" ± {ours.std:.3f}"
    return f"{ours.mean:.3f}{spread} ({ours.n}" + (f", {diverged} diverged)" if diverged else ")")


def cells_csv(replication: Replication) -> str:
    """One line per published row (and per recipe that was run): theirs, n, ours, the difference and the verdict."""
    rows = []
    for cells in by_row(table_cells(replication)):
        row, first = cells[0].row, cells[0]
        line: dict[str, Any] = {"table": row.table, **row.configuration._asdict(), "epoch": row.epoch}
        line |= {"optimizer": row.optimizer, "eta": "" if row.eta is None else row.eta}
        for cell in cells:
            line |= {cell.metric: cell.theirs.mean, f"{cell.metric}_std": cell.theirs.std}
        line |= {"variant": first.recipe, "n": first.ours.n, "diverged": first.diverged}
        for cell in cells:
            line |= {f"ours_{cell.metric}": _digits(cell.ours.mean), f"ours_{cell.metric}_std": _digits(cell.ours.std)}
        for cell in cells:
            line |= {f"{cell.metric}_difference": _digits(cell.difference, 3), f"{cell.metric}_verdict": cell.verdict}
        rows.append(line)
    return csv_text(rows)


def curves_csv(runs: Sequence[Run]) -> str:
    """The mean over seeds after every epoch, for every run that ended: one line per contestant and epoch."""
    rows = []
    ended = [run for run in runs if run.finished or run.diverged]
    for seeds in (contestant.runs for group in group_runs(ended) for contestant in group.contestants):
        config = seeds[0].config
        settings = config.task.settings
        for epoch in range(1, 1 + max(len(run.epochs) for run in seeds)):
            spreads = {metric: spread_at(seeds, metric, epoch) for metric in METRICS}
            if not spreads["train_loss"].n:
                continue
            line: dict[str, Any] = {
                "task": seeds[0].task,
                "batch_size": config.task.batch_size,
                "dropout": bool(settings.get("dropout", False)),
                "subset": settings.get("subset", ""),
                "optimizer": seeds[0].label,
                "epochs": config.epochs if config.optimizer.schedule else "",
                "epoch": epoch,
                "n": spreads["train_loss"].n,
            }
            for metric, spread in spreads.items():
                line |= {metric: _digits(spread.mean), f"{metric}_std": _digits(spread.std)}
            rows.append(line)
    return csv_text(rows)


def _digits(value: float | None, digits: int = 6) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}g}"


#: What users will ask, and the two contestants whose difference answers it.
QUESTIONS = (
    ("Is the std scale alone better than Adam?", "std scale alone", "plain Adam"),
    ("Would half the learning rate do as well?", "std scale alone", "Adam at half the learning rate"),
    ("Does the tilt alone help?", "tilt alone, eta 0.1", "plain Adam"),
    ("Does the tilt alone help?", "tilt alone, eta 0.3", "plain Adam"),
    ("Does the tilt alone help?", "tilt alone, eta 1", "plain Adam"),
    ("Does optimism alone help?", "tilt alone, eta -0.3", "plain Adam"),
    ("Does the random tilt alone help?", "random tilt alone, eta 0.3", "plain Adam"),
    ("Does the tilt add to the scale?", "both: AdamUCB", "std scale alone"),
    ("Does the random tilt add to the scale?", "both: AdamS", "std scale alone"),
    ("Is it eps?", "scaled eps alone", "plain Adam"),
    ("Is it the step size?", "scaled step size alone", "plain Adam"),
    ("Is the step size all of it?", "std scale alone", "scaled step size alone"),
    ("Is it as good as a planned decay?", "std scale alone", "cosine decay"),
    ("Is it as good as schedule-free?", "std scale alone", "schedule-free AdamW"),
)
RunsByName = Mapping[str, Sequence[Run]]
Questions = Sequence[tuple[str, str, str]]


def _at(name: str, lr: float) -> str:
    return f"{name}, lr {lr:g}"


#: What a first look at the CNN left open; these questions share one correction of their own.
RATE_QUESTIONS = (
    ("Is the scale better than Adam?", _at("std scale alone", RATES[0]), _at("plain Adam", RATES[0])),
    ("Does half the rate help Adam?", _at("plain Adam", RATES[1]), _at("plain Adam", RATES[0])),
    ("Would half the rate do as well?", _at("std scale alone", RATES[0]), _at("plain Adam", RATES[1])),
    ("Is the scale better at half the rate too?", _at("std scale alone", RATES[1]), _at("plain Adam", RATES[1])),
)


def ablation_page(runs: Sequence[Run]) -> str:
    """All tables of the ablation as a page of Markdown."""
    parts = [
        "# What does the work: the parts of the method\n",
        "Written by `surefoot paper --export`. Mean ± std (n seeds). Answers are differences paired by seed; Holm's "
        "correction runs over the answers of one column of one table.\n",
    ]
    tables = ablation_tables(runs)
    parts += [f"## {title}\n\n{body}" for title, body in tables.items()]
    return "\n".join(parts if tables else [*parts, "Not run yet: `surefoot paper ablation`.\n"])


def why_page(runs: Sequence[Run]) -> str:
    """The study of why the scale helps as a page of Markdown."""
    parts = [
        "# Why does the scale help? Weights that keep one property of it\n",
        "Written by `surefoot paper --export` from the runs of `surefoot paper why`: the CNN on "
        f"{IMAGES} images of CIFAR-10. Each contestant is Adam with weights made from the std of the loss; see "
        "`surefoot.paper.why`. Answers are differences paired by seed; Holm's correction runs over the answers of one "
        "column of one table. The study is planned for 20 epochs; 3 and 7 are early looks at the same runs.\n",
    ]
    tables = why_tables(runs)
    parts += [f"## {title}\n\n{body}" for title, body in tables.items()]
    return "\n".join(parts if tables else [*parts, "Not run yet: `surefoot paper why`.\n"])


def why_tables(runs: Sequence[Run]) -> dict[str, str]:
    """The tables of the study of why the scale helps, by their titles, as far as there are runs."""
    tables = {}
    for lr in why.RATES:
        by_name = why.runs_by_contestant(runs, plain_configurations()["cnn"], lr)
        for epoch in why.HORIZONS:
            ended = {name: long for name, seeds in by_name.items() if (long := at_horizon(seeds, epoch))}
            if set(ended) <= {why.ADAM, why.SCALE}:
                continue
            others = [name for name in ended if name not in (why.ADAM, why.SCALE)]
            questions = [("Is the scale better than Adam?", why.SCALE, why.ADAM)]
            questions += [("Is this better than Adam?", name, why.ADAM) for name in others]
            questions += [("Is this as good as the scale?", name, why.SCALE) for name in others]
            results, answered = results_table(ended, epoch), answers_table(ended, epoch, questions)
            tables[f"Learning rate {lr:g}, {epoch} epochs"] = f"{results}\n{answered}"
    return tables


def ablation_tables(runs: Sequence[Run]) -> dict[str, str]:
    """The tables of the ablation, by their titles, as far as there are runs."""
    plain = plain_configurations()
    tables = {}
    for model in ("lr", "mlp"):
        by_variant = runs_by_variant(runs, plain[model])
        for horizon in HORIZONS:
            ended = {name: long for name, seeds in by_variant.items() if (long := at_horizon(seeds, horizon))}
            if len(ended) > 3:  # Adam and the whole method alone are no ablation
                results, answers = results_table(ended, horizon), answers_table(ended, horizon, QUESTIONS)
                tables[f"{plain[model].name}, {horizon} epochs"] = f"{results}\n{answers}"
    length, by_rate = runs_by_rate(runs, plain["cnn"])
    if by_rate:
        title = f"CNN 128, {IMAGES} images, {length} epochs, every learning rate"
        tables[title] = rates_table(by_rate, length)
    return tables


def results_table(runs: RunsByName, epoch: int) -> str:
    """What each contestant reached after an epoch."""
    rows = []
    for name, seeds in runs.items():
        diverged = sum(run.diverged and run.epochs[-1]["epoch"] <= epoch for run in seeds)
        rows.append([name, *(spread_text(spread_at(seeds, metric, epoch), diverged) for metric in METRICS)])
    return markdown_table(["contestant", *HEADS.values()], rows)


def answers_table(runs: RunsByName, epoch: int, questions: Questions) -> str:
    """The questions that these contestants answer, on training loss and validation accuracy."""
    asked = [(question, name, other) for question, name, other in questions if name in runs and other in runs]
    pairs = [(name, other) for _, name, other in asked]
    loss, accuracy = (answers(runs, pairs, metric, epoch) for metric in ("train_loss", "val_acc"))
    rows = [
        [question, f"{name} against {other}", loss[k], accuracy[k]] for k, (question, name, other) in enumerate(asked)
    ]
    return markdown_table(["question", "contestants", "training loss", "validation accuracy (%)"], rows)


def rates_table(by_rate: Mapping[str, Mapping[float, Sequence[Run]]], length: int) -> str:
    """The CNN's ablation: every contestant at every rate, and what that answers."""
    runs = {_at(name, lr): seeds for name, rates in by_rate.items() for lr, seeds in sorted(rates.items())}
    best = {name: _at(name, lr) for name, rates in by_rate.items() if (lr := _best_rate(rates, length))}
    parts = [results_table(runs, length)]
    asked: dict[str, Questions] = {
        "Is it the scale, or a smaller step?": RATE_QUESTIONS,
        "The other contestants": _other_questions(list(by_rate), best),
    }
    for title, questions in asked.items():
        if any(name in runs and other in runs for _, name, other in questions):
            parts.append(f"**{title}**\n\n{answers_table(runs, length, questions)}")
    parts.append(
        "A contestant's best rate has the highest accuracy of these very runs, among rates with the most seeds.\n"
    )
    return "\n".join(parts)


def _other_questions(names: Sequence[str], best: Mapping[str, str]) -> Questions:
    """Everybody else against Adam: at the paper's rate, and each at its best rate."""
    adam, paper = "plain Adam", RATES[0]
    others = [name for name in names if name != adam]
    asked: dict[tuple[str, str], str] = {}  # a pair is asked about once
    for name in others:
        asked[_at(name, paper), _at(adam, paper)] = "Is it better than Adam at the paper's rate?"
    for name in others:
        if name in best and adam in best:
            asked.setdefault((best[name], best[adam]), "Is it better, each at its best rate?")
    known = {(name, other) for _, name, other in RATE_QUESTIONS}
    return [(question, *pair) for pair, question in asked.items() if pair not in known]


def _best_rate(rates: Mapping[float, Sequence[Run]], length: int) -> float | None:
    """The rate with the best mean accuracy among those with the most seeds; None if all runs diverged."""
    most = max(len(seeds) for seeds in rates.values())
    scores = {lr: spread_at(seeds, "val_acc", length).mean for lr, seeds in rates.items() if len(seeds) == most}
    known = {lr: score for lr, score in scores.items() if not math.isnan(score)}
    return max(known, key=lambda lr: known[lr], default=None)


def answers(runs: RunsByName, pairs: Sequence[tuple[str, str]], metric: str, epoch: int) -> list[str]:
    """What each pair of contestants amounts to, by the tests for a number of seeds that was fixed in advance."""
    results = [paired(paired_differences(runs[name], runs[other], metric, epoch)) for name, other in pairs]
    p_values = [result.p_t for result in results]
    sentences = []
    for pair, result, p_holm, level in zip(pairs, results, holm(p_values), holm_levels(p_values)):
        contestant, baseline = (
            Side(name, len(runs[name]), sum(run.diverged and len(run.epochs) <= epoch for run in runs[name]))
            for name in pair
        )
        verdict = decide_once(
            result, p_holm, contestant=contestant, baseline=baseline, higher_is_better=metric == "val_acc", level=level
        )
        sentences.append(verdict.sentence)
    return sentences
