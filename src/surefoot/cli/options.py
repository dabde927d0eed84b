"""Arguments and options that commands of the `surefoot` command share, and their choices."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer


class Place(enum.StrEnum):
    """Where runs are computed."""

    local = "local"
    ray = "ray"


class Format(enum.StrEnum):
    """Ways to print a table."""

    md = "md"
    latex = "latex"
    csv = "csv"
    json = "json"


class PaperPart(enum.StrEnum):
    """Parts of the paper."""

    lr = "lr"
    mlp = "mlp"
    cnn = "cnn"
    eta = "eta"
    dropout = "dropout"
    ablation = "ablation"
    steps = "steps"
    all = "all"


def _folder(path: str | Path) -> Path:
    """A folder's path; an empty text, such as a shell variable that is not set, would be the current folder."""
    if not str(path).strip():
        raise typer.BadParameter("it is empty; name a folder, such as runs, or . for the current one")
    return Path(path)


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
Seeds = Annotated[
    int, typer.Option(min=1, help="Seeds per optimizer, the same for each; with fewer than 6 no claim is possible.")
]
FirstSeed = Annotated[int, typer.Option(min=0, help="The first seed.")]
Out = Annotated[
    Path,
    typer.Option(
        metavar="PATH", parser=_folder, help="Folder of the run folders; what it already holds is not done again."
    ),
]
Jobs = Annotated[int, typer.Option(min=1, help="Worker processes; 1 keeps timings comparable.")]
Where = Annotated[Place, typer.Option(help="Compute in local processes or on a Ray cluster.")]
Address = Annotated[str | None, typer.Option(help="Address of the Ray cluster.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads per run; part of what identifies a run.")]
Device = Annotated[str, typer.Option(help="Device of the model and data.")]
Rate = Annotated[float, typer.Option(help="Learning rate of optimizers that do not set their own.")]
Decay = Annotated[float | None, typer.Option(help="Weight decay likewise; on named tasks 1e-4 when not given.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the data sets are; else SUREFOOT_DATA, else downloaded.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Batch size.")]
Dropout = Annotated[bool | None, typer.Option("--dropout/--no-dropout", help="The paper's dropout of 0.5.")]
Subset = Annotated[int | None, typer.Option(min=1, help="Train on so many examples only.")]
SubsetSeed = Annotated[
    int | None, typer.Option(min=0, help="Draw those examples with this seed; otherwise the first of each class.")
]
ReportPath = Annotated[Path | None, typer.Option("--report", help="Where to write the report; by default into --out.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
