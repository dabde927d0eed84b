"""How text reaches a terminal: nothing in it is obeyed, and what the terminal cannot show becomes something similar.

Labels, names of metrics and messages come from files that others may have written. A terminal takes some characters as
orders: to move, to delete, to change its title, to write from right to left. Everything that the lab prints goes
through `printable`, in the commands by `surefoot.cli.command.echo`, elsewhere by the `console` of this file.
"""

from __future__ import annotations

import codecs
import io
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

from surefoot._extras import require

if TYPE_CHECKING:
    from rich.console import Console

#: C0, C1 and delete, marks of direction, separators of lines, and halves of characters. Newline and tab stay.
_ORDERS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {0x7F: "\u2421"}
_ORDERS |= dict.fromkeys(
    [
        *range(0x80, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ],
    "\ufffd",
)  # fmt: skip
_SIMILAR = {
    "±": "+-", "∞": "inf", "≤": "<=", "≥": ">=", "–": "-", "…": "...", "·": "-", "→": "->", "▲": "^", "△": "^",
    "▼": "v", "◇": "?", "✕": "x", "✓": "ok",
}  # fmt: skip


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey; for each character that would be an order there is one to see.

    >>> printable("Adam\\x1b[2J"), printable("two\\nlines")
    ('Adam␛[2J', 'two\\nlines')
    """
    return text.translate(_ORDERS)


def one_line(text: str) -> str:
    """Printable text without line breaks and tabs, for lists with a line each: a label must not add lines to them.

    >>> one_line("Adam\\nno findings")
    'Adam␊no findings'
    """
    return printable(text).replace("\n", "\u240a").replace("\t", "\u2409")


def _similar(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    plain = [
        _SIMILAR.get(letter) or unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode() or "?"
        for letter in letters
    ]
    return "".join(plain), error.end


codecs.register_error("surefoot.similar", _similar)


def show_similar(stream: Any) -> None:
    """Let a stream write something similar for what its encoding lacks, instead of raising an error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="surefoot.similar")


def console(*, stderr: bool = False) -> Console:
    """The console that everything styled is printed on."""
    made: Console = _console_class()(stderr=stderr)
    return made


@cache
def _console_class() -> Any:
    segments = require("rich.segment", extra="lab")

    class PlainConsole(require("rich.console", extra="lab").Console):  # type: ignore[misc]
        """A console that shows the text it is given and obeys none of it."""

        def render(self, *arguments: Any, **options: Any) -> Any:
            for segment in super().render(*arguments, **options):
                # Control segments are the console's own, such as the moves of a progress display.
                yield segment if segment.control else segments.Segment(printable(segment.text), segment.style)

    return PlainConsole
