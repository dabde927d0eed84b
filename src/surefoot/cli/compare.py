"""The commands `surefoot compare` and `surefoot fork`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli.command import Baseline, Margin, Optimizers, TaskName, echo, given_path, report_file, takes
from surefoot.lab.spec.options import RunOptions

if TYPE_CHECKING:
    from surefoot.lab.results import Results

Seeds = Annotated[
    int, typer.Option(min=1, help="Seeds per optimizer, the same for each; with fewer than 6 no claim is possible.")
]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
ReportPath = Annotated[
    Path | None,
    typer.Option(
        "--report", parser=given_path, metavar="PATH", help="Where to write the report; by default into --out."
    ),
]


@takes(RunOptions())
def compare(
    options: RunOptions,
    task: TaskName = "digits-mlp",
    optimizer: Optimizers = None,
    seeds: Seeds = 6,
    first_seed: FirstSeed = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs per run.")] = 20,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Add seeds for the optimizers that are not decided yet.")
    ] = False,
    max_seeds: Annotated[int, typer.Option(min=1, help="With --until-decided: the most seeds.")] = 40,
    margin: Margin = None,
    baseline: Baseline = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Run nothing; say from the runs in --out how many seeds and how long.")
    ] = False,
    detect: Annotated[
        str | None, typer.Option(metavar="SIZE", help="With --plan: the difference to detect, e.g. 0.005 or 1%.")
    ] = None,
    report: ReportPath = None,
) -> None:
    """Compare optimizers with paired seeds; without arguments a demo on handwritten digits.

    Run the same command again after an interruption: nothing is lost and nothing is done twice.
    """
    if plan != (detect is not None):
        raise ValueError("--plan and --detect belong together, e.g. --plan --detect 0.005; give both or neither")
    path = report_file(report, options.out / "report.html")
    from surefoot.lab import experiments

    contestants = _baseline_first(optimizer or experiments.DEMO_OPTIMIZERS, baseline)
    if detect is not None:
        planned = experiments.plan(task, contestants, detect=detect, epochs=epochs, margin=margin, **options.keywords())
        echo(planned)
        return
    results = experiments.compare(
        task,
        contestants,
        seeds=range(first_seed, first_seed + seeds),
        epochs=epochs,
        until_decided=until_decided,
        max_seeds=max_seeds,
        margin=margin,
        **options.keywords(),
    )
    _show(results, path)


def _baseline_first(specs: Sequence[str], baseline: str | None) -> list[str]:
    """The optimizers with the one of this label first; it can also be given as it is on the command line."""
    if baseline is None:
        return list(specs)
    from surefoot.lab.spec.contestant import parse_all

    names = [{spec.casefold(), contestant.label.casefold()} for spec, contestant in zip(specs, parse_all(specs))]
    if not any(baseline.casefold() in known for known in names):
        raise ValueError(f"--baseline names {baseline!r}, which is none of the optimizers: {', '.join(specs)}")
    return sorted(specs, key=lambda spec: baseline.casefold() not in names[list(specs).index(spec)])


@takes(RunOptions())
def fork(
    options: RunOptions,
    task: TaskName,
    at: Annotated[int, typer.Option(min=0, help="Epoch at which every optimizer takes over from the baseline.")],
    optimizer: Optimizers = None,
    seeds: Seeds = 6,
    first_seed: FirstSeed = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs after the fork.")] = 5,
    state: Annotated[
        str,
        typer.Option(help="Optimizer state at the fork: fresh, or keep (the baseline's, where it loads)."),
    ] = "fresh",
    report: ReportPath = None,
) -> None:
    """Let every optimizer continue from the same weights over the same batches: where in training do they differ?"""
    path = report_file(report, options.out / "report.html")
    from surefoot.lab import experiments

    results = experiments.fork(
        task,
        optimizer or experiments.DEMO_OPTIMIZERS,
        at=at,
        seeds=range(first_seed, first_seed + seeds),
        epochs=epochs,
        state=state,
        **options.keywords(),
    )
    _show(results, path)


def _show(results: Results, path: Path) -> None:
    """Print what failed, write the report and print the tables.

    In this order: on a full disk there is no report, and why runs failed is said before that; a terminal or a pipe may
    refuse the tables, and the report is there all the same.
    """
    for folder, message in results.failures.items():
        details = Path(folder) / "error.txt"
        echo(f"failed: {message}" + (f" (see {details})" if details.exists() else ""), err=True)
    if any(run.epochs for run in results.runs):
        try:
            written = results.report(path)
        finally:
            results.print()
        echo(f"\nreport: {written}")
    if not results.ok:
        raise typer.Exit(1)
