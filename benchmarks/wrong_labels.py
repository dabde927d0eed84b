"""Wrong labels: weights of examples against robust losses, small-loss trimming and early stopping, with paired seeds.

    python benchmarks/wrong_labels.py tune --out RUNS [--task text] [--only NAME,...]     # learning rates
    python benchmarks/wrong_labels.py run --out RUNS [--task text] [--only NAME,...] [--settings symmetric:0.4,...]
    python benchmarks/wrong_labels.py table --out RUNS [--task text]                      # writes results/examples

Every command computes what the folder does not hold yet, so it may be stopped at any time. Every contestant has
the same learning rates, tried on the same tune seeds with 40 % and with no wrong labels. The any-time average
rides on each run: it is validated beside the weights, and training is as without it. Its rate is chosen for itself.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from interleave import markdown

from surefoot.lab import Run, read_runs
from surefoot.lab.analyse.stats import paired
from surefoot.lab.horizons import anytime

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "examples"
EPOCHS = 20
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
TUNE_SEEDS, TUNE_SETTINGS = (1000, 1001, 1002), ("none", "symmetric:0.4")


#: Adam's usual rate: what cross-entropy costs where nobody tuned it for wrong labels.
COMMON_RATE = 1e-3
#: Options of each contestant; {rate} is the share of wrong labels, which "trimmed" alone is given.
CONTESTANTS = {
    "cross-entropy": "",
    "same rate": "",
    "smoothing": "loss=smoothing:0.1",
    "gce": "loss=gce:0.7",
    "trimmed": "examples=trimmed:{rate}",
    "tilted": "examples=tilted:-3",
    "auto": "examples=tilted:auto",
}
LABELS = {
    "cross-entropy": "cross-entropy",
    "same rate": "cross-entropy at 0.001",
    "smoothing": "label smoothing 0.1",
    "gce": "generalised cross-entropy 0.7",
    "trimmed": "trimmed, told the true share",
    "tilted": "tilted, eta=-3",
    "auto": 'tilted, eta="auto"',
}
WORDS = {
    "none": "No wrong labels",
    "symmetric:0.2": "20 % wrong, any other class",
    "symmetric:0.4": "40 % wrong, any other class",
    "symmetric:0.6": "60 % wrong, any other class",
    "asymmetric:0.2": "20 % wrong, the next class",
    "asymmetric:0.4": "40 % wrong, the next class",
}


class Study(NamedTuple):
    """A task and what is run on it."""

    task: str
    about: str
    settings: tuple[str, ...]
    contestants: tuple[str, ...] = tuple(CONTESTANTS)


STUDIES = {
    "fashion": Study("small_fashion.py", "8 000 images of Fashion-MNIST, an MLP of 128 units", tuple(WORDS)),
    "text": Study(
        "small_text.py",
        "5 220 pieces of source text from nine packages of Python, their words hashed, an MLP of 128 units",
        ("none", "symmetric:0.4", "asymmetric:0.2"),
    ),
}
#: (setting, whom auto is compared with, the goal); each also with the average on both sides.
GOALS = [
    ("symmetric:0.4", "cross-entropy", "at least +5"),
    ("symmetric:0.4", "same rate", "none"),
    ("symmetric:0.4", "gce", "not below -0.5"),
    ("none", "cross-entropy", "not below -0.2"),
]
AVERAGE = "average=anytime"


def noise_of(setting: str) -> dict[str, Any]:
    """The options of the task: "symmetric:0.4" is 40 % wrong labels, any other class."""
    kind, _, share = setting.partition(":")
    return {"label_noise": float(share), "noise": kind} if share else {}


def specs(name: str, setting: str, rate: float) -> list[str]:
    """A contestant and the average that rides on it, as `surefoot` commands name them."""
    options = CONTESTANTS[name].format(rate=setting.partition(":")[2] or 0)
    options = "" if options.endswith("trimmed:0") else options
    base = ",".join(filter(None, [f"adam:lr={rate!r}", options]))
    return [base, f"{base},{AVERAGE}"]


def compute(
    study: Study, out: Path, names: Iterable[str], setting: str, seeds: Sequence[int], purpose: str, rates: Any
) -> None:
    """Train what is missing; with no wrong labels trimming is plain training, which is trained once."""
    asked = dict.fromkeys(spec for name in names for rate in rates(name) for spec in specs(name, setting, rate))
    options: dict[str, Any] = {"seeds": seeds, "purpose": purpose, "out": out, "progress": True, **noise_of(setting)}
    anytime(str(HERE / study.task), list(asked), horizons=[EPOCHS], **options)


def accuracies(runs: list[Run], spec: str, setting: str) -> dict[int, list[float]]:
    """The accuracy after each epoch, by seed."""
    noise = noise_of(setting)
    found = {}
    for run in runs:
        settings = run.config.task.settings
        same = {name: settings[name] for name in ("label_noise", "noise") if name in settings} == noise
        if same and run.finished and run.config.optimizer.spec.replace("torch.optim.Adam", "adam") == spec:
            found[run.seed] = [row["valid_accuracy"] for row in run.epochs[:EPOCHS]]
    return found


def tuned_rate(runs: list[Run], name: str, averaged: bool) -> float:
    """The rate with the best accuracy at the end: the mean over tune seeds and settings."""
    if name == "same rate":
        return COMMON_RATE

    def score(rate: float) -> float:
        ends = [
            end[-1]
            for setting in TUNE_SETTINGS
            for end in accuracies(runs, specs(name, setting, rate)[averaged], setting).values()
        ]
        if len(ends) != len(TUNE_SETTINGS) * len(TUNE_SEEDS):
            raise SystemExit(f"{name} with lr={rate} is not tuned yet; run the command tune first")
        return statistics.fmean(ends)

    scores = {rate: score(rate) for rate in RATES}
    print(name, "with the average" if averaged else "", {rate: round(100 * value, 2) for rate, value in scores.items()})
    return max(scores, key=scores.__getitem__)


def collected(
    study: Study, out: Path, rates: dict[tuple[str, bool], float], seeds: int
) -> dict[tuple[str, str, bool], dict[int, list[float]]]:
    """The accuracies after each epoch by seed, for each (setting, contestant, with the average) that has all seeds."""
    runs = [run for run in read_runs(out) if run.finished]
    found = {}
    for setting in study.settings:
        for (name, averaged), rate in rates.items():
            by_seed = accuracies(runs, specs(name, setting, rate)[averaged], setting)
            if set(range(seeds)) <= by_seed.keys():
                found[setting, name, averaged] = {seed: by_seed[seed] for seed in range(seeds)}
    return found


def ends(by_seed: dict[int, list[float]]) -> list[float]:
    return [100 * by_seed[seed][-1] for seed in sorted(by_seed)]


def mean_std(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f}±{statistics.stdev(values):.1f}"


def difference(first: list[float], second: list[float]) -> str:
    """The paired difference with its 95 % interval."""
    result = paired([a - b for a, b in zip(first, second)])
    return f"{result.difference:+.1f} ({result.low:+.1f} to {result.high:+.1f})"


def label(name: str, averaged: bool) -> str:
    return LABELS[name] + (", any-time average" if averaged else "")


def table(setting: str, found: dict[tuple[str, str, bool], dict[int, list[float]]]) -> str:
    """One setting: every contestant, alone and with the any-time average, against cross-entropy alone."""
    baseline = ends(found[setting, "cross-entropy", False])
    rows = []
    for averaged in (False, True):
        for name in CONTESTANTS:
            if (setting, name, averaged) not in found or (name == "trimmed" and setting == "none"):
                continue
            by_seed = found[setting, name, averaged]
            at = [statistics.fmean(100 * curve[epoch - 1] for curve in by_seed.values()) for epoch in (1, 5, 12)]
            best = statistics.fmean(100 * max(curve) for curve in by_seed.values())
            rows.append(
                [
                    label(name, averaged),
                    *(f"{value:.1f}" for value in at),
                    mean_std(ends(by_seed)),
                    difference(ends(by_seed), baseline),
                    f"{best:.1f}",
                ]
            )
    head = ["", "1 epoch", "5", "12", "20 epochs", "against cross-entropy (95 %)", "best epoch, known afterwards"]
    return f"## {WORDS[setting]}\n\n{markdown(head, rows)}"


def goals(found: dict[tuple[str, str, bool], dict[int, list[float]]]) -> str:
    """What the project asks of eta="auto", with the paired difference that answers it."""
    rows = []
    for setting, other, asked in GOALS:
        for averaged in (False, True):
            if (setting, "auto", averaged) in found and (setting, other, averaged) in found:
                first, second = (ends(found[setting, name, averaged]) for name in ("auto", other))
                against = f"{LABELS[other]}{', both with the average' if averaged else ''}"
                rows.append([WORDS[setting], against, asked, difference(first, second)])
    return markdown(["setting", "auto against", "goal", "measured (95 %)"], rows)


def write(name: str, out: Path, rates: dict[tuple[str, bool], float], seeds: int) -> None:
    """Write results/examples/wrong_labels.md and .csv, or those of another task."""
    study = STUDIES[name]
    found = collected(study, out, rates, seeds)
    settings = [setting for setting in study.settings if (setting, "cross-entropy", False) in found]
    by_name = dict.fromkeys(name for name, _ in rates)
    rate_rows = [[LABELS[key], *(f"{rates[key, averaged]:g}" for averaged in (False, True))] for key in by_name]
    asked = f"--out RUNS{'' if name == 'fashion' else f' --task {name}'}"
    text = "\n\n".join(
        [
            "# Wrong labels: accuracy on clean test data, in percent",
            f"{study.about}, Adam, {EPOCHS} epochs, {seeds} paired seeds (0 to {seeds - 1}); mean and standard "
            "deviation over seeds.",
            goals(found),
            *(table(setting, found) for setting in settings),
            "## How it was made",
            f"Learning rates, chosen among {', '.join(f'{rate:g}' for rate in RATES)} by the accuracy at the end: the "
            f"mean of no and of 40 % wrong labels over {len(TUNE_SEEDS)} tune seeds ({TUNE_SEEDS[0]} to "
            f"{TUNE_SEEDS[-1]}). The weights as trained and the average each have their own:",
            markdown(["", "weights as trained", "any-time average"], rate_rows),
            "`trimmed` alone is given the true share of wrong labels. The last column is early stopping by an oracle "
            "that knows the clean test data. Each seed has wrong labels of its own, the same for all contestants.",
            f"```\npython benchmarks/wrong_labels.py tune {asked}\n"
            f"python benchmarks/wrong_labels.py run {asked} --seeds {seeds}\n"
            f"python benchmarks/wrong_labels.py table {asked} --seeds {seeds}\n```",
        ]
    )
    stem = "wrong_labels" if name == "fashion" else f"wrong_labels_{name}"
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{stem}.md").write_text(text + "\n")
    with (RESULTS / f"{stem}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "contestant", "average", "lr", "seed", *range(1, EPOCHS + 1)])
        for (setting, key, averaged), by_seed in found.items():
            for seed, curve in by_seed.items():
                row = [setting, key, "anytime" if averaged else "", rates[key, averaged], seed]
                writer.writerow([*row, *(f"{value:.4f}" for value in curve)])
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tune", "run", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", choices=STUDIES, default="fashion")
    parser.add_argument("--only", help="comma-separated contestants; default: all")
    parser.add_argument("--settings", help="comma-separated; default: all of the task")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    study, out = STUDIES[args.task], args.out / args.task
    names = args.only.split(",") if args.only else study.contestants
    if args.command == "tune":
        for setting in TUNE_SETTINGS:
            tuned = [name for name in names if name != "same rate"]
            compute(study, out / "tune", tuned, setting, TUNE_SEEDS, "tune", lambda name: RATES)
        return
    tuning = read_runs(out / "tune", tuning=True)
    rates = {(name, averaged): tuned_rate(tuning, name, averaged) for averaged in (False, True) for name in names}
    if args.command == "run":
        for setting in args.settings.split(",") if args.settings else study.settings:
            own = {name: sorted({rates[name, False], rates[name, True]}) for name in names}
            compute(study, out, names, setting, range(args.seeds), "report", own.__getitem__)
    if args.command == "table":
        write(args.task, out, rates, args.seeds)


if __name__ == "__main__":
    main()
