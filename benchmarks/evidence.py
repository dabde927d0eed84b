"""All that was measured of training in one table: docs/evidence.md, and the picture of its main rows.

python benchmarks/evidence.py            # print the table
python benchmarks/evidence.py --save     # write it into docs/evidence.md, and docs/images/evidence.svg

Nothing is trained here. Runs that are archived are compared again, seed by seed; of others the recorded table is read.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from interleave import markdown

from surefoot.lab.analyse.anytime_valid import DECISIVE, Evidence, fewest_seeds, holm
from surefoot.lab.analyse.stats import paired
from surefoot.lab.analyse.verdicts import count, with_interval
from surefoot.lab.store import Run
from surefoot.paper.ablation import at_horizon, runs_by_rate, runs_by_variant
from surefoot.paper.archive import read_archive
from surefoot.paper.cells import Replication, values_at
from surefoot.paper.export import filled
from surefoot.paper.published import Configuration, configurations

ROOT = Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "evidence.md", ROOT / "docs" / "images" / "evidence.svg"
MEASURES = {"val_loss": "validation loss", "train_loss": "training loss", "val_acc": "accuracy, points"}
HEADER = ["task", "contestant", "peer", "measure", "difference (95 %)", "n", "the contestant is", "measured with"]
#: The rows of the picture: what most readers ask. The beginning of the task, the contestant, the peer.
MAIN = [
    ("character transformer", "AdamWS, unit", "AdamW"),
    ("character transformer", "AdamWS", "AdamW"),
    ("digits-mlp, 20 epochs", "AdamS", "Adam"),
    ("digits-mlp, 20 epochs", "AdamS lr=0.003", "Adam"),
    ("digits-mlp, 200 epochs", "AdamS", "Adam"),
    ("digits-mlp, 20 epochs, 40 %", "Adam examples=tilted:auto", "Adam"),
    ("digits-mlp, 20 epochs", "Adam lr=0.01 average=anytime", "Adam lr=0.01"),
    ("LR on MNIST, 45", "AdamS", "Adam"),
    ("LR on MNIST, 45", "the scale alone", "Adam, cosine decay"),
    ("MLP on MNIST, 45", "AdamS", "Adam"),
    ("MLP on MNIST, 12", "the scale alone", "Adam"),
    ("MLP on MNIST, 12", "the scale alone", "Adam, cosine decay"),
]


#: How the names of files end that have the any-time average with the rate of `AnytimeLR`.
RATE = "-rate"
#: The task of a row that has all horizons of a comparison.
TOGETHER = "all horizons together"


@dataclass(frozen=True)
class Row:
    """A contestant and a peer on one task.

    Args:
        task: what was trained, and for how long.
        contestant, peer: what is compared; the peer is what one would use else.
        measure: the metric, in words.
        difference: contestant minus peer, with its 95 % interval.
        n: the number of pairs.
        outcome: better, worse, or what else can be said: see `undecided`.
        source: how it was measured, as Markdown.
        relative: difference, low and high in percent of the peer's mean, for the picture.
    """

    task: str
    contestant: str
    peer: str
    measure: str
    difference: str
    n: int
    outcome: str
    source: str
    relative: tuple[float, float, float] | None = None

    @property
    def cells(self) -> list[str]:
        words = [self.task, self.contestant, self.peer, self.measure, self.difference, str(self.n)]
        return [*words, self.outcome, self.source]


@dataclass(frozen=True)
class Pairs:
    """The values of both sides by seed, for a row whose runs are archived."""

    contestant: str
    peer: str
    ours: Mapping[int, float]
    theirs: Mapping[int, float]

    @property
    def seeds(self) -> list[int]:
        return sorted(self.ours.keys() & self.theirs.keys())

    @property
    def differences(self) -> tuple[float, ...]:
        return tuple(self.ours[seed] - self.theirs[seed] for seed in self.seeds)


def compared(task: str, metric: str, family: Sequence[Pairs], source: str) -> Iterator[Row]:
    """Rows of one task and metric. Claims are adjusted for their number, as in a report of the lab."""
    family = [pairs for pairs in family if len(pairs.seeds) >= 2]
    enough = [Evidence(pairs.differences) if len(pairs.seeds) >= fewest_seeds() else None for pairs in family]
    adjusted = holm([evidence.e if evidence else None for evidence in enough])
    for pairs, evidence, e in zip(family, enough, adjusted):
        one_look = paired(pairs.differences)
        low, high = evidence.interval if evidence else (one_look.low, one_look.high)
        difference = one_look.difference
        is_better = (difference > 0) == (metric == "val_acc")
        if evidence is None or e is None:
            outcome = "too few seeds"
        elif e >= DECISIVE:
            outcome = "**better**" if is_better else "**worse**"
        else:
            outcome = undecided(low, high, is_better=is_better)
        mean = sum(pairs.theirs[seed] for seed in pairs.seeds) / len(pairs.seeds)
        relative = tuple(100 * value / mean for value in (difference, low, high))
        text = ("+" if difference > 0 else "") + with_interval(difference, low, high)
        names = (task, pairs.contestant, pairs.peer, MEASURES[metric])
        yield Row(*names, text, len(pairs.seeds), outcome, source, relative)  # type: ignore[arg-type]


def undecided(low: float, high: float, *, is_better: bool) -> str:
    """The outcome where no claim is possible: which way it leans, if the interval of this row alone excludes zero.

    >>> undecided(0.1, 0.3, is_better=False), undecided(-0.1, 0.3, is_better=False)
    ('leans worse', 'undecided')
    """
    return f"leans {'better' if is_better else 'worse'}" if low > 0 or high < 0 else "undecided"


def name_of(configuration: Configuration) -> str:
    """What was trained, in words.

    >>> name_of(Configuration("cifar10", "cnn", 16, True))
    'CNN on CIFAR-10, batches of 16, dropout'
    """
    data = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[configuration.dataset]
    words = [f"{configuration.model.upper()} on {data}"]
    words += [] if configuration.batch_size == 128 else [f"batches of {configuration.batch_size}"]
    return ", ".join([*words, *(["dropout"] if configuration.dropout else [])])


def of_the_paper(runs: Sequence[Run]) -> Iterator[Row]:
    """The three published variants against Adam, at the latest of the paper's epochs that three pairs reached."""
    replication = Replication(runs)
    for configuration in configurations():
        epoch = next((e for e in (45, 20, 3) if len(replication.reached(configuration, "AdamS", e)) >= 3), 3)
        for metric in ("val_acc",) if configuration.model == "cnn" else ("train_loss", "val_loss"):
            adam = replication.values(configuration, "Adam", metric, epoch)
            family = [
                Pairs(name, "Adam", replication.values(configuration, name, metric, epoch), adam)
                for name in ("AdamUCB", "AdamCB", "AdamS")
            ]
            command = f"`surefoot paper {configuration.model}`"
            yield from compared(f"{name_of(configuration)}, {epoch} epochs", metric, family, command)


def of_the_parts(runs: Sequence[Run]) -> Iterator[Row]:
    """The parts of the method, each against what one would use else."""
    questions = [
        ("std scale alone", "plain Adam"),
        ("std scale alone", "Adam at half the learning rate"),
        ("std scale alone", "cosine decay"),
        ("std scale alone", "schedule-free AdamW"),
        ("tilt alone, eta 0.1", "plain Adam"),
    ]
    short = {"std scale alone": "the scale alone", "tilt alone, eta 0.1": "the tilt alone", "plain Adam": "Adam"}
    short |= {"Adam at half the learning rate": "Adam, half the rate", "cosine decay": "Adam, cosine decay"}
    for configuration in (Configuration("mnist", "lr", 128, False), Configuration("mnist", "mlp", 128, False)):
        by_variant = runs_by_variant(runs, configuration)
        command = f"`surefoot paper ablation --model {configuration.model}`"
        for epochs, metric in itertools.product((12, 45), ("train_loss", "val_loss")):
            sides = {name: values(at_horizon(of, epochs), metric, epochs) for name, of in by_variant.items()}
            family = [
                Pairs(short.get(ours, ours), short.get(theirs, theirs), sides.get(ours, {}), sides.get(theirs, {}))
                for ours, theirs in questions
            ]
            yield from compared(f"{name_of(configuration)}, {epochs} epochs", metric, family, command)
    cnn = Configuration("cifar10", "cnn", 128, False)
    epochs, by_rate = runs_by_rate(runs, cnn)
    at = {name: {lr: values(of, "val_acc", epochs) for lr, of in rates.items()} for name, rates in by_rate.items()}
    family = [
        Pairs("the scale alone, lr 0.001", "Adam, lr 0.001", at["std scale alone"][1e-3], at["plain Adam"][1e-3]),
        Pairs("the scale alone, lr 0.001", "Adam, lr 0.0005", at["std scale alone"][1e-3], at["plain Adam"][5e-4]),
        Pairs("the scale alone, lr 0.0005", "Adam, lr 0.0005", at["std scale alone"][5e-4], at["plain Adam"][5e-4]),
    ]
    source = "`surefoot paper ablation --model cnn`"
    yield from compared(f"{name_of(cnn)}, 10000 images, {epochs} epochs", "val_acc", family, source)


def values(runs: Sequence[Run], metric: str, epoch: int) -> dict[int, float]:
    return {run.seed: value for run in runs for value in values_at([run], metric, epoch)}


def with_bounds() -> Iterator[Row]:
    """The default bounds on the weights against Adam, on fresh seeds."""
    with (ROOT / "results" / "gain" / "runs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "fresh" and row["gain"] in ("", "0.3 to 1.5")]
    source = "[gain](../results/gain/README.md#again)"
    for task, images in sorted({(row["task"], row["images"]) for row in rows}):
        here = [row for row in rows if row["task"] == task]
        sides = {
            name: {
                int(row["seed"]): float(row["valid_loss"]) for row in here if (row["optimizer"], row["gain"]) == name
            }
            for name in (("Adam", ""), ("AdamS", "0.3 to 1.5"))
        }
        family = [Pairs("AdamS", "Adam", sides["AdamS", "0.3 to 1.5"], sides["Adam", ""])]
        size = "" if images == "all" else f", {images} images"
        yield from compared(f"{task}{size}, {here[0]['epoch']} epochs", "val_loss", family, source)


def from_adamw() -> Iterator[Row]:
    """A transformer, where AdamW is replaced and nothing else."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "from_adamw.json").read_text())["measured"]
    sides = {name: dict(enumerate(losses)) for name, losses in measured.items()}
    adamw = sides.pop("torch.optim.AdamW")
    names = {"AdamS": "AdamS, with L2 decay", 'AdamWS, weighting="unit"': "AdamWS, unit"}
    family = [Pairs(names.get(name, name), "AdamW", losses, adamw) for name, losses in sides.items()]
    task = "character transformer, 1000 steps"
    yield from compared(task, "val_loss", family, "[from_adamw.py](../benchmarks/results/from_adamw.md)")


def tables(path: Path) -> Iterator[list[dict[str, str]]]:
    """The tables of a Markdown file, as rows by their headers."""
    for block in re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in block.splitlines()]
        yield [dict(zip(header, row)) for row in rows]


def reported(
    task: str, contestant: str, peer: str, row: Mapping[str, str], mean: str, source: str, margin: str = ""
) -> Row:
    """A row that a command of the lab wrote: its difference, interval and verdict are taken as they are."""
    text = row["difference (95%)"]
    numbers = [float(part) for part in re.findall(r"-?\d+(?:\.\d+)?(?:e-\d+)?", text)]
    verdict = next(value for name, value in row.items() if name.startswith("verdict"))
    if " is better than " in verdict:
        outcome = "**worse**"
    elif " beats " in verdict:
        outcome = "**better**"
    elif " are equal within " in verdict:
        outcome = f"equal within {margin}"
    else:
        outcome = undecided(*numbers[1:], is_better=numbers[0] < 0)
        if row.get("not inferior") == "yes":
            outcome = f"{outcome}, not inferior by {margin}"
    relative = tuple(100 * value / float(mean.partition("±")[0]) for value in numbers)
    sign = "" if text.startswith(("+", "-")) else "+"
    names = (task, contestant, peer, "validation loss")
    return Row(*names, sign + text, int(row["n"]), outcome, source, relative)  # type: ignore[arg-type]


def of_the_demo() -> Iterator[Row]:
    """What `make demo` compares on the digits: every table of the validation loss; its first row is the peer."""
    path = ROOT / "results" / "demo.md"
    for (part, title), table in zip(titles(path), tables(path), strict=True):
        if ": validation loss" not in title or "difference (95%)" not in table[0]:
            continue
        task = f"{title.partition(':')[0]}, 20 epochs" + (", 40 % wrong labels" if part == "Examples" else "")
        for row in table[1:]:
            peer, mean = table[0]["optimizer"], table[0]["mean±std"]
            yield reported(task, row["optimizer"], peer, row, mean, "[demo](../results/demo.md)")


def titles(path: Path) -> list[tuple[str, str]]:
    """The last heading and the last line of bold text before each table."""
    text = path.read_text()
    ends = [match.start() for match in re.finditer(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    patterns = (r"^## (.+)$", r"^\*\*(.+?)\*\*")
    last = [[(re.findall(pattern, text[:end], re.MULTILINE) or [""])[-1] for pattern in patterns] for end in ends]
    return [(part, title) for part, title in last]


def of_the_averages() -> Iterator[Row]:
    """The any-time average against the best of its peers, at every horizon."""
    for path in sorted((ROOT / "results" / "anytime").glob("*.md"), key=lambda path: path.stem):
        table = next((rows for rows in tables(path) if "best peer" in rows[0]), [])
        margins = re.findall(r"--margin (\d+(?:\.\d+)?)%", path.read_text())
        margin = f"{margins[0]} %" if margins else "the margin"
        contestant = "any-time average" + (" and rate" if path.stem.endswith(RATE) else "")
        for row in table:
            task = f"{path.stem.removesuffix(RATE)}, {count(int(row['epochs']), 'epoch')}"
            source = f"[anytime](../results/anytime/{path.name})"
            yield reported(task, contestant, row["best peer"], row, row["its mean"], source, margin)
        together = next((rows for rows in tables(path) if "difference over all horizons, % (95%)" in rows[0]), [])
        if together:
            yield nearest(f"{path.stem.removesuffix(RATE)}, {TOGETHER}", contestant, together, source)


def nearest(task: str, contestant: str, rows: Sequence[Mapping[str, str]], source: str) -> Row:
    """Over all horizons together: the peer that is the hardest to beat."""
    numbers = [
        [float(x) for x in re.findall(r"-?[\d.]+", row["difference over all horizons, % (95%)"])] for row in rows
    ]
    (middle, low, high), row = max(zip(numbers, rows, strict=True), key=lambda pair: pair[0][0])
    outcome = next(value for name, value in row.items() if name.startswith("verdict"))
    outcome = f"**{outcome}**" if outcome in ("better", "worse") else undecided(low, high, is_better=middle < 0)
    text = f"{middle:+g} % ({low:g} to {high:g})"
    names = (task, contestant, row["peer"], "validation loss")
    return Row(*names, text, int(row["n"]), outcome, source, (middle, low, high))


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the picture, in its order; of the any-time averages all horizons together, and the worst one."""
    chosen = [
        row
        for task, contestant, peer in MAIN
        for row in rows
        if row.task.startswith(task)
        and (row.contestant, row.peer, row.measure) == (contestant, peer, "validation loss")
    ]
    averages = [row for row in rows if row.contestant.startswith("any-time average")]
    worst: dict[str, Row] = {}
    for row in averages:
        if row.contestant == "any-time average" and not row.task.endswith(TOGETHER):
            name = row.task.partition(",")[0]
            worst[name] = max(worst.get(name, row), row, key=lambda row: row.relative[0])  # type: ignore[index]
    return [*chosen, *(row for row in averages if row.task.endswith(TOGETHER)), *worst.values()]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Each row as a point with its interval, in percent of the peer's validation loss."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "surefoot", "svg.fonttype": "path", "font.size": 8.5}
    colours = {"**better**": "#1b7837", "**worse**": "#b2182b"}
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(rows) + 0.9), layout="constrained")
    for place, row in enumerate(reversed(rows)):
        middle, low, high = row.relative or (0.0, 0.0, 0.0)
        colour = colours.get(row.outcome, "#555555")
        axes.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
        axes.plot([middle], [place], "o", color=colour, markersize=6)
    axes.axvline(0, color="#000000", linewidth=0.8)
    labels = [f"{row.contestant} against {row.peer}\n{row.task}, {row.n} seeds" for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlabel("validation loss: difference in %, with 95 % interval")
    axes.text(0, len(rows) - 0.4, "better  ←   →  worse", ha="center")
    axes.set_ylim(-0.6, len(rows))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.4)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")


def collect() -> list[Row]:
    runs = read_archive(ROOT / "results" / "paper" / "runs.jsonl")
    first = [*from_adamw(), *of_the_averages(), *of_the_demo(), *with_bounds()]
    rows = [*first, *of_the_paper(runs), *of_the_parts(runs)]
    return sorted(rows, key=lambda row: "transformer" not in row.task)  # first what most readers train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write the page and the picture")
    rows = collect()
    table = markdown(HEADER, [row.cells for row in rows])
    if parser.parse_args().save:
        PAGE.write_text(filled(PAGE.read_text(), {"table": f"{table}\n"}))
        draw(main_rows(rows), PICTURE)
    else:
        print(table)


if __name__ == "__main__":
    main()
