"""The rooms of the house: a module imports from its own room or from earlier ones, and imports form no cycle.

Imports are read from the source, so those inside functions and those for type checkers count too.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import surefoot

SOURCES = Path(surefoot.__file__).parent
Graph = Mapping[str, set[str]]  # the modules that each module imports, without the leading "surefoot."

#: The rooms in order, with their modules and packages. A package holds everything below it, except for `surefoot` and
#: `lab`, which are only their own `__init__.py`: the names for users.
ROOMS = {
    "base": ["_extras", "_warnings", "version"],
    "loss": ["statistics", "objectives", "rules", "noise", "losses", "meter", "reference", "unwrap"],
    "optimizers": ["optim", "otsu", "examples", "weighing", "averaging"],
    "names": ["surefoot"],
    "optax": ["optax"],
    "integrations": ["integrations"],
    "lab.spec": ["lab.spec"],
    "lab.store": ["lab.store", "lab.imports", "lab.terminal"],
    "lab.run": ["lab.run"],
    "lab.analyse": ["lab.analyse"],
    "lab.report": ["lab.report"],
    "lab.experiments": ["lab.experiments", "lab.horizons", "lab.results"],
    "lab names": ["lab"],
    "lab.tune": ["lab.tune"],
    "paper": ["paper"],
    "cli": ["cli"],
}
ORDER = list(ROOMS)


def short(module: str) -> str:
    return module.removeprefix("surefoot.")


def modules() -> dict[str, Path]:
    """Every source file by the name of its module."""
    files = {path.relative_to(SOURCES.parent).with_suffix(""): path for path in SOURCES.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in files.items()}


def imported(source: str, module: str, is_package: bool, known: set[str]) -> set[str]:
    """Modules of this package that a source imports, wherever in it; a name counts as the module that has it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
            parts = [*(package if node.level else []), *([node.module] if node.module else [])]
            whole = ".".join(parts)
            names |= {f"{whole}.{alias.name}" if f"{whole}.{alias.name}" in known else whole for alias in node.names}
    return names & known


def read_graph() -> Graph:
    files = modules()
    known = set(files)
    return {
        short(module): {
            short(name) for name in imported(path.read_text("utf-8"), module, path.name == "__init__.py", known)
        }
        for module, path in files.items()
    }


def room_of(module: str) -> str:
    for room, members in ROOMS.items():
        for member in members:
            alone = member in ("surefoot", "lab")
            if module == member or (not alone and module.startswith(f"{member}.")):
                return room
    raise ValueError(f"surefoot.{module} is in no room; add it to ROOMS")


def wrong_arrows(graph: Graph) -> set[str]:
    """Imports from a later room."""
    place = {module: ORDER.index(room_of(module)) for module in graph}
    return {f"{source} -> {target}" for source in graph for target in graph[source] if place[source] < place[target]}


def cycle(graph: Graph) -> list[str]:
    """A cycle of imports, or nothing."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))
    return []


@pytest.fixture(scope="module")
def graph() -> Graph:
    return read_graph()


def test_every_module_is_in_a_room(graph: Graph) -> None:
    assert len(graph) > 80
    assert {room_of(module) for module in graph} == set(ORDER)


def test_no_import_leads_to_a_later_room(graph: Graph) -> None:
    new = sorted(wrong_arrows(graph))
    assert not new, f"these modules import from a room that comes after theirs: {', '.join(new)}"


def test_imports_form_no_cycle(graph: Graph) -> None:
    circle = cycle(graph)
    assert not circle, f"these modules import one another: {' -> '.join(circle)}"


def test_no_private_name_is_imported() -> None:
    private = []
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("surefoot")):
                names = [alias.name for alias in node.names if re.fullmatch("_[a-z].*", alias.name)]
                private += [f"{path.relative_to(SOURCES)}: {name}" for name in names]
    assert not private


def test_imports_are_read_wherever_they_stand() -> None:
    source = """
import numpy, surefoot.rules
from typing import TYPE_CHECKING
from surefoot.lab import compare, store
if TYPE_CHECKING:
    from surefoot.noise import standard_normal
def late():
    from . import trainer
    from ..report.page import Section
    from .runner import run
"""
    named = {"rules", "noise", "lab", "lab.store", "lab.report.page", "lab.run.runner", "lab.run.trainer"}
    known = {f"surefoot.{name}" for name in named} | {"surefoot.lab.run", "surefoot.lab.report", "surefoot"}
    assert {short(name) for name in imported(source, "surefoot.lab.run.pool", False, known)} == named
    assert imported("from .run import pool", "surefoot.lab", True, {"surefoot.lab.run"}) == {"surefoot.lab.run"}


def test_faults_are_seen() -> None:
    assert wrong_arrows({"noise": {"optim.state"}, "optim.state": {"noise"}, "lab.store": {"lab"}, "lab": set()}) == {
        "noise -> optim.state",
        "lab.store -> lab",
    }
    assert sorted(set(cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))) == ["a", "b", "c"]
    assert not cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    with pytest.raises(ValueError, match=r"surefoot\.lab\.attic is in no room"):
        room_of("lab.attic")
