"""The ablation: each variant is what it says, its runs are found, and the tables answer from them."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from surefoot import AdamUCB
from surefoot.lab import compare
from surefoot.lab.spec.code import RECORDED_AS
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task
from surefoot.lab.store import Run
from surefoot.paper.ablation import (
    ScaledAdam,
    Variant,
    at_horizon,
    cnn_variants,
    installed,
    runs_by_rate,
    runs_by_variant,
    variants,
)
from surefoot.paper.command import paper
from surefoot.paper.figures import across_rates, variants_over_epochs
from surefoot.paper.published import Configuration
from surefoot.paper.steps import ratios
from surefoot.paper.tables import ablation_page, answers, rates_table

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
    torch.testing.assert_close(scaled, path(AdamUCB, gradients, eta=0.0, eps=0.05), rtol=1e-9, atol=1e-12)
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
    some = installed(variants(MLP))
    found = compare(tiny_task(), [variant.spec for variant in some], seeds=1, epochs=1, out=tmp_path, progress=False)
    assert found.ok
    assert len(found.runs) == len(some)
    for variant, run in zip(some, found.runs):
        kwargs = Contestant.parse(variant.spec).resolve(lr=1e-3, weight_decay=1e-4)  # as on the paper's own tasks
        recorded = Run(run.folder, replace(run.config, optimizer=replace(run.config.optimizer, options=kwargs)), [])
        assert [other.spec for other in some if other.matches(recorded)] == [variant.spec]


def test_without_schedulefree_the_others_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert len(installed(variants(MLP))) == len(variants(MLP)) - 1
    assert len(installed(cnn_variants(CNN))) == len(cnn_variants(CNN)) - 1


def test_a_contestant_that_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch, mnist: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("surefoot.paper.ablation.has_schedule_free", lambda: False)
    said: list[str] = []
    for part in ("ablation", "lr"):
        paper(part, model="lr", out=tmp_path, data_dir=mnist, plan=True, say=said.append)
    assert sum("pip install schedulefree" in line for line in said) == 1


def variant_run(paper_run: MakeRun, one: Configuration, variant: Variant, seed: int, **more: object) -> Run:
    classes = {"adam": "torch.optim.Adam", "adamucb": "surefoot.AdamUCB", "adams": "surefoot.AdamS"}
    classes |= RECORDED_AS
    run: Run = paper_run(one, "Adam", seed, **more)
    optimizer = replace(
        run.config.optimizer,
        class_path=classes.get(variant.name, variant.name),
        schedule=variant.schedule,
        label=variant.spec,
        options={"lr": 1e-3, "weight_decay": 1e-4, **variant.options},
    )
    return replace(run, config=replace(run.config, optimizer=optimizer, key=run.config.key + variant.spec))


def test_schedules_belong_to_one_length(paper_run: MakeRun) -> None:
    cosine = variants(LR)["cosine decay"]
    runs = [variant_run(paper_run, LR, cosine, 0, epochs=epochs) for epochs in (12, 45)]
    runs += [variant_run(paper_run, LR, variants(LR)["plain Adam"], 0, epochs=45)]
    found = runs_by_variant(runs, LR)
    assert [len(run.epochs) for run in at_horizon(found["cosine decay"], 12)] == [12]
    assert [len(run.epochs) for run in at_horizon(found["plain Adam"], 12)] == [45]
    assert at_horizon(found["plain Adam"], 46) == []


def test_one_run_per_seed_the_newest_numbers(paper_run: MakeRun) -> None:
    plain = variants(LR)["plain Adam"]
    old, new = (variant_run(paper_run, LR, plain, 0, epochs=12, numerics=number) for number in (1, 2))
    assert runs_by_variant([new, old], LR) == {"plain Adam": [new]}


def test_tables_answer_from_the_runs(paper_run: MakeRun) -> None:
    final = {
        "plain Adam": 0.022,
        "std scale alone": 0.003,
        "scaled eps alone": 0.022,
        "both: AdamS": 0.003,
        "cosine decay": 0.001,
    }
    luck = random.Random(1)
    runs = [
        variant_run(
            paper_run, MLP, variants(MLP)[name], seed, epochs=12, final=value + 1e-4 * luck.random(), accuracy=0.98
        )
        for name, value in final.items()
        for seed in range(6)
    ]
    text = ablation_page(runs)
    assert "## MLP 128, 12 epochs" in text
    assert "45 epochs" not in text
    [row] = [line for line in text.splitlines() if line.startswith("| std scale alone |")]
    assert "| 0.003 ± 0.000 (6) |" in row
    [row] = [line for line in text.splitlines() if line.startswith("| Is the std scale alone better than Adam? |")]
    assert "std scale alone beats plain Adam by 0.0190" in row
    [row] = [line for line in text.splitlines() if line.startswith("| Is it eps? |")]
    assert "beats" not in row
    assert "Is it as good as schedule-free?" not in text


def test_rates_of_the_cnn(paper_run: MakeRun) -> None:
    accuracy = {("plain Adam", 1e-3): 0.616, ("plain Adam", 5e-4): 0.699, ("std scale alone", 1e-3): 0.668}
    luck = random.Random(1)
    settings = {"subset": 10_000}
    runs = [
        variant_run(
            paper_run,
            CNN,
            cnn_variants(CNN)[name].at(lr),
            seed,
            accuracy=value + 1e-3 * luck.random(),
            settings=settings,
        )
        for (name, lr), value in accuracy.items()
        for seed in range(6)
    ]
    longer = variant_run(paper_run, CNN, cnn_variants(CNN)["plain Adam"].at(2.5e-4), 0, epochs=7, settings=settings)
    unended = variant_run(paper_run, CNN, cnn_variants(CNN)["both: AdamS"].at(1e-3), 0, settings=settings)
    del unended.epochs[2:]
    length, found = runs_by_rate([*runs, longer, unended], CNN)
    assert length == 3  # what most runs have; the longer run was there at that time too
    assert {name: sorted(rates) for name, rates in found.items()} == {
        "plain Adam": [2.5e-4, 5e-4, 1e-3], "std scale alone": [1e-3],
    }  # fmt: skip
    text = ablation_page(runs)
    assert "std scale alone, lr 0.001 beats plain Adam, lr 0.001 by 5.2" in text
    assert "plain Adam, lr 0.0005 beats plain Adam, lr 0.001 by 8.2" in text
    assert text.count("plain Adam, lr 0.0005 is better than std scale alone, lr 0.001 by 3.09") == 1  # asked once
    figure = across_rates([*runs, longer], CNN)
    assert figure is not None
    assert [line.label for line in figure.rows[0][0].lines] == ["plain Adam (n=1 to 6)", "std scale alone (n=6)"]


def test_the_best_rate_is_one_of_those_with_the_most_seeds(paper_run: MakeRun) -> None:
    accuracy = {1e-3: [0.61, 0.62], 5e-4: [0.66, 0.64], 2.5e-4: [0.70]}
    variant = cnn_variants(CNN)["both: AdamS"]
    rates = {
        lr: [variant_run(paper_run, CNN, variant.at(lr), seed, accuracy=value) for seed, value in enumerate(values)]
        for lr, values in accuracy.items()
    }
    adam = {1e-3: [variant_run(paper_run, CNN, cnn_variants(CNN)["plain Adam"].at(1e-3), seed) for seed in range(2)]}
    text = rates_table({"plain Adam": adam, "both: AdamS": rates}, 3)
    [row] = [line for line in text.splitlines() if line.startswith("| Is it better, each at its best rate? |")]
    assert "| both: AdamS, lr 0.0005 against plain Adam, lr 0.001 |" in row


def test_seeds_still_needed_are_counted_at_the_level_of_the_family(paper_run: MakeRun) -> None:
    steps = {"plain Adam": [0] * 6, "std scale alone": [-1, 2, 3, -1, 4, 2], "scaled eps alone": [1, -1] * 3}
    entries = {
        name: [
            variant_run(paper_run, MLP, variants(MLP)[name], seed, epochs=12, final=0.02 + 1e-4 * step)
            for seed, step in enumerate(values)
        ]
        for name, values in steps.items()
    }
    pairs = [("std scale alone", "plain Adam"), ("scaled eps alone", "plain Adam")]
    alone, among = (answers(entries, family, "train_loss", 12)[0] for family in (pairs[:1], pairs))
    needed = [int(re.findall(r"about (\d+) more", words)[0]) for words in (alone, among)]
    assert needed[0] < needed[1]


def test_the_figure_is_of_the_length_that_most_variants_have(paper_run: MakeRun) -> None:
    names = list(variants(MLP))[:6]
    runs = [variant_run(paper_run, MLP, variants(MLP)[name], 0, epochs=12) for name in names]
    ahead = [variant_run(paper_run, MLP, variants(MLP)[name], 1, epochs=17) for name in names[:4]]  # on their way to 45
    figure = variants_over_epochs([*runs, *ahead], MLP)
    assert figure is not None
    assert "12 epochs" in figure.title
    assert len(figure.rows[0][0].lines) == 6
    fifth = variant_run(
        paper_run, MLP, variants(MLP)[names[4]], 1, epochs=17
    )  # all but one: a variant that was given up
    longer = variants_over_epochs([*runs, *ahead, fifth], MLP)
    assert longer is not None
    assert "17 epochs" in longer.title
    assert len(longer.rows[0][0].lines) == 5


def test_nothing_to_tell() -> None:
    assert ablation_page([]).endswith("Not run yet: `surefoot paper ablation`.\n")
