"""Users' own tasks: from a file or an import path, and what can be wrong with them."""

import subprocess
import sys

import pytest

from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import TaskError

FILE = """
import torch
from torch import nn
from surefoot.lab.spec.task import Task
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
        (":wrong", {}, "returned a int, not a surefoot.lab.Task"),
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
    path.write_text("from surefoot.lab.spec.task import TaskError\nraise TaskError('give it data')\n")
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
        "from surefoot.lab.spec.find import find_task\n"
        "print(find_task('shop.window:first').model().out_features, find_task('shop.window').name)"
    )
    process = subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert process.stdout.split() == ["4", "first"], process.stderr


def test_module_that_is_not_there():
    with pytest.raises(TaskError, match=r"the module no_such\.module could not be imported"):
        find_task("no_such.module:task")
