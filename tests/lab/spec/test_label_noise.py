"""Wrong labels: exactly a share of them, by seed, in the training set alone, and in the run's key."""

from __future__ import annotations

import pytest
import torch

from surefoot.lab.run.trainer import Trainer
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.label_noise import LabelNoise
from surefoot.lab.spec.task import Task, TaskError

LABELS = torch.arange(1000) % 10


def trained_on(spec: str, seed: int, **options: object) -> torch.Tensor:
    task, contestant = find_task("digits-lr", **options), Contestant.parse(spec)
    trainer = Trainer(RunConfig.plan(task, contestant, seed=seed, epochs=1), task, contestant)
    return trainer._targets


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
def test_exactly_this_share_is_wrong(kind: str) -> None:
    noisy = LabelNoise(0.4, kind).apply(LABELS, seed=3)
    wrong = noisy != LABELS
    assert int(wrong.sum()) == 400
    shifts = ((noisy - LABELS) % 10)[wrong].unique().tolist()
    assert shifts == ([1] if kind == "asymmetric" else list(range(1, 10)))
    assert torch.equal(noisy, LabelNoise(0.4, kind).apply(LABELS, seed=3))
    assert not torch.equal(noisy, LabelNoise(0.4, kind).apply(LABELS, seed=4))


def test_classes_need_not_be_numbered_from_zero() -> None:
    noisy = LabelNoise(0.5, "asymmetric").apply(torch.tensor([3, 3, 7, 7]), seed=0)
    assert set(noisy.tolist()) <= {3, 7}


def test_all_optimizers_of_a_seed_train_on_the_same_wrong_labels() -> None:
    clean = find_task("digits-lr").train[1]
    adam, sgd = trained_on("adam", 0, label_noise=0.4), trained_on("sgd", 0, label_noise=0.4)
    assert torch.equal(adam, sgd)
    assert (adam != clean).double().mean().item() == pytest.approx(0.4, abs=1e-3)
    assert not torch.equal(adam, trained_on("adam", 1, label_noise=0.4))
    assert torch.equal(trained_on("adam", 0), clean)


def test_only_the_training_set_has_wrong_labels() -> None:
    clean, noisy = find_task("digits-lr"), find_task("digits-lr", label_noise=0.4, subset=100)
    assert torch.equal(clean.valid[1], noisy.valid[1])
    assert noisy.settings == {"subset": 100, "label_noise": 0.4, "noise": "symmetric"}
    assert noisy.is_built_in


def test_the_key_has_the_noise_only_if_there_is_any() -> None:
    def settings(**options: object) -> object:
        plan = RunConfig.plan(find_task("digits-lr", **options), Contestant.parse("adam"), seed=0, epochs=1)
        return plan.identity()["task"]["settings"]

    assert settings() == {}
    assert settings(label_noise=0.2) != settings(label_noise=0.2, noise="asymmetric")


def test_targets_without_classes_are_refused() -> None:
    x = torch.randn(8, 3)
    task = Task("toy", lambda: torch.nn.Linear(3, 1), train=(x, x[:, :1]), valid=(x, x[:, :1]), metrics={})
    with pytest.raises(TaskError, match="label noise is for tasks with a class per example"):
        task.with_label_noise(0.2)
