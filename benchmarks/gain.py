"""What bounds on the weights do: the tables of results/gain, from folders of runs or from the CSV file made of them.

python benchmarks/gain.py FOLDER ...     # folders of `surefoot compare --out`; their names are the parts, whose
                                         # tasks replace those of the CSV file
python benchmarks/gain.py --problems     # small problems that training without bounds does not solve
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from interleave import markdown
from torch import Tensor

import surefoot
from surefoot.lab import Run, read_runs
from surefoot.paper.export import filled

RESULTS = Path(__file__).parents[1] / "results" / "gain"
#: What tells rows from each other, and what was measured.
KEYS = ("part", "task", "images", "optimizer", "eta", "gain", "seed", "epoch")
MEASURED = ("train_loss", "valid_loss", "accuracy", "jump")
#: The epochs of the paper's tables, as far as a run goes; other parts are looked at after their last epoch alone.
CELLS, EPOCHS = "cells", (3, 20, 45)
Row = dict[str, str]


def jump(losses: list[float]) -> float:
    """How many times the lowest training loss so far a later epoch's was, at most.

    >>> jump([2.0, 1.0, 0.5, 1.5, 0.25])
    3.0
    """
    return max((later / min(losses[:i]) for i, later in enumerate(losses) if i), default=1.0)


def conditions(run: Run) -> tuple[Any, ...]:
    """What two runs must share to be compared."""
    task, options = run.config.task, run.config.optimizer.options
    settings = sorted(task.settings.items())
    return run.seed, run.config.epochs, task.name, task.batch_size, settings, options["lr"], options["weight_decay"]


def method(run: Run) -> tuple[Any, ...]:
    """What else an optimizer is, without its bounds."""
    optimizer = run.config.optimizer
    options = sorted((name, value) for name, value in optimizer.options.items() if name != "gain")
    return optimizer.class_path, optimizer.schedule, options


def chosen(runs: list[Run]) -> list[Run]:
    """The runs with bounds that ended, and those to compare them with: plain Adam, and the same without bounds."""
    runs = [run for run in runs if run.finished]
    bounded = [run for run in runs if run.config.optimizer.options.get("gain")]
    allowed = [(conditions(run), method(run)) for run in bounded]
    places = [place for place, _ in allowed]

    def is_plain(run: Run) -> bool:
        options = set(run.config.optimizer.options) - {"lr", "weight_decay", "fused"}
        return method(run)[:2] == ("torch.optim.Adam", None) and not options

    return [
        run
        for run in runs
        if (conditions(run), method(run)) in allowed or (is_plain(run) and conditions(run) in places)
    ]


def rows_of(folder: Path) -> list[Row]:
    """A row for each run, and in the paper's part for each epoch of its tables."""
    rows = []
    for run in chosen(read_runs(folder, tuning=True)):
        optimizer, losses = run.config.optimizer, [float(epoch["train_loss"]) for epoch in run.epochs]
        bounds, images = optimizer.options.get("gain"), run.config.task.settings.get("subset", "all")
        name = optimizer.class_path.split(".")[-1]
        for number in [n for n in EPOCHS if n <= len(losses)] if folder.name == CELLS else [len(losses)]:
            epoch = run.epochs[number - 1]
            keys = (
                *(folder.name, run.task, images, name, optimizer.options.get("eta", "")),
                *("{} to {}".format(*bounds) if bounds else "", run.seed, number),
            )
            numbers = (epoch["train_loss"], epoch["valid_loss"], epoch["valid_accuracy"], jump(losses[:number]))
            texts = [*map(str, keys), *(f"{number:.5g}" for number in numbers)]
            rows.append(dict(zip(KEYS + MEASURED, texts)))
    return rows


def table(rows: list[Row], part: str) -> str:
    """Means over the seeds of a part, and the largest jump of all of them."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["part"] == part:
            groups[row["task"], row["epoch"], row["optimizer"], row["eta"], row["gain"]].append(row)
    lines = []
    for (task, epoch, optimizer, eta, bounds), group in sorted(groups.items(), key=_place):
        means = {name: statistics.fmean(float(row[name]) for row in group) for name in MEASURED[:3]}
        largest = max(float(row["jump"]) for row in group)
        numbers = [f"{means['train_loss']:.3g}", f"{means['valid_loss']:.3g}", f"{100 * means['accuracy']:.2f}"]
        name = optimizer if optimizer == "Adam" else f"{optimizer} {eta}, {bounds or 'no bounds'}"
        lines.append([task, epoch, name, str(len(group)), *numbers, f"{largest:.3g}"])
    head = ["task", "epoch", "optimizer", "seeds", "training loss", "validation loss", "accuracy", "largest jump"]
    return markdown(head, lines) + "\n"


def _place(entry: tuple[tuple[str, ...], list[Row]]) -> tuple[Any, ...]:
    task, epoch, optimizer, _, bounds = entry[0]
    return task, int(epoch), optimizer, bounds


Bounds = tuple[float, float] | None
GRID: tuple[Bounds, ...] = (None, (0.1, 1.5), (0.3, 1.0), (0.3, 1.5), (0.3, 3.0), (0.5, 1.5))
RULES = ("ucb", "cb", "s", "pi", "ei", "cvar")


def rosenbrock(p: Tensor) -> Tensor:
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


def distance(rule: str, bounds: Bounds, start: float, lr: float, steps: int, alternate: bool) -> Tensor:
    """How far from the minimum of Rosenbrock's function training ends, with both coordinates' gradients or in turn."""
    p = torch.nn.Parameter(torch.full((2,), start))
    optimizer = surefoot.LossAwareAdam([p], lr=lr, rule=rule, gain=bounds)
    for step in range(steps):
        optimizer.zero_grad()
        loss = rosenbrock(p)
        loss.backward()
        if alternate:
            p.grad[step % 2] = 0.0  # type: ignore[index]
        optimizer.step(loss=loss)
    return p.detach() - 1


def full_batch_loss(rule: str, bounds: Bounds) -> float:
    """The lowest loss of the last hundred of 3000 steps on 256 points at once, with a network of one hidden layer."""
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 256).unsqueeze(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = surefoot.LossAwareAdam(model.parameters(), lr=1e-2, rule=rule, gain=bounds)
    losses = []
    for _ in range(3000):
        optimizer.zero_grad()
        loss = (model(x) - torch.sin(2 * x)).square().mean()
        loss.backward()
        optimizer.step(loss=loss)
        losses.append(loss.item())
    return min(losses[-100:])


def problems_row(name: str, rules: tuple[str, ...], bounds: Bounds) -> list[str]:
    """The worst of the rules on the problems of timm's and Optax's suites, and AdamS (or Adam) on all data at once."""
    timms = max(distance(rule, bounds, 1.5, 5e-2, 2000, True).norm().item() for rule in rules)
    optaxs = max(distance(rule, bounds, 0.0, 1e-1, 10_000, False).abs().max().item() for rule in rules)
    at_once = full_batch_loss("s" if "s" in rules else "plain", bounds)
    return [name, *(f"{number:.2g}" for number in (timms, optaxs, at_once))]


def problems_table() -> str:
    """A row for each bounds of the grid, and one for plain Adam."""
    names = ["{} to {}".format(*bounds) if bounds else "no bounds" for bounds in GRID]
    lines = [problems_row(name, RULES, bounds) for name, bounds in zip(names, GRID)]
    head = ["bounds", "timm's problem (at most 0.71)", "Optax's (at most 0.06)", "full batch: loss"]
    return markdown(head, [*lines, problems_row("Adam", ("plain",), None)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--problems", action="store_true")
    args = parser.parse_args()
    path, page = RESULTS / "runs.csv", RESULTS / "README.md"
    if args.problems:
        page.write_text(filled(page.read_text(), {**tables(path), "problems": problems_table()}))
        return
    rows = [row for folder in args.folders for row in rows_of(folder)]
    if rows:
        measured = {(row["part"], row["task"]) for row in rows}
        rows = [row for row in recorded(path) if (row["part"], row["task"]) not in measured] + rows
        parts = list(dict.fromkeys(row["part"] for row in rows))
        rows.sort(key=lambda row: parts.index(row["part"]))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, KEYS + MEASURED, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    text = page.read_text()
    page.write_text(filled(text, {**tables(path), **measured_before(text)}))


def measured_before(text: str) -> dict[str, str]:
    """The part of the page that is not made of runs, as it is."""
    return {"problems": text.partition("<!-- begin: problems -->\n")[2].partition("<!-- end: problems -->")[0]}


def recorded(path: Path) -> list[Row]:
    """The rows of the CSV file."""
    with path.open() as file:
        return list(csv.DictReader(file))


def tables(path: Path) -> dict[str, Any]:
    """The tables of the page by their names, from the CSV file."""
    rows = recorded(path)
    return {part: table(rows, part) for part in dict.fromkeys(row["part"] for row in rows)}


if __name__ == "__main__":
    main()
