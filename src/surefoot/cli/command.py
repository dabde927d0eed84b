"""What the commands share: arguments, the flags of RunOptions, and errors in one sentence."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from surefoot.lab.spec.options import Flag, RunOptions, flags_of
from surefoot.lab.terminal import printable

TaskName = Annotated[
    str, typer.Argument(help="A named task, a file (my_task.py) or an import path (package.module:name).")
]
Optimizers = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--optimizer",
        metavar="SPEC",
        help="A contestant, e.g. adams:eta=1e-4; repeat it; the first is the baseline.",
    ),
]
Margin = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Smaller differences count as equal: 0.002 (leading metric), or 1% (every one)."),
]
Baseline = Annotated[
    str | None, typer.Option(metavar="NAME", help="The optimizer to compare with, by its label; by default the first.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def echo(message: object, *, err: bool = False) -> None:
    """Print a line, to the error stream with `err`; the one way of the commands to print."""
    typer.echo(printable(str(message)), err=err)


def given_path(text: str) -> Path:
    """A path as it was given; an empty one is a mistake, not the current folder."""
    if not text:
        raise typer.BadParameter("a path is missing; '' names no file or folder, and '.' is the current folder")
    return Path(text)


class Command(typer.core.TyperCommand):
    """A command that says how several optimizers are given, where one is given like an argument."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            extra = getattr(error, "message", "")
            takes_optimizers = any(parameter.name == "optimizer" for parameter in self.params)
            if takes_optimizers and len(given) > 1 and "unexpected extra argument" in extra:
                error.message = f"{extra}; to compare several optimizers repeat -o: -o adam -o adams"  # type: ignore[attr-defined]
            raise


def takes(defaults: RunOptions, *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of RunOptions, and --quiet, in place of its parameter `options`.

    Args:
        defaults: The values of options that are not given.
        names: The fields that become flags; by default all that the command has no parameter of that name for.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters = {name: parameter for name, parameter in signature.parameters.items() if name != "options"}
        flags = {
            name: _parameter(name, flag.kind or kind, getattr(defaults, name), flag)
            for name, (kind, flag) in flags_of(RunOptions).items()
            if name not in parameters and (not names or name in names)
        }
        quiet = inspect.Parameter("quiet", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation=Quiet)

        @plain_errors()
        @functools.wraps(command)
        def run(*, quiet: bool, **arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in flags}
            command(RunOptions.read({**given, "progress": not quiet}), **arguments)

        shown = [*parameters.values(), *flags.values(), quiet]
        run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(name: str, kind: Any, default: Any, flag: Flag) -> inspect.Parameter:
    """A flag as a parameter that typer reads."""
    option = typer.Option(min=flag.minimum, metavar=flag.metavar, help=flag.help)
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=str(default) if kind is str else default,
        annotation=Annotated[kind, option],
    )


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print an error as one sentence; after Ctrl-C say how to continue. Also a decorator."""
    try:
        yield
    except typer.Exit:  # a RuntimeError, too
        raise
    except KeyboardInterrupt:
        command = shlex.join(["surefoot", *sys.argv[1:]])
        echo(f"\ninterrupted; everything so far is kept. Go on with: {command}", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # whoever read our output has enough of it: `surefoot runs | head`
        raise
    except (ValueError, ImportError, OSError, RuntimeError, ArithmeticError, MemoryError) as error:
        if os.environ.get("SUREFOOT_DEBUG"):
            raise
        echo(f"error: {_error_text(error)}", err=True)
        raise typer.Exit(2) from None


def _error_text(error: Exception) -> str:
    """What went wrong; an error of the operating system is shown without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename} cannot be used ({error.strerror}); give another path"
    if isinstance(error, OSError) and error.strerror:
        return f"the output cannot be written ({error.strerror})"
    # One line: what others raise may have several.
    return " ".join(str(error).split("\n")) or type(error).__name__


def report_file(given: Path | None, default: Path) -> Path:
    """The file to write a report to; one that cannot be written is refused here, before hours of training.

    The default is in --out, which the runs check themselves.
    """
    path = given or default
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and the report is a file; name one, such as {path / 'report.html'}")
    from surefoot.lab.store import check_place  # here, since --help must not wait for torch

    check_place(path)
    if given is not None:
        _check_folder(given)
    return path


def _check_folder(report: Path) -> None:
    """Refuse a report in a folder that cannot be made or written to."""
    folder = next(parent for parent in report.absolute().parents if parent.exists())
    begin = f"the report {report} cannot be written: {folder}"
    if not folder.is_dir():
        raise ValueError(f"{begin} is a file, not a folder; name another place")
    try:
        # Create a file instead of reading permissions: those do not show what root may do or that a disk is read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{begin} takes no file ({error.strerror or error}); name another place") from error
