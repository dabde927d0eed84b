"""The command `surefoot anytime`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.command import Optimizers, TaskName, echo, given_path, report_file, takes
from surefoot.cli.compare import FirstSeed, ReportPath, Seeds
from surefoot.lab.spec.options import RunOptions


@takes(RunOptions())
def anytime(
    options: RunOptions,
    task: TaskName,
    optimizer: Optimizers,
    horizons: Annotated[str, typer.Option(metavar="EPOCHS", help="Numbers of epochs to compare after.")] = "1,2,4,8,16",
    seeds: Seeds = 6,
    first_seed: FirstSeed = 0,
    margin: Annotated[
        str, typer.Option(metavar="SIZE", help="What counts as not inferior: 0.002, or 1% of the best peer's value.")
    ] = "1%",
    rates: Annotated[
        str,
        typer.Option(metavar="LRS", help="Learning rates to choose from, on seeds from 1000 on."),
    ] = "",
    tune_seeds: Annotated[int, typer.Option(min=1, help="Seeds to choose learning rates on.")] = 3,
    table: Annotated[
        Path | None,
        typer.Option("--table", parser=given_path, metavar="PATH", help="Also write the table, as Markdown."),
    ] = None,
    report: ReportPath = None,
) -> None:
    """Compare the first optimizer with the best of the others at every horizon: is it good at any time?

    Schedules that depend on the length of the run are trained once per horizon, everything else once.
    """
    try:
        lengths = [int(part) for part in horizons.split(",")]
    except ValueError:
        raise ValueError(f"--horizons must be numbers of epochs such as 1,2,4,8, not {horizons!r}") from None
    try:
        grid = [float(part) for part in rates.split(",") if part]
    except ValueError:
        raise ValueError(f"--rates must be learning rates such as 1e-3,3e-3,1e-2, not {rates!r}") from None
    from surefoot.lab import horizons as lab

    path = report_file(report, options.out / lab.HorizonResults.page)
    results = lab.anytime(
        task,
        optimizer or [],
        horizons=lengths,
        seeds=range(first_seed, first_seed + seeds),
        margin=margin,
        rates=grid,
        tune_seeds=tune_seeds,
        **options.keywords(),
    )
    for message in results.failures.values():
        echo(f"failed: {message}", err=True)
    if not results.failures:
        if table is not None:
            results.write(table)
        try:
            written = results.report(path)
        finally:
            results.print()
        echo(f"\nreport: {written}")
    if results.failures:
        raise typer.Exit(1)
