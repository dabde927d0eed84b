"""The results of a comparison, for a notebook or a script: runs, tables, plots, report."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot._extras import require
from surefoot.lab.analyse.audit import Finding, audit
from surefoot.lab.analyse.comparison import Summary, summarise
from surefoot.lab.analyse.groups import group_runs, to_frame
from surefoot.lab.store import Run, read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Results:
    """The runs of a comparison, as tables, a data frame, plots, checks and a report.

    Args:
        runs: The runs; the first one's optimizer is the baseline.
        failures: What went wrong, by run folder; empty if every run ended.
    """

    runs: list[Run]
    failures: dict[str, str]

    @classmethod
    def read(cls, folder: Path | str) -> Results:
        """The results under a folder that a comparison wrote to."""
        runs = read_runs(folder, tuning=True)
        return cls(runs, {str(run.folder): run.error for run in runs if run.error})

    @property
    def ok(self) -> bool:
        """Whether every run ended; a run that diverged ended as well."""
        return not self.failures and all(run.finished for run in self.runs)

    @property
    def frame(self) -> DataFrame:
        """The recorded epochs as a pandas DataFrame, one row per run and epoch, for analyses of your own.

        The smallest validation loss of each optimizer: `results.frame.groupby("optimizer")["valid_loss"].min()`.
        """
        return to_frame(group_runs(self.runs))

    def table(self, **options: Any) -> Summary:
        """How every contestant compares with the baseline: mean and std, paired intervals, verdicts.

        Args:
            options: metrics, baseline, target, epoch; see `surefoot.lab.analyse.comparison.summarise`.
        """
        from surefoot.lab.report.tables import Tables

        return Tables.of(summarise(self.runs, **options))

    def print(self) -> None:
        """Print the tables with their verdicts."""
        require("rich.console", extra="lab").Console().print(self.table())

    def to(self, format: str) -> str:
        """The tables as text: "md" (Markdown), "latex", "csv" or "json"."""
        from surefoot.lab.report import tables

        writers = {
            "md": tables.to_markdown,
            "latex": tables.to_latex,
            "csv": tables.to_csv,
            "json": tables.to_json,
        }
        if format not in writers:
            raise ValueError(f"unknown format {format!r}; choose {', '.join(writers)}")
        return writers[format](self.table())

    def to_markdown(self) -> str:
        return self.to("md")

    def to_latex(self) -> str:
        return self.to("latex")

    def to_csv(self) -> str:
        return self.to("csv")

    def to_json(self) -> str:
        return self.to("json")

    def check(self) -> list[Finding]:
        """What makes the comparison unfair, incomplete or weaker than it looks."""
        return audit(self.runs)

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

    def __repr__(self) -> str:
        """The tables as Markdown, which reads well as plain text too."""
        tables = self.to_markdown() if self.runs else ""
        failed = [f"failed: {message.strip()}" for message in self.failures.values()]
        return "\n".join([tables.rstrip() or f"Results: {len(self.runs)} runs without a recorded epoch", *failed])

    def _repr_html_(self) -> str:
        """The tables, for a notebook."""
        from surefoot.lab.report.tables import to_html

        failed = [f"<p>failed: {html.escape(message)}</p>" for message in self.failures.values()]
        return "\n".join([to_html(self.table()), *failed])

    def report(self, path: Path | str = "report.html") -> Path:
        """Write the report, one HTML file that needs no network."""
        from surefoot.lab.report import write_report

        write_report(self.runs, Path(path))
        return Path(path)
