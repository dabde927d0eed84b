"""The `surefoot` command: parse, call one function, print. Each command imports what it needs, when it runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

try:
    import typer
except ModuleNotFoundError:  # the core needs torch alone
    sys.exit("the surefoot command needs the lab's packages; install them with: pip install 'surefoot[lab]'")

from surefoot.cli.errors import clear_errors, report_file
from surefoot.cli.options import (
    Address,
    BatchSize,
    DataDir,
    Decay,
    Device,
    Dropout,
    FirstSeed,
    Format,
    Jobs,
    Optimizers,
    Out,
    PaperPart,
    Place,
    Quiet,
    Rate,
    ReportPath,
    Seeds,
    Subset,
    SubsetSeed,
    TaskName,
    Threads,
    Where,
)

if TYPE_CHECKING:
    from surefoot.lab.results import Results
    from surefoot.lab.run.pool import MakePool

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


@app.command()
def compare(
    task: TaskName = "digits-mlp",
    optimizer: Optimizers = None,
    seeds: Seeds = 6,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs per run.")] = 20,
    out: Out = Path("runs"),
    jobs: Jobs = 1,
    first_seed: FirstSeed = 0,
    executor: Where = Place.local,
    address: Address = None,
    threads: Threads = 1,
    device: Device = "cpu",
    lr: Rate = 1e-3,
    weight_decay: Decay = None,
    data_dir: DataDir = None,
    batch_size: BatchSize = None,
    dropout: Dropout = None,
    subset: Subset = None,
    subset_seed: SubsetSeed = None,
    report: ReportPath = None,
    quiet: Quiet = False,
) -> None:
    """Compare optimizers with paired seeds; without arguments a demo on handwritten digits.

    Run the same command again after an interruption: nothing is lost and nothing is done twice.
    """
    with clear_errors():
        path = report_file(report, out / "report.html")
        from surefoot.lab.experiments import DEMO_OPTIMIZERS
        from surefoot.lab.experiments import compare as run_comparison

        found = run_comparison(
            task,
            optimizer or DEMO_OPTIMIZERS,
            seeds=range(first_seed, first_seed + seeds),
            epochs=epochs,
            out=out,
            jobs=jobs,
            lr=lr,
            weight_decay=weight_decay,
            threads=threads,
            device=device,
            data_dir=data_dir,
            progress=not quiet,
            executor=_executor(executor, address),
            batch_size=batch_size,
            dropout=dropout,
            subset=subset,
            subset_seed=subset_seed,
        )
        _finish(found, path)


@app.command()
def fork(
    task: TaskName,
    at: Annotated[int, typer.Option(min=0, help="Epoch at which every optimizer takes over from the baseline.")],
    optimizer: Optimizers = None,
    seeds: Seeds = 6,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs after the fork.")] = 5,
    out: Out = Path("runs"),
    jobs: Jobs = 1,
    first_seed: FirstSeed = 0,
    executor: Where = Place.local,
    address: Address = None,
    threads: Threads = 1,
    device: Device = "cpu",
    lr: Rate = 1e-3,
    weight_decay: Decay = None,
    data_dir: DataDir = None,
    batch_size: BatchSize = None,
    dropout: Dropout = None,
    subset: Subset = None,
    subset_seed: SubsetSeed = None,
    state: Annotated[
        str,
        typer.Option(help="Optimizer state at the fork: fresh, or keep (the baseline's, where it loads)."),
    ] = "fresh",
    report: ReportPath = None,
    quiet: Quiet = False,
) -> None:
    """Let every optimizer continue from the same weights over the same batches: where in training do they differ?"""
    with clear_errors():
        path = report_file(report, out / "report.html")
        from surefoot.lab.experiments import DEMO_OPTIMIZERS
        from surefoot.lab.fork import fork as run_fork

        found = run_fork(
            task,
            optimizer or DEMO_OPTIMIZERS,
            at=at,
            seeds=range(first_seed, first_seed + seeds),
            epochs=epochs,
            out=out,
            jobs=jobs,
            lr=lr,
            weight_decay=weight_decay,
            threads=threads,
            device=device,
            data_dir=data_dir,
            state=state,
            progress=not quiet,
            executor=_executor(executor, address),
            batch_size=batch_size,
            dropout=dropout,
            subset=subset,
            subset_seed=subset_seed,
        )
        _finish(found, path)


@app.command()
def tune(
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
    epochs: Annotated[int, typer.Option(min=1, help="Epochs per run.")] = 5,
    metric: Annotated[str, typer.Option(help="What to optimize: its mean over the seeds at the end.")] = "valid_loss",
    prune: Annotated[bool, typer.Option("--prune/--no-prune", help="Stop bad trials early.")] = True,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="sqlite:///file.db (default: in --out), postgresql://... or journal:file."),
    ] = None,
    out: Out = Path("runs"),
    jobs: Jobs = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first tune seed; not one that results use.")] = 1000,
    executor: Where = Place.local,
    address: Address = None,
    threads: Threads = 1,
    device: Device = "cpu",
    weight_decay: Decay = None,
    data_dir: DataDir = None,
    batch_size: BatchSize = None,
    dropout: Dropout = None,
    subset: Subset = None,
    subset_seed: SubsetSeed = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Where to write the report; by default tune.html in --out.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Search for good settings: equal budgets, seeds apart from the reported ones.

    The same command goes on after an interruption; started again meanwhile, also elsewhere, it is one more worker.
    """
    with clear_errors():
        path = report_file(report, out / "tune.html")
        from surefoot.lab.tune import tune as run_search
        from surefoot.lab.tune.space import DEFAULT_SPACE, read_options

        found = run_search(
            task,
            optimizer or ("adam", "adams"),
            space=read_options({"eta": eta, "lr": lr}, space or []) or DEFAULT_SPACE,
            trials=trials,
            seeds=range(first_seed, first_seed + seeds),
            epochs=epochs,
            metric=metric,
            prune=prune,
            storage=storage,
            out=out,
            jobs=jobs,
            weight_decay=weight_decay,
            threads=threads,
            device=device,
            data_dir=data_dir,
            progress=not quiet,
            executor=_executor(executor, address),
            batch_size=batch_size,
            dropout=dropout,
            subset=subset,
            subset_seed=subset_seed,
        )
        found.print()
        command = shlex.join(["surefoot", *sys.argv[1:]]) if storage is None else ""  # a URL may hold a password
        typer.echo(f"\nreport: {found.report(path, command)}")
        for label, message in found.failures:
            typer.echo(f"failed: {label}: {message}", err=True)
        if not found.ok:
            raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder that 'surefoot compare --out' wrote to.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The HTML file to write.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the honesty checks; exit code 1 on an error or a warning.")
    ] = False,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="With --check: a finding to accept; repeat it.")
    ] = None,
    format: Annotated[Format | None, typer.Option(help="Print the table in this format instead.")] = None,
) -> None:
    """Write the report of a comparison, print its tables, or check its honesty."""
    with clear_errors():
        from surefoot.lab.analyse.audit import CODES
        from surefoot.lab.results import Results

        unknown = sorted({*(allow or ())}.difference(CODES))
        if unknown:
            raise ValueError(f"there is no finding {unknown[0]!r} to allow; take some of {', '.join(CODES)}")
        found = Results.read(runs)
        if not found.runs:
            raise ValueError(f"there are no runs under {runs}; make some with: surefoot compare --out {runs}")
        if format is not None:
            typer.echo(found.to(format.value))
        if output is not None or not (check or format):
            typer.echo(f"report: {found.report(report_file(output, Path('report.html')))}")
        if check:
            findings = found.check()
            for finding in findings:
                typer.echo(f"{finding.severity}: {finding.sentence} [{finding.code}]")
            if any(finding.severity != "note" and finding.code not in (allow or ()) for finding in findings):
                raise typer.Exit(1)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder of run folders.")] = Path("runs"),
    drop_checkpoints: Annotated[
        bool, typer.Option(help="Delete the checkpoints of ended runs; extending those starts anew then.")
    ] = False,
) -> None:
    """List the runs in a folder and how far each is."""
    with clear_errors():
        from surefoot.lab.run.progress import losses
        from surefoot.lab.store import read_runs

        found = read_runs(folder)
        if not found:
            raise ValueError(f"there are no runs under {folder}; make some with: surefoot compare --out {folder}")
        for run in found:
            last = run.epochs[-1] if run.epochs else None
            at = f"{last['epoch'] if last else 0}/{run.config['epochs']}"
            typer.echo(f"{run.state:10} {at:>9}  {run.task}  {run.label}, seed {run.seed}  {losses(last)}".rstrip())
            if drop_checkpoints and run.finished:
                (run.folder / "checkpoint.pt").unlink(missing_ok=True)


@app.command()
def paper(
    part: Annotated[
        PaperPart | None, typer.Argument(help="What to run; without it only --export does something.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds per optimizer; 3 as in the paper, 5 in the ablation.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs per run; 45 as in the paper, in the ablation 12 and 45 (CNN: 20).")
    ] = None,
    jobs: Jobs = 1,
    out: Out = Path("runs/paper"),
    data_dir: DataDir = None,
    model: Annotated[str | None, typer.Option(help="Only lr, mlp or cnn.")] = None,
    reference: Annotated[bool, typer.Option("--reference", help="Also the published recipe of each variant.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the runs, what is done and the time left; run nothing.")
    ] = False,
    export: Annotated[Path | None, typer.Option(help="Folder to write the tables, figures and report to.")] = None,
    page: Annotated[Path | None, typer.Option(help="With --export: a Markdown page to refresh the tables of.")] = None,
    executor: Where = Place.local,
    address: Address = None,
    quiet: Quiet = False,
) -> None:
    """Replicate the paper: its tables, figures and claims, cell by cell.

    Run the same command again after an interruption: nothing is lost and nothing is done twice.
    """
    with clear_errors():
        from surefoot.paper.command import paper as run_paper

        fine = run_paper(
            part.value if part else None,
            out=out,
            seeds=seeds,
            epochs=epochs,
            model=model,
            reference=reference,
            jobs=jobs,
            data_dir=data_dir,
            plan=plan,
            to=export,
            page=page,
            progress=not quiet,
            executor=_executor(executor, address),
            say=typer.echo,
        )
        if not fine:
            raise typer.Exit(1)


def _executor(place: Place, address: str | None) -> MakePool | None:
    if place is Place.local:
        if address is not None:
            raise ValueError(f"--address {address} is for a Ray cluster; add --executor ray, or leave it out")
        return None
    from surefoot.lab.run.ray import make_pool

    return make_pool(address)


def _finish(found: Results, path: Path) -> None:
    """Print the tables, write the report, and tell what failed."""
    if any(run.epochs for run in found.runs):
        found.print()
        typer.echo(f"\nreport: {found.report(path)}")
    for folder, message in found.failures.items():
        details = Path(folder) / "error.txt"
        typer.echo(f"failed: {message}" + (f" (see {details})" if details.exists() else ""), err=True)
    if not found.ok:
        raise typer.Exit(1)


def main() -> None:
    """Entry point of the `surefoot` command."""
    from surefoot.lab.run.memory import keep_freed_memory

    keep_freed_memory()  # --jobs 1 computes in this process
    app()
