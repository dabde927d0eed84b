"""What the package promises as a whole: torch alone for the core, lazy names, extras that ask for themselves."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import surefoot
import surefoot.lab
from surefoot.optim.named import OPTIMIZERS

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "surefoot"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

#: Hides every installed package but torch and what torch itself needs.
HOOK = """
import json, sys, warnings
from importlib.machinery import PathFinder

class OnlyTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)

HIDDEN = set(json.loads(sys.argv.pop(1)))
sys.meta_path[:] = [OnlyTorch if finder is PathFinder else finder for finder in sys.meta_path]
warnings.filterwarnings("ignore", message=".*NumPy")
"""


def with_torch_alone(code: str) -> subprocess.CompletedProcess[str]:
    """Run code where only torch can be imported."""
    return subprocess.run(
        [sys.executable, "-c", HOOK + code, json.dumps(sorted(packages_beyond_torch()))],
        capture_output=True,
        text=True,
        timeout=250,
    )


def packages_beyond_torch() -> set[str]:
    """Import names of all installed packages that torch does not need."""
    needed: set[str] = set()
    waiting = ["torch"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in needed:
            continue
        needed.add(name)
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        waiting += [
            asked.name
            for asked in map(Requirement, requires)
            if asked.marker is None or asked.marker.evaluate({"extra": ""})
        ]
    homes = metadata.packages_distributions()
    return {
        name
        for name, owners in homes.items()
        if not {canonicalize_name(owner) for owner in owners} & {*needed, "surefoot", "pip", "setuptools"}
    }


def modules(*parts: str) -> list[str]:
    """The modules below a folder of the package, by their dotted names."""
    folder = SOURCES.joinpath(*parts)
    paths = [path.relative_to(SOURCES.parent).with_suffix("") for path in folder.rglob("*.py")]
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


def is_core(module: str) -> bool:
    return not module.startswith(
        ("surefoot.lab", "surefoot.paper", "surefoot.integrations", "surefoot.optax", "surefoot.cli")
    )


CORE = [module for module in modules() if is_core(module)]


def imports(module: str) -> set[str]:
    """Modules that a source file imports, wherever in it."""
    path = SOURCES.parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_hidden_packages_are_those_beyond_torch() -> None:
    hidden = packages_beyond_torch()
    assert {"numpy", "rich", "typer", "scipy", "jax"} <= hidden
    assert not {"torch", "sympy", "typing_extensions", "surefoot"} & hidden


def test_the_core_needs_torch_alone() -> None:
    code = f"""
import importlib
for module in {CORE!r}:
    importlib.import_module(module)
import torch, surefoot
from surefoot.optim.named import OPTIMIZERS
for cls in OPTIMIZERS.values():
    p = torch.nn.Parameter(torch.ones(3))
    for make in (cls, lambda ps: surefoot.LossWeighted(torch.optim.SGD(ps, lr=0.1))):
        opt = make([p])
        for loss in (3.0, 2.0):
            p.grad = torch.ones(3)
            opt.step(loss=loss)
print(len(OPTIMIZERS), p.isfinite().all().item(), HIDDEN & set(sys.modules))
"""
    done = with_torch_alone(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(OPTIMIZERS)), "True", "set()"]


@pytest.mark.parametrize("code", ["import surefoot", "from surefoot.cli import app"])
def test_names_come_without_torch(code: str) -> None:
    code += "\nimport sys; print({'torch', 'numpy', 'scipy', 'pandas', 'plotly'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr


def test_help_comes_without_torch() -> None:
    code = """
import sys
from surefoot.cli import app
try:
    app(["--help"])
except SystemExit as end:
    print("END", end.code, {"torch", "numpy", "pandas"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "compare" in done.stdout
    assert done.stdout.strip().endswith("END 0 set()"), done.stdout + done.stderr


@pytest.mark.parametrize("package", [surefoot, surefoot.lab])
def test_all_is_what_can_be_imported(package: Any) -> None:
    names = package.__all__
    assert len(names) == len(set(names))
    assert dir(package) == sorted(names)
    for name in names:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018
    typed = re.findall(r"import (\w+) as \1", Path(package.__file__).read_text())
    assert {*typed, "NUMERICS", "__version__"} - set(names) <= {"NUMERICS", "__version__"}
    assert set(names) - set(typed) <= {"NUMERICS", "__version__"}  # a type checker sees every lazy name


def test_every_named_optimizer_is_exported() -> None:
    assert set(OPTIMIZERS) <= set(surefoot.__all__)
    assert all(getattr(surefoot, name) is cls for name, cls in OPTIMIZERS.items())


@pytest.mark.parametrize(
    ("name", "end"), [("AdamWs", "; did you mean AdamWS?"), ("anytime", "; did you mean Anytime?"), ("Shampoo", "")]
)
def test_a_misspelt_name_gets_a_suggestion(name: str, end: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(surefoot, name)
    assert str(caught.value) == f"module 'surefoot' has no attribute {name!r}{end}"


def test_version() -> None:
    assert surefoot.__version__ == metadata.version("surefoot")
    assert re.search(rf"^## {re.escape(surefoot.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"\nversion: {surefoot.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_is_typed() -> None:
    assert resources.files("surefoot").joinpath("py.typed").is_file()


@pytest.mark.parametrize("module", CORE)
def test_the_core_never_imports_the_rest(module: str) -> None:
    wrong = {name for name in imports(module) if name.startswith("surefoot.") and not is_core(name)}
    assert not wrong


def test_a_run_never_imports_the_report() -> None:
    code = """
import sys, tempfile
from surefoot import lab
with tempfile.TemporaryDirectory() as out:
    found = lab.compare("digits-lr", ["adam"], seeds=1, epochs=1, out=out, progress=False)
print(len(found.runs), "surefoot.lab.run.runner" in sys.modules)
print([name for name in sys.modules if name.startswith(("surefoot.lab.report", "plotly", "matplotlib", "ray."))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout.split("\n")[:2] == ["1 True", "[]"], done.stdout + done.stderr


SENTENCE = r"install (it|them) with:? pip install '\.\[{extra}\]' in a checkout of Surefoot"


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("surefoot.integrations.lightning", "lightning"),
        ("surefoot.integrations.transformers", "transformers"),
        ("surefoot.optax", "jax"),
        ("surefoot.integrations.flax", "flax"),
        ("surefoot.cli", "lab"),
    ],
)
def test_a_missing_extra_is_asked_for(module: str, extra: str) -> None:
    done = with_torch_alone(f"import {module}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(SENTENCE.format(extra=extra), last), done.stderr


def test_the_lab_asks_for_itself() -> None:
    """Whatever of the lab is used without its packages, the sentence is the same."""
    code = f"""
from surefoot import lab
uses = [lambda: lab.compare("digits-lr"), lambda: lab.find_task("digits-lr"), lambda: lab.fork("digits-lr", at=1)]
for use in [*uses, *(lambda name=name: getattr(lab, name) for name in {surefoot.lab.__all__!r})]:
    try:
        use()
    except ImportError as error:
        print(error)
"""
    done = with_torch_alone(code)
    assert done.returncode == 0, done.stderr
    sentences = done.stdout.splitlines()
    assert len(sentences) >= 3
    for sentence in sentences:
        assert re.search(SENTENCE.format(extra="lab"), sentence), sentence


def everything_asked_for() -> list[tuple[str, Requirement]]:
    """Every requirement of every extra, and of the package itself."""
    lists = {"core": PROJECT["dependencies"], **EXTRAS}
    pairs = [(extra, Requirement(line)) for extra, lines in lists.items() for line in lines]
    return [(extra, requirement) for extra, requirement in pairs if requirement.name != "surefoot"]


def test_constraints_pin_everything_asked_for() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    for extra, requirement in everything_asked_for():
        pinned = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned), f"{extra} asks for {requirement}, constraints.txt says {pinned}"


def test_every_dependency_says_why_it_is_there() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for extra, requirement in everything_asked_for():
        row = rf"^\| `{re.escape(requirement.name)}` \|"
        assert re.search(row, page, re.MULTILINE), f"{requirement.name} of the extra {extra}"


def test_every_module_says_what_it_owns() -> None:
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree) or not tree.body, f"{path.relative_to(ROOT)} has no docstring"


def test_no_room_is_a_warehouse() -> None:
    for folder in {path.parent for path in SOURCES.rglob("*.py")}:
        files = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= 14, f"{folder.relative_to(ROOT)} has {len(files)} files side by side: group them"


#: Words that a reader from outside would have to guess.
PRIVATE_WORDS = re.compile("apart|each|found|grows|heard|lean|lent|mended|one|roster|standing|strangers|told|turned")


def test_names_are_nouns_of_the_field() -> None:
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {
                ast.Name: lambda node: node.id if isinstance(node.ctx, ast.Store) else "",
                ast.arg: lambda node: node.arg,
                ast.ClassDef: lambda node: node.name,
                ast.FunctionDef: lambda node: node.name,
            }
            name = names.get(type(node), lambda node: "")(node).lower()
            assert not PRIVATE_WORDS.fullmatch(name), f"{path.relative_to(ROOT)}:{node.lineno} has {name} as a name"


def test_the_tests_of_a_file_have_its_name() -> None:
    """`tests/` mirrors `src/surefoot/`: `lab/results.py` has `lab/test_results.py`, so may a package."""
    tests = ROOT / "tests"
    present = {path.relative_to(tests) for path in tests.rglob("test_*.py") if path.parent.name != "whole"}
    needed, possible = set(), set()
    for path in SOURCES.rglob("*.py"):
        source = path.relative_to(SOURCES)
        if path.name == "__init__.py":
            possible.add(source.parent / f"test_{source.parent.name}.py")
        elif any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.parse(path.read_text()).body):
            needed.add(source.with_name(f"test_{source.stem.lstrip('_')}.py"))
    assert sorted(map(str, needed - present)) == [], "these test files are missing"
    extra = sorted(map(str, present - needed - possible))
    assert extra == [], "rename these to the file they test, or move them to tests/whole if they test several"
