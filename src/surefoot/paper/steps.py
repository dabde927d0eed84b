"""The effective step size: what the weights make of Adam's step, recorded at every step of one training.

With w the weight, the normalised moments (docs/theory.md) say that the step is multiplied by
``A_hat / sqrt(C_hat)``: the mean of recent weights (at Adam's beta1) over the root mean square of past weights (at
beta2). The lab's runs record the weight once per epoch, which is too coarse for that, so this trains again.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from surefoot.lab.experiments import prepare
from surefoot.lab.report.tables import csv_text
from surefoot.lab.run.trainer import Trainer, pinned_arithmetic
from surefoot.lab.store import write_atomic
from surefoot.paper import why
from surefoot.paper.ablation import CNN_EPOCHS, IMAGES
from surefoot.paper.plan import spec_of
from surefoot.paper.published import EPOCHS, OPTIMIZERS, eta_of, plain_configurations

NAME = "steps.csv"
#: Points kept of each epoch: each is the mean over a tenth of its steps.
PER_EPOCH = 10


def ratios(weights: Sequence[float], betas: tuple[float, float] = (0.9, 0.999)) -> list[float]:
    """The factor of the step size at every step; 0 while every weight was zero.

    >>> [round(ratio, 3) for ratio in ratios([2.0, 2.0, 2.0])], [round(ratio, 3) for ratio in ratios([1.0, 0.1])]
    ([1.0, 1.0, 1.0], [1.0, 0.741])
    """
    mean = power = 0.0
    factors = []
    for t, weight in enumerate(weights, start=1):
        mean = betas[0] * mean + (1 - betas[0]) * abs(weight)
        power = betas[1] * power + (1 - betas[1]) * weight * weight
        rms = math.sqrt(power / (1 - betas[1] ** t))
        factors.append(mean / (1 - betas[0] ** t) / rms if rms else 0.0)
    return factors


def record(
    model: str = "mlp",
    *,
    out: Path,
    epochs: int | None = None,
    data_dir: Path | None = None,
    print_line: Any = print,
    **overrides: Any,
) -> Path:
    """Train one seed of each variant (and of the std scale alone) and write `steps.csv`; what it holds is kept.

    Args:
        model: lr, mlp or cnn; batches of 128, no dropout. The CNN is trained on the images of its ablation.
        out: the folder of the paper's runs.
        epochs: how long; by default 45, and the CNN as long as in its ablation.
        data_dir: where the data sets are.
        print_line: called with a line of progress.
        overrides: options of the task, such as subset.
    """
    configuration = plain_configurations()[model]
    images = {"subset": IMAGES} if model == "cnn" else {}
    overrides = {**configuration.overrides, **images, **overrides}
    epochs = epochs or (CNN_EPOCHS if model == "cnn" else EPOCHS[-1])
    path = out / NAME
    known = read_steps(path)
    etas = {name: eta_of(configuration, name) for name in OPTIMIZERS[1:]}
    specs = {"std scale alone": spec_of("AdamUCB", 0)} | {
        f"{name} {eta:g}": spec_of(name, eta) for name, eta in etas.items()
    }
    for label, spec in specs.items():
        name = f"{configuration.name}: {label}"
        if name in known and known[name][-1][0] >= epochs:
            continue
        print_line(f"{name}: {epochs} epochs")
        weights, per_epoch = train(configuration.task, spec, epochs, data_dir, **overrides)
        known[name] = thinned(ratios(weights), per_epoch)
        write_steps(path, known)
    return path


def record_weights(path: Path, *, data_dir: Path | None = None, epochs: int = CNN_EPOCHS, **overrides: Any) -> None:
    """Train the scale alone with the seed `why.DONOR` at each rate, and write what `why.recorded_weights` reads.

    Args:
        path: the file; rates that it holds already are not trained again.
        data_dir: where the data sets are.
        epochs: how long.
        overrides: options of the task, such as subset.
    """
    configuration = plain_configurations()["cnn"]
    overrides = {**configuration.overrides, "subset": IMAGES, **overrides}
    known = why.read_weights(path.read_text(encoding="utf-8")) if path.exists() else {}
    for lr in why.RATES:
        if lr not in known:
            spec = why.contestants(lr)[why.SCALE].spec
            weights, _ = train(configuration.task, spec, epochs, data_dir, seed=why.DONOR, **overrides)
            known[lr] = tuple(float(f"{weight:.6g}") for weight in weights)
            rows = [{"lr": f"{rate:g}", "weight": f"{x:.6g}"} for rate, values in known.items() for x in values]
            write_atomic(path, csv_text(rows).encode())


def train(
    task: str, spec: str, epochs: int, data_dir: Path | None, *, seed: int = 0, **overrides: Any
) -> tuple[list[float], int]:
    """The weight of every step of one training, and how many steps an epoch has."""
    setup = prepare(task, [spec], seeds=[seed], epochs=epochs, data_dir=data_dir, **overrides)
    [contestant] = setup.contestants
    weights: list[float] = []
    with pinned_arithmetic(setup.options.threads):
        trainer = Trainer(setup.config(contestant, seed, epochs), setup.task, contestant)

        def note(optimizer: Any, *_: Any) -> None:
            weights.append(float(optimizer.confidence()[0]["weight"]))

        trainer.optimizer.register_step_post_hook(note)
        for epoch in range(1, epochs + 1):
            if trainer.run_epoch(epoch)["diverged"]:
                break
    return weights, trainer.steps_per_epoch


def thinned(values: Sequence[float], per_epoch: int) -> list[tuple[float, float]]:
    """(epoch, mean) over a tenth of an epoch each.

    >>> thinned([1.0, 3.0, 2.0, 4.0], 2)
    [(0.5, 1.0), (1.0, 3.0), (1.5, 2.0), (2.0, 4.0)]
    """
    size = max(1, per_epoch // PER_EPOCH)
    points = []
    for first in range(0, len(values), size):
        part = values[first : first + size]
        points.append((round((first + len(part)) / per_epoch, 4), sum(part) / len(part)))
    return points


def read_steps(path: Path) -> dict[str, list[tuple[float, float]]]:
    """What was recorded, by optimizer; nothing when there is no such file."""
    points: dict[str, list[tuple[float, float]]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                points.setdefault(line["optimizer"], []).append((float(line["epoch"]), float(line["step_size"])))
    return points


def write_steps(path: Path, known: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Write what was recorded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"optimizer": name, "epoch": f"{epoch:g}", "step_size": f"{value:.6g}"}
        for name, points in known.items()
        for epoch, value in points
    ]
    write_atomic(path, csv_text(rows).encode())
