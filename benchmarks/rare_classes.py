"""Rare classes: pessimism about examples against weights per class, by the accuracy of the worst class.

    python benchmarks/rare_classes.py tune --out RUNS        # learning rates and strengths, on tune seeds
    python benchmarks/rare_classes.py run --out RUNS         # the chosen ones on ten other seeds
    python benchmarks/rare_classes.py table --out RUNS       # writes results/examples/rare_classes.md

The task is `small_fashion.py:imbalanced`: ten classes of Fashion-MNIST, the last with a hundredth of the images of the
first; the test images are balanced. Every family has the same learning rates and as many strengths as its row says.
Of each family the setting with the best accuracy of the worst class is chosen, among those whose mean accuracy is at
most a point below that of the best plain one. Every command computes what the folder does not hold yet.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

from interleave import markdown
from small_fashion import CLASSES
from wrong_labels import difference, mean_std

from surefoot.lab import Run, read_runs
from surefoot.lab.horizons import anytime

TASK = "benchmarks/small_fashion.py:imbalanced"
RESULTS = Path(__file__).parents[1] / "results" / "examples"
EPOCHS = 20
RATES = (3e-4, 1e-3, 3e-3)
TUNE_SEEDS, SEEDS = (1000, 1001, 1002), range(10)
#: How far the mean accuracy may be below the best plain one, in points.
LOSS_OF_THE_MEAN = 1.0
FAMILIES = {
    "cross-entropy": [""],
    "a weight per class": ["loss=balanced:0.5", "loss=balanced:1"],
    "tilted, eta > 0": [f"examples=tilted:{eta}" for eta in (0.25, 0.5, 1)],
    "cvar": [f"examples=cvar:{share}" for share in (0.25, 0.5, 0.75)],
}


def specs(options: str) -> list[str]:
    """A setting at every learning rate, as `surefoot` commands name it."""
    return [",".join(filter(None, [f"adam:lr={rate!r}", options])) for rate in RATES]


def compute(out: Path, contestants: Iterable[str], seeds: Iterable[int], purpose: str) -> None:
    anytime(TASK, list(contestants), horizons=[EPOCHS], seeds=list(seeds), purpose=purpose, out=out, progress=True)


def ends(runs: list[Run], spec: str) -> dict[int, tuple[float, float]]:
    """By seed, in percent: the mean accuracy at the end, and that of the worst class."""
    found = {}
    for run in runs:
        if run.finished and run.config.optimizer.spec.replace("torch.optim.Adam", "adam") == spec:
            row = run.epochs[EPOCHS - 1]
            classes = [row[f"valid_class_{label}"] for label in range(CLASSES)]
            found[run.seed] = (100 * row["valid_accuracy"], 100 * min(classes))
    return dict(sorted(found.items()))


def chosen(runs: list[Run]) -> tuple[dict[str, str], list[str]]:
    """The setting of each family, by the tune seeds; and the families in which none keeps the mean."""
    scores = {
        spec: [statistics.fmean(column) for column in zip(*ends(runs, spec).values())]
        for settings in FAMILIES.values()
        for options in settings
        for spec in specs(options)
    }
    if not all(scores.values()):
        raise SystemExit("not tuned yet; run the command tune first")
    least = max(scores[spec][0] for spec in specs("")) - LOSS_OF_THE_MEAN
    best, below = {}, []
    for family, settings in FAMILIES.items():
        candidates = [spec for options in settings for spec in specs(options)]
        allowed = [spec for spec in candidates if scores[spec][0] >= least]
        best[family] = max(allowed or candidates, key=lambda spec: scores[spec][1])
        below += [] if allowed else [family]
        print(family, {spec: [round(x, 1) for x in scores[spec]] for spec in candidates}, "->", best[family])
    return best, below


def write(runs: list[Run], best: dict[str, str], below: list[str]) -> None:
    """Write results/examples/rare_classes.md."""
    found = {family: list(zip(*(ends(runs, spec)[seed] for seed in SEEDS))) for family, spec in best.items()}
    plain = found["cross-entropy"]
    rows = [
        [
            family,
            f"`{best[family]}`",
            mean_std(worst),
            difference(worst, plain[1]),
            mean_std(mean),
            difference(mean, plain[0]),
        ]
        for family, (mean, worst) in found.items()
    ]
    head = ["", "setting", "worst class", "against cross-entropy (95 %)", "mean", "against cross-entropy (95 %)"]
    text = "\n\n".join(
        [
            "# Rare classes: accuracy on balanced test images, in percent",
            "Fashion-MNIST, the last of ten classes with a hundredth of the images of the first, an MLP of 128 units, "
            f"Adam, {EPOCHS} epochs, {len(SEEDS)} paired seeds; mean and standard deviation over seeds. The worst "
            "class is the one with the lowest accuracy of each run.",
            markdown(head, rows),
            f"Settings were chosen on the seeds {', '.join(map(str, TUNE_SEEDS))}, at the learning rates "
            f"{', '.join(f'{rate:g}' for rate in RATES)}: the best worst class, among settings whose mean is at most "
            f"{LOSS_OF_THE_MEAN:g} point below the best of cross-entropy; where no setting is, the best worst class of "
            f"all ({'; '.join(below) or 'no family'}). Strengths tried: "
            + "; ".join(f"{family}: {', '.join(settings)}" for family, settings in FAMILIES.items() if settings[0])
            + ".",
            "```\n"
            + "\n".join(f"python benchmarks/rare_classes.py {part} --out RUNS" for part in ("tune", "run", "table"))
            + "\n```",
        ]
    )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "rare_classes.md").write_text(text + "\n")
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("tune", "run", "table"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.command == "tune":
        every = [spec for settings in FAMILIES.values() for options in settings for spec in specs(options)]
        compute(args.out / "tune", every, TUNE_SEEDS, "tune")
    best, below = chosen(read_runs(args.out / "tune", tuning=True))
    if args.command == "run":
        compute(args.out, best.values(), SEEDS, "report")
    if args.command == "table":
        write(read_runs(args.out), best, below)


if __name__ == "__main__":
    main()
