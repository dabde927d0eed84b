"""Tasks: by name, with their options, subsets and data."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from surefoot.lab.spec import datasets as data
from surefoot.lab.spec.builtin import NAMED
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import Task, TaskError, accuracy, choose_subset, in_memory


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    """Stand-ins of the right shapes for the data sets that are not embedded."""
    real = data.load

    def load(name, data_dir=None):
        if name == "digits":
            return real(name)
        shape = (3, 32, 32) if name == "cifar10" else (1, 28, 28)
        draw = torch.Generator().manual_seed(len(name))
        tensors = []
        for count in (60, 20):
            tensors.append(torch.randint(256, (count, *shape), generator=draw, dtype=torch.uint8))
            tensors.append(torch.arange(count) % 10)
        return data.Dataset(name, *tensors, data.digest(*tensors))

    monkeypatch.setattr(data, "load", load)


def toy(**changes) -> Task:
    x, y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3
    fields = {"name": "toy", "model": lambda: nn.Linear(2, 3), "train": (x, y), "valid": (x, y)}
    return Task(**{**fields, **changes})


# Named tasks


@pytest.mark.parametrize("name", NAMED)
def test_every_named_task_takes_a_training_step(name):
    task = find_task(name, batch_size=16)
    torch.manual_seed(0)
    model = task.model()
    x, y = (part[: task.batch_size] for part in task.train)
    if task.prepare is not None:
        x = task.prepare(x, torch.Generator().manual_seed(0))
    before = task.loss(model(x), y)
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    assert task.loss(model(x), y) < before
    assert task.metrics["accuracy"](model(x), y).ndim == 0
    assert len(task.digest) == 64


@pytest.mark.parametrize("name", [name for name in NAMED if not NAMED[name].augment and not NAMED[name].make])
def test_unaugmented_inputs_are_normalised_once(name):
    task = find_task(name)
    assert task.prepare is None
    assert task.train[0].dtype == torch.float32
    assert task.train[0].is_contiguous()
    assert abs(task.train[0].mean()) < 1e-4
    assert abs(task.train[0].std(correction=0) - 1) < 1e-4
    loaded = data.load(NAMED[name].data)
    pixels = loaded.train_x.double()
    expected = (loaded.valid_x.double() - pixels.mean()) / pixels.std(correction=0)
    torch.testing.assert_close(task.valid[0].flatten(1).double(), expected.flatten(1), rtol=1e-5, atol=1e-5)


def test_cifar_is_normalised_per_channel_in_the_batch():
    task = find_task("cifar10-cnn")
    assert task.train[0].dtype == torch.uint8
    x = task.prepare(task.train[0], None).double()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.double), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.double), rtol=0, atol=1e-5)


def test_dropout_reaches_model_and_settings():
    task = find_task("mnist-mlp", dropout=True)
    assert any(isinstance(module, nn.Dropout) for module in task.model().modules())
    assert task.settings == {"dropout": True}
    assert find_task("mnist-mlp").settings == find_task("mnist-mlp", dropout=None).settings == {"dropout": False}
    with pytest.raises(TaskError, match="mnist-lr has no hidden layer"):
        find_task("mnist-lr", dropout=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 0.1}, r"digits-mlp: dropout is on \(True, the paper's 0.5\) or off \(False\), not 0.1"),
        ({"dropout": 1}, "dropout is on .* or off .*, not 1; for another rate write a task of your own"),
        ({"dropout": "no"}, "dropout is on .* or off .*, not 'no'"),
        ({"batch_size": 1.5}, "batch_size must be a whole number from 1 up, not 1.5"),
        ({"batch_size": True}, "batch_size must be a whole number from 1 up, not True"),
        ({"subset": True}, "subset must be a whole number from 1 to 1438, not True"),
        ({"subset": 10, "subset_seed": "x"}, "subset_seed must be a whole number, not 'x'"),
        ({"label_noise": 1.0}, "label_noise must be a share above 0 and below 1, such as 0.2, not 1.0"),
        ({"label_noise": 0.2, "noise": "pair"}, "noise must be symmetric or asymmetric, not 'pair'"),
        ({"noise": "symmetric"}, "give label_noise, how many, too"),
    ],
)
def test_options_that_mean_nothing(options, message):
    with pytest.raises(TaskError, match=message):
        find_task("digits-mlp", **options)


@pytest.mark.parametrize("name", ["digits-mlp", "cifar10-cnn", "text-transformer"])
def test_named_tasks_travel_to_other_processes(name):
    task = pickle.loads(pickle.dumps(find_task(name)))
    assert torch.equal(task.train[0], find_task(name).train[0])
    assert task.model() is not task.model()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit-mlp", r"no task 'digit-mlp' \(did you mean digits-mlp"),
        ("qqq", r"no task 'qqq'; named tasks are digits-lr, .* your own is a file"),
    ],
)
def test_unknown_task_lists_near_matches(name, message):
    with pytest.raises(TaskError, match=message):
        find_task(name)


def test_unknown_option():
    with pytest.raises(TaskError, match="digits-lr has no option width; it has batch_size"):
        find_task("digits-lr", width=3)


def test_augmentation_only_with_a_generator_and_repeatable():
    task = find_task("cifar10-cnn")
    x = task.train[0]
    untouched = x.clone()
    plain = task.prepare(x, None)
    first, same = (task.prepare(x, torch.Generator().manual_seed(3)) for _ in range(2))
    other = task.prepare(x, torch.Generator().manual_seed(4))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert not torch.equal(first, plain)
    assert torch.equal(task.prepare(x, None), plain)
    assert torch.equal(x, untouched)


# Subsets


def test_subset_of_a_task():
    whole, part = find_task("digits-lr"), find_task("digits-lr", subset=100, subset_seed=3)
    assert len(part.train[0]) == len(part.train[1]) == 100
    assert part.settings == {"subset": 100, "subset_seed": 3}
    assert part.digest == whole.digest
    assert torch.equal(part.valid[0], whole.valid[0])
    rows = {tuple(row) for row in whole.train[0].tolist()}
    assert all(tuple(row) in rows for row in part.train[0].tolist())
    assert find_task("digits-lr", subset=100).settings == {"subset": 100}


@pytest.mark.parametrize("size", [0, -1, 13, 2.5])
def test_impossible_subset(size):
    with pytest.raises(TaskError, match=f"subset must be a whole number from 1 to 12, not {size}"):
        toy().subset(size)
    with pytest.raises(TaskError, match="give subset too"):
        find_task("digits-lr", subset_seed=1)


# The Task itself


def test_accuracy_is_a_fraction():
    outputs = torch.eye(4)
    assert accuracy(outputs, torch.tensor([0, 1, 2, 0])).item() == 0.75


def test_digest_follows_the_data():
    x, y = toy().train
    assert toy().digest == toy().digest
    assert toy().digest != toy(train=(x + 1, y)).digest
    assert toy(data_digest="given").digest == "given"
    task = toy()
    before = task.digest
    assert dataclasses.replace(task, train=(x + 1, y)).digest != before


class Squares(torch.utils.data.Dataset):
    reads = 0

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index >= 6:
            raise IndexError
        Squares.reads += 1
        return torch.full((2,), float(index)), index**2


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(torch.full((2,), float(index)), index**2) for index in range(6)])


@pytest.mark.parametrize(
    "examples",
    [
        Squares(),
        Stream(),
        torch.utils.data.TensorDataset(torch.arange(6.0)[:, None].expand(6, 2), torch.arange(6) ** 2),
        torch.utils.data.Subset(Squares(), range(6)),
    ],
)
def test_torch_datasets_are_read_into_memory(examples):
    x, y = in_memory(examples)
    assert torch.equal(x, torch.arange(6.0)[:, None].expand(6, 2))
    assert y.tolist() == [0, 1, 4, 9, 16, 25]


def test_a_dataset_is_read_once():
    Squares.reads = 0
    task = toy(train=Squares())
    task.subset(3)
    assert Squares.reads == 6


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_subset_keeps_the_shares_of_the_classes(seed):
    targets = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)[torch.randperm(100)]
    chosen = choose_subset(targets, 33, seed)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert targets[chosen].bincount().tolist() == [16, 10, 7]  # of 16.5, 9.9 and 6.6
    assert len(chosen) == 33
    assert torch.equal(chosen, choose_subset(targets, 33, seed))


def test_subset_without_seed_is_the_first_of_each_class_and_with_one_is_not():
    targets = torch.arange(100) % 10
    assert choose_subset(targets, 20).tolist() == list(range(20))
    assert choose_subset(targets, 20, seed=1).tolist() != choose_subset(targets, 20, seed=2).tolist()


def test_subset_of_regression_targets():
    assert choose_subset(torch.randn(10), 3).tolist() == [0, 1, 2]
    assert len(set(choose_subset(torch.randn(10, 2), 4, seed=0).tolist())) == 4


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
    task = toy(metrics=metrics, higher_is_better={"f1": True})
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


def test_a_direction_of_no_metric_is_refused() -> None:
    x, y = torch.randn(20, 3), torch.randint(2, (20,))

    def task(**fields: object) -> Task:
        return Task("toy", lambda: nn.Linear(3, 2), train=(x, y), valid=(x, y), **fields)

    metrics = {"top1": lambda outputs, targets: outputs.mean()}
    with pytest.raises(
        TaskError, match="higher_is_better names 'top_1', which is no metric of it; did you mean 'top1'"
    ):
        task(metrics=metrics, higher_is_better={"top_1": True})
    with pytest.raises(TaskError, match="higher_is_better names 'f', which is no metric of it; its metrics are none"):
        task(metrics={}, higher_is_better={"f": True})
    with pytest.raises(TaskError, match="higher_is_better names 'loss'"):
        task(higher_is_better={"loss": True})
    assert task(metrics=metrics, higher_is_better={"top1": True, "loss": False}).higher_is_better == {"top1": True}
    assert task(metrics=metrics).higher_is_better == {"top1": False}
