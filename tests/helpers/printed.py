"""A page on paper: how much of it is empty, read from the PDF that Chromium writes."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

OBJECT = re.compile(rb"(?s)\n(\d+) 0 obj\n(.*?)\nendobj")
STREAM = re.compile(rb"(?s)stream\r?\n(.*)\r?\nendstream")
#: What moves the pen or writes a text, each on a line of its own.
OPERATOR = re.compile(r"(?m)^(?:((?:[-.\d]+ ){6})(cm|Tm)|(q|Q)|/(X\d+) Do)$")
MILLIMETRE = 72 / 25.4


class Matrix(NamedTuple):
    """Where a point of a drawing lies on the page, as PDF writes it."""

    a: float = 1.0
    b: float = 0.0
    c: float = 0.0
    d: float = 1.0
    e: float = 0.0
    f: float = 0.0

    def inside(self, outer: Matrix) -> Matrix:
        """This matrix, applied before the outer one."""
        a, b, c, d, e, f = self
        return Matrix(
            a * outer.a + b * outer.c,
            a * outer.b + b * outer.d,
            c * outer.a + d * outer.c,
            c * outer.b + d * outer.d,
            e * outer.a + f * outer.c + outer.e,
            e * outer.b + f * outer.d + outer.f,
        )


def empty_shares(pdf: bytes, margin: float = 15.0) -> list[float]:
    """For each page the share of its height, without margins (in mm), that is empty below the last text."""
    objects = {int(found[1]): found[2] for found in OBJECT.finditer(pdf)}
    shares = []
    for text in objects.values():
        if not re.match(rb"<</Type /Page\s*\n/Resources", text):
            continue
        size = re.search(rb"/MediaBox \[0 0 [\d.]+ ([\d.]+)\]", text)
        content = re.search(rb"/Contents (\d+) 0 R", text)
        assert size
        assert content
        lowest = min(_heights(objects, int(content[1]), _forms(text), Matrix()))
        shares.append((lowest / MILLIMETRE - margin) / (float(size[1]) / MILLIMETRE - 2 * margin))
    return shares


def _forms(text: bytes) -> dict[str, int]:
    """The drawings that a page or a drawing uses, by name."""
    return {f"X{name.decode()}": int(number) for name, number in re.findall(rb"/X(\d+) (\d+) 0 R", text)}


def _heights(objects: dict[int, bytes], number: int, forms: dict[str, int], outer: Matrix) -> list[float]:
    """The heights of all texts in a stream and in the drawings that it uses."""
    stream = STREAM.search(objects[number])
    assert stream
    heights, now, kept = [], outer, []
    for match in OPERATOR.finditer(zlib.decompress(stream[1]).decode("latin-1")):
        numbers, moves, saves, form = match.groups()
        if saves == "q":
            kept.append(now)
        elif saves == "Q":
            now = kept.pop()
        elif form and form in forms:
            head = objects[forms[form]].partition(b"stream")[0]
            if b"/Form" in head:
                heights += _heights(objects, forms[form], _forms(head), now)
        elif numbers:
            matrix = Matrix(*map(float, numbers.split()))
            if moves == "cm":
                now = matrix.inside(now)
            else:
                heights.append(matrix.inside(now).f)
    return heights
