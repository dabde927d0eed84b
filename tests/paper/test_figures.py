"""The figures of the paper: what is drawn, where axes and bands end, and which lines the legend names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from surefoot.lab.report.draw import PALETTE, draw, plotly, y_limits
from surefoot.lab.report.figures import Axis, Figure, Line, Panel, band
from surefoot.lab.store import Run
from surefoot.paper.ablation import (
    variants,
)
from surefoot.paper.cells import Replication
from surefoot.paper.figures import (
    claims_forest,
    comparison,
    curve,
    curves,
    gains,
    paper_figures,
    surface,
    variants_over_epochs,
    why_it_helps,
)
from surefoot.paper.published import OPTIMIZERS, configurations
from surefoot.paper.why import ADAM, SCALE, contestants

LR, MLP, _, _, CNN, CNN_DROPOUT, _ = configurations()
MakeRun = Callable[..., Run]


@pytest.fixture
def jumpy(paper_run: MakeRun) -> list[Run]:
    """Three seeds of every optimizer of which one jumps: mean - std is below zero, mean + std above 100 %."""
    luck = [(0.001, 0.999), (0.001, 0.999), (0.9, 0.3)]
    return [
        paper_run(LR, name, seed, final=final, accuracy=accuracy)
        for name in OPTIMIZERS
        for seed, (final, accuracy) in enumerate(luck)
    ]


def figure_of(runs: list[Run]) -> Figure:
    figure = comparison(Replication(runs), LR)
    assert figure is not None
    return figure


def test_bands_end_where_the_seeds_end(jumpy: list[Run]) -> None:
    assert band([1.0, 3.0, 2.0]) == (1.0, 3.0)
    for metric, least, most in (("train_loss", 0.0, math.inf), ("val_acc", 30.0 - 1e-9, 99.9 + 1e-9)):
        line = curve(jumpy[:3], metric, "Adam", 0)
        assert line is not None
        assert all(least < low <= y <= high <= most for y, (low, high) in zip(line.y, line.band))
    shown = [plotly(panel)["data"][0]["y"] for panel in figure_of(jumpy).rows[0]]  # the first band
    assert min(shown[0]) > 0
    assert max(shown[2]) <= 99.9 + 1e-9


def test_a_line_has_the_same_seeds_everywhere_and_one_seed_no_band(paper_run: MakeRun) -> None:
    lengths = {0: 7, 1: 3, 2: 3}
    runs = [paper_run(LR, "Adam", seed, epochs=epochs, final=0.1 + 0.1 * seed) for seed, epochs in lengths.items()]
    short, long = curves(runs, "train_loss", "Adam", 0)
    assert (short.label, long.label) == ("Adam (n=3)", "Adam (n=1)")
    assert (short.x, long.x) == ([1.0, 2.0, 3.0], [3.0, 4.0, 5.0, 6.0, 7.0])
    assert short.y[-1] == pytest.approx(sum(run.epochs[2]["train_loss"] for run in runs) / 3)
    assert long.y[0] == pytest.approx(runs[0].epochs[2]["train_loss"])  # not the mean of the three
    assert len(short.band) == 3
    assert not long.band
    panel = figure_of(runs).rows[0][0]
    assert [line.label for line in panel.lines] == ["Adam (n=3)", "Adam (n=1)", "published"]


def test_the_axis_ends_where_lines_and_points_end(jumpy: list[Run]) -> None:
    figure = figure_of(jumpy)
    for axes, panel in zip(draw(figure).axes, figure.rows[0]):
        values = [y for line in panel.lines for y in line.y]
        low, high = axes.get_ylim()
        assert low < min(values) <= max(values) <= high
        if panel.y.scale == "log":
            assert low > 0.5 * min(values)
        else:
            assert high <= 100
    level = Panel("", [Line("", [1.0], [99.9]), Line("", [1.0], [50.0])], y=Axis(largest=100.0))
    assert y_limits(level)[1] == 100.0
    assert y_limits(Panel("", [Line("", [1.0], [0.0])], y=Axis(scale="log"))) == (0.1, 1.0)
    assert y_limits(Panel("", [Line("", [1.0], [2.0])]))[0] < 2.0


def test_lines_differ_in_dash_and_points_stand_side_by_side(jumpy: list[Run]) -> None:
    figure = figure_of(jumpy)
    axes = draw(figure).axes[0]
    points = [container for container in axes.containers if container.get_label() != ""]
    places = [float(point.lines[0].get_xdata()[0]) for point in points]
    assert len(places) == len(set(places)) == 4
    assert all(abs(place - 3.0) < 0.5 for place in places)
    marks = {id(part) for point in points for part in (point.lines[0], *point.lines[1])}
    lines = [line for line in axes.get_lines() if id(line) not in marks]
    assert len({str(line._dash_pattern) for line in lines}) == 4  # type: ignore[attr-defined]
    traces = [trace for trace in plotly(figure.rows[0][0])["data"] if trace["mode"] == "markers"]
    assert [trace["x"][0] for trace in traces] == pytest.approx(places)
    assert traces[0]["text"][0] == "published, epoch 3: 0.284 ± 0"


def test_a_dash_of_its_own_is_drawn_in_the_page_too() -> None:
    lines = plotly(surface().rows[0][0])["data"][-3:]
    assert [(line["series"], line.get("line", {}).get("dash")) for line in lines] == [
        (0, None), (1, "solid"), (3, "9px,3px"),
    ]  # fmt: skip


def test_the_legend_fits_the_figure() -> None:
    figure = draw(surface())
    figure.draw_without_rendering()
    [legend] = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert box.x0 > 0.05 * whole.width
    assert box.x1 < 0.95 * whole.width


def test_only_what_was_run_is_drawn(lr_runs: list[Run]) -> None:
    figures = paper_figures(Replication(lr_runs), {})
    assert [figure.name for figure in figures.drawn] == ["gains", "claims", "surface", "lr-128"]
    assert {"cnn", "dropout-adams", "eta-cnn", "step-size-mlp", "ablation-mlp", "ablation-cnn"} <= set(figures.missing)


def test_every_figure(every_run: list[Run]) -> None:
    steps = {f"{configuration.name}: AdamS": [(0.5, 1.0), (1.0, 0.5)] for configuration in (LR, MLP, CNN)}
    figures = paper_figures(Replication(every_run), steps)
    assert figures.missing == []
    shapes = {figure.name: (len(figure.rows), len(figure.rows[0])) for figure in figures.drawn}
    assert shapes["eta-cnn"] == (3, 3)
    assert shapes["cnn"] == (2, 3)
    assert shapes["dropout-adams"] == (1, 3)
    eta = next(figure for figure in figures.drawn if figure.name == "eta-cnn")
    assert [line.label for line in eta.rows[2][1].lines] == [
        "Adam (n=1)",
        "eta 0.0001 (n=1)",
        "eta 2 (n=1)",
        "eta 3 (n=1)",
    ]
    rates = next(figure for figure in figures.drawn if figure.name == "ablation-cnn")
    assert [list(line.x) for line in rates.rows[0][0].lines] == [[5e-4, 1e-3]] * 2
    cosine = next(figure for figure in figures.drawn if figure.name == "step-size-mlp").rows[0][0].lines[-1]
    assert (cosine.label, cosine.y[0], cosine.y[-1]) == ("cosine", 1.0, pytest.approx(0.0))


def test_the_ablation_is_drawn_at_the_longest_training_that_enough_pieces_have(every_run: list[Run]) -> None:
    def drawn(runs: list[Run]) -> Figure:
        return next(figure for figure in paper_figures(Replication(runs), {}).drawn if figure.name == "ablation-mlp")

    before = drawn(every_run)
    for run in every_run:
        if run.config.optimizer.class_path == "torch.optim.Adam" and not run.config.optimizer.schedule:
            run.epochs.append({**run.epochs[-1], "epoch": len(run.epochs) + 1})
    after = drawn(every_run)
    assert after.title == before.title
    assert [list(line.x) for line in after.rows[0][0].lines] == [list(line.x) for line in before.rows[0][0].lines]


def test_runs_on_their_way_are_no_result_of_the_ablation(every_run: list[Run]) -> None:
    runs = [
        replace(run, config=replace(run.config, epochs=run.config.epochs + ("subset" in run.config.task.settings)))
        for run in every_run
    ]
    assert "ablation-cnn" in paper_figures(Replication(runs), {}).missing


def test_published_points_stand_on_the_curves_that_reach_them(lr_runs: list[Run]) -> None:
    figure = next(figure for figure in paper_figures(Replication(lr_runs), {}).drawn if figure.name == "lr-128")
    marks = [line for line in figure.rows[0][0].lines if not line.connected]
    assert [(list(line.x), list(line.y)) for line in marks] == [
        ([3.0], [0.284]), ([3.0], [0.298]), ([3.0], [0.333]), ([3.0], [0.298]),
    ]  # fmt: skip
    axes = draw(figure).axes
    assert [panel.get_title() for panel in axes] == ["training loss", "validation loss", "validation accuracy (%)"]
    assert axes[0].get_yscale() == "log"


def test_legend_names_each_line_by_its_colour(every_run: list[Run]) -> None:
    figure = next(figure for figure in paper_figures(Replication(every_run), {}).drawn if figure.name == "cnn")
    legend = draw(figure).axes[0].get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    shown = {name: line.get_color() for name, line in zip(texts, legend.legend_handles) if name != "published"}
    names = ("Adam (n=1)", "AdamUCB 0.01 (n=1)", "AdamCB 5e-05 (n=1)", "AdamS 0.0001 (n=1)")
    assert [shown[name] for name in names] == list(PALETTE[:4])


def test_a_curve_needs_no_run_that_is_still_going(paper_run: MakeRun) -> None:
    done, lost = paper_run(LR, seed=0, final=0.5), paper_run(LR, seed=1, epochs=2, diverged=True)
    going = Run(done.folder, replace(done.config, seed=2), done.epochs[:1])
    line = curve([done, going, lost], "train_loss", "Adam", 0)
    assert line is not None
    assert (list(line.x), line.y[-1]) == ([1.0, 2.0, 3.0], 0.5)
    assert len(curve([going], "train_loss", "Adam", 0).x) == 1  # type: ignore[union-attr]
    assert curve([lost], "val_acc", "Adam", 0) is not None
    assert curve([], "train_loss", "Adam", 0) is None


def test_figures_without_a_run() -> None:
    assert [figure.name for figure in paper_figures(Replication([]), {}).drawn] == ["surface"]


def test_the_figure_is_of_the_length_that_most_variants_have(variant_run: MakeRun) -> None:
    names = list(variants(MLP))[:6]
    runs = [variant_run(MLP, variants(MLP)[name], 0, epochs=12) for name in names]
    ahead = [variant_run(MLP, variants(MLP)[name], 1, epochs=17) for name in names[:4]]  # on their way to 45
    figure = variants_over_epochs([*runs, *ahead], MLP)
    assert figure is not None
    assert "12 epochs" in figure.title
    assert len(figure.rows[0][0].lines) == 6
    fifth = variant_run(MLP, variants(MLP)[names[4]], 1, epochs=17)  # all but one, which was given up
    longer = variants_over_epochs([*runs, *ahead, fifth], MLP)
    assert longer is not None
    assert "17 epochs" in longer.title
    assert len(longer.rows[0][0].lines) == 5


def test_gains_have_an_interval_only_with_two_seeds(paper_run: MakeRun) -> None:
    runs = [
        paper_run(configuration, name, seed, accuracy=accuracy + 0.01 * seed + 0.001 * seed * (name == "AdamS"))
        for configuration, seeds in ((LR, 3), (CNN, 1))
        for name, accuracy in (("Adam", 0.9), ("AdamS", 0.93))
        for seed in range(seeds)
    ]
    figure = gains(Replication(runs))
    assert figure is not None
    [[panel]] = figure.rows  # no run is longer than three epochs
    assert [note for _, note in panel.rows] == [
        "n=0 to 3", "not run", "not run", "not run", "n=0 to 1", "not run", "not run",
    ]  # fmt: skip
    ours = [line for line in panel.lines if line.label == "AdamS"]
    assert [round(line.x[0], 6) for line in ours] == [3.1, 3.0]
    intervals = [line for line in panel.lines if not line.label and len(set(line.y)) == 1]
    assert [round(sum(line.x) / 2, 6) for line in intervals] == [3.1]
    assert len([line for line in panel.lines if line.label == "published"]) == 7 * 3
    axes = draw(figure).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["LR 128", "MLP 128"]
    assert axes.get_ylim() == (6.5, -0.5)


def test_every_claim_is_a_row_of_the_forest(paper_run: MakeRun) -> None:
    assert claims_forest(Replication([])) is None
    runs = [paper_run(LR, name, seed, final=0.3) for name in OPTIMIZERS for seed in range(3)]
    figure = claims_forest(Replication(runs))
    assert figure is not None
    [[panel]] = figure.rows
    assert len(panel.rows) == 15
    assert panel.rows[0][1] == "undecided\nn=0 to 3"
    published = [line.x[0] for line in panel.lines if line.label == "published"]
    assert published.count(1.0) == len(published) - 3  # the claim of no difference has a margin instead
    assert "training loss" in {line.label for line in panel.lines}


def test_why_is_drawn_once_there_is_more_than_the_scale(variant_run: MakeRun) -> None:
    def run(name: str, seed: int, accuracy: float) -> Run:
        return variant_run(CNN, contestants(1e-3)[name], seed, accuracy=accuracy, settings={"subset": 10_000})

    runs = [run(name, seed, 0.6 + 0.01 * seed) for name in (ADAM, SCALE) for seed in range(3)]
    assert why_it_helps(runs, CNN) is None
    runs += [run("reciprocal of the std", seed, 0.5 + 0.01 * seed) for seed in range(2)]
    figure = why_it_helps(runs, CNN)
    assert figure is not None
    [[panel]] = figure.rows
    assert list(panel.rows) == [("std scale alone", "n=3"), ("reciprocal of the std", "n=2")]
    assert panel.title == "lr 0.001, 3 epochs"
    assert [round(line.x[0], 6) for line in panel.lines if line.label] == [0.0, -10.0]
