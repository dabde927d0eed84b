"""What the command says when something is wrong: one sentence, and before the work where that can be known."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def clear_errors() -> Iterator[None]:
    """Print what went wrong as one sentence; after Ctrl-C say how to go on."""
    try:
        yield
    except typer.Exit:  # a RuntimeError, too
        raise
    except KeyboardInterrupt:
        command = shlex.join(["surefoot", *sys.argv[1:]])
        typer.echo(f"\ninterrupted; everything so far is kept. Go on with: {command}", err=True)
        raise typer.Exit(130) from None
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        if os.environ.get("SUREFOOT_DEBUG"):
            raise
        typer.echo(f"error: {_sentence(error)}", err=True)
        raise typer.Exit(2) from None


def _sentence(error: Exception) -> str:
    """What went wrong; of the system's own errors without their number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename} cannot be used ({error.strerror}); give another path"
    return str(error)


def report_file(given: Path | None, default: Path) -> Path:
    """Where a report goes; refused before hours of training, not after them.

    The default lies in --out, of which the runs tell themselves what is wrong.
    """
    path = given or default
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and the report is a file; name one, such as {path / 'report.html'}")
    if given is not None:
        _check_folder(given)
    return path


def _check_folder(report: Path) -> None:
    """Refuse a report whose folder cannot be made or takes no file."""
    folder = next(parent for parent in report.absolute().parents if parent.exists())
    begin = f"the report {report} cannot be written: {folder}"
    if not folder.is_dir():
        raise ValueError(f"{begin} is a file, not a folder; name another place")
    try:
        # Tried, not asked: what root may do, and what a file system takes, permissions do not tell.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{begin} takes no file ({error.strerror or error}); name another place") from error
