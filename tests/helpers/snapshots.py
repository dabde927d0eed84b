"""Texts that were recorded once and must stay as they are.

After a deliberate change record them again: SUREFOOT_REFRESH_SNAPSHOTS=1 python -m pytest <the test file>, and read the
difference that git shows.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures"
REFRESH = "SUREFOOT_REFRESH_SNAPSHOTS"

_HIDDEN = {"script", "style", "svg", "template"}
_INLINE = {"a", "abbr", "b", "code", "em", "i", "kbd", "label", "small", "span", "strong", "sub", "sup", "time", "var"}
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w.])", re.IGNORECASE)
_MAX_DIFF_LINES = 60


def assert_unchanged(path: Path, text: str) -> None:
    """Compare a text with the recorded one and show the difference; record it if the environment asks for that."""
    text = text.rstrip("\n") + "\n"
    if os.environ.get(REFRESH):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.exists():
        pytest.fail(f"{path.name} was never recorded; record it with {REFRESH}=1")
    recorded = path.read_text(encoding="utf-8")
    if text != recorded:
        name = path.relative_to(FIXTURES).as_posix()
        lines = list(difflib.unified_diff(recorded.splitlines(), text.splitlines(), name, "now", lineterm="", n=1))
        more = [f"... and {len(lines) - _MAX_DIFF_LINES} lines more"] if len(lines) > _MAX_DIFF_LINES else []
        diff = "\n".join([*lines[:_MAX_DIFF_LINES], *more])
        pytest.fail(f"{name} changed; if it should, record it again with {REFRESH}=1\n{diff}", pytrace=False)


def rounded(text: str) -> str:
    """A text with its long numbers at six digits: the last digits depend on the versions of the libraries.

    >>> rounded("n=3, 0.12345678, 0.50")
    'n=3, 0.123457, 0.50'
    """
    return _NUMBER.sub(lambda match: f"{float(match[0]):.6g}" if len(match[0]) > 9 else match[0], text)


def visible_text(page: str) -> str:
    """What a reader sees of an HTML page: a line per block, the cells of a table's row in one line.

    Every tag counts as a space, so that neither spaces in a template nor a <span> more or less make a difference.

    >>> visible_text("<p>Two <b>words</b>.</p><table><tr><th>a</th><td>b</td></tr></table><script>x</script>")
    'Two words.\\n| a | b'
    """
    parser = _Text()
    parser.feed(page)
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\0"))
    lines = (re.sub(r" (?=[.,:;!?)])|(?<=\() ", "", line) for line in lines)
    return "\n".join(line for line in lines if line)


def embedded_data(page: str) -> Any:
    """The numbers behind the figures of a report, rounded."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match, "the page has no data"
    return json.loads(match[1], parse_float=lambda number: float(f"{float(number):.6g}"))


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0
        self.in_row = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self.hidden += 1
        if tag in ("table", "tr"):
            self.in_row = tag == "tr"
        self._separate(tag, " | " if tag in ("td", "th") else " ")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self.hidden -= 1
        if tag == "tr":
            self.in_row = False
        self._separate(tag, " ")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)

    def _separate(self, tag: str, within_a_line: str) -> None:
        starts_a_line = tag not in _INLINE and not self.in_row
        self.parts.append("\0" if starts_a_line or tag == "tr" else within_a_line)
