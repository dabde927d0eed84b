"""The `surefoot` command: parse, call one function, print. Each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

try:
    import typer
except ModuleNotFoundError:  # the core needs torch alone
    sys.exit("the surefoot command needs the lab's packages; install them with: pip install 'surefoot[lab]'")

from surefoot.cli import compare, paper, report, tune

HELP = "Optimizers that exploit the uncertainty of the loss, and a lab that shows honestly when they help."
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from surefoot.version import __version__

        typer.echo(f"surefoot {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


for command in (compare.compare, compare.fork, tune.tune, report.report, report.runs, paper.paper):
    app.command()(command)


def main() -> None:
    """Entry point of the `surefoot` command."""
    from surefoot.lab.run.memory import keep_freed_memory

    keep_freed_memory()  # --jobs 1 computes in this process
    app()
