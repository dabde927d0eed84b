"""The commands `surefoot report` and `surefoot runs`: what a folder of runs holds."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.command import Margin, plain_errors, report_file


class Format(enum.StrEnum):
    """Formats of a printed table."""

    md = "md"
    latex = "latex"
    csv = "csv"
    json = "json"


@plain_errors()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder that 'surefoot compare --out' wrote to.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The HTML file to write; by default report.html in the folder."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the honesty checks; exit code 1 on an error or a warning.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="With --check: a finding to accept; repeat it.")
    ] = None,
    format: Annotated[Format | None, typer.Option(help="Print the table in this format instead.")] = None,
    margin: Margin = None,
) -> None:
    """Write the report of a comparison, print its tables, or check its honesty."""
    from surefoot.lab.analyse.audit import CODES
    from surefoot.lab.results import Results

    unknown = sorted({*(allow or ())}.difference(CODES))
    if unknown:
        raise ValueError(f"there is no finding {unknown[0]!r} to allow; take some of {', '.join(CODES)}")
    results = replace(Results.read(runs), margin=margin)
    if not results.recorded:
        raise _no_runs(runs)
    if format is not None:
        typer.echo(results.to(format.value))
    writes = output is not None or not (check or format)
    findings = results.check() if writes or check else []
    for finding in findings:
        typer.echo(finding)
    if check and not findings:
        typer.echo("no findings")
    if writes:
        typer.echo(f"report: {results.report(report_file(output, runs / 'report.html'))}")
    if check and any(finding.severity != "note" and finding.code not in (allow or ()) for finding in findings):
        raise typer.Exit(1)


@plain_errors()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of run folders.")] = Path("runs"),
    drop_checkpoints: Annotated[
        bool, typer.Option(help="Delete the checkpoints of ended runs; extending those starts anew then.")
    ] = False,
) -> None:
    """List the runs in a folder and how far each is."""
    from surefoot.lab.run.progress import losses
    from surefoot.lab.store import read_runs

    recorded = read_runs(folder, tuning=True)
    if not recorded:
        raise _no_runs(folder)
    for run in recorded:
        last = run.epochs[-1] if run.epochs else None
        progress = f"{last['epoch'] if last else 0}/{run.config.epochs}"
        typer.echo(f"{run.state:10} {progress:>9}  {run.task}  {run.label}, seed {run.seed}  {losses(last)}".rstrip())
        if drop_checkpoints and run.finished:
            (run.folder / "checkpoint.pt").unlink(missing_ok=True)


def _no_runs(folder: Path) -> ValueError:
    return ValueError(f"there are no runs under {folder}; make some with: surefoot compare --out {folder}")
