"""Text on its way to a terminal: nothing in it is obeyed, and what cannot be shown becomes something similar."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

import surefoot
from surefoot.lab.terminal import console, printable, show_similar

HOSTILE = "Adam\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\r\x08\u202eS\u2028"


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    shown = printable(HOSTILE)
    assert shown.isprintable()
    assert len(shown) == len(HOSTILE)
    assert printable("A\tB\nC ± ▲ é") == "A\tB\nC ± ▲ é"


@pytest.mark.parametrize("colour", [True, False])
def test_the_console_obeys_no_text_and_keeps_its_own_styles(colour: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    output = console()
    output.file = file = io.StringIO()
    output._color_system = None if not colour else output._color_system
    table = Table("optimizer")
    table.add_row(Text(HOSTILE, style="red"))
    output.print(HOSTILE, markup=False)
    output.print(table)
    text = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count("␛[2J") == 2


@pytest.mark.parametrize(
    ("encoding", "shown"), [("latin-1", "± ^ inf - é"), ("ascii", "+- ^ inf - e"), ("utf-8", "± ▲ ∞ – é")]
)
def test_what_an_encoding_lacks_becomes_something_similar(encoding: str, shown: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    show_similar(stream)
    stream.write("± ▲ ∞ – é")
    stream.flush()
    assert raw.getvalue().decode(encoding) == shown


def test_nothing_is_printed_past_these_functions() -> None:
    source = Path(surefoot.__file__).parent
    for path in [*source.glob("cli/*.py"), *source.glob("lab/**/*.py"), *source.glob("paper/*.py")]:
        text = path.read_text()
        own = {"terminal.py": "", "command.py": "typer.echo(printable("}.get(path.name, "-")
        for way in (r"typer\.echo", r"click\.echo", r"\bConsole\(", r"^ *print\("):
            lines = [line for line in text.splitlines() if re.search(way, line) and ">>>" not in line]
            assert [line for line in lines if own not in line] == [], path
