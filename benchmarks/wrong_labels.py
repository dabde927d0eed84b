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
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from surefoot.lab import Run, read_runs
from surefoot.lab.horizons import anytime

TASK = "benchmarks/small_fashion.py"
RESULTS = Path(__file__).parents[1] / "results" / "examples"
EPOCHS = 20
RATES = (3e-4, 1e-3, 3e-3)
TUNE_SEEDS, TUNE_SETTINGS = (1000,), ("none", "symmetric:0.4")
SETTINGS = ("none", "symmetric:0.4", "asymmetric:0.2", "symmetric:0.2", "symmetric:0.6", "asymmetric:0.4")
#: Options of each contestant; {rate} is the share of wrong labels, which "trimmed" alone is given.
CONTESTANTS = {
    "cross-entropy": "",
    "smoothing": "loss=smoothing:0.1",
    "gce": "loss=gce:0.7",
    "trimmed": "examples=trimmed:{rate}",
    "tilted": "examples=tilted:-3",
    "auto": "examples=tilted:auto",
}
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


if __name__ == "__main__":
    main()
