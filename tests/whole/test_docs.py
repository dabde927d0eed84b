"""What the documentation shows is true: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import json
import pkgutil
import re
import shlex
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import surefoot

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
MODULES = sorted(module.name for module in pkgutil.walk_packages(surefoot.__path__, "surefoot."))
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[tuple[int, str]]:
    """Fenced blocks in these languages, with the line on which each begins."""
    text = page.read_text()
    return [
        (text[: match.start()].count("\n") + 2, match[2]) for match in FENCE.finditer(text) if match[1] in languages
    ]


@pytest.fixture(autouse=True)
def _calm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples write into an empty folder, draw the same numbers every time, and leave the arithmetic as it was."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_code_in_pages_runs(page: Path) -> None:
    """All Python blocks of a page, in order, in one namespace, as a reader would type them."""
    names: dict[str, object] = {"__name__": "example"}
    for line, code in blocks(page, "python"):
        where = f"{name_of(page)}:{line}"
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, where, str(page), line - 1)
            report: list[str] = []
            runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
            runner.run(test, out=report.append, clear_globs=False)
            names.update(test.globs)
            assert not report, "".join(report)
            continue
        try:
            with contextlib.redirect_stdout(None):
                exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)
        except Exception:
            pytest.fail(f"the example at {where} does not run:\n{traceback.format_exc()}")


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module), optionflags=FLAGS)
    assert results.failed == 0


def test_there_are_examples() -> None:
    """The two tests above would pass on nothing."""
    assert len([page for page in PAGES if blocks(page, "python")]) >= 3
    examples = [doctest.DocTestFinder().find(importlib.import_module(module)) for module in MODULES]
    assert sum(bool(test.examples) for tests in examples for test in tests) >= 40


def commands(*programs: str) -> list[tuple[str, list[str]]]:
    """Command lines in shell blocks and in inline code, split into words."""
    commands = []
    for page in PAGES:
        text = page.read_text()
        lines = [line for _, block in blocks(page, "bash", "sh", "console") for line in joined(block)]
        lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCE.sub("", text))
        for line in lines:
            bare = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if bare.split(" ")[0] in programs and "..." not in bare:
                commands.append((name_of(page), shlex.split(bare, comments=True)))
    return commands


def joined(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def test_surefoot_commands_exist() -> None:
    """Every `surefoot ...` that a page shows is parsed by the real command line, which refuses unknown options."""
    from typer.main import get_command

    from surefoot.cli import app

    known: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    shown = commands("surefoot")
    assert shown
    for page, words in shown:
        name, rest = (words[1:2] or ["--help"])[0], words[2:]
        if name == "--help":
            continue
        assert name in known, f"{page}: there is no `{' '.join(words)}`"
        if not rest or "--help" in rest:
            continue  # the command is only named
        try:
            known[name].make_context(name, rest)
        except Exception as error:
            if type(error).__name__ != "MissingParameter":  # in a sentence the arguments may be left out
                pytest.fail(f"{page}: `{' '.join(words)}`: {error}")


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = commands("make")
    assert {"demo", "test"} <= {word for _, words in shown for word in words}
    for page, words in shown:
        asked = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        assert set(asked) <= targets, f"{page}: {' '.join(words)}"


def test_scripts_exist() -> None:
    for page, words in commands("python", "torchrun"):
        for word in words[1:]:
            if word.endswith(".py") and "/" in word:
                assert (ROOT / word).is_file(), f"{page}: {' '.join(words)}"


def test_extras_exist() -> None:
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        for extras in re.findall(r"pip install [^`\n]*(?:surefoot|\.)\[([\w,]+)\]", page.read_text()):
            assert set(extras.split(",")) <= known, f"{name_of(page)}: {extras}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path)
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file.read_text()), f"{name_of(page)} links to {target}"


def anchors(text: str) -> set[str]:
    """The names that headings get when a page is shown."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


WIDEST = 100


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))], ids=name_of)
def test_lines_are_short(page: Path) -> None:
    """A source line has at most 100 characters: rows of tables, and links that cannot be broken, are exempt."""
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        cannot_be_broken = line.startswith("|") or re.fullmatch(r"\s*([-*] )?\S*\]\(\S+\)\S*", line)
        assert len(line) <= WIDEST or cannot_be_broken, f"{name_of(page)}:{number} has {len(line)} characters"


def paragraphs(page: Path) -> Iterator[str]:
    """Paragraphs and items of lists; without tables, code and the targets of links."""
    for block in FENCE.sub("", page.read_text()).split("\n\n"):
        if not block.lstrip().startswith(("|", "<")) and not block.startswith("    "):
            for item in re.split(r"\n(?=[-*] |\d+\. )", block):
                yield re.sub(r"`[^`]*`|\]\([^)]*\)", "", item)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))], ids=name_of)
def test_no_paragraph_is_full_of_numbers(page: Path) -> None:
    """Ten numbers or more belong into a table."""
    for paragraph in paragraphs(page):
        numbers = re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", paragraph)
        assert len(numbers) < 10, paragraph


def test_the_readme_is_short_and_begins_with_the_question() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[0] == "Should I use it?"


def test_every_named_task_is_described() -> None:
    from surefoot.lab.spec.builtin import NAMED

    page = (ROOT / "docs/your-own-task.md").read_text()
    assert [name for name in NAMED if f"`{name}`" not in page] == []


def test_step_times_in_the_docs_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/results/step_time.json").read_text())["measured"]
    text = (ROOT / "docs/benchmarks.md").read_text()
    table = text.partition("<!-- step-time table")[2].partition("<!-- end of step-time table")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    rows = [[cell.strip(" *`") for cell in line.split("|")[1:-1]] for line in lines]
    for name, *cells in rows:
        [optimizer] = [label for label in measured["mlp"] if label.endswith(name.partition(" (")[0])]
        assert cells == [f"{ratios[optimizer]['ratio']:.2f}" for ratios in measured.values()], name
    assert len(rows) == len(measured["mlp"]) - 1  # all but the baseline
