"""Tasks: by name, from a user's file or import path; their inputs, subsets and errors."""

import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surefoot.lab import data
from surefoot.lab.inputs import CropAndFlip, Normalise, choose_subset, mean_and_std
from surefoot.lab.tasks import NAMED, Task, TaskError, accuracy, find_task, in_memory


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


@pytest.mark.parametrize("name", [name for name in NAMED if not NAMED[name].augment])
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
    ],
)
def test_options_that_mean_nothing(options, message):
    with pytest.raises(TaskError, match=message):
        find_task("digits-mlp", **options)


@pytest.mark.parametrize("name", ["digits-mlp", "cifar10-cnn"])
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


# Inputs


def test_mean_and_std_are_exact_and_per_channel():
    images = torch.randint(256, (3000, 2, 5, 4), dtype=torch.uint8)
    images[:, 1] //= 4
    mean, std = mean_and_std(images)
    assert torch.equal(mean, images.double().mean((0, 2, 3)).float())
    torch.testing.assert_close(std, images.double().std((0, 2, 3), correction=0).float())


def reference_crop(image, down, right, mirrored, padding=4):
    """One image at a time, as a sentence: frame it in black, cut out, mirror."""
    framed = F.pad(image, (padding,) * 4)
    cut = framed[:, down : down + image.shape[1], right : right + image.shape[2]]
    return cut.flip(-1) if mirrored else cut


class OneDevice(TorchDispatchMode):
    """Refuses what an accelerator would: tensors of two devices in one operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        devices = {one.device for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.dim()}
        assert len(devices) < 2, func
        return func(*args, **(kwargs or {}))


def test_images_are_prepared_where_they_are():
    augment = CropAndFlip(Normalise(torch.zeros(3), torch.ones(3)))
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8, device="meta")
    for generator in (None, torch.Generator()):
        with OneDevice():
            assert augment(images, generator).device.type == "meta"


def test_crops_and_flips_are_those_of_a_plain_loop():
    # Pixels from 1: a 0 can only come from the frame.
    images = torch.randint(1, 256, (200, 3, 32, 32), dtype=torch.uint8)
    augment = CropAndFlip(Normalise(torch.zeros(3), torch.ones(3)))
    cropped = augment.crop_and_flip(images, torch.Generator().manual_seed(5))
    seen = set()
    for image, result in zip(images, cropped):
        matches = [
            (down, right, mirrored)
            for down in range(9)
            for right in range(9)
            for mirrored in (False, True)
            if torch.equal(reference_crop(image, down, right, mirrored), result)
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    downs, rights, mirrors = (set(part) for part in zip(*seen))
    assert downs == rights == set(range(9))
    assert mirrors == {False, True}
    assert len(seen) > 80  # offsets and orientations are drawn independently, for each image


def test_frame_is_black_before_normalisation():
    mean, std = torch.tensor([100.0, 50.0, 20.0]), torch.tensor([10.0, 20.0, 30.0])
    images = torch.full((50, 3, 32, 32), 200, dtype=torch.uint8)
    x = CropAndFlip(Normalise(mean, std))(images, torch.Generator().manual_seed(0))
    for channel in range(3):
        black, white = (0 - mean[channel]) / std[channel], (200 - mean[channel]) / std[channel]
        assert set(x[:, channel].unique().tolist()) == {black.item(), white.item()}


def test_augmentation_only_with_a_generator_and_repeatable():
    task = find_task("cifar10-cnn")
    x = task.train[0]
    untouched = x.clone()
    plain = task.prepare(x, None)
    one, same = (task.prepare(x, torch.Generator().manual_seed(3)) for _ in range(2))
    other = task.prepare(x, torch.Generator().manual_seed(4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, plain)
    assert torch.equal(task.prepare(x, None), plain)
    assert torch.equal(x, untouched)


# Subsets


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


# Users' tasks

FILE = """
import torch
from torch import nn
from surefoot.lab.tasks import Task
from neighbour_of_task import width

x, y = torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)
first = Task("first", lambda: nn.Linear(2, width), (x, y), (x, y), batch_size=4)

def wide(width=3, data_dir=None):
    return Task(f"wide {data_dir}", lambda: nn.Linear(2, width), (x, y), (x, y))

def needy(must):
    return first

def broken():
    return 1 / 0

def quits():
    raise SystemExit(3)

def wrong():
    return 5

number = 7
"""


@pytest.fixture
def task_file(tmp_path):
    (tmp_path / "neighbour_of_task.py").write_text("width = 2\n")
    path = tmp_path / "my_task.py"
    path.write_text(FILE)
    yield path
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]
    sys.modules.pop("neighbour_of_task", None)


def test_the_only_task_of_a_file(task_file):
    task = find_task(str(task_file))
    assert task.name == "first"
    assert task.model().out_features == 2
    assert find_task(str(task_file), batch_size=2, subset=4).batch_size == 2


def test_a_function_gets_the_options_it_knows(task_file):
    task = find_task(f"{task_file}:wide", data_dir="there", width=5, batch_size=3)
    assert task.name == "wide there"
    assert task.model().out_features == 5
    assert task.batch_size == 3
    assert task.settings["width"] == 5
    assert "data_dir" not in task.settings


def test_an_edited_file_is_another_task(task_file):
    before = find_task(str(task_file)).settings
    assert find_task(str(task_file)).settings == before
    # Of the same length and within the same second: a cached bytecode file would be taken for current.
    task_file.write_text(
        FILE.replace(
            "lambda: nn.Linear(2, width), (x, y), (x, y), batch_size=4",
            "lambda: nn.Linear(2, 9    ), (x, y), (x, y), batch_size=4",
        )
    )
    after = find_task(str(task_file))
    assert after.model().out_features == 9
    assert after.settings != before


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (":missing", {}, "has no 'missing'; it has the tasks and functions first, wide, needy"),
        (":number", {}, "number in .* is neither a Task nor a function for one but "),
        (":needy", {}, r"cannot be called with no arguments \(missing a required argument: 'must'\)"),
        (":broken", {}, r"failed to make its task \(ZeroDivisionError: division by zero\)"),
        (":quits", {}, r"failed to make its task \(SystemExit: 3\)"),
        (":wrong", {}, "returned a int, not a surefoot.lab.tasks.Task"),
        (":first", {"dropout": True}, "takes no option dropout"),
        (":wide", {"depth": 2}, "takes no option depth"),
    ],
)
def test_what_is_wrong_with_a_users_task(task_file, name, options, message):
    with pytest.raises(TaskError, match=message):
        find_task(f"{task_file}{name}", **options)


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(TaskError, match=r"there is no file .*gone\.py"):
        find_task(str(tmp_path / "gone.py"))
    path = tmp_path / "bad.py"
    path.write_text("import no_such_module_here\n")
    with pytest.raises(TaskError, match=r"bad\.py could not be imported \(ModuleNotFoundError"):
        find_task(str(path))
    path.write_text("def (:\n")
    with pytest.raises(TaskError, match=r"bad\.py could not be imported \(SyntaxError"):
        find_task(str(path))
    path.write_text("import sys\nsys.exit('enough')\n")
    with pytest.raises(TaskError, match=r"bad\.py could not be imported \(SystemExit: enough\)"):
        find_task(str(path))
    path.write_text("from surefoot.lab.tasks import TaskError\nraise TaskError('give it data')\n")
    with pytest.raises(TaskError, match=r"^give it data$"):
        find_task(str(path))
    assert not [name for name in sys.modules if name.startswith("surefoot_task_bad")]
    path.write_text("x = 1\n")
    with pytest.raises(TaskError, match="has no Task and no function; say which"):
        find_task(str(path))


def test_import_path_from_the_current_folder(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "window.py").write_text(FILE.replace("from neighbour_of_task import width", "width = 4"))
    script = (
        "import sys; sys.path = [p for p in sys.path if p]\n"
        "from surefoot.lab.tasks import find_task\n"
        "print(find_task('shop.window:first').model().out_features, find_task('shop.window').name)"
    )
    found = subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.split() == ["4", "first"], found.stderr


def test_module_that_is_not_there():
    with pytest.raises(TaskError, match=r"the module no_such\.module could not be imported"):
        find_task("no_such.module:task")
