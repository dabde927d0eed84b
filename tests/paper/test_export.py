"""The export: one command writes tables, figures, report and page, from runs or from the archive alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from surefoot.lab.report.draw import PALETTE, draw
from surefoot.lab.report.figures import Figure
from surefoot.lab.store import Run
from surefoot.paper.ablation import cnn_variants, variants
from surefoot.paper.archive import read_archive
from surefoot.paper.cells import Replication
from surefoot.paper.export import export, filled, page_parts, report_sections, texts
from surefoot.paper.figures import curve, paper_figures
from surefoot.paper.published import OPTIMIZERS, configurations
from surefoot.paper.steps import NAME, read_steps, record, write_steps

LR, MLP, _, _, CNN, CNN_DROPOUT, _ = configurations()
MakeRun = Callable[..., Run]
Stored = Callable[[Path, list[Run]], Path]


@pytest.fixture
def lr_runs(paper_run: MakeRun) -> list[Run]:
    return [paper_run(LR, name, seed, final=0.25 + 0.01 * seed) for name in OPTIMIZERS for seed in range(2)]


def as_contestant(run: Run, class_path: str, label: str, options: Mapping[str, Any]) -> Run:
    """The run as if another contestant had made it."""
    options = {"lr": 1e-3, "weight_decay": 1e-4, **options}
    optimizer = replace(run.config.optimizer, class_path=class_path, label=label, options=options)
    return replace(run, config=replace(run.config, optimizer=optimizer, key=run.config.key + label))


@pytest.fixture
def every_run(paper_run: MakeRun, lr_runs: list[Run]) -> list[Run]:
    """Enough runs for every figure."""
    luck = random.Random(0)
    runs = list(lr_runs)
    for one in configurations():
        for name in OPTIMIZERS:
            runs.append(paper_run(one, name, 3, final=luck.random()))
            if name != "Adam" and one.batch_size == 128 and not one.dropout:
                runs += [paper_run(one, name, 3, final=luck.random(), options={"eta": eta}) for eta in (2.0, 3.0)]
    for one, some in ((LR, variants(LR)), (MLP, variants(MLP))):
        for variant in some.values():
            run = paper_run(one, "Adam", 3, final=luck.random(), optimizer__schedule=variant.schedule)
            names = {"adam": "torch.optim.Adam", "adamucb": "surefoot.AdamUCB", "adams": "surefoot.AdamS"}
            runs.append(as_contestant(run, names.get(variant.name, variant.name), variant.spec, variant.options))
    for name, variant in cnn_variants(CNN).items():
        if name in ("plain Adam", "std scale alone"):
            for lr in (1e-3, 5e-4):
                run = paper_run(CNN, "Adam", 3, settings={"subset": 10_000}, final=luck.random())
                class_path = "surefoot.AdamUCB" if "eta" in variant.options else "torch.optim.Adam"
                runs.append(as_contestant(run, class_path, f"{name} {lr}", variant.at(lr).options))
    return runs


def test_only_what_was_run_is_drawn(lr_runs: list[Run]) -> None:
    drawn = paper_figures(Replication(lr_runs), {})
    assert [one.name for one in drawn.drawn] == ["surface", "lr-128"]
    assert {"cnn", "dropout-adams", "eta-cnn", "step-size-mlp", "ablation-mlp", "ablation-cnn"} <= set(drawn.missing)


def test_every_figure(every_run: list[Run]) -> None:
    steps = {f"{one.name}: AdamS": [(0.5, 1.0), (1.0, 0.5)] for one in (LR, MLP, CNN)}
    drawn = paper_figures(Replication(every_run), steps)
    assert drawn.missing == []
    shapes = {one.name: (len(one.rows), len(one.rows[0])) for one in drawn.drawn}
    assert shapes["eta-cnn"] == (3, 3)
    assert shapes["cnn"] == (2, 3)
    assert shapes["dropout-adams"] == (1, 3)
    eta = next(one for one in drawn.drawn if one.name == "eta-cnn")
    assert [line.label for line in eta.rows[2][1].lines] == [
        "Adam (n=1)",
        "eta 0.0001 (n=1)",
        "eta 2 (n=1)",
        "eta 3 (n=1)",
    ]
    rates = next(one for one in drawn.drawn if one.name == "ablation-cnn")
    assert [list(line.x) for line in rates.rows[0][0].lines] == [[5e-4, 1e-3]] * 2
    panels = [panel for part in report_sections(Replication(every_run), drawn)[2].sections for panel in part.panels]
    assert len(panels) == sum(len(row) for one in drawn.drawn for row in one.rows)
    cosine = next(one for one in drawn.drawn if one.name == "step-size-mlp").rows[0][0].lines[-1]
    assert (cosine.label, cosine.y[0], cosine.y[-1]) == ("cosine", 1.0, pytest.approx(0.0))


def test_the_ablation_is_drawn_at_the_longest_training_that_enough_pieces_have(every_run: list[Run]) -> None:
    def drawn(runs: list[Run]) -> Figure:
        return next(one for one in paper_figures(Replication(runs), {}).drawn if one.name == "ablation-mlp")

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
    figure = next(one for one in paper_figures(Replication(lr_runs), {}).drawn if one.name == "lr-128")
    marks = [line for line in figure.rows[0][0].lines if not line.connected]
    assert [(list(line.x), list(line.y)) for line in marks] == [
        ([3.0], [0.284]), ([3.0], [0.298]), ([3.0], [0.333]), ([3.0], [0.298]),
    ]  # fmt: skip
    axes = draw(figure).axes
    assert [one.get_title() for one in axes] == ["training loss", "validation loss", "validation accuracy (%)"]
    assert axes[0].get_yscale() == "log"


def test_legend_names_each_line_by_its_colour(every_run: list[Run]) -> None:
    figure = next(one for one in paper_figures(Replication(every_run), {}).drawn if one.name == "cnn")
    legend = draw(figure).axes[0].get_legend()
    assert legend is not None
    texts = [text.get_text() for text in legend.get_texts()]
    shown = {name: line.get_color() for name, line in zip(texts, legend.legend_handles) if name != "published"}
    names = ("Adam (n=1)", "AdamUCB 0.01 (n=1)", "AdamCB 5e-05 (n=1)", "AdamS 0.0001 (n=1)")
    assert [shown[name] for name in names] == list(PALETTE[:4])


def test_curve_waits_for_nobody(paper_run: MakeRun) -> None:
    done, lost = paper_run(LR, seed=0, final=0.5), paper_run(LR, seed=1, epochs=2, diverged=True)
    going = Run(done.folder, replace(done.config, seed=2), done.epochs[:1])
    line = curve([done, going, lost], "train_loss", "Adam", 0)
    assert line is not None
    assert (list(line.x), line.y[-1]) == ([1.0, 2.0, 3.0], 0.5)
    assert len(curve([going], "train_loss", "Adam", 0).x) == 1  # type: ignore[union-attr]
    assert curve([lost], "val_acc", "Adam", 0) is not None
    assert curve([], "train_loss", "Adam", 0) is None


def test_the_same_from_the_archive_alone(lr_runs: list[Run], stored: Stored, tmp_path: Path) -> None:
    to = tmp_path / "results"
    folder = stored(tmp_path / "runs", lr_runs)
    write_steps(folder / NAME, {"LR 128: AdamS": [(0.5, 1.0), (1.0, 0.25)]})
    written = export(to, runs=folder)
    assert {path.relative_to(to).as_posix() for path in written} == {
        "runs.jsonl", "steps.csv", "cells.csv", "curves.csv", "scorecard.md", "ablation.md", "replication.html",
        *(f"figures/{name}.{kind}" for name in ("surface", "lr-128", "step-size-lr") for kind in ("png", "pdf")),
    }  # fmt: skip
    texts = {path: path.read_bytes() for path in written if path.suffix != ".html"}
    page = (to / "replication.html").read_text()
    assert "The paper&#39;s claims" in page
    assert "Not drawn, for want of runs" in page
    export(to)
    assert {path: path.read_bytes() for path in texts} == texts


def test_later_runs_are_added(lr_runs: list[Run], stored: Stored, paper_run: MakeRun, tmp_path: Path) -> None:
    to, page = tmp_path / "results", tmp_path / "page.md"
    page.write_text(
        "# Story\n<!-- begin: tally -->\n<!-- end: tally -->\nand on <!-- begin: ablation --><!-- end: ablation -->\n"
    )
    export(to, runs=stored(tmp_path / "first", lr_runs), page=page)
    assert "| LR 128 | 36 | " in page.read_text()
    assert "Not run yet." in page.read_text()
    export(to, runs=stored(tmp_path / "second", [paper_run(LR, "Adam", 9)]), page=page)
    assert len((to / "runs.jsonl").read_text().splitlines()) == len(lr_runs) + 1
    assert "| 2 to 3 |" in page.read_text()
    assert page.read_text().startswith("# Story\n")


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run in .*runs or .*runs\.jsonl; make some with: surefoot paper lr"):
        export(tmp_path, runs=tmp_path / "runs")


def test_page_that_asks_for_something_unknown() -> None:
    with pytest.raises(ValueError, match="asks for 'moon'; the parts are tally"):
        filled("<!-- begin: moon --><!-- end: moon -->", {"tally": ""})


def test_steps_are_recorded_once(mnist: Path, tmp_path: Path) -> None:
    said: list[str] = []
    path = record("lr", out=tmp_path / "runs", epochs=2, data_dir=mnist, say=said.append)
    known = read_steps(path)
    assert list(known) == [
        "LR 128: std scale alone",
        "LR 128: AdamUCB 0.01",
        "LR 128: AdamCB 0.001",
        "LR 128: AdamS 0.0001",
    ]
    assert [epoch for epoch, _ in known["LR 128: AdamUCB 0.01"]] == [1.0, 2.0]  # one batch per epoch
    assert known["LR 128: std scale alone"][0][1] == 0.0  # no spread was seen yet: it rests
    before = path.read_bytes()
    record("lr", out=tmp_path / "runs", epochs=2, data_dir=mnist, say=said.append)
    assert path.read_bytes() == before
    assert len(said) == 4


def test_steps_of_the_cnn_are_those_of_its_ablation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def train(task: str, spec: str, epochs: int, data_dir: Path | None, **overrides: object) -> tuple[list[float], int]:
        asked.append((task, epochs, overrides["subset"]))
        return [1.0] * 20, 1

    monkeypatch.setattr("surefoot.paper.steps.train", train)
    known = read_steps(record("cnn", out=tmp_path, say=lambda line: None))
    assert set(asked) == {("cifar10-cnn", 20, 10_000)}
    [figure] = [one for one in paper_figures(Replication([]), known).drawn if one.name == "step-size-cnn"]
    assert figure.title == "Effective step size, CNN 128, 10000 images"


def test_gallery_without_a_run() -> None:
    assert [one.name for one in paper_figures(Replication([]), {}).drawn] == ["surface"]


def test_the_page_says_what_the_committed_runs_say() -> None:
    """docs/replication.md is what an export would write from results/paper today."""
    root = Path(__file__).parents[2]
    page, results = root / "docs" / "replication.md", root / "results" / "paper"
    replication = Replication(read_archive(results / "runs.jsonl"))
    drawn = paper_figures(replication, read_steps(results / NAME))
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- begin: ") == text.count("<!-- end: ") > 10
    assert filled(text, page_parts(replication, drawn, results / "figures", page)) == text
    written = texts(replication, drawn)
    assert {name: (results / name).read_text(encoding="utf-8") for name in written} == written
