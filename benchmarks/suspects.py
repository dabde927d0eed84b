"""Label errors found as a by-product: `weigh.suspects` against cleanlab, and a picture of the most distrusted images.

    python benchmarks/suspects.py [--seeds 3] [--save]     # pip install cleanlab for its rows
    python benchmarks/suspects.py --picture                # docs/images/examples.svg, with results/examples/*.csv

`suspects` comes with one training run of the task in small_fashion.py. cleanlab ranks by predictions on images that
were not trained on, so it needs a run for each of five folds. Both train the same model in the same way.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import small_fashion
import torch
from interleave import markdown
from torch import Tensor
from torch.nn import functional as F

import surefoot
from surefoot.lab.spec.label_noise import LabelNoise

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE = ROOT / "results" / "examples", ROOT / "docs" / "images" / "examples.svg"
EPOCHS, RATE, FOLDS = 20, 1e-3, 5
SETTINGS = (("symmetric", 0.2), ("symmetric", 0.4), ("asymmetric", 0.2))
CLASSES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def trained(images: Tensor, labels: Tensor, seed: int, eta: Any = None) -> tuple[torch.nn.Module, Any]:
    """The model after twenty epochs, and what weighed its examples, if an eta is given."""
    torch.manual_seed(seed)
    model = small_fashion.MLP(hidden=small_fashion.HIDDEN)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    weigh = None if eta is None else surefoot.weigh(optimizer, "tilted", eta)
    for _ in range(EPOCHS):
        for ids in torch.randperm(len(images)).split(128):
            optimizer.zero_grad()
            losses = F.cross_entropy(model(images[ids]), labels[ids], reduction="none")
            (losses.mean() if weigh is None else weigh(losses, ids=ids)).backward()
            optimizer.step()
    return model, weigh


def ours(images: Tensor, labels: Tensor, seed: int, eta: Any) -> np.ndarray:
    """How much each label is distrusted: its place in the list of suspects; an unlisted one is not distrusted."""
    suspects = trained(images, labels, seed, eta)[1].suspects(len(labels))
    distrust = np.zeros(len(labels))
    distrust[suspects] = np.arange(len(suspects), 0, -1)
    return distrust


def cleanlab(images: Tensor, labels: Tensor, seed: int) -> np.ndarray:
    """The same by cleanlab: its quality of each label, from predictions of models that did not train on it."""
    from cleanlab.rank import get_label_quality_scores

    predicted = np.zeros((len(labels), small_fashion.CLASSES))
    fold = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)) % FOLDS
    for number in range(FOLDS):
        model, _ = trained(images[fold != number], labels[fold != number], seed)
        with torch.no_grad():
            predicted[(fold == number).numpy()] = model(images[fold == number]).softmax(1).numpy()
    return -get_label_quality_scores(labels.numpy(), predicted, method="self_confidence")


def scores(distrust: np.ndarray, wrong: np.ndarray) -> tuple[float, float]:
    """The area under the ROC curve, and the precision among as many suspects as there are wrong labels."""
    from scipy.stats import rankdata

    ranks, number = rankdata(distrust), int(wrong.sum())
    area = (ranks[wrong].sum() - number * (number + 1) / 2) / (number * (len(wrong) - number))
    return float(area), float(wrong[np.argsort(-distrust, kind="stable")[:number]].mean())


def study(seeds: int) -> str:
    """The table: both on the same wrong labels."""
    images, clean = small_fashion.task().train
    ways = {
        "suspects, eta=-3": lambda *given: ours(*given, -3.0),
        'suspects, eta="auto"': lambda *given: ours(*given, "auto"),
        f"cleanlab, {FOLDS} folds": cleanlab,
    }
    rows = []
    for kind, share in SETTINGS:
        for name, way in ways.items():
            found, seconds = [], []
            for seed in range(seeds):
                labels = LabelNoise(share, kind).apply(clean, seed)
                start = time.process_time()
                distrust = way(images, labels, seed)
                seconds.append(time.process_time() - start)
                found.append(scores(distrust, (labels != clean).numpy()))
            area, precision = (statistics.fmean(part) for part in zip(*found))
            rows.append(
                [f"{share:.0%} {kind}", name, f"{area:.3f}", f"{precision:.3f}", f"{statistics.fmean(seconds):.1f}"]
            )
            print(rows[-1], flush=True)
    head = ["wrong labels", "found by", "AUROC", "precision at the true number", "CPU seconds"]
    return (
        f"# Wrong labels found\n\n8 000 images of Fashion-MNIST, an MLP of 128 units, Adam at {RATE:g}, "
        f"{EPOCHS} epochs; means over seeds 0 to {seeds - 1}. Of cleanlab its quality scores (self-confidence) from "
        f"predictions of {FOLDS} folds.\n\n{markdown(head, rows)}\n\n"
        f"```\npython benchmarks/suspects.py --seeds {seeds} --save\n```\n"
    )


def curves(setting: str = "symmetric:0.4") -> dict[str, list[float]]:
    """Mean accuracy after each epoch, from the recorded study."""
    wanted = {
        ("same rate", ""): "cross-entropy",
        ("cross-entropy", ""): "cross-entropy, tuned",
        ("auto", ""): 'weigh, eta="auto", tuned',
        ("auto", "anytime"): "the same with the any-time average",
    }
    found: dict[str, list[list[float]]] = {}
    with (RESULTS / "wrong_labels.csv").open() as file:
        for row in csv.DictReader(file):
            key = (row["contestant"], row["average"])
            if row["setting"] == setting and key in wanted:
                name = f"{wanted[key]} (lr {float(row['lr']):g})"
                found.setdefault(name, []).append([100 * float(row[str(e)]) for e in range(1, EPOCHS + 1)])
    names = sorted(found, key=lambda name: [name.startswith(f"{start} (") for start in wanted.values()], reverse=True)
    return {name: [statistics.fmean(part) for part in zip(*found[name])] for name in names}


def picture() -> None:
    """Accuracy over epochs with and without weights, and the eight most distrusted images with their given labels."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    images, clean = small_fashion.task().train
    labels = LabelNoise(0.4).apply(clean, 0)
    suspects = trained(images, labels, 0, "auto")[1].suspects(8)
    plt.rcParams.update({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "surefoot"})
    figure = plt.figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.1, 1))
    axes = left.subplots()
    for (name, values), colour in zip(curves().items(), ("#bbbbbb", "#555555", "#1f77b4", "#d62728")):
        axes.plot(range(1, EPOCHS + 1), values, label=name, color=colour)
    axes.set(xlabel="epochs", ylabel="accuracy on clean test images, %", title="40 % of the training labels are wrong")
    axes.legend(frameon=False, loc="lower center")
    right.suptitle("The eight most distrusted images, with the label given", fontsize=9)
    for cell, index in zip(right.subplots(2, 4).flat, suspects):
        cell.imshow(images[index].reshape(28, 28), cmap="gray_r")
        is_wrong = bool(labels[index] != clean[index])
        cell.set_title(f'"{CLASSES[labels[index]]}"', fontsize=8, color="#d62728" if is_wrong else "black", pad=2)
        cell.set_axis_off()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})
    print(f"{PICTURE.name}: of the eight, {sum(labels[i] != clean[i] for i in suspects)} labels are wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write results/examples/suspects.md")
    parser.add_argument("--picture", action="store_true", help="draw docs/images/examples.svg and do nothing else")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if args.picture:
        picture()
        return
    text = study(args.seeds)
    print(text)
    if args.save:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "suspects.md").write_text(text)


if __name__ == "__main__":
    main()
