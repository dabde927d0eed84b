"""The command `surefoot tune`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.command import Optimizers, TaskName, echo, given_path, report_file, takes
from surefoot.lab.spec.options import RunOptions


@takes(RunOptions())
def tune(
    options: RunOptions,
    task: TaskName,
    optimizer: Optimizers = None,
    eta: Annotated[str | None, typer.Option(metavar="RANGE", help="What eta to try: 1e-6:1, or 1e-4,1e-2.")] = None,
    lr: Annotated[str | None, typer.Option(metavar="RANGE", help="What learning rates to try.")] = None,
    space: Annotated[
        list[str] | None, typer.Option(metavar="NAME=RANGE", help="Another option to try, e.g. weight_decay=1e-6:1e-2.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Settings per optimizer, the same for each; 20, or all points of a grid.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Tune seeds per setting.")] = 2,
    first_seed: Annotated[int, typer.Option(min=0, help="The first tune seed; not one that results use.")] = 1000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs per run.")] = 5,
    metric: Annotated[str, typer.Option(help="What to optimize: its mean over the seeds at the end.")] = "valid_loss",
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop bad trials early.")] = True,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="sqlite:///file.db (default: in --out), postgresql://... or journal:file."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            parser=given_path,
            metavar="PATH",
            help="Where to write the report; by default tune.html in --out.",
        ),
    ] = None,
) -> None:
    """Search for good settings: equal budgets, other seeds than the reported ones.

    The same command goes on after an interruption; started again meanwhile, also elsewhere, it is one more worker.
    """
    path = report_file(report, options.out / "tune.html")
    from surefoot.lab.tune import tune as search
    from surefoot.lab.tune.space import DEFAULT_SPACE, read_options

    tuning = search(
        task,
        optimizer or ("adam", "adams"),
        space=read_options({"eta": eta, "lr": lr}, space or []) or DEFAULT_SPACE,
        trials=trials,
        seeds=range(first_seed, first_seed + seeds),
        epochs=epochs,
        metric=metric,
        prune=prune,
        storage=storage,
        **options.keywords(),
    )
    for label, message in tuning.failures:
        echo(f"failed: {label}: {message}", err=True)
    command = shlex.join(["surefoot", *sys.argv[1:]]) if storage is None else ""  # a URL may hold a password
    try:
        written = tuning.report(path, command)
    finally:
        tuning.print()
    echo(f"\nreport: {written}")
    if not tuning.ok:
        raise typer.Exit(1)
