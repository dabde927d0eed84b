"""What a task is refused for, and what it settles when it is made."""

import numpy as np
import pytest
import torch
from torch import nn

from surefoot.lab.spec.task import Task, TaskError, accuracy


def toy(**changes) -> Task:
    x, y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3
    fields = {"name": "toy", "model": lambda: nn.Linear(2, 3), "train": (x, y), "valid": (x, y)}
    return Task(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "'toy': batch_size must be a whole number from 1 up, not 0"),
        ({"model": nn.Linear(2, 3)}, "function that makes a fresh model, not a finished Linear"),
        ({"model": 3}, "model must be a function, not int"),
        ({"loss": None}, "loss must be a function, not NoneType"),
        ({"prepare": "flip"}, "prepare must be a function, not str"),
        ({"name": 5}, "a task's name must be a text that is not empty, not 5"),
        ({"name": " "}, "a task's name must be a text that is not empty, not ' '"),
        ({"batch_size": "8"}, "batch_size must be a whole number from 1 up, not '8'"),
        ({"batch_size": True}, "batch_size must be a whole number from 1 up, not True"),
        ({"metrics": [accuracy]}, "'toy': metrics must be a dict such as {'f1': f1}, not "),
        ({"metrics": None}, "metrics must be a dict such as {'f1': f1}, not None"),
        ({"higher_is_better": True}, "higher_is_better must be a dict such as {'f1': True}, not True"),
        ({"metrics": {"loss": accuracy}}, "the metric 'loss' would hide the validation loss.*rename it"),
        ({"metrics": {"": accuracy}}, "a metric's name must be a text that is not empty, not ''"),
        ({"metrics": {3: accuracy}}, "a metric's name must be a text that is not empty, not 3"),
        ({"metrics": {"f1": 0.5}}, "the metric 'f1' must be a function of outputs and targets, not 0.5"),
        ({"train": (np.zeros((2, 2)), np.array(["a", "b"]))}, "array of <U1, which torch does not hold"),
        ({"train": (torch.zeros(3), torch.zeros(2))}, "'toy': train must have as many targets as inputs"),
        ({"valid": (torch.zeros(0, 2), torch.zeros(0))}, "'toy': valid must have .* at least one"),
        ({"valid": 5}, "'toy': valid must be a pair of tensors .* int could not be read"),
        ({"train": [(torch.zeros(2), 1), (torch.zeros(3), 1)]}, "all of one shape; list could not be read"),
        ({"train": [(torch.zeros(2), 1, 2)] * 4}, "pairs .* not 3 parts"),
        ({"train": [("a", 1), ("b", 2)]}, "pairs .* of tensors"),
    ],
)
def test_tasks_that_do_not_hold_together(changes, message):
    with pytest.raises(TaskError, match=message):
        toy(**changes)


def test_a_direction_is_settled_for_every_metric():
    metrics = dict.fromkeys(["accuracy", "brier_score", "top1_error", "f1"], accuracy)
    task = toy(metrics=metrics, higher_is_better={"f1": True, "of another task": True})
    assert task.higher_is_better == {"accuracy": True, "brier_score": False, "top1_error": False, "f1": True}
    assert toy().higher_is_better == {"accuracy": True}
    assert toy(metrics=metrics, higher_is_better={"accuracy": False}).higher_is_better["accuracy"] is False


def test_numpy_arrays_are_taken():
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    task = toy(train=(x, y), valid=(torch.zeros(1, 2), y[:1]))
    x[:] = 7
    assert task.train[0].dtype == torch.float32
    assert task.train[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert task.train[1].tolist() == [0, 1, 2]
    assert toy(train=(x.astype("uint8"), y)).train[0].dtype == torch.uint8
