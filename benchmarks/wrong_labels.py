"""Wrong labels: weights of examples against robust losses, small-loss trimming and early stopping, with paired seeds.

    python benchmarks/wrong_labels.py tune --out RUNS [--only NAME,...]             # learning rates, on tune seeds
    python benchmarks/wrong_labels.py run --out RUNS [--only NAME,...] [--settings symmetric:0.4,...] [--seeds 10]
    python benchmarks/wrong_labels.py table --out RUNS                              # writes results/examples

Every command computes what the folder does not hold yet, so it may be stopped at any time. Every contestant has
the same three learning rates, tried on the same tune seed with 40 % and with no wrong labels. The any-time average
rides on each run: it is validated beside the weights, and training is as without it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from interleave import markdown

from surefoot.lab import Run, read_runs
from surefoot.lab.analyse.stats import paired
from surefoot.lab.horizons import anytime

TASK = "benchmarks/small_fashion.py"
RESULTS = Path(__file__).parents[1] / "results" / "examples"
EPOCHS = 20
RATES = (3e-4, 1e-3, 3e-3)
TUNE_SEEDS, TUNE_SETTINGS = (1000,), ("none", "symmetric:0.4")
#: Cross-entropy at the rate that was best for the robust ones: what it costs not to tune for wrong labels.
COMMON_RATE = 1e-3
SETTINGS = ("none", "symmetric:0.4", "asymmetric:0.2", "symmetric:0.2", "symmetric:0.6", "asymmetric:0.4")
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
    "same rate": "cross-entropy at the rate of auto",
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
#: (setting, whom auto is compared with, both with the average, the goal).
GOALS = [
    ("symmetric:0.4", "cross-entropy", False, "at least +5"),
    ("symmetric:0.4", "cross-entropy", True, "at least +5"),
    ("symmetric:0.4", "same rate", False, "at least +5"),
    ("symmetric:0.4", "same rate", True, "at least +5"),
    ("symmetric:0.4", "gce", False, "not below -0.5"),
    ("symmetric:0.4", "gce", True, "not below -0.5"),
    ("none", "cross-entropy", False, "not below -0.2"),
    ("none", "cross-entropy", True, "not below -0.2"),
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


def compute(out: Path, names: Iterable[str], setting: str, seeds: Sequence[int], purpose: str, rates: Any) -> None:
    """Train what is missing; with no wrong labels trimming is plain training, which is trained once."""
    asked = dict.fromkeys(spec for name in names for rate in rates(name) for spec in specs(name, setting, rate))
    anytime(
        TASK, list(asked), horizons=[EPOCHS], seeds=seeds, purpose=purpose, out=out, progress=True, **noise_of(setting)
    )


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


def tuned_rate(runs: list[Run], name: str) -> float:
    """The rate with the best accuracy at the end: the mean over tune seeds and settings, with and without average."""
    if name == "same rate":
        return COMMON_RATE

    def score(rate: float) -> float:
        ends = [
            end[-1]
            for setting in TUNE_SETTINGS
            for spec in specs(name, setting, rate)
            for end in accuracies(runs, spec, setting).values()
        ]
        if len(ends) != 2 * len(TUNE_SETTINGS) * len(TUNE_SEEDS):
            raise SystemExit(f"{name} with lr={rate} is not tuned yet; run the command tune first")
        return statistics.fmean(ends)

    scores = {rate: score(rate) for rate in RATES}
    print(name, {rate: round(100 * value, 2) for rate, value in scores.items()})
    return max(scores, key=scores.__getitem__)


def collected(out: Path, rates: dict[str, float], seeds: int) -> dict[tuple[str, str, bool], dict[int, list[float]]]:
    """The accuracies after each epoch by seed, for each (setting, contestant, with the average) that has all seeds."""
    runs = [run for run in read_runs(out) if run.finished]
    found = {}
    for setting in SETTINGS:
        for name, rate in rates.items():
            for averaged, spec in enumerate(specs(name, setting, rate)):
                by_seed = accuracies(runs, spec, setting)
                if set(range(seeds)) <= by_seed.keys():
                    found[setting, name, bool(averaged)] = {seed: by_seed[seed] for seed in range(seeds)}
    return found


def ends(by_seed: dict[int, list[float]]) -> list[float]:
    return [100 * by_seed[seed][-1] for seed in sorted(by_seed)]


def mean_std(values: list[float]) -> str:
    return f"{statistics.fmean(values):.1f}±{statistics.stdev(values):.1f}"


def difference(first: list[float], second: list[float]) -> str:
    """The paired difference with its 95 % interval."""
    result = paired([a - b for a, b in zip(first, second)])
    return f"{result.difference:+.1f} ({result.low:+.1f} to {result.high:+.1f})"


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
                    LABELS[name] + (", any-time average" if averaged else ""),
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
    for setting, other, averaged, asked in GOALS:
        if (setting, "auto", averaged) in found and (setting, other, averaged) in found:
            first, second = (ends(found[setting, name, averaged]) for name in ("auto", other))
            against = f"{LABELS[other]}{', both with the average' if averaged else ''}"
            rows.append([WORDS[setting], against, asked, difference(first, second)])
    return markdown(["setting", "auto against", "goal", "measured (95 %)"], rows)


def write(out: Path, rates: dict[str, float], seeds: int) -> None:
    """Write results/examples/wrong_labels.md and .csv."""
    found = collected(out, rates, seeds)
    settings = [setting for setting in SETTINGS if (setting, "cross-entropy", False) in found]
    rate_rows = [[LABELS[name], f"{rate:g}"] for name, rate in rates.items()]
    text = "\n\n".join(
        [
            "# Wrong labels: accuracy on clean test images, in percent",
            f"8 000 images of Fashion-MNIST, an MLP of 128 units, Adam, 20 epochs, {seeds} paired seeds "
            f"({', '.join(map(str, (0, '...', seeds - 1)))}); mean and standard deviation over seeds.",
            goals(found),
            *(table(setting, found) for setting in settings),
            "## How it was made",
            "Learning rates, chosen among 3e-4, 1e-3 and 3e-3 by the accuracy at the end on one tune seed (1000), the "
            "mean of no and of 40 % wrong labels, with and without the average:",
            markdown(["", "learning rate"], rate_rows),
            "`trimmed` alone is given the true share of wrong labels. The last column is early stopping by an oracle "
            "that knows the clean test images. Each seed has wrong labels of its own, the same for all contestants.",
            "```\npython benchmarks/wrong_labels.py tune --out RUNS\n"
            f"python benchmarks/wrong_labels.py run --out RUNS --seeds {seeds}\n"
            f"python benchmarks/wrong_labels.py table --out RUNS --seeds {seeds}\n```",
        ]
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "wrong_labels.md").write_text(text + "\n")
    with (RESULTS / "wrong_labels.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["setting", "contestant", "average", "lr", "seed", *range(1, EPOCHS + 1)])
        for (setting, name, averaged), by_seed in found.items():
            for seed, curve in by_seed.items():
                row = [setting, name, "anytime" if averaged else "", rates[name], seed]
                writer.writerow([*row, *(f"{value:.4f}" for value in curve)])
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tune", "run", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(CONTESTANTS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    names, settings = args.only.split(","), args.settings.split(",")
    if args.command == "tune":
        for setting in TUNE_SETTINGS:
            compute(args.out / "tune", names, setting, TUNE_SEEDS, "tune", lambda name: RATES)
    tuning = read_runs(args.out / "tune", tuning=True)
    rates = {name: tuned_rate(tuning, name) for name in names}
    if args.command == "run":
        for setting in settings:
            compute(args.out, names, setting, range(args.seeds), "report", lambda name: (rates[name],))
    if args.command == "table":
        write(args.out, rates, args.seeds)


if __name__ == "__main__":
    main()
