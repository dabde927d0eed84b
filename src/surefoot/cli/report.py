"""The commands `surefoot report` and `surefoot runs`: what a folder of runs holds."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.command import Baseline, Margin, echo, given_path, plain_errors, report_file

if TYPE_CHECKING:
    from surefoot.lab.horizons import HorizonResults
    from surefoot.lab.results import Results


class Format(enum.StrEnum):
    """Formats of a printed table."""

    md = "md"
    latex = "latex"
    csv = "csv"
    json = "json"


@plain_errors()
def report(
    runs: Annotated[
        Path,
        typer.Argument(
            parser=given_path, help="Folder of 'surefoot compare --out'; or a CSV or Parquet file, or TensorBoard logs."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=given_path,
            metavar="PATH",
            help="The HTML file to write; by default report.html in the folder.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the honesty checks; exit code 1 on an error or a warning.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="With --check: a finding to accept; repeat it.")
    ] = None,
    verify: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Compute N runs at random again and compare them bit for bit."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="With --verify: where the data sets are.")] = None,
    higher_is_better: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="A metric of a table of which more is better; repeat it."),
    ] = None,
    format: Annotated[Format | None, typer.Option(help="Print the table in this format instead.")] = None,
    margin: Margin = None,
    baseline: Baseline = None,
) -> None:
    """Write the report of a comparison, print its tables, or check its honesty."""
    from surefoot.lab.analyse.audit import CODES
    from surefoot.lab.results import Results

    unknown = sorted({*(allow or ())}.difference(CODES))
    if unknown:
        raise ValueError(f"there is no finding {unknown[0]!r} to allow; take some of {', '.join(CODES)}")
    read = Results.read(runs, higher_is_better=dict.fromkeys(higher_is_better or (), True))
    if not read.recorded:
        raise _no_runs(runs)
    results = _at_horizons(runs, read, margin, baseline) or replace(read, margin=margin, baseline=baseline)
    if format is not None:
        echo(results.to(format.value))
    writes = output is not None or not (check or format or verify)
    if writes:
        if output is None and isinstance(results, Results):
            _mention_horizons(runs, results)
        for sentence in results.sentences():
            echo(sentence)
    findings = results.check() if writes or check else []
    for finding in findings:
        echo(finding)
    if check and not findings:
        echo("no findings")
    if writes:
        echo(f"report: {results.report(report_file(output, _default_page(runs, results)))}")
    same = verify is None or _verify(read, verify, data_dir)
    if not same or (
        check and any(finding.severity != "note" and finding.code not in (allow or ()) for finding in findings)
    ):
        raise typer.Exit(1)


def _at_horizons(runs: Path, read: Results, margin: str | None, baseline: str | None) -> HorizonResults | None:
    """The results of `surefoot anytime`, if the folder holds these alone; they are no comparison with a baseline."""
    from surefoot.lab.horizons import HorizonResults

    results = HorizonResults.read(runs, read.recorded) if runs.is_dir() else None
    if results is None:
        return None
    if baseline is not None:
        raise ValueError(
            f"{runs} is of 'surefoot anytime', which compares with the best of the others; leave --baseline out"
        )
    return results if margin is None else replace(results, margin=margin)


def _mention_horizons(runs: Path, results: Results) -> None:
    """Say how the report of `surefoot anytime` is written, if some of the runs are of it.

    If all are, and an earlier version did not record what it compared, a comparison of runs of several lengths would
    take the place of its report: that is refused.
    """
    from surefoot.lab.store import HorizonRecord

    if record := HorizonRecord.read(runs):
        echo(f"also in {runs}: runs of 'surefoot anytime', whose report is written by: {record.command}")
        return
    commands = {run.config.provenance.command for run in results.runs}
    if commands and all(command.startswith("surefoot anytime ") for command in commands):
        raise ValueError(
            f"the runs in {runs} are of 'surefoot anytime', and an earlier version did not record what it compared; "
            f"run it again, nothing is computed twice: {max(commands)} (or name the file of a comparison with -o)"
        )


def _default_page(runs: Path, results: Results | HorizonResults) -> Path:
    """Where the command that made the runs writes it, in their folder; for a table beside it."""
    return runs / results.page if runs.is_dir() else runs.with_suffix(".html")


def _verify(results: Results, number: int, data_dir: Path | None) -> bool:
    """Compute some runs again and print how each compares with its record; False if one differs."""
    from surefoot.lab.run.verify import verify

    same = True
    for check in verify(results.runs, number, data_dir=data_dir):
        echo(f"verify: {check.run.label}, seed {check.run.seed}: {check.sentence}")
        same &= check.same
    return same


@plain_errors()
def runs(
    folder: Annotated[Path, typer.Argument(parser=given_path, help="Folder of run folders.")] = Path("runs"),
    drop_checkpoints: Annotated[
        bool, typer.Option(help="Delete the checkpoints of ended runs; extending those starts anew then.")
    ] = False,
) -> None:
    """List the runs in a folder and how far each is."""
    from surefoot.lab.run.progress import losses
    from surefoot.lab.store import read_runs
    from surefoot.lab.terminal import one_line

    recorded = read_runs(folder, tuning=True)
    if not recorded:
        raise _no_runs(folder)
    for run in recorded:
        last = run.epochs[-1] if run.epochs else None
        progress = f"{last['epoch'] if last else 0}/{run.config.epochs}"
        line = f"{run.state:10} {progress:>9}  {run.task}  {run.label}, seed {run.seed}  {losses(last)}"
        echo(one_line(line.rstrip()))
        if drop_checkpoints and run.finished:
            (run.folder / "checkpoint.pt").unlink(missing_ok=True)


def _no_runs(folder: Path) -> ValueError:
    return ValueError(f"there are no runs under {folder}; make some with: surefoot compare --out {folder}")
