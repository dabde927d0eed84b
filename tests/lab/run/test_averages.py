"""Averages beside a run: they are validated, the trajectory is untouched, several ride on one run, and all resume."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import surefoot
from surefoot.averaging.weights import WeightAverage
from surefoot.lab.run.averages import Averages
from surefoot.lab.run.runner import contestant_of, run, without_timing
from surefoot.lab.run.trainer import Trainer
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import Task
from surefoot.lab.store import read_runs

NAMES = ("anytime", "poly:8", "ema:0.99", "uniform", "two-tailed")


def digits() -> Task:
    return find_task("digits-lr", subset=300, batch_size=16)


def trainer_of(spec: str, riders: tuple[str, ...] = ()) -> Trainer:
    contestant = replace(Contestant.parse(spec), riders=riders)
    return Trainer(RunConfig.plan(digits(), contestant, seed=0, epochs=3), digits(), contestant)


@pytest.mark.parametrize("name", NAMES)
def test_the_average_is_validated_and_the_trajectory_is_untouched(name: str) -> None:
    plain, averaged = trainer_of("adam:lr=0.01"), trainer_of(f"adam:lr=0.01,average={name}")
    rows = [(plain.run_epoch(epoch), averaged.run_epoch(epoch)) for epoch in (1, 2, 3)]
    assert all(torch.equal(p, q) for p, q in zip(plain.params, averaged.params))
    assert [a["train_loss"] for a, _ in rows] == [b["train_loss"] for _, b in rows]
    assert all(a["valid_loss"] != b["valid_loss"] for a, b in rows)


def test_riders_are_what_they_would_be_alone(tmp_path: Path) -> None:
    contestant = replace(Contestant.parse("adam:lr=0.01"), riders=NAMES)
    config = RunConfig.plan(digits(), contestant, seed=0, epochs=3)
    run(config, digits(), tmp_path / "together" / "run", contestant=contestant)
    together = read_runs(tmp_path / "together")
    assert sorted(part.config.optimizer.average for part in together) == sorted(["", *NAMES])
    for part in together:
        name = part.config.optimizer.average
        spec = "adam:lr=0.01" + (f",average={name}" if name else "")
        assert part.config.optimizer.spec == spec
        alone = RunConfig.plan(digits(), Contestant.parse(spec), seed=0, epochs=3)
        assert part.config.key == alone.key
        recorded = run(alone, digits(), tmp_path / name)
        assert [without_timing(row) for row in recorded.epochs] == [without_timing(row) for row in part.epochs]


def test_a_run_with_averages_goes_on_bit_for_bit() -> None:
    first, second = (trainer_of("adam:lr=0.01,average=anytime", NAMES) for _ in range(2))
    first.run_epoch(1)
    second.load_state(copy.deepcopy(first.state()))
    assert without_timing(first.run_epoch(2)) == without_timing(second.run_epoch(2))


def test_a_recorded_run_has_its_averages() -> None:
    contestant = replace(Contestant.parse("adam:warmup=7,average=two-tailed"), riders=("poly:8",))
    config = RunConfig.from_json(RunConfig.plan(digits(), contestant, seed=0, epochs=1).to_json())
    again = contestant_of(config)
    assert (again.warmup, again.average, again.riders) == (7, "two-tailed", ("poly:8",))


def test_two_tailed_averages_start_anew_where_the_short_one_is_better() -> None:
    x = torch.zeros(1)
    averages = Averages([x], "two-tailed", [])

    def error() -> dict[str, float | None]:
        return {"valid_loss": abs(float(x) - 10)}

    values = []
    for step in range(1, 11):
        x.fill_(float(step))
        averages.update(1.0)
        if step % 5 == 0:
            values.append(averages.validate(error)["valid_loss"])
    assert values == [10 - 3.0, 10 - 8.0]  # the mean of 1 to 5, then that of 6 to 10
    x.fill_(100.0)
    averages.update(1.0)
    assert averages.validate(error)["valid_loss"] == pytest.approx(abs((40 + 100) / 6 - 10))  # the long one stays


def test_the_run_uses_the_library_average() -> None:
    trainer = trainer_of("sgd:lr=0.1,average=ema:0.9")
    expected = WeightAverage(trainer.params, "ema:0.9")
    step = trainer._step

    def observed(closure):  # type: ignore[no-untyped-def]
        loss = step(closure)
        expected.update(loss.item())
        return loss

    trainer._step = observed
    row = trainer.run_epoch(1)
    with expected.averaged():
        trainer.model.eval()
        assert row["valid_loss"] == trainer._validate()["valid_loss"]


def test_the_anytime_schedule_is_that_of_the_library() -> None:
    """The lab's rate follows the span at every step, the scheduler's at most forty steps later."""
    task = find_task("digits-lr", subset=300, batch_size=16)
    losses: list[float] = []
    task = replace(task, loss=lambda outputs, targets: noted(F.cross_entropy(outputs, targets), losses))
    contestant = Contestant.parse("adam:lr=0.01,schedule=anytime")
    trainer = Trainer(RunConfig.plan(digits(), contestant, seed=0, epochs=30), task, contestant)
    rates: list[float] = []
    trainer.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    for epoch in range(1, 31):
        trainer.run_epoch(epoch)
    weights = torch.zeros(1, requires_grad=True)
    weights.grad = torch.zeros(1)
    optimizer = surefoot.Anytime(torch.optim.SGD([weights], lr=0.01))
    scheduler = surefoot.AnytimeLR(optimizer)
    assert rates[-1] < 0.009
    for loss, rate in zip(losses, rates, strict=True):
        assert abs(scheduler.get_last_lr()[0] - rate) < 0.0005
        optimizer.step(loss=loss)
        scheduler.step()


def noted(loss: Tensor, losses: list[float]) -> Tensor:
    """A loss that is written down in training."""
    if loss.requires_grad:
        losses.append(loss.item())
    return loss


def test_a_run_with_the_anytime_schedule_goes_on_bit_for_bit() -> None:
    first, second = (trainer_of("adam:lr=0.01,schedule=anytime") for _ in range(2))
    for epoch in (1, 2, 3):
        first.run_epoch(epoch)
    second.load_state(copy.deepcopy(first.state()))
    assert without_timing(first.run_epoch(4)) == without_timing(second.run_epoch(4))
    assert first.optimizer.param_groups[0]["lr"] < 0.01


def test_runs_of_an_average_of_another_arithmetic_are_other_runs() -> None:
    """Those that were recorded before have no revision, and keep their keys."""
    config = RunConfig.plan(digits(), Contestant.parse("adam:average=anytime"), seed=0, epochs=1)
    assert config.optimizer.memory_revision == 1
    before = config.with_changes(optimizer=replace(config.optimizer, memory_revision=0))
    assert before.key != config.key
    assert RunConfig.from_json(before.to_json()).with_changes().key == before.key
