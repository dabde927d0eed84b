"""The figures of the paper and of its ablation, made from the runs.

Only what was run is drawn. A figure without runs is None, and the scorecard says that it is missing.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from surefoot.lab.analyse.stats import Paired, mean_std, paired
from surefoot.lab.report.figures import Axis, Figure, Line, Markers, Panel, band, mean_curve
from surefoot.lab.store import Run
from surefoot.paper import why
from surefoot.paper.ablation import IMAGES, at_horizon, runs_by_rate, runs_by_variant
from surefoot.paper.cells import RECORDED, PaperSetting, Replication, paired_differences, values_at
from surefoot.paper.claims import against, judge_all
from surefoot.paper.published import EPOCHS, METRICS, OPTIMIZERS, TITLES, Configuration, configurations, eta_of, find

#: Each optimizer keeps its colour and dash in every figure; Adam, the baseline, is black.
SERIES = {"Adam": 0, "AdamUCB": 1, "AdamCB": 2, "AdamS": 3}
#: The axis of each metric: losses on a log scale.
_AXES = {"train_loss": Axis(scale="log"), "val_loss": Axis(scale="log"), "val_acc": Axis(largest=100.0)}
_HEIGHT = 380
_PUBLISHED = Markers("circle-open")
_CURVES = (
    "Lines: our mean over seeds, bands one standard deviation. Where fewer seeds were trained for longer, another line "
    "goes on; one seed has no band. Points: the published mean ± std of three seeds."
)


@dataclass(frozen=True)
class Figures:
    """The figures that could be drawn, and the names of those that could not."""

    drawn: list[Figure] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def paper_figures(replication: Replication, steps: Mapping[str, Sequence[tuple[float, float]]]) -> Figures:
    """Every figure of the paper and of its ablation, as far as there are runs.

    Args:
        replication: our runs.
        steps: the effective step size by epoch, as `surefoot.paper.steps` reads it.
    """
    by_name = {configuration.name: configuration for configuration in configurations()}
    plain, dropout = by_name["CNN 128"], by_name["CNN 128 with dropout"]
    figures: dict[str, Figure | None] = {
        "gains": gains(replication),
        "claims": claims_forest(replication),
        "surface": surface(),
    }
    for configuration in configurations():
        figures[configuration.name.lower().replace(" ", "-")] = comparison(replication, configuration)
    figures["cnn"] = with_and_without_dropout(replication, plain, dropout)
    figures["dropout-adams"] = dropout_against_adams(replication, plain, dropout)
    for model in ("lr", "mlp", "cnn"):
        figures[f"eta-{model}"] = across_eta(replication, by_name[f"{model.upper()} 128"])
    for model in ("lr", "mlp", "cnn"):
        figures[f"step-size-{model}"] = step_size(steps, by_name[f"{model.upper()} 128"])
    for model in ("lr", "mlp"):
        figures[f"ablation-{model}"] = variants_over_epochs(replication.runs, by_name[f"{model.upper()} 128"])
    figures["ablation-cnn"] = across_rates(replication.runs, plain)
    figures["why"] = why_it_helps(replication.runs, plain)
    return Figures(
        [figure for figure in figures.values() if figure], [name for name, figure in figures.items() if not figure]
    )


def metric_panel(metric: str, title: str, lines: Sequence[Line | None], x: Axis | None = None) -> Panel:
    """The panel of one of the paper's metrics."""
    there = [line for line in lines if line]
    return Panel(title, there, x or Axis("epoch", whole=True), _AXES[metric], height=_HEIGHT)


def curve(
    runs: Sequence[Run], metric: str, label: str, series: int, *, dash: int | None = None, until: float = math.inf
) -> Line | None:
    """The mean of one of the paper's metrics over seeds, in the paper's unit; see `mean_curve`."""
    name, unit = RECORDED[metric]
    return mean_curve(runs, name, label, series, unit=unit, dash=dash, until=until)


def curves(runs: Sequence[Run], metric: str, label: str, series: int, *, dash: int | None = None) -> list[Line]:
    """The mean of one of the paper's metrics over seeds; where runs end, another line goes on with those that are left.

    So all points of a line are means of the same seeds. A single seed has no band.
    """
    name, unit = RECORDED[metric]
    recorded = [{row["epoch"]: unit * row[name] for row in run.epochs if row.get(name) is not None} for run in runs]
    lines: list[Line] = []
    since = 0
    for length in sorted({max(values) for values in recorded if values}):
        left = [values for values in recorded if values and max(values) >= length]
        rows = {epoch: [values[epoch] for values in left] for epoch in range(max(since, 1), length + 1)}
        bands = [band(row) for row in rows.values()] if len(left) > 1 else []
        means = [mean_std(row).mean for row in rows.values()]
        lines.append(Line(f"{label} (n={len(left)})", [float(x) for x in rows], means, series, bands, dash=dash))
        since = length
    return lines


def _published(configuration: Configuration, optimizer: str, metric: str, until: float) -> Line | None:
    epochs = [epoch for epoch in EPOCHS if epoch <= until]
    if not epochs:
        return None
    values = [find(configuration, optimizer, epoch).values[metric] for epoch in epochs]
    return Line(
        "published",
        [float(epoch) for epoch in epochs],
        [value.mean for value in values],
        SERIES[optimizer],
        error=[value.std for value in values],
        text=[f"published, epoch {epoch:g}: {mean:g} ± {std:g}" for epoch, (mean, std) in zip(epochs, values)],
        markers=_PUBLISHED,
        connected=False,
        shift=until / 70 * (SERIES[optimizer] - (len(SERIES) - 1) / 2),
        listed=False,
    )


def _panels(replication: Replication, configuration: Configuration, suffix: str = "") -> list[Panel] | None:
    panels = []
    for metric in METRICS:
        lines: list[Line | None] = []
        for optimizer in OPTIMIZERS:
            eta = eta_of(configuration, optimizer)
            label = optimizer if eta is None else f"{optimizer} {eta:g}"
            ours = curves(list(replication.of(configuration, optimizer).values()), metric, label, SERIES[optimizer])
            if ours:
                lines += [*ours, _published(configuration, optimizer, metric, ours[-1].x[-1])]
        if not lines:
            return None
        panels.append(metric_panel(metric, TITLES[metric] + suffix, lines))
    return panels


def comparison(replication: Replication, configuration: Configuration) -> Figure | None:
    """The four optimizers in one configuration."""
    panels = _panels(replication, configuration)
    name = configuration.name.lower().replace(" ", "-")
    return Figure(name, f"{configuration.name} on {configuration.dataset}", [panels], _CURVES) if panels else None


def with_and_without_dropout(replication: Replication, plain: Configuration, dropout: Configuration) -> Figure | None:
    """Two configurations, one below the other; both must have runs."""
    rows = [_panels(replication, plain, ", no dropout"), _panels(replication, dropout, ", with dropout")]
    if not all(rows):
        return None
    return Figure("cnn", "CNN 128 without and with dropout", [row for row in rows if row], _CURVES)


def dropout_against_adams(replication: Replication, plain: Configuration, dropout: Configuration) -> Figure | None:
    """Adam and AdamS, each with and without dropout."""
    panels = []
    for metric in METRICS:
        pairs = [
            curves(
                list(replication.of(configuration, optimizer).values()),
                metric,
                f"{optimizer}{' + dropout' if configuration.dropout else ''}",
                SERIES[optimizer],
                dash=int(configuration.dropout),  # the colour says which optimizer
            )
            for optimizer in ("Adam", "AdamS")
            for configuration in (plain, dropout)
        ]
        if not all(pairs):
            return None
        panels.append(metric_panel(metric, TITLES[metric], [line for lines in pairs for line in lines]))
    caption = "A training loss under dropout is measured with units dropped: compare it with its own kind."
    return Figure("dropout-adams", "Dropout against AdamS, CNN 128", [panels], caption)


def across_eta(replication: Replication, configuration: Configuration) -> Figure | None:
    """Each variant at several eta against Adam: a grid of variants by metrics."""
    adam = list(replication.of(configuration, "Adam").values())
    rows = []
    for optimizer in OPTIMIZERS[1:]:
        swept = sorted(
            (setting.eta, list(seeds.values()))
            for setting, seeds in replication.by_setting.items()
            if setting == PaperSetting(configuration, optimizer, setting.eta) and setting.eta
        )
        if len(swept) < 2 or not adam:
            return None
        # The published eta may have been trained for longer than the others.
        until = min(max(len(run.epochs) for run in runs) for _, runs in swept)
        row = []
        for metric in METRICS:
            lines = [curve(adam, metric, "Adam", 0, until=until)]
            lines += [curve(runs, metric, f"eta {eta:g}", 1 + k, until=until) for k, (eta, runs) in enumerate(swept)]
            row.append(metric_panel(metric, f"{optimizer}: {TITLES[metric]}", lines))
        rows.append(row)
    caption = "Lines: mean over seeds, bands one standard deviation. Black: Adam."
    return Figure(f"eta-{configuration.model}", f"Sensitivity to eta, {configuration.name}", rows, caption)


def variants_over_epochs(runs: Sequence[Run], configuration: Configuration) -> Figure | None:
    """The ablation on one model, over the longest training that three in four of its variants were given."""
    runs_of = runs_by_variant(runs, configuration)
    lengths = sorted({len(run.epochs) for seeds in runs_of.values() for run in seeds})
    reached = {
        length: {name: ended for name, seeds in runs_of.items() if (ended := at_horizon(seeds, length))}
        for length in lengths
    }
    most = max(map(len, reached.values()), default=0)
    horizon = max((length for length, ended in reached.items() if 4 * len(ended) >= 3 * most), default=0)
    shown = reached.get(horizon, {})
    if len(shown) <= 3:  # Adam and the whole method alone are no ablation
        return None
    panels = []
    for metric in METRICS:
        lines = [curve(shown[name], metric, name, k, until=horizon) for k, name in enumerate(runs_of) if name in shown]
        without_bands = [replace(line, band=()) for line in lines if line]  # a dozen bands would hide the lines
        panels.append(metric_panel(metric, TITLES[metric], without_bands))
    title = f"What does the work: pieces of the method, {configuration.name}, {horizon} epochs"
    caption = "Lines: mean over seeds; their spread is in the table."
    return Figure(f"ablation-{configuration.model}", title, [panels], caption)


def across_rates(runs: Sequence[Run], configuration: Configuration) -> Figure | None:
    """The CNN's ablation: every contestant at every learning rate, at the end."""
    length, by_name = runs_by_rate(runs, configuration)
    panels = []
    for metric in METRICS:
        lines = [
            line for k, (name, by_rate) in enumerate(by_name.items())
            for line in _rates_lines(by_rate, metric, name, k, length)
        ]  # fmt: skip
        if len(by_name) < 2:
            return None
        panels.append(metric_panel(metric, f"{TITLES[metric]}, epoch {length}", lines, Axis("learning rate", "log")))
    title = f"CNN 128, {IMAGES} images: every contestant at every learning rate"
    return Figure("ablation-cnn", title, [panels], "Mean over seeds, bands one standard deviation.")


def _rates_lines(by_rate: Mapping[float, Sequence[Run]], metric: str, name: str, series: int, epoch: int) -> list[Line]:
    """What a contestant reached at each rate: one line for each number of seeds."""
    values = {lr: values_at(seeds, metric, epoch) for lr, seeds in sorted(by_rate.items())}
    lines = []
    for n in sorted({len(row) for row in values.values() if row}, reverse=True):
        alike = {lr: row for lr, row in values.items() if len(row) == n}
        bands = [band(row) for row in alike.values()] if n > 1 else []
        means = [mean_std(row).mean for row in alike.values()]
        lines.append(Line(f"{name} (n={n})", list(alike), means, series, bands, markers=Markers()))
    return lines


@dataclass(frozen=True)
class Estimate:
    """A difference in one row of a forest plot: ours with its interval, and the published one."""

    row: int
    label: str
    series: int
    ours: Paired
    published: float | None = None
    scale: float = 1.0


def forest(title: str, names: Sequence[tuple[str, str]], estimates: Sequence[Estimate], x: Axis) -> Panel:
    """Differences with their intervals, those of a row below each other; one seed has no interval.

    Args:
        title: of the panel.
        names: a name and a note for each row.
        estimates: what is drawn.
        x: the axis of the differences.
    """
    lines = [Line("", [0.0, 0.0], [-0.5, len(names) - 0.5], faint=True)]
    for row in range(len(names)):
        here = [estimate for estimate in estimates if estimate.row == row]
        for k, estimate in enumerate(here):
            y = row + 0.8 * ((k + 0.5) / len(here) - 0.5)
            ours, scale = estimate.ours, estimate.scale
            if estimate.published is not None:
                lines.append(
                    Line("published", [estimate.published / scale], [y], 0, markers=_PUBLISHED, connected=False)
                )
            if ours.n:
                point, text = [ours.difference / scale], [f"{estimate.label} (n={ours.n})"]
                lines.append(
                    Line(estimate.label, point, [y], estimate.series, text=text, markers=Markers(), connected=False)
                )
            if ours.n > 1:
                lines.append(Line("", [ours.low / scale, ours.high / scale], [y, y], estimate.series, dash=0))
    return Panel(title, lines, x, Axis(), height=60 + 40 * len(names), rows=names)


def gains(replication: Replication) -> Figure | None:
    """How many points of validation accuracy each variant gains over Adam, published and ours, in every setting."""
    panels: list[Panel] = []
    for epoch in EPOCHS:
        names: list[tuple[str, str]] = []
        estimates: list[Estimate] = []
        for row, configuration in enumerate(configurations()):
            seeds = []
            for optimizer in OPTIMIZERS[1:]:
                contrast = against(configuration, optimizer, "val_acc", epoch)
                ours = paired(list(contrast.values(replication).values()))
                estimates.append(Estimate(row, optimizer, SERIES[optimizer], ours, contrast.published()))
                seeds.append(ours.n)
            name = "" if panels else configuration.name  # the panels share their rows
            names.append((name, _seeds(seeds)))
        if any(estimate.ours.n for estimate in estimates):
            axis = Axis("points of validation accuracy ahead of Adam", span=(-6.0, 9.0))
            panels.append(forest(f"after {epoch} epochs", names, estimates, axis))
    caption = (
        "Right of zero: better than Adam. Filled: ours, with the 95% interval of the difference paired by seed; one "
        "seed has none, and decides nothing, as does an interval that contains zero. Open: the published means."
    )
    return Figure("gains", "What each variant gains over Adam", [panels], caption) if panels else None


def claims_forest(replication: Replication) -> Figure | None:
    """Every claim with all lines of evidence that count: ours as a share of the published difference."""
    verdicts = judge_all(replication)
    if all(verdict.word == "not run" for verdict in verdicts):
        return None
    names: list[tuple[str, str]] = []
    estimates: list[Estimate] = []
    for row, verdict in enumerate(verdicts):
        counting = [result for result in verdict.results if result.contrast.in_the_tables]
        seeds = _seeds([result.paired.n for result in counting])
        names.append(
            (
                "\n".join(textwrap.wrap(verdict.claim.title, 44)),
                verdict.word if seeds == verdict.word else f"{verdict.word}\n{seeds}",
            )
        )
        for result in counting:
            contrast, published = result.contrast, result.contrast.published()
            low, high = contrast.edges
            # Where no difference is claimed, the margin takes the place of the published difference.
            scale = high if contrast.band is not None and low < 0 < high and not contrast.ratio else published
            series = 1 + METRICS.index(contrast.metric)
            estimates.append(Estimate(row, TITLES[contrast.metric], series, result.paired, published, scale))
    axis = Axis("share of the published difference (0: none, 1: as published)", span=(-2.5, 4.0))
    panel = replace(forest("", names, estimates, axis), wide=True)
    caption = (
        "Filled: each line of evidence of a claim, our difference with its 95% interval, divided by the published one "
        "(open). Where a claim says that there is no difference, both are divided by the margin of half a point. "
        "Intervals that leave the picture are cut. A verdict takes six paired seeds."
    )
    return Figure("claims", "Every claim of the paper: published and ours", [[panel]], caption)


def _seeds(counts: Sequence[int]) -> str:
    """How many pairs there are.

    >>> _seeds([6, 6]), _seeds([3, 1, 6]), _seeds([0, 0])
    ('n=6', 'n=1 to 6', 'not run')
    """
    least, most = min(counts), max(counts)
    return "not run" if not most else f"n={most}" if least == most else f"n={least} to {most}"


def why_it_helps(runs: Sequence[Run], configuration: Configuration) -> Figure | None:
    """The study of `surefoot.paper.why`: the gain over Adam of each kind of weights, at each rate and length."""
    rows = []
    for lr in why.RATES:
        by_name = why.runs_by_contestant(runs, configuration, lr)
        panels: list[Panel] = []
        for epoch in why.HORIZONS:
            names: list[tuple[str, str]] = []
            estimates: list[Estimate] = []
            for name, seeds in by_name.items():
                ours = paired(paired_differences(seeds, by_name.get(why.ADAM, []), "val_acc", epoch))
                if name != why.ADAM and ours.n:
                    estimates.append(Estimate(len(names), "gain over Adam", 1, ours))
                    names.append((name if not panels else "", f"n={ours.n}"))
            if len(estimates) > 1:  # beside the scale itself
                axis = Axis("points of validation accuracy ahead of Adam")
                panels.append(forest(f"lr {lr:g}, {epoch} epochs", names, estimates, axis))
        if panels:
            rows.append(panels)
    title = f"Why the scale helps: CNN 128, {IMAGES} images"
    caption = "Difference from Adam paired by seed, with its 95% interval."
    return Figure("why", title, rows, caption) if rows else None


def step_size(steps: Mapping[str, Sequence[tuple[float, float]]], configuration: Configuration) -> Figure | None:
    """The effective step size, a factor of lr, beside that of a cosine decay over the same training."""
    prefix = f"{configuration.name}: "
    points_of = {name.removeprefix(prefix): points for name, points in steps.items() if name.startswith(prefix)}
    if not points_of:
        return None
    end = max(points[-1][0] for points in points_of.values())
    lines = [
        Line(name, [x for x, _ in points], [y for _, y in points], 1 + k)
        for k, (name, points) in enumerate(points_of.items())
    ]
    grid = [end * k / 200 for k in range(201)]
    lines.append(Line("cosine", grid, [0.5 * (1 + math.cos(math.pi * x / end)) for x in grid], dash=1))
    caption = (
        "The mean of recent weights over the root mean square of past weights: what multiplies Adam's step when the "
        "gradient is weighted. Cosine decay reaches zero at the planned end; the weights know of no end."
    )
    panel = Panel("factor of the step size", lines, y=Axis("factor of lr"), height=_HEIGHT)
    name = f"{configuration.name}, {IMAGES} images" if configuration.model == "cnn" else configuration.name
    return Figure(f"step-size-{configuration.model}", f"Effective step size, {name}", [[panel]], caption)


def surface() -> Figure:
    """The mean of five mini-batch losses of one parameter, and the surface one std above and below it."""
    grid = [k / 100 for k in range(-200, 201)]
    batches = [(0.0, 0.0, 1.0), (0.5, 0.35, 1.2), (-0.35, -0.3, 0.8), (0.9, -0.15, 1.1), (-0.6, 0.2, 0.9)]
    losses = [[_loss(x, *batch) for x in grid] for batch in batches]
    spreads = [mean_std([loss[k] for loss in losses]) for k in range(len(grid))]
    lines = [Line("a mini-batch", grid, loss, faint=True, listed=False) for loss in losses]
    lines += [
        Line("mean", grid, [spread.mean for spread in spreads]),
        Line("pessimistic: mean + std", grid, [spread.mean + spread.std for spread in spreads], 1, dash=0),
        Line("optimistic: mean - std", grid, [spread.mean - spread.std for spread in spreads], 3, dash=1),
    ]
    caption = (
        "Where the mini-batches agree the three surfaces touch; where they do not, the pessimist sees a hill and the "
        "optimist a valley. A drawing, not a measurement."
    )
    panel = Panel("", lines, Axis("parameter"), Axis("loss"), height=_HEIGHT)
    return Figure("surface", "Optimism and pessimism about one parameter", [[panel]], caption)


def _loss(x: float, shift: float, slope: float, width: float) -> float:
    """Two valleys: one on the left where all batches agree, a deeper one on the right where they do not."""
    shared = 1.6 - 0.9 * math.exp(-(((x + 1.1) / 0.45) ** 2)) + 0.12 * x * x
    of_this_batch = -1.2 * width * math.exp(-(((x - 0.9 - 0.5 * shift) / 0.5) ** 2))
    return shared + of_this_batch + 0.25 * slope * math.exp(-((x / 1.2) ** 2))
