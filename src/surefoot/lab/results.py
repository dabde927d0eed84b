"""The results of a comparison, for a notebook or a script: runs, tables, plots, report."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from surefoot._extras import require
from surefoot.lab.analyse.audit import Finding, audit
from surefoot.lab.analyse.comparison import MarginOption, Summary, summarise
from surefoot.lab.analyse.groups import group_runs, metric_name, to_frame
from surefoot.lab.analyse.ranking import rankings
from surefoot.lab.imports import import_runs, is_table
from surefoot.lab.spec.config import Purpose
from surefoot.lab.store import Run, StoreError, read_runs
from surefoot.lab.terminal import console

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Results:
    """The runs of a comparison, as tables, a data frame, plots, checks and a report.

    Args:
        runs: The runs; the first one's optimizer is the baseline.
        failures: What went wrong, by run folder; empty if every run ended.
        recorded: Everything in the folder of these runs, with trials and what is not shown; the checks look at it.
        unreadable: Why the folder cannot be read as a whole, if so.
        margin: Smaller differences count as equal, as in `compare`.
        baseline: The label to compare with, if not the first one.
    """

    #: The file of the report.
    page: ClassVar[str] = "report.html"

    runs: list[Run]
    failures: dict[str, str]
    recorded: Sequence[Run] = ()
    unreadable: str = ""
    margin: MarginOption = None
    baseline: str | None = None

    @classmethod
    def read(cls, source: Path | str | DataFrame, *, higher_is_better: Mapping[str, bool] | None = None) -> Results:
        """The results under a folder that a comparison wrote to, or those of a table that others made.

        Args:
            source: The folder; or a CSV or Parquet file, a pandas DataFrame, or a folder of TensorBoard logs, with a
                row per run and epoch: task, optimizer, seed, epoch or step, and metrics.
            higher_is_better: For each metric of a table whether larger values are better.
        """
        is_folder = isinstance(source, str | os.PathLike) and Path(source).is_dir()
        recorded = read_runs(source, tuning=True) if is_folder else []
        if not is_folder or (not recorded and is_table(Path(source))):
            recorded = import_runs(source, higher_is_better=higher_is_better)
        elif higher_is_better:
            raise ValueError("higher_is_better is for tables; runs of the lab record it with their task")
        runs = [run for run in recorded if run.config.purpose != Purpose.TUNING]
        return cls(runs, {str(run.folder): run.error for run in runs if run.error}, recorded)

    @property
    def ok(self) -> bool:
        """Whether every run ended; a run that diverged ended as well."""
        return not self.failures and all(run.finished for run in self.runs)

    @property
    def frame(self) -> DataFrame:
        """The recorded epochs as a pandas DataFrame, one row per run and epoch, for analyses of your own.

        The validation loss after the last epoch, as mean and std over the seeds:

        >>> import tempfile
        >>> from surefoot.lab import compare
        >>> with tempfile.TemporaryDirectory() as out:
        ...     frame = compare("digits-lr", ["adam", "sgd"], seeds=2, epochs=1, out=out, progress=False).frame
        >>> last = frame[frame["epoch"] == frame["epoch"].max()]
        >>> summary = last.groupby("optimizer")["valid_loss"].agg(["mean", "std"])
        >>> list(summary.index)
        ['Adam', 'SGD']

        Take all optimizers at the same epoch. The smallest loss over seeds and epochs is that of the luckiest run.
        """
        return to_frame(group_runs(self.runs))

    def table(self, **options: Any) -> Summary:
        """How every contestant compares with the baseline: mean and std, paired intervals, verdicts.

        Args:
            options: metrics, baseline, target, epoch, margin; see `surefoot.lab.analyse.comparison.summarise`.
        """
        from surefoot.lab.report.tables import Tables

        return Tables.of(summarise(self.runs, **{"margin": self.margin, "baseline": self.baseline, **options}))

    def sentences(self) -> list[str]:
        """For each task who won, by how much, and how sure that is."""
        return [f"{ranking.rows[0].task}: {ranking.sentence}" for ranking in rankings(self.table())]

    def print(self) -> None:
        """Print the tables with their verdicts, and below them the findings of the checks, one line each."""
        output = console()
        output.print(self.table())
        for finding in self.check():
            output.print(str(finding), markup=False, highlight=False, soft_wrap=True)

    def to(self, format: str, **options: Any) -> str:
        """The tables as text: "md" (Markdown), "latex", "csv" or "json".

        Args:
            format: The format.
            options: As of `table`: metrics, baseline, target, epoch, margin.
        """
        from surefoot.lab.report import tables

        writers = {
            "md": tables.to_markdown,
            "latex": tables.to_latex,
            "csv": tables.to_csv,
            "json": tables.to_json,
        }
        if format not in writers:
            raise ValueError(f"unknown format {format!r}; choose {', '.join(writers)}")
        return writers[format](self.table(**options))

    def to_markdown(self, **options: Any) -> str:
        return self.to("md", **options)

    def to_latex(self, **options: Any) -> str:
        return self.to("latex", **options)

    def to_csv(self, **options: Any) -> str:
        return self.to("csv", **options)

    def to_json(self, **options: Any) -> str:
        return self.to("json", **options)

    def check(self) -> list[Finding]:
        """What makes the comparison unfair, incomplete or weaker than it looks; the whole folder is looked at."""
        unreadable = [Finding("unreadable-runs", "error", self.unreadable)] if self.unreadable else []
        return [*unreadable, *audit(self.runs, self.baseline, recorded=self.recorded)]

    def plot(self, metric: str = "valid_loss", *, band: bool = True, log: bool = False) -> list[Axes]:
        """Draw mean curves with a band of one standard deviation, one figure per task; returns the axes.

        Args:
            metric: What to draw: valid_loss, train_loss, valid_accuracy, ...
            band: Whether to draw the band.
            log: Whether the scale is logarithmic.
        """
        from surefoot.lab.report.draw import draw_panel
        from surefoot.lab.report.panels import curves_panel

        pyplot = require("matplotlib.pyplot", extra="lab")
        drawn: list[Axes] = []
        for group in self.table(metrics=[metric]).groups:
            _, axes = pyplot.subplots(layout="constrained")
            draw_panel(axes, curves_panel(group, metric, band=band, log=log))
            axes.legend()
            drawn.append(axes)
        return drawn

    def __str__(self) -> str:
        """The tables as Markdown, which reads well as plain text too."""
        tables = self.to_markdown() if self.runs else ""
        return "\n".join(
            [tables.rstrip() or f"Results: {len(self.runs)} runs without a recorded epoch", *self._failed()]
        )

    def __repr__(self) -> str:
        """A few lines: what was compared, and the verdicts on the leading metric. `print(results)` has the tables."""
        from surefoot.lab.report.tables import headline

        summary = self.table()
        leading = [row for row in summary.select(metric=(*summary.metrics, "")[0]) if not row.is_baseline]
        verdicts = [f"  {row.task}, {metric_name(row.metric)}: {headline(row)}" for row in leading]
        return "\n".join([repr(summary).replace("Tables", "Results"), *_few(verdicts), *_few(self._failed())])

    def _failed(self) -> list[str]:
        return [f"failed: {message.strip()}" for message in self.failures.values()]

    def _repr_html_(self) -> str:
        """The tables, for a notebook."""
        from surefoot.lab.report.tables import to_html

        failed = [f"<p>failed: {html.escape(message)}</p>" for message in self.failures.values()]
        return "\n".join([to_html(self.table()), *failed])

    def report(self, path: Path | str = page) -> Path:
        """Write the report, one HTML file that needs no network."""
        from surefoot.lab.report import write_report

        write_report(self.runs, Path(path), findings=self.check(), margin=self.margin, baseline=self.baseline)
        return Path(path)


def read_record(folder: Path) -> tuple[list[Run], str]:
    """Everything that a folder holds, for the checks; or, where some of it cannot be read, nothing and why."""
    try:
        return (read_runs(folder, tuning=True) if folder.is_dir() else []), ""
    except StoreError as error:
        return [], str(error)


def _few(lines: list[str], limit: int = 8) -> list[str]:
    """The first lines, long ones cut, and how many more there are."""
    more = [f"  ... and {len(lines) - limit} more"] if len(lines) > limit else []
    return [line if len(line) <= 200 else f"{line[:200]} ..." for line in lines[:limit]] + more
