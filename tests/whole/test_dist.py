"""What is distributed: the wheel has all that the code reads, and works where nothing else of the repository is.

`make dist` gives the files that it built as SUREFOOT_DIST; otherwise they are built here. No network is used: the
build backend is that of the `test` extra, and torch and the rest are those of this environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def run(*command: str | Path, **options: object) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=250,
        env=env,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("SUREFOOT_DIST"):
        return ROOT / built
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [path] = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel. What it depends on is found in this one, behind it in the path."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    home = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (home / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_has_every_file_that_the_code_reads(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    data = {
        path.relative_to(source).as_posix()
        for path in (source / "surefoot").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert {"surefoot/py.typed", "surefoot/paper/published.csv", "surefoot/lab/report/report.css"} <= data
    assert any(name.endswith(".js") for name in data)
    assert any("/templates/" in name for name in data)
    assert data <= names
    assert {path.relative_to(source).as_posix() for path in (source / "surefoot").rglob("*.py")} <= names


def test_the_wheel_has_nothing_else(wheel: Path) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in zipfile.ZipFile(wheel).namelist()} == {"surefoot"}
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "test_" in name or "__pycache__" in name]


def test_the_sdist_can_be_tested_and_built_again(dist: Path) -> None:
    [path] = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "constraints.txt", "mkdocs.yml", "tests/conftest.py"} <= names
    assert "src/surefoot/py.typed" in names


def test_the_wheel_works_in_an_empty_environment(python: Path, tmp_path: Path) -> None:
    code = """
import surefoot, torch, sys
assert surefoot.__file__.startswith(sys.prefix), surefoot.__file__
weight = torch.nn.Parameter(torch.ones(3))
optimizer = surefoot.AdamS([weight])
for loss in (3.0, 2.0):
    weight.grad = torch.ones(3)
    optimizer.step(loss=loss)
print(surefoot.__version__, bool((weight < 1).all()))
"""
    assert run(python, "-c", code, cwd=tmp_path).split()[1] == "True"


def test_the_command_of_the_wheel_writes_a_report(python: Path, tmp_path: Path) -> None:
    command = [python.with_name("surefoot"), "compare", "digits-lr", "-o", "adam", "-o", "adams"]
    run(*command, "--seeds", "1", "--epochs", "1", "--out", "runs", cwd=tmp_path)
    assert "AdamS" in (tmp_path / "runs" / "report.html").read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_exists(path: Path) -> None:
    """Every command of a workflow is a target of the Makefile or a file; actions have a version, jobs an end."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    commands = [step["run"].split() for step in steps if "run" in step]
    assert commands
    for program, *words in commands:
        assert program != "make" or words[0] in targets
        assert not program.startswith(".") or os.access(ROOT / program, os.X_OK)


def test_there_are_workflows_for_tests_docs_and_packages() -> None:
    assert {path.stem for path in WORKFLOWS} == {"dist", "docs", "tests"}
