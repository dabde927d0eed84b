"""What the figures show: panels of lines, taken from the runs.

Only what was run is drawn. A picture without runs is None, and the scorecard says that it is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from surefoot.lab.analyse.groups import value_at
from surefoot.lab.analyse.stats import mean_std
from surefoot.lab.store import Run
from surefoot.paper.ablation import IMAGES, at_horizon, pieces_run, rates_run
from surefoot.paper.cells import RECORDED, Place, Replication
from surefoot.paper.panels import Line, Panel, Picture, band, curve, in_units, metric_panel
from surefoot.paper.published import (
    EPOCHS,
    METRICS,
    OPTIMIZERS,
    TITLES,
    Configuration,
    configurations,
    eta_of,
    find,
)

#: Each optimizer keeps its colour and dash in every figure; Adam, the baseline, is black.
SERIES = {"Adam": 0, "AdamUCB": 1, "AdamCB": 2, "AdamS": 3}


@dataclass(frozen=True)
class Gallery:
    """The pictures that could be drawn, and the names of those that could not."""

    pictures: list[Picture] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def gallery(replication: Replication, steps: Mapping[str, Sequence[tuple[float, float]]]) -> Gallery:
    """Every picture of the paper and of its ablation, as far as there are runs.

    Args:
        replication: our runs.
        steps: the effective step size by epoch, as `surefoot.paper.steps` reads it.
    """
    by_name = {one.name: one for one in configurations()}
    plain, dropout = by_name["CNN 128"], by_name["CNN 128 with dropout"]
    found: dict[str, Picture | None] = {"surface": surface()}
    for one in configurations():
        found[one.name.lower().replace(" ", "-")] = comparison(replication, one)
    found["cnn"] = stacked(replication, [plain, dropout])
    found["dropout-adams"] = dropout_against_adams(replication, plain, dropout)
    for model in ("lr", "mlp", "cnn"):
        found[f"eta-{model}"] = across_eta(replication, by_name[f"{model.upper()} 128"])
    for model in ("lr", "mlp", "cnn"):
        found[f"step-size-{model}"] = step_size(steps, by_name[f"{model.upper()} 128"])
    for model in ("lr", "mlp"):
        found[f"ablation-{model}"] = taken_apart(replication.runs, by_name[f"{model.upper()} 128"])
    found["ablation-cnn"] = across_rates(replication.runs, plain)
    return Gallery([one for one in found.values() if one], [name for name, one in found.items() if not one])


def _theirs(one: Configuration, optimizer: str, metric: str, until: float) -> Line | None:
    epochs = [epoch for epoch in EPOCHS if epoch <= until]
    values = [find(one, optimizer, epoch).values[metric] for epoch in epochs]
    if not epochs:
        return None
    x, y, spread = [float(epoch) for epoch in epochs], [value.mean for value in values], [value.std for value in values]
    series = SERIES[optimizer]
    shift = until / 70 * (series - (len(SERIES) - 1) / 2)
    return Line("published", x, y, series, spread=spread, marks=True, shift=shift)


def _panels(replication: Replication, one: Configuration, suffix: str = "") -> list[Panel] | None:
    panels = []
    for metric in METRICS:
        lines: list[Line] = []
        for optimizer in OPTIMIZERS:
            eta = eta_of(one, optimizer)
            label = optimizer if eta is None else f"{optimizer} {eta:g}"
            ours = curve(list(replication.of(one, optimizer).values()), metric, label, SERIES[optimizer])
            if ours:
                lines.append(ours)
                theirs = _theirs(one, optimizer, metric, ours.x[-1])
                lines += [theirs] if theirs else []
        if not lines:
            return None
        panels.append(metric_panel(metric, TITLES[metric] + suffix, lines))
    return panels


_CURVES = "Lines: our mean over seeds, bands one standard deviation. Points: the published mean ± std of three seeds."


def comparison(replication: Replication, one: Configuration) -> Picture | None:
    """The four optimizers in one configuration."""
    panels = _panels(replication, one)
    name = one.name.lower().replace(" ", "-")
    return Picture(name, f"{one.name} on {one.dataset}", [panels], _CURVES) if panels else None


def stacked(replication: Replication, several: Sequence[Configuration]) -> Picture | None:
    """Several configurations, one below the other; all of them must have runs."""
    rows = [_panels(replication, one, f", {'with' if one.dropout else 'no'} dropout") for one in several]
    if not all(rows):
        return None
    return Picture("cnn", "CNN 128 without and with dropout", [row for row in rows if row], _CURVES)


def dropout_against_adams(replication: Replication, plain: Configuration, dropout: Configuration) -> Picture | None:
    """Adam and AdamS, each with and without dropout."""
    panels = []
    for metric in METRICS:
        lines = [
            curve(
                list(replication.of(one, optimizer).values()),
                metric,
                f"{optimizer}{' + dropout' if one.dropout else ''}",
                SERIES[optimizer],
                dash=1 if one.dropout else 0,  # the colour tells the optimizer, the dash whether units were dropped
            )
            for optimizer in ("Adam", "AdamS")
            for one in (plain, dropout)
        ]
        if not all(lines):
            return None
        panels.append(metric_panel(metric, TITLES[metric], lines))
    caption = "A training loss under dropout is measured with units dropped: compare it with its own kind."
    return Picture("dropout-adams", "Dropout against AdamS, CNN 128", [panels], caption)


def across_eta(replication: Replication, one: Configuration) -> Picture | None:
    """Each variant at several eta against Adam: a grid of variants by metrics."""
    adam = list(replication.of(one, "Adam").values())
    rows = []
    for optimizer in OPTIMIZERS[1:]:
        swept = sorted(
            (place.eta, list(seeds.values()))
            for place, seeds in replication.places.items()
            if place == Place(one, optimizer, place.eta) and place.eta
        )
        if len(swept) < 2 or not adam:
            return None
        # The published eta may have been trained for longer than the others.
        until = min(max(len(run.epochs) for run in runs) for _, runs in swept)
        row = []
        for metric in METRICS:
            lines = [curve(adam, metric, "Adam", 0, until=until)]
            lines += [curve(runs, metric, f"eta {eta:g}", 1 + k, until=until) for k, (eta, runs) in enumerate(swept)]
            title = f"{optimizer}: {TITLES[metric]}"
            row.append(metric_panel(metric, title, lines))
        rows.append(row)
    caption = "Lines: mean over seeds, bands one standard deviation. Black: Adam."
    return Picture(f"eta-{one.model}", f"Sensitivity to eta, {one.name}", rows, caption)


def taken_apart(runs: Sequence[Run], one: Configuration) -> Picture | None:
    """The pieces of the method on one model, over the longest training that three in four of them were given."""
    found = pieces_run(runs, one)
    lengths = sorted({len(run.epochs) for every in found.values() for run in every})
    reached = {
        length: {name: seeds for name, every in found.items() if (seeds := at_horizon(every, length))}
        for length in lengths
    }
    most = max(map(len, reached.values()), default=0)
    horizon = max((length for length, there in reached.items() if 4 * len(there) >= 3 * most), default=0)
    entries = reached.get(horizon, {})
    if len(entries) <= 3:  # Adam and the whole method alone take nothing apart
        return None
    rows = []
    for metric in METRICS:
        lines = [
            curve(entries[name], metric, name, k, until=horizon) for k, name in enumerate(found) if name in entries
        ]
        bare = [replace(line, band=()) for line in lines if line]  # a dozen bands would hide the lines
        rows.append(metric_panel(metric, TITLES[metric], bare))
    title = f"What does the work: pieces of the method, {one.name}, {horizon} epochs"
    return Picture(f"ablation-{one.model}", title, [rows], "Lines: mean over seeds; their spread is in the table.")


def across_rates(runs: Sequence[Run], one: Configuration) -> Picture | None:
    """The CNN's ablation: every contestant at every learning rate, at the end."""
    length, points = rates_run(runs, one)
    panels = []
    for metric in METRICS:
        lines = []
        for k, (name, by_rate) in enumerate(points.items()):
            recorded, unit = RECORDED[metric]
            seen = {
                lr: in_units([value_at(run, recorded, length) for run in seeds], unit)
                for lr, seeds in sorted(by_rate.items())
            }
            ended = {lr: values for lr, values in seen.items() if values}
            if ended:
                counts = [len(values) for values in ended.values()]
                least, most = min(counts), max(counts)
                label = f"{name} (n={least})" if least == most else f"{name} (n={least} to {most})"
                means = [mean_std(values).mean for values in ended.values()]
                lines.append(Line(label, list(ended), means, k, [band(values) for values in ended.values()]))
        if len(lines) < 2:
            return None
        panels.append(metric_panel(metric, f"{TITLES[metric]}, epoch {length}", lines, "learning rate", log_x=True))
    title = f"CNN 128, {IMAGES} images: every contestant at every learning rate"
    return Picture("ablation-cnn", title, [panels], "Mean over seeds, bands one standard deviation.")


def step_size(steps: Mapping[str, Sequence[tuple[float, float]]], one: Configuration) -> Picture | None:
    """The effective step size, a factor of lr, beside that of a cosine decay over the same training."""
    own = {name.partition(": ")[2]: points for name, points in steps.items() if name.startswith(f"{one.name}: ")}
    if not own:
        return None
    end = max(points[-1][0] for points in own.values())
    lines = [
        Line(name, [x for x, _ in points], [y for _, y in points], 1 + k)
        for k, (name, points) in enumerate(own.items())
    ]
    grid = [end * k / 200 for k in range(201)]
    lines.append(Line("cosine", grid, [0.5 * (1 + math.cos(math.pi * x / end)) for x in grid], dash=1))
    caption = (
        "The mean of recent weights over the root mean square of past weights: what multiplies Adam's step when the "
        "gradient is weighted. Cosine decay reaches zero at the planned end; the weights know of no end."
    )
    panel = Panel("factor of the step size", lines, y="factor of lr")
    name = f"{one.name}, {IMAGES} images" if one.model == "cnn" else one.name
    return Picture(f"step-size-{one.model}", f"Effective step size, {name}", [[panel]], caption)


def surface() -> Picture:
    """The mean of five mini-batch losses of one parameter, and the surface one std above and below it."""
    grid = [k / 100 for k in range(-200, 201)]
    batches = [(0.0, 0.0, 1.0), (0.5, 0.35, 1.2), (-0.35, -0.3, 0.8), (0.9, -0.15, 1.1), (-0.6, 0.2, 0.9)]
    losses = [[_loss(x, *batch) for x in grid] for batch in batches]
    seen = [mean_std([loss[k] for loss in losses]) for k in range(len(grid))]
    lines = [Line("a mini-batch", grid, loss, faint=True) for loss in losses]
    lines += [
        Line("mean", grid, [one.mean for one in seen]),
        Line("pessimistic: mean + std", grid, [one.mean + one.std for one in seen], 1, dash=0),
        Line("optimistic: mean - std", grid, [one.mean - one.std for one in seen], 3, dash=1),
    ]
    caption = (
        "Where the mini-batches agree the three surfaces touch; where they do not, the pessimist sees a hill and the "
        "optimist a valley. A drawing, not a measurement."
    )
    panel = Panel("", lines, "parameter", "loss")
    return Picture("surface", "Optimism and pessimism about one parameter", [[panel]], caption)


def _loss(x: float, shift: float, slope: float, width: float) -> float:
    """Two valleys: one on the left where all batches agree, a deeper one on the right where they do not."""
    shared = 1.6 - 0.9 * math.exp(-(((x + 1.1) / 0.45) ** 2)) + 0.12 * x * x
    own = -1.2 * width * math.exp(-(((x - 0.9 - 0.5 * shift) / 0.5) ** 2))
    return shared + own + 0.25 * slope * math.exp(-((x / 1.2) ** 2))
