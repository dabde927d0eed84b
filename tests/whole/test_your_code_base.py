"""The diffs of docs/your-code-base.md, applied to minimal loops of the same shape, which then run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import surefoot

ROOT = Path(__file__).parents[2]
DIFFS = dict(
    re.findall(r"^```diff (\w+)\n(.*?)^```$", (ROOT / "docs/your-code-base.md").read_text(), re.MULTILINE | re.DOTALL)
)
#: An optimizer that is the old one: the tilt is 0, and so is the difference.
AS_BEFORE = {'weighting="unit"': 'weighting="unit", eta=0.0'}


def run(source: str) -> Any:
    names: dict[str, Any] = {"__name__": "loop", "surefoot": surefoot}
    exec(compile(source, "loop", "exec"), names)
    return names["train"]()


def loop(name: str) -> str:
    return (ROOT / f"tests/fixtures/loops/{name}.py").read_text()


def changed(name: str) -> str:
    """The loop after the diff; every part of the diff must fit at exactly one place."""
    source = loop(name)
    for part in DIFFS[name].split("...\n"):
        lines = part.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in "- ")
        after = "".join(line[1:] for line in lines if line[0] in "+ ")
        assert source.count(before) == 1, f"{before!r} is not in the loop, or more than once"
        source = source.replace(before, after)
    return source


def test_every_loop_has_its_diff() -> None:
    assert set(DIFFS) == {path.stem for path in (ROOT / "tests/fixtures/loops").glob("*.py")}
    assert len(DIFFS) == 3


@pytest.mark.parametrize("name", DIFFS)
def test_the_changed_loop_passes_one_loss_per_step(name: str) -> None:
    model, optimizer, steps = run(changed(name))
    for group in optimizer.param_groups:
        assert int(group["seen"][0]) == steps
    stats = optimizer.confidence()[0]
    assert stats["skipped"] == 0
    assert stats["tilt"] != 0
    assert 0.01 < stats["mean"] < 3  # the loss itself, neither scaled nor divided
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", DIFFS)
def test_with_eta_zero_the_changed_loop_is_the_old_one(name: str) -> None:
    source = changed(name)
    for old, new in AS_BEFORE.items():
        source = source.replace(old, new)
    model, plain = run(source)[0], run(loop(name))[0]
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DIFFS)
def test_without_the_loss_the_loop_says_what_is_missing(name: str) -> None:
    source = re.sub(r"^.*record_loss.*\n", "", changed(name), flags=re.MULTILINE).replace("loss=loss", "")
    with pytest.raises(RuntimeError, match="got no loss"):
        run(source)
