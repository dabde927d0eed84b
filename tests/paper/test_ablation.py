"""The ablation: each variant is what it says, its runs are found, and the tables answer from them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from surefoot import AdamUCB
from surefoot.lab import compare
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.store import Run
from surefoot.paper.ablation import (
    ScaledAdam,
    at_horizon,
    cnn_variants,
    installed,
    runs_by_variant,
    variants,
)
from surefoot.paper.command import paper
from surefoot.paper.published import Configuration
from surefoot.paper.steps import ratios

LR = Configuration("mnist", "lr", 128, False)
MLP = Configuration("mnist", "mlp", 128, False)
CNN = Configuration("cifar10", "cnn", 128, False)
MakeRun = Callable[..., Run]


def losses(count: int = 30) -> list[float]:
    luck = random.Random(0)
    return [1 / (1 + 0.2 * t) * (1 + 0.3 * luck.random()) for t in range(count)]


def path(optimizer_class: type, gradients: torch.Tensor, **options: object) -> torch.Tensor:
    """Where an optimizer goes when the gradients do not depend on where it is."""
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = optimizer_class([weight], lr=0.01, **options)
    for gradient, loss in zip(gradients, losses(len(gradients))):
        weight.grad = gradient.clone()
        optimizer.step(**({} if optimizer_class is torch.optim.Adam else {"loss": loss}))
    return weight.detach()


def std_weights(count: int) -> list[float]:
    """The std scale at each step, as AdamUCB(eta=0) reports it."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = AdamUCB([weight], eta=0.0)
    seen = []
    for loss in losses(count):
        weight.grad = torch.ones(1)
        optimizer.step(loss=loss)
        seen.append(float(optimizer.confidence()[0]["weight"]))
    return seen


def test_under_a_constant_gradient_step_size_and_eps_are_all_there_is() -> None:
    # The third thing that weights do, to prefer some batches to others, shows only where gradients differ.
    gradients = torch.full((30, 4), 0.3, dtype=torch.float64)
    scaled = path(ScaledAdam, gradients, scale="both", eps=0.05)
    torch.testing.assert_close(scaled, path(AdamUCB, gradients, eta=0.0, eps=0.05, gain=None), rtol=1e-9, atol=1e-12)
    for part in ("lr", "eps"):
        assert not torch.allclose(path(ScaledAdam, gradients, scale=part, eps=0.05), scaled, rtol=1e-3)


def test_scaled_step_size_is_adam_at_the_recorded_ratios() -> None:
    gradients = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    adam = torch.optim.Adam([weight], lr=0.01)
    for gradient, ratio in zip(gradients, ratios(std_weights(20))):
        adam.param_groups[0]["lr"] = 0.01 * ratio
        weight.grad = gradient.clone()
        adam.step()
    torch.testing.assert_close(path(ScaledAdam, gradients, scale="lr"), weight.detach(), rtol=1e-9, atol=1e-12)


def test_eps_alone_is_adam_when_eps_does_not_matter() -> None:
    gradients = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rested = gradients.clone()
    whole, moved = path(torch.optim.Adam, gradients), path(ScaledAdam, rested, scale="eps")
    first = path(torch.optim.Adam, gradients[:2])  # it rests for two steps, until a spread was seen
    torch.testing.assert_close(moved, whole - first, rtol=1e-5, atol=1e-8)


def test_unknown_scale() -> None:
    with pytest.raises(ValueError, match="unknown scale 'std'; choose eps, lr or both"):
        ScaledAdam([torch.nn.Parameter(torch.zeros(1))], scale="std")


def test_scaled_adam_goes_on_from_a_checkpoint() -> None:
    gradients = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))

    def go(weight: torch.nn.Parameter, optimizer: ScaledAdam, steps: range) -> None:
        for k in steps:
            weight.grad = gradients[k].clone()
            optimizer.step(loss=losses()[k])

    whole = torch.nn.Parameter(torch.zeros(4))
    optimizer = ScaledAdam([whole], scale="both")
    go(whole, optimizer, range(5))
    half = torch.nn.Parameter(whole.detach().clone())
    resumed = ScaledAdam([half], scale="both")
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    go(whole, optimizer, range(5, 10))
    go(half, resumed, range(5, 10))
    assert torch.equal(whole, half)
    assert resumed.confidence() == optimizer.confidence()


def test_lab_trains_every_variant(tiny_task: Callable[..., Task], tmp_path: Path) -> None:
    contestants = installed(variants(MLP))
    results = compare(
        tiny_task(), [variant.spec for variant in contestants], seeds=1, epochs=1, out=tmp_path, progress=False
    )
    assert results.ok
    assert len(results.runs) == len(contestants)
    for variant, run in zip(contestants, results.runs):
        kwargs = Contestant.parse(variant.spec).resolve(lr=1e-3, weight_decay=1e-4)  # as on the paper's own tasks
        recorded = Run(run.folder, replace(run.config, optimizer=replace(run.config.optimizer, options=kwargs)), [])
        assert [other.spec for other in contestants if other.matches(recorded)] == [variant.spec]


def test_without_schedulefree_the_others_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert len(installed(variants(MLP))) == len(variants(MLP)) - 1
    assert len(installed(cnn_variants(CNN))) == len(cnn_variants(CNN)) - 1


def test_a_contestant_that_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch, mnist: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("surefoot.paper.ablation.has_schedule_free", lambda: False)
    lines: list[str] = []
    for part in ("ablation", "lr"):
        paper(part, model="lr", out=tmp_path, data_dir=mnist, plan=True, print_line=lines.append)
    assert sum("pip install schedulefree" in line for line in lines) == 1


def test_schedules_belong_to_one_length(variant_run: MakeRun) -> None:
    cosine = variants(LR)["cosine decay"]
    runs = [variant_run(LR, cosine, 0, epochs=epochs) for epochs in (12, 45)]
    runs += [variant_run(LR, variants(LR)["plain Adam"], 0, epochs=45)]
    by_variant = runs_by_variant(runs, LR)
    assert [len(run.epochs) for run in at_horizon(by_variant["cosine decay"], 12)] == [12]
    assert [len(run.epochs) for run in at_horizon(by_variant["plain Adam"], 12)] == [45]
    assert at_horizon(by_variant["plain Adam"], 46) == []


def test_one_run_per_seed_the_newest_numbers(variant_run: MakeRun) -> None:
    plain = variants(LR)["plain Adam"]
    old, new = (variant_run(LR, plain, 0, epochs=12, numerics=number) for number in (1, 2))
    assert runs_by_variant([new, old], LR) == {"plain Adam": [new]}
