"""`examples=` and `loss=`: what a contestant minimises in place of the task's loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surefoot
from surefoot.lab import compare
from surefoot.lab.run.runner import contestant_of, without_timing
from surefoot.lab.run.trainer import Trainer
from surefoot.lab.spec.config import RunConfig
from surefoot.lab.spec.contestant import Contestant, parse_all
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.objective import find_loss, losses_of
from surefoot.lab.spec.task import Task

OUTPUTS, LABELS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.2, 0.1]]), torch.tensor([0, 2])


def digits() -> Task:
    return find_task("digits-lr", subset=300, batch_size=32, label_noise=0.4)


def trainer_of(spec: str) -> Trainer:
    contestant = Contestant.parse(spec)
    return Trainer(RunConfig.plan(digits(), contestant, seed=0, epochs=3), digits(), contestant)


def test_the_losses_are_those_of_their_papers() -> None:
    p = OUTPUTS.softmax(1)[range(2), LABELS]
    torch.testing.assert_close(find_loss("gce:0.7")(LABELS)(OUTPUTS, LABELS), (1 - p**0.7) / 0.7)
    assert torch.equal(find_loss("gce")(LABELS)(OUTPUTS, LABELS), find_loss("gce:0.7")(LABELS)(OUTPUTS, LABELS))
    smoothed = -(0.9 * OUTPUTS.log_softmax(1)[range(2), LABELS] + 0.1 * OUTPUTS.log_softmax(1).mean(1))
    torch.testing.assert_close(find_loss("smoothing:0.1")(LABELS)(OUTPUTS, LABELS), smoothed)
    # Two classes have one label each, the third has eight: all classes count alike, and the mean weight is 1.
    labels = torch.tensor([0, 1] + [2] * 8)
    balanced = find_loss("balanced")(labels)(torch.zeros(10, 3), labels) / F.cross_entropy(torch.zeros(10, 3), labels)
    torch.testing.assert_close(balanced, torch.tensor([10 / 3] * 2 + [10 / 24] * 8))


def test_a_run_with_weights_is_a_loop_with_weigh() -> None:
    """The lab and the lines of the documentation give the same weights, bit for bit."""
    lab = trainer_of("sgd:lr=0.5,examples=tilted:-3")
    task, seed = digits(), 0
    torch.manual_seed(seed)
    model = task.fresh_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, fused=True)
    weigh = surefoot.weigh(optimizer, "tilted", eta=-3)
    from surefoot.lab.run.trainer import stream

    order = torch.randperm(300, generator=torch.Generator().manual_seed(stream(seed, 1, "batches")))
    for index in order.split(32):
        optimizer.zero_grad()
        weigh(F.cross_entropy(model(lab._inputs[index]), lab._targets[index], reduction="none")).backward()
        optimizer.step()
    row = lab.run_epoch(1)
    assert all(torch.equal(p, q) for p, q in zip(lab.params, model.parameters()))
    assert row["strength"] == pytest.approx(weigh.confidence()[0]["strength"].item()) != 0


def test_an_average_beside_weights_follows_the_weighted_loss() -> None:
    """The plain loss rises when wrong labels are forgotten; an average that follows it would stay behind."""
    trainer, seen = trainer_of("adam:lr=0.01,average=anytime,examples=tilted:-3"), []
    weigh: Any = trainer.weigh

    def update(loss: Tensor) -> None:
        plain = weigh._last[0].mean()
        seen.append((float(loss), float(weigh.weighted), float(plain)))

    trainer.averages.update = update  # type: ignore[method-assign]
    for _ in range(3):
        trainer.run_epoch(1)
    assert all(given == weighted for given, weighted, _ in seen)
    assert sum(given for given, _, _ in seen) < sum(plain for _, _, plain in seen) - 0.01


def test_a_run_with_another_loss_is_validated_with_that_of_the_task() -> None:
    plain, gce = trainer_of("adam:lr=0.01"), trainer_of("adam:lr=0.01,loss=gce:0.7")
    first = plain.run_epoch(1), gce.run_epoch(1)
    assert first[0]["train_loss"] > 1.5 > first[1]["train_loss"]  # at most 1 / 0.7
    assert first[0]["valid_loss"] == pytest.approx(first[1]["valid_loss"], rel=0.5)
    assert "strength" not in first[1]


@pytest.mark.parametrize("examples", ["tilted:-3", "tilted:auto", "trimmed:0.4", "cvar:0.5", "s:0.1"])
def test_a_run_with_weights_goes_on_bit_for_bit(examples: str) -> None:
    first, second = (trainer_of(f"adam:lr=0.01,examples={examples}") for _ in range(2))
    first.run_epoch(1)
    second.load_state(copy.deepcopy(first.state()))
    assert without_timing(first.run_epoch(2)) == without_timing(second.run_epoch(2))


def test_options_are_recorded_and_read_again_and_others_have_the_keys_they_had() -> None:
    specs = ["adam", "adam:examples=tilted:-3", "adam:examples=tilted:auto", "adam:loss=gce:0.7"]
    configs = [RunConfig.plan(digits(), contestant, seed=0, epochs=1) for contestant in parse_all(specs)]
    assert len({config.key for config in configs}) == 4
    assert "examples" not in configs[0].to_json()["optimizer"]
    assert "loss" not in configs[0].identity()["optimizer"]
    again = contestant_of(RunConfig.from_json(configs[1].to_json()))
    assert (again.examples, again.loss) == ("tilted:-3", "")
    assert Contestant.parse("adam:lr=0.1,examples=tilted:-3,average=poly:8").without_average().spec == (
        "torch.optim.Adam:lr=0.1,examples=tilted:-3"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adam:examples=median:2", "cannot read examples='median:2' .*Unknown rule 'median'.*tilted:-3, tilted:auto"),
        ("adam:examples=trimmed:1.5", "cannot read examples='trimmed:1.5' .*share of examples left out"),
        ("adam:examples=tilted:strong", "cannot read examples='tilted:strong'"),
        ("adam:loss=hinge", "unknown loss 'hinge'; choose smoothing:AMOUNT, gce:Q or balanced:POWER"),
        ("adam:loss=gce:2", "unknown loss 'gce:2'"),
        ("adam:loss=gce:x", "unknown loss 'gce:x'"),
    ],
)
def test_what_means_nothing_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contestant.parse(spec)


def test_an_optimizer_that_weighs_already_and_a_loss_without_single_ones_are_refused_before_training(
    tmp_path: Path,
) -> None:
    ask: dict[str, Any] = {"out": tmp_path, "progress": False, "seeds": 1, "epochs": 1}
    with pytest.raises(ValueError, match="AdamS weighs its gradients by the loss already"):
        compare("digits-lr", ["adams:examples=tilted:-3"], **ask)

    def mean_alone(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    task = replace(digits(), loss=mean_alone)
    with pytest.raises(ValueError, match="gives their mean alone; write it as"):
        compare(task, ["adam:examples=tilted:-3"], **ask)
    with pytest.raises(ValueError, match="replaces the cross-entropy, but the task 'digits-lr' has another loss"):
        compare(task, ["adam:loss=gce"], **ask)
    assert not any(tmp_path.iterdir())


def test_losses_of_single_examples_of_modules_and_functions() -> None:
    single = F.cross_entropy(OUTPUTS, LABELS, reduction="none")
    for loss in (F.cross_entropy, nn.CrossEntropyLoss()):
        assert torch.equal(losses_of(replace(digits(), loss=loss))(OUTPUTS, LABELS), single)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(
        losses_of(replace(digits(), loss=weighted))(OUTPUTS, LABELS), single * torch.tensor([1, 3])
    )
    assert weighted.reduction == "mean"
