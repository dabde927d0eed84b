"""The `surefoot` command: parse, call one function, print. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

from surefoot._extras import how_to_install

try:
    import typer
except ModuleNotFoundError:  # the core needs torch alone
    sys.exit(f"the surefoot command needs the lab's packages; install them with {how_to_install('lab')}")

from surefoot.cli import anytime, compare, demo, paper, report, tune
from surefoot.cli.command import Command, echo
from surefoot.lab.terminal import show_similar

HELP = "Optimizers that exploit the uncertainty of the loss, and a lab that shows honestly when they help."
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from surefoot.version import __version__

        echo(f"surefoot {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


for command in (
    demo.demo,
    compare.compare,
    compare.fork,
    anytime.anytime,
    tune.tune,
    report.report,
    report.runs,
    paper.paper,
):
    app.command(cls=Command)(command)


def main() -> None:
    """Entry point of the `surefoot` command."""
    from surefoot.lab.run.memory import keep_freed_memory

    keep_freed_memory()  # --jobs 1 computes in this process
    _open_streams()
    try:
        app()
    finally:
        _end_output()


def _open_streams() -> None:
    """Streams that raise no error for a character, and descriptors 0, 1 and 2 that are open.

    Where a caller closed them, the first sockets and files of ours would take their numbers.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for stream in (sys.stdout, sys.stderr):
        show_similar(stream)


def _end_output() -> None:
    """Write what is still in the buffers; where that fails it was said, and Python must not say it again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
