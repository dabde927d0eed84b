"""The transformer and its text: nothing of the future is seen, and no validation text is trained on."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.text import CHARACTERS, WINDOW, Transformer, character_loss, help_text


def test_a_character_is_predicted_from_those_before_it_alone() -> None:
    torch.manual_seed(0)
    model = Transformer(16)
    text = torch.randint(CHARACTERS, (2, 10))
    changed = text.clone()
    changed[:, 6] = (changed[:, 6] + 1) % CHARACTERS
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:] != after[:, 6:]).any(-1).all()


def test_targets_are_the_next_characters_of_the_text() -> None:
    task = find_task("text-transformer")
    for inputs, targets in (task.train, task.valid):
        assert inputs.shape[1] == targets.shape[1] == WINDOW
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert inputs.min() >= 0
        assert targets.max() < CHARACTERS
    windows = help_text()
    assert torch.equal(windows[0, -1], windows[1, 0]), "each character is a target once"
    assert len(task.train[0]) + len(task.valid[0]) == len(windows) > 1000


def test_the_loss_is_the_mean_over_characters() -> None:
    outputs, targets = torch.randn(3, 4, CHARACTERS), torch.randint(CHARACTERS, (3, 4))
    by_hand = -torch.log_softmax(outputs, -1).gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(character_loss(outputs, targets), by_hand)
    torch.testing.assert_close(character_loss(outputs, targets), F.cross_entropy(outputs.mT, targets))


def test_its_batches_are_smaller_unless_another_size_is_asked_for() -> None:
    assert (find_task("text-transformer").batch_size, find_task("text-transformer", batch_size=8).batch_size) == (32, 8)
    assert find_task("digits-mlp").batch_size == 128


def test_a_few_steps_learn_something() -> None:
    task = find_task("text-transformer")
    torch.manual_seed(0)
    model = Transformer(32, layers=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(30):
        rows = slice(8 * step, 8 * step + 8)
        optimizer.zero_grad()
        loss = task.loss(model(task.train[0][rows]), task.train[1][rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]
