"""The effective step size: recorded once, by optimizer and epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.paper.cells import Replication
from surefoot.paper.figures import paper_figures
from surefoot.paper.steps import read_steps, record


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

    def train(task: str, spec: str, epochs: int, data_dir: Path | None, **overrides: object) -> tuple[list[float], int]:
        asked.append((task, epochs, overrides["subset"]))
        return [1.0] * 20, 1

    monkeypatch.setattr("surefoot.paper.steps.train", train)
    known = read_steps(record("cnn", out=tmp_path, print_line=lambda line: None))
    assert set(asked) == {("cifar10-cnn", 20, 10_000)}
    [figure] = [figure for figure in paper_figures(Replication([]), known).drawn if figure.name == "step-size-cnn"]
    assert figure.title == "Effective step size, CNN 128, 10000 images"
