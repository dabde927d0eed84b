"""The ablation's tables: what each piece of the method reaches, and what that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from surefoot.lab.analyse.groups import value_at
from surefoot.lab.analyse.stats import holm, holm_levels, paired
from surefoot.lab.analyse.verdicts import Side, decide
from surefoot.lab.store import Run
from surefoot.paper.ablation import HORIZONS, IMAGES, RATES, at_horizon, pieces_run, rates_run
from surefoot.paper.cells import RECORDED, spread_at
from surefoot.paper.published import METRICS, configurations
from surefoot.paper.scorecard import HEADS, ours_text, table

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
Entries = Mapping[str, Sequence[Run]]
Questions = Sequence[tuple[str, str, str]]


def _at(name: str, lr: float) -> str:
    return f"{name}, lr {lr:g}"


#: What a first look at the CNN left open: a family of its own.
RATE_QUESTIONS = (
    ("Is the scale better than Adam?", _at("std scale alone", RATES[0]), _at("plain Adam", RATES[0])),
    ("Does half the rate help Adam?", _at("plain Adam", RATES[1]), _at("plain Adam", RATES[0])),
    ("Would half the rate do as well?", _at("std scale alone", RATES[0]), _at("plain Adam", RATES[1])),
    ("Is the scale better at half the rate too?", _at("std scale alone", RATES[1]), _at("plain Adam", RATES[1])),
)


def ablation_text(runs: Sequence[Run]) -> str:
    """All tables of the ablation as Markdown, as far as there are runs."""
    plain = {one.model: one for one in configurations() if one.batch_size == 128 and not one.dropout}
    parts = [
        "# What does the work: the method taken apart\n",
        "Written by `surefoot paper --export`. Mean ± std (n seeds). Answers are differences paired by seed; Holm's "
        "correction runs over the answers of one column of one table.\n",
    ]
    for model in ("lr", "mlp"):
        found = pieces_run(runs, plain[model])
        for horizon in HORIZONS:
            entries = {name: ended for name, seeds in found.items() if (ended := at_horizon(seeds, horizon))}
            if len(entries) > 3:  # Adam and the whole method alone take nothing apart
                body = f"{results_table(entries, horizon)}\n{answers_table(entries, horizon, QUESTIONS)}"
                parts.append(f"## {plain[model].name}, {horizon} epochs\n\n{body}")
    length, rates = rates_run(runs, plain["cnn"])
    if rates:
        head = f"## CNN 128, {IMAGES} images, {length} epochs, every learning rate"
        parts.append(f"{head}\n\n{rates_table(rates, length)}")
    if len(parts) == 2:
        parts.append("Not run yet: `surefoot paper ablation`.\n")
    return "\n".join(parts)


def results_table(entries: Entries, epoch: int) -> str:
    """What each contestant reached after an epoch."""
    rows = []
    for name, seeds in entries.items():
        lost = sum(run.diverged and run.epochs[-1]["epoch"] <= epoch for run in seeds)
        rows.append([name, *(ours_text(spread_at(seeds, metric, epoch), lost) for metric in METRICS)])
    return table(["contestant", *HEADS.values()], rows)


def answers_table(entries: Entries, epoch: int, questions: Questions) -> str:
    """The questions that these contestants answer, on training loss and validation accuracy."""
    asked = [(question, one, other) for question, one, other in questions if one in entries and other in entries]
    pairs = [(one, other) for _, one, other in asked]
    loss, accuracy = (answers(entries, pairs, metric, epoch) for metric in ("train_loss", "val_acc"))
    rows = [
        [question, f"{one} against {other}", loss[k], accuracy[k]] for k, (question, one, other) in enumerate(asked)
    ]
    return table(["question", "contestants", "training loss", "validation accuracy (%)"], rows)


def rates_table(found: Mapping[str, Mapping[float, Sequence[Run]]], length: int) -> str:
    """The CNN's ablation: every contestant at every rate, and what that answers."""
    entries = {_at(name, lr): seeds for name, rates in found.items() for lr, seeds in sorted(rates.items())}
    best = {name: _at(name, lr) for name, rates in found.items() if (lr := _best_rate(rates, length))}
    parts = [results_table(entries, length)]
    asked: dict[str, Questions] = {
        "Is it the scale, or a smaller step?": RATE_QUESTIONS,
        "The other contestants": other_questions(list(found), best),
    }
    for title, questions in asked.items():
        if any(one in entries and other in entries for _, one, other in questions):
            parts.append(f"**{title}**\n\n{answers_table(entries, length, questions)}")
    parts.append(
        "A contestant's best rate has the highest accuracy of these very runs, among rates with the most seeds.\n"
    )
    return "\n".join(parts)


def other_questions(names: Sequence[str], best: Mapping[str, str]) -> Questions:
    """Everybody else against Adam: at the paper's rate, and each at its best rate."""
    adam, paper = "plain Adam", RATES[0]
    others = [name for name in names if name != adam]
    asked: dict[tuple[str, str], str] = {}  # a pair is asked about once
    for name in others:
        asked[_at(name, paper), _at(adam, paper)] = "Is it better than Adam at the paper's rate?"
    for name in others:
        if name in best and adam in best:
            asked.setdefault((best[name], best[adam]), "Is it better, each at its best rate?")
    known = {(one, other) for _, one, other in RATE_QUESTIONS}
    return [(question, *pair) for pair, question in asked.items() if pair not in known]


def _best_rate(rates: Mapping[float, Sequence[Run]], length: int) -> float | None:
    """The rate with the best mean accuracy among those with the most seeds; none where all diverged."""
    most = max(len(seeds) for seeds in rates.values())
    scores = {lr: spread_at(seeds, "val_acc", length).mean for lr, seeds in rates.items() if len(seeds) == most}
    known = {lr: score for lr, score in scores.items() if score == score}  # all diverged: no score
    return max(known, key=lambda lr: known[lr], default=None)


def answers(entries: Entries, pairs: Sequence[tuple[str, str]], metric: str, epoch: int) -> list[str]:
    """What the lab's rule says of each pair of contestants."""
    results = [paired(_differences(entries[one], entries[other], metric, epoch)) for one, other in pairs]
    tested = [result.p_t for result in results]
    said = []
    for pair, result, p_holm, level in zip(pairs, results, holm(tested), holm_levels(tested)):
        one, other = (
            Side(name, len(entries[name]), sum(run.diverged and len(run.epochs) <= epoch for run in entries[name]))
            for name in pair
        )
        higher = metric == "val_acc"
        verdict = decide(result, p_holm, contestant=one, baseline=other, higher_is_better=higher, level=level)
        said.append(verdict.sentence)
    return said


def _differences(one: Sequence[Run], other: Sequence[Run], metric: str, epoch: int) -> list[float]:
    name, unit = RECORDED[metric]
    seen = [{run.seed: value_at(run, name, epoch) for run in runs} for runs in (one, other)]
    pairs = [(seen[0][seed], seen[1][seed]) for seed in sorted(seen[0].keys() & seen[1].keys())]
    return [unit * (a - b) for a, b in pairs if a is not None and b is not None]
