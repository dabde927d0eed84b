"""What eta="auto" sees in the losses of training with right and with wrong labels, on tune seeds.

    python benchmarks/two_groups.py [--seeds 2] [--only NAME,...] [--save]     # a minute; "cnn" alone takes minutes

Training is plain: `weigh` only watches the losses. The two cuts are those of `surefoot.otsu`. The evidence goes from
0 to 1, averaged over 8 000 examples; from 0.5 on the weights of examples begin to differ.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import small_fashion
import torch
from interleave import markdown
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab import Task
from surefoot.lab.spec.builtin import CNN, MLP
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.label_noise import LabelNoise
from surefoot.otsu import otsu, unpack_groups
from surefoot.weighing import Weigher

RESULTS = Path(__file__).parents[1] / "results" / "examples"
FIRST_SEED, EPOCHS, FIRST_EPOCH = 1000, 10, 2
NOISES = ("none", "asymmetric:0.1", "asymmetric:0.2", "asymmetric:0.3", "asymmetric:0.4", "symmetric:0.1")
NOISES += ("symmetric:0.2", "symmetric:0.4", "symmetric:0.6")
cross_entropy = partial(F.cross_entropy, reduction="none")
Loss = Callable[[Tensor, Tensor], Tensor]


class Kind(NamedTuple):
    """A task, its loss, and which wrong labels are tried with it."""

    about: str
    data: Callable[[int], tuple[Tensor, Tensor]]
    model: Callable[[], nn.Module]
    loss: Loss = cross_entropy
    noises: tuple[str, ...] = ("none",)
    prepare: Callable[[Tensor, torch.Generator], Tensor] = lambda images, _: images


def subset(name: str, seed: int) -> tuple[Tensor, Tensor]:
    features, labels = find_task(name, subset=8000).train
    return features.flatten(1), labels


@cache
def cifar() -> Task:
    return find_task("cifar10-cnn", subset=10_000)


def coarse_cifar(seed: int) -> tuple[Tensor, Tensor]:
    """Images of 8x8 pixels."""
    images, labels = cifar().train
    return F.avg_pool2d(images.float() / 64 - 2, 4).flatten(1), labels


def blobs(distance: float, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Normal distributions in 20 dimensions that overlap the more, the smaller their distance."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 20, generator=random) * distance
    labels = torch.randint(classes, (8000,), generator=random)
    return centres[labels] + torch.randn(8000, 20, generator=random), labels


def line(seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(8000, 20, generator=random)
    return x, x[:, 0] - 2 * x[:, 1] + 0.3 * torch.randn(8000, generator=random)


def net(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, outputs))


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(1) - targets).abs()


def crop(images: Tensor, random: torch.Generator) -> Tensor:
    prepare = cifar().prepare
    assert prepare is not None
    return prepare(images, random)


mlp = partial(MLP, hidden=small_fashion.HIDDEN)
KINDS = {
    "fashion": Kind("Fashion-MNIST, MLP", partial(subset, "fashion-mlp"), mlp, noises=NOISES),
    "mnist": Kind("MNIST, MLP", partial(subset, "mnist-mlp"), mlp, noises=NOISES),
    "dropout": Kind("Fashion-MNIST, MLP, dropout", partial(subset, "fashion-mlp"), partial(mlp, dropout=True)),
    "linear": Kind("Fashion-MNIST, logistic regression", partial(subset, "fashion-mlp"), partial(nn.Linear, 784, 10)),
    "smoothing": Kind(
        "Fashion-MNIST, MLP, label smoothing 0.1",
        partial(subset, "fashion-mlp"),
        mlp,
        partial(cross_entropy, label_smoothing=0.1),
    ),
    "rare10": Kind("Fashion-MNIST, classes up to 10:1", lambda _: small_fashion.imbalanced(ratio=10).train, mlp),
    "rare100": Kind("Fashion-MNIST, classes up to 100:1", lambda _: small_fashion.imbalanced().train, mlp),
    "cifar": Kind(
        "CIFAR-10 of 8x8 pixels, MLP",
        coarse_cifar,
        partial(MLP, 192, 128),
        noises=("none", "asymmetric:0.2", "symmetric:0.4"),
    ),
    "blobs": Kind(
        "ten classes that overlap a little",
        partial(blobs, 0.6, 10),
        partial(net, 10),
        noises=("none", "asymmetric:0.2"),
    ),
    "hard": Kind("ten classes that overlap", partial(blobs, 0.5, 10), partial(net, 10)),
    "harder": Kind("ten classes that overlap much", partial(blobs, 0.4, 10), partial(net, 10)),
    "two": Kind("two classes that overlap", partial(blobs, 0.3, 2), partial(net, 2)),
    "regression": Kind("regression, absolute error", line, partial(net, 1), absolute_error),
    "cnn": Kind(
        "CIFAR-10, the paper's CNN",
        lambda _: cifar().train,
        CNN,
        noises=("none", "symmetric:0.4"),
        prepare=crop,
    ),
}


class Seen(NamedTuple):
    """What the histogram says after an epoch."""

    first_cut: float
    second_cut: float
    above: float
    evidence: float


def watched(kind: Kind, noise: str, seed: int) -> Iterator[Seen]:
    """Train, and say after every epoch what was seen."""
    features, targets = kind.data(seed)
    name, _, share = noise.partition(":")
    targets = LabelNoise(float(share), name).apply(targets, seed) if share else targets
    torch.manual_seed(seed)
    model, random = kind.model(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    weigh = Weigher(None, "tilted")
    for _ in range(EPOCHS):
        for ids in torch.randperm(len(targets)).split(128):
            optimizer.zero_grad()
            losses = kind.loss(model(kind.prepare(features[ids], random)), targets[ids])
            weigh(losses)
            weigh.update()
            losses.mean().backward()
            optimizer.step()
        groups = unpack_groups(weigh.state_dict()["groups"])[0]
        first = otsu(groups.histogram)
        second = otsu(groups.histogram, highest=first.upper_mean)
        yield Seen(float(first.variance), float(second.variance), float(second.above), float(groups.evidence))


def row(kind: Kind, noise: str, seeds: int) -> list[str]:
    """The ranges over seeds and epochs, and the largest evidence of each seed."""
    runs = [list(watched(kind, noise, FIRST_SEED + number)) for number in range(seeds)]
    late = [seen for run in runs for seen in run[FIRST_EPOCH:]]
    ranges = [(min(values), max(values)) for values in list(zip(*late))[:3]]
    evidence = [max(seen.evidence for seen in run) for run in runs]
    mean_above = statistics.fmean(seen.above for seen in late)
    return [
        kind.about,
        noise.replace(":", " "),
        *(f"{low:.2f} to {high:.2f}" for low, high in ranges[:2]),
        f"{mean_above:.2f}",
        ", ".join(f"{value:.2f}" for value in evidence),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default=",".join(name for name in KINDS if name != "cnn"))
    parser.add_argument("--save", action="store_true", help="write results/examples/two_groups.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = []
    for name in args.only.split(","):
        for noise in KINDS[name].noises:
            rows.append(row(KINDS[name], noise, args.seeds))
            print(*rows[-1], sep=" | ", flush=True)
    rows.sort(key=lambda cells: cells[1] != "none")
    head = ["task", "wrong labels", "first cut", "second cut", "above the second", "largest evidence, by seed"]
    text = (
        f'# What eta="auto" sees\n\nShares of the variance between the two parts, after epochs {FIRST_EPOCH + 1} to '
        f"{EPOCHS}, and the share of examples above the second cut (mean). Adam at 0.001, seeds {FIRST_SEED} to "
        f"{FIRST_SEED + args.seeds - 1}. With evidence above 0.5 the weights of examples begin to differ.\n\n"
        f"{markdown(head, rows)}\n\n```\npython benchmarks/two_groups.py --seeds {args.seeds} --save\n```\n"
    )
    if args.save:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "two_groups.md").write_text(text)


if __name__ == "__main__":
    main()
