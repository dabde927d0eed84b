"""An epoch of training: the same batches for every optimizer, its losses, schedules, closures, and its own state."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from surefoot.lab.run.trainer import Trainer, flushes_subnormals, lists_to_tuples, one_number, pinned_arithmetic
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.task import Task

MakeTask = Callable[..., Task]


def make_trainer(
    task: Task, contestant: Contestant | str = "adams", *, seed: int = 0, epochs: int = 2, lr: float = 0.01
) -> Trainer:
    contestant = Contestant.parse(contestant) if isinstance(contestant, str) else contestant
    config = RunConfig.plan(task, contestant, seed=seed, epochs=epochs, defaults={"lr": lr})
    return Trainer(config, task, contestant)


def flat(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in trainer.params])


def test_train_loss_is_the_running_mean_over_all_samples(tiny_task: MakeTask) -> None:
    losses: list[tuple[float, int]] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        value = F.cross_entropy(outputs, targets)
        if torch.is_grad_enabled():
            losses.append((value.item(), len(targets)))
        return value

    trainer = make_trainer(tiny_task(loss=loss))
    losses.clear()  # the key has tried the loss too
    row = trainer.run_epoch(1)
    assert [size for _, size in losses] == [16, 16, 16, 16, 6]  # the last, smaller batch is used
    expected = sum(value * size for value, size in losses) / 70
    assert row["train_loss"] == pytest.approx(expected, rel=1e-12)


def test_every_optimizer_gets_the_same_weights_batches_and_dropout(tiny_task: MakeTask) -> None:
    def trace(spec: str, seed: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        batches: list[Tensor] = []
        noise: list[Tensor] = []

        def prepare(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
            if generator is not None:
                batches.append(inputs.clone())
                noise.append(torch.rand(1, generator=generator))
            return inputs

        trainer = make_trainer(tiny_task(prepare=prepare), spec, seed=seed)
        batches.clear()  # the key has tried `prepare` too
        noise.clear()
        first = flat(trainer)
        for epoch in (1, 2):
            trainer.run_epoch(epoch)
            noise.append(torch.rand(1))  # where dropout's stream has come to
        return first, batches, noise

    adams, sgd, another_seed = trace("adams", 0), trace("sgd", 0), trace("sgd", 1)
    assert torch.equal(adams[0], sgd[0])
    assert all(torch.equal(a, b) for a, b in zip(adams[1] + adams[2], sgd[1] + sgd[2], strict=True))
    assert not torch.equal(adams[0], another_seed[0])
    assert not torch.equal(adams[1][0], another_seed[1][0])
    assert not torch.equal(adams[1][0], adams[1][5])  # another order in the second epoch


def test_cosine_goes_to_zero_step_by_step(tiny_task: MakeTask) -> None:
    rates: list[float] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            rates.append(self.param_groups[0]["lr"])
            super().step(closure)

    trainer = make_trainer(tiny_task(), Contestant.create("watched", Watched, {"schedule": "cosine"}), lr=0.5)
    for epoch in (1, 2):
        trainer.run_epoch(epoch)
    assert rates == [0.5 * 0.5 * (1 + math.cos(math.pi * step / 10)) for step in range(10)]


def test_an_optimizer_that_needs_a_closure_gets_one(tiny_task: MakeTask) -> None:
    whole = dataclasses.replace(tiny_task(dropout=0.0), batch_size=70)
    trainer = make_trainer(whole, "lbfgs:line_search_fn='strong_wolfe'", epochs=4)
    losses = [trainer.run_epoch(epoch)["train_loss"] for epoch in range(1, 5)]
    assert losses[-1] < losses[0]


def test_averaging_optimizers_are_validated_at_their_average(tiny_task: MakeTask) -> None:
    modes: list[bool] = []

    def watch(outputs: Tensor, targets: Tensor) -> Tensor:
        modes.append(trainer.optimizer.param_groups[0]["train_mode"])
        return F.cross_entropy(outputs, targets)

    trainer = make_trainer(tiny_task(metrics={"watched": watch}), "schedulefree.AdamWScheduleFree")
    trainer.run_epoch(1)
    assert modes == [False]
    assert trainer.optimizer.param_groups[0]["train_mode"] is True


def test_validation_weighs_batches_by_their_size(tiny_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.lab.run.trainer._VALID_BATCH", 16)  # 20 samples: 16 and 4
    task = tiny_task(metrics={"largest": lambda outputs, targets: outputs.max(1).values.mean()})
    trainer = make_trainer(task)
    row = trainer.run_epoch(1)
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.model(task.valid[0]).max(1).values.mean().item()
    assert row["valid_largest"] == pytest.approx(expected, rel=1e-6)


def test_state_goes_on_bit_for_bit_in_another_trainer(tiny_task: MakeTask) -> None:
    first, second = make_trainer(tiny_task(), "adam"), make_trainer(tiny_task(), "adam")
    first.run_epoch(1)
    second.load_state(copy.deepcopy(first.state()))  # as from a file
    first.run_epoch(2)
    second.run_epoch(2)
    assert torch.equal(flat(first), flat(second))


def test_a_loss_that_is_not_finite_ends_the_epoch(tiny_task: MakeTask) -> None:
    row = make_trainer(tiny_task(), "sgd", lr=1e38).run_epoch(1)
    assert row["diverged"]
    assert (row["train_loss"], row["valid_loss"]) == (None, None)
    assert row["step"] < 5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", torch.ones(3), r"the loss must give one number for a batch, its mean, not a tensor of shape \(3,\)"),
        ("share", "half", r"the metric 'share' must give one number .* not 'half'; end it with \.mean\(\)"),
    ],
)
def test_a_loss_or_metric_is_one_number(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_number(name, value)
    assert one_number(name, 0.5) == 0.5


def test_arithmetic_is_pinned_within_and_restored_after() -> None:
    torch.manual_seed(3)
    expected, threads, flushed = torch.rand(2), torch.get_num_threads(), flushes_subnormals()
    torch.manual_seed(3)
    with suppress(ZeroDivisionError), pinned_arithmetic(threads + 1):
        assert torch.get_num_threads() == threads + 1
        assert flushes_subnormals()
        torch.rand(5)
        raise ZeroDivisionError
    assert (torch.get_num_threads(), flushes_subnormals()) == (threads, flushed)
    assert torch.equal(torch.rand(2), expected)


def test_tuples_survive_json() -> None:
    assert lists_to_tuples([0.9, [1, [2]]]) == (0.9, (1, (2,)))
