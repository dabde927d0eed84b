"""The command `surefoot paper`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from surefoot.cli.command import echo, given_path, takes
from surefoot.lab.spec.options import RunOptions


class PaperPart(enum.StrEnum):
    """Parts of the paper."""

    lr = "lr"
    mlp = "mlp"
    cnn = "cnn"
    eta = "eta"
    dropout = "dropout"
    ablation = "ablation"
    why = "why"
    steps = "steps"
    all = "all"


@takes(RunOptions(out=Path("runs/paper")), "out", "jobs", "executor", "address", "data_dir")
def paper(
    options: RunOptions,
    part: Annotated[
        PaperPart | None, typer.Argument(help="What to run; without it only --export does something.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds per optimizer; 3 as in the paper, 5 in the ablation, 10 in why.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Epochs per run; 45, in the ablation 12 and 45 (CNN: 20), in why 3, 7, 20."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only lr, mlp or cnn.")] = None,
    reference: Annotated[bool, typer.Option("--reference", help="Also the published recipe of each variant.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the runs, what is done and the time left; run nothing.")
    ] = False,
    archive: Annotated[
        Path | None,
        typer.Option(
            parser=given_path, metavar="PATH", help="File of runs that are done; they are not computed again."
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(parser=given_path, metavar="PATH", help="Folder to write the tables, figures and report to."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            parser=given_path, metavar="PATH", help="With --export: a Markdown page to refresh the tables of."
        ),
    ] = None,
) -> None:
    """Replicate the paper: its tables, figures and claims, cell by cell.

    Run the same command again after an interruption: nothing is lost and nothing is done twice.
    """
    from surefoot.paper.command import paper as run_paper

    complete = run_paper(
        part.value if part else None,
        seeds=seeds,
        epochs=epochs,
        model=model,
        reference=reference,
        plan=plan,
        archive=archive,
        to=export,
        page=page,
        print_line=echo,
        **options.keywords(),
    )
    if not complete:
        raise typer.Exit(1)
