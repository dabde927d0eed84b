"""The effective step size: recorded once, by optimizer and epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.paper import why
from surefoot.paper.cells import Replication
from surefoot.paper.figures import paper_figures
from surefoot.paper.steps import read_steps, record, record_weights, train


def test_steps_are_recorded_once(mnist: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    path = record("lr", out=tmp_path / "runs", epochs=2, data_dir=mnist, print_line=lines.append)
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
    record("lr", out=tmp_path / "runs", epochs=2, data_dir=mnist, print_line=lines.append)
    assert path.read_bytes() == before
    assert len(lines) == 4


def test_steps_of_the_cnn_are_those_of_its_ablation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def fake(task: str, spec: str, epochs: int, data_dir: Path | None, **overrides: object) -> tuple[list[float], int]:
        asked.append((task, epochs, overrides["subset"]))
        return [1.0] * 20, 1

    monkeypatch.setattr("surefoot.paper.steps.train", fake)
    known = read_steps(record("cnn", out=tmp_path, print_line=lambda line: None))
    assert set(asked) == {("cifar10-cnn", 20, 10_000)}
    [figure] = [figure for figure in paper_figures(Replication([]), known).drawn if figure.name == "step-size-cnn"]
    assert figure.title == "Effective step size, CNN 128, 10000 images"


def test_weights_of_the_donor_are_recorded_once_at_each_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def fake(task: str, spec: str, epochs: int, data_dir: Path | None, **options: object) -> tuple[list[float], int]:
        asked.append((task, spec, epochs, options["subset"], options["seed"]))
        return [0.0, 0.0, 1 / 3], 1

    monkeypatch.setattr("surefoot.paper.steps.train", fake)
    path = tmp_path / "why.csv"
    path.write_text("lr,weight\n0.001,0.5\n")
    for _ in range(2):
        record_weights(path)
    assert asked == [("cifar10-cnn", "adamucb:eta=0,gain=None,lr=0.0005", 20, 10_000, why.DONOR)]
    assert why.read_weights(path.read_text()) == {1e-3: (0.5,), 5e-4: (0.0, 0.0, 0.333333)}


def test_the_seed_of_a_training_is_the_one_asked_for(mnist: Path) -> None:
    first, again, other = (
        train("mnist-lr", "adamucb:eta=0,gain=None", 4, mnist, seed=seed, batch_size=4)[0] for seed in (3, 3, 4)
    )
    assert first == again != other
    assert first[:2] == [0.0, 0.0]  # no spread yet
