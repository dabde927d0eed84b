"""Other people's results: a table, or what a tracker exports, becomes runs like those of the lab.

A table has a row per run and epoch (or step), with columns for task, optimizer and seed, and one per metric.
Exports of trackers are brought into this shape first: `_rows` makes rows of a source, `_runs` makes runs of rows.
"""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surefoot._extras import require
from surefoot.lab.spec.config import OptimizerConfig, Purpose, RunConfig, TaskConfig
from surefoot.lab.spec.options import LARGEST_SEED
from surefoot.lab.store import Run, last_epoch, read_plain

if TYPE_CHECKING:
    from pandas import DataFrame

#: What a column may be called, whatever the case of its letters; the first that a table has is taken.
COLUMNS = {
    "task": ("task", "dataset", "problem", "experiment"),
    "optimizer": ("optimizer", "optimiser", "optim", "algorithm", "method"),
    "seed": ("seed", "random_seed"),
    "epoch": ("epoch",),
    "step": ("step", "_step", "global_step", "trainer/global_step", "iteration"),
    "run": ("run", "run_name", "name", "mlflow.runname", "run_id", "run id"),
    "key": ("key", "tag", "metric"),
    "value": ("value",),
    "purpose": ("purpose",),
    "seconds": ("seconds",),
    "diverged": ("diverged",),
    "batch_size": ("batch_size",),
    "lr": ("lr", "learning_rate"),
    "weight_decay": ("weight_decay", "wd"),
    "eta": ("eta",),
    "momentum": ("momentum",),
}
#: Options of an optimizer, if they stay the same in a run.
_OPTIONS = ("lr", "weight_decay", "eta", "momentum")
#: Numbers that trackers record and that are no metrics.
_BOOKKEEPING = {
    "", "_runtime", "_timestamp", "duration", "index", "relative time (process)", "relative time (wall)", "time",
    "timestamp", "unnamed: 0", "wall time", "wall_time",
}  # fmt: skip
#: What MLflow and W&B write before the names of columns.
_PREFIXES = ("params.", "metrics.", "tags.", "config.", "config/", "summary.", "summary/")
#: Bytes of a table; it is read as a whole.
MOST_BYTES = 64 << 20
_SEED = re.compile(r"(?:^|[/_\-., ])(?:seed|s)[=_\-: ]?(\d+)(?=$|[/_\-., ])", re.IGNORECASE)
_EVENTS = "events.out.tfevents.*"


class TableError(ValueError):
    """A table that cannot be read; the message names the file, the row and the column."""


class Row(NamedTuple):
    """A row of a table: where it is, its cells that are not empty, by column, and what the table calls the columns."""

    place: str
    cells: Mapping[str, Any]
    columns: Mapping[str, str] = {}

    def at(self, column: str) -> str:
        """The place of a cell, in the words of the table."""
        return f"{self.place}, column {self.columns.get(column, column)!r}"

    def shown(self, column: str) -> str:
        """A cell as a message shows it, cut if it is long."""
        text = repr(self.cells[column])
        return text if len(text) <= 60 else f"{text[:60]}..."


def import_runs(source: Path | str | DataFrame, *, higher_is_better: Mapping[str, bool] | None = None) -> list[Run]:
    """The runs of a table: a CSV or Parquet file, a pandas DataFrame, or a folder of TensorBoard logs.

    Args:
        source: The table.
        higher_is_better: For each metric whether larger values are better; by default for accuracy alone.

    >>> import pandas
    >>> table = {"optimizer": ["adam", "sgd"], "seed": [0, 0], "epoch": [1, 1], "val_loss": [0.5, 0.7]}
    >>> [(run.label, run.seed, run.epochs[0]["valid_loss"]) for run in import_runs(pandas.DataFrame(table))]
    [('adam', 0, 0.5), ('sgd', 0, 0.7)]
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        where, rows = str(path), _rows(path)
    elif hasattr(source, "columns") and hasattr(source, "to_dict"):
        path, where, rows = Path("table"), "the table", _rows_of_frame(source, "the table")
    else:
        raise TableError(f"a table is a CSV or Parquet file or a pandas DataFrame, not {type(source).__name__}")
    if not rows:
        raise TableError(f"{where} has no rows; it needs one per run and epoch")
    return _runs(_with_names(rows), where, path, higher_is_better or {})


def is_table(path: Path) -> bool:
    """Whether a path is a file, or a folder of TensorBoard logs or CSV files."""
    return path.is_file() or (path.is_dir() and (any(path.rglob(_EVENTS)) or any(path.glob("*.csv"))))


# From a source to rows.


def _rows(path: Path) -> list[Row]:
    if path.is_dir():
        if any(path.rglob(_EVENTS)):
            return list(_rows_of_events(path))
        return [row for file in sorted(path.glob("*.csv")) for row in _rows_of_csv(file)]
    if not path.exists():
        raise TableError(f"{path} does not exist; give a CSV or Parquet file, or a folder of runs")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _rows_of_parquet(path)
    return _rows_of_csv(path)


def _rows_of_parquet(path: Path) -> list[Row]:
    pandas = require("pandas", extra="lab")
    try:
        return _rows_of_frame(pandas.read_parquet(path), str(path))
    except ImportError as error:  # pandas reads it with a package of its own choice
        raise TableError(f"{path}: pandas reads Parquet with pyarrow; install it with: pip install pyarrow") from error
    except (OSError, ValueError) as error:
        raise TableError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def _rows_of_frame(frame: DataFrame, where: str) -> list[Row]:
    named = frame.reset_index() if any(name is not None for name in frame.index.names) else frame
    rows = []
    for number, record in zip(named.index, named.to_dict("records")):
        # NaN is what pandas has for an empty cell too.
        cells = {str(name): cell for name, cell in record.items() if cell is not None and cell == cell}
        rows.append(Row(f"{where}, row {number}", cells))
    return rows


def _rows_of_csv(path: Path) -> list[Row]:
    try:
        text = read_plain(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        advice = "; leave out rows or columns that no table or curve needs" if error.errno == errno.EFBIG else ""
        raise TableError(f"{path} cannot be read: {error.strerror or error}{advice}") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if not text.strip():
        raise TableError(f"{path} is empty; its first row names the columns")
    if text.lstrip().startswith("<"):
        raise TableError(f"{path} is a web page, not a table; give a CSV or Parquet file, or a folder of runs")
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    rows = []
    try:
        head, *lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        names = [name.strip() for name in head]
        for number, cells in enumerate(lines, start=2):
            if len(cells) > len(names):
                extra = cells[len(names)]
                raise TableError(
                    f"{path}, row {number} has {len(cells)} cells and the head {len(names)}; see {extra!r:.60}"
                )
            named = {name: cell.strip() for name, cell in zip(names, cells) if cell.strip()}
            if named:
                rows.append(Row(f"{path}, row {number}", named))
    except csv.Error as error:
        raise TableError(f"{path} cannot be read as CSV: {error}") from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TableError(f"{path}, row 1 names the column {twice!r} twice; rename one")
    if {name.lower() for name in names} == {"wall time", "step", "value"}:
        return _rows_of_tag(path, rows)
    charts = [name for name in names if " - " in name]
    return _rows_of_chart(rows, charts) if charts else rows


def _rows_of_tag(path: Path, rows: Sequence[Row]) -> list[Row]:
    """TensorBoard's download of one tag: what is shown is in the name of the file."""
    match = re.fullmatch(r"(?:run-)?(.+?)-tag-(.+)", path.stem)
    if match is None:
        raise TableError(f"{path} has no names of run and tag; call it run-NAME-tag-METRIC.csv, as TensorBoard does")
    return [Row(row.place, {**row.cells, "run": match[1], "key": match[2]}) for row in rows]


def _rows_of_chart(rows: Sequence[Row], charts: Sequence[str]) -> list[Row]:
    """W&B's export of a chart: a column per run and metric, `adam-s0 - val_loss`, with its range beside it."""
    long = []
    for row in rows:
        shared = {name: cell for name, cell in row.cells.items() if name not in charts}
        for name in charts:
            if name in row.cells and not name.endswith(("__MIN", "__MAX")):
                run, _, metric = name.rpartition(" - ")
                cells = {**shared, "run": run, "key": metric, "value": row.cells[name]}
                long.append(Row(row.place, cells, {"value": name}))
    return long


def _rows_of_events(folder: Path) -> Iterator[Row]:
    """TensorBoard's event files: a run per folder, a row per tag and step."""
    reader = require("tensorboard.backend.event_processing.event_accumulator", extra="tracking")
    tensors = require("tensorboard.util.tensor_util", extra="tracking")
    for logs in sorted({path.parent for path in folder.rglob(_EVENTS)}):
        name = logs.relative_to(folder).as_posix() if logs != folder else folder.name
        events = reader.EventAccumulator(str(logs), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                cells = {"run": name, "key": tag, "value": event.value, "step": event.step}
                yield Row(f"{logs}, tag {tag!r}, step {event.step}", cells)
        for tag in events.Tags()["tensors"]:
            for event in events.Tensors(tag):
                value = tensors.make_ndarray(event.tensor_proto)
                if value.size == 1 and value.dtype.kind == "f":
                    cells = {"run": name, "key": tag, "value": float(value.reshape(())), "step": event.step}
                    yield Row(f"{logs}, tag {tag!r}, step {event.step}", cells)


def _with_names(rows: Sequence[Row]) -> list[Row]:
    """The rows with the lab's names of columns; a long table (key, value) has its metrics as columns then."""
    columns = dict.fromkeys(name for row in rows for name in row.cells)
    plain = {name: _plain_name(name) for name in columns}
    names: dict[str, str] = {}
    for known, aliases in COLUMNS.items():
        by_alias = {plain[name].lower(): name for name in reversed(columns)}
        if alias := next((alias for alias in aliases if alias in by_alias), None):
            names[by_alias[alias]] = known
    is_long = {"key", "value"} <= {*names.values()}
    for name in columns:
        if name in names and not is_long and names[name] in ("key", "value"):
            del names[name]
        if name not in names and plain[name].lower() not in _BOOKKEEPING:
            metric = metric_name(plain[name])
            names[name] = metric if metric not in names.values() else name
    originals = {known: name for name, known in names.items()}
    of_metrics: dict[tuple[str, str], Mapping[str, str]] = {}  # shared, since long tables have many rows
    renamed = []
    for row in rows:
        cells = {names[name]: cell for name, cell in row.cells.items() if name in names}
        columns_of_row: Mapping[str, str] = originals
        if is_long and "key" in cells:
            metric = metric_name(_plain_name(str(cells.pop("key"))))
            cells[metric] = cells.pop("value", "")
            source = row.columns.get("value", originals["value"])
            columns_of_row = of_metrics.setdefault((metric, source), {**originals, metric: source})
        renamed.append(Row(row.place, cells, columns_of_row))
    return renamed


def _plain_name(name: str) -> str:
    for prefix in _PREFIXES:
        if name.lower().startswith(prefix):
            return name[len(prefix) :]
    return name


def metric_name(name: str) -> str:
    """The lab's name of a metric.

    >>> [metric_name(name) for name in ("val/loss", "eval_acc", "Test Accuracy", "train_loss", "perplexity")]
    ['valid_loss', 'valid_accuracy', 'test_accuracy', 'train_loss', 'perplexity']
    """
    words = [word for word in re.split(r"[\s/:_]+", name.strip()) if word]
    if words and words[0].lower() in ("val", "valid", "validation", "eval", "dev"):
        words[0] = "valid"
    if words and words[0].lower() in ("train", "training", "test"):
        words[0] = words[0].lower().removesuffix("ing")
    if words and words[-1].lower() in ("acc", "accuracy", "loss"):
        words[-1] = {"acc": "accuracy"}.get(words[-1].lower(), words[-1].lower())
    return "_".join(words) or name


# From rows to runs.


class _Key(NamedTuple):
    """What distinguishes the runs of a table."""

    task: str
    batch_size: int
    optimizer: str
    options: tuple[tuple[str, float], ...]
    seed: int
    purpose: Purpose


@dataclass(frozen=True)
class _Curve:
    """The rows of one run, by epoch or step: for each metric where its value was written, and the value."""

    points: dict[int, dict[str, tuple[Row, float]]]

    def add(self, point: int, metric: str, row: Row, value: float) -> None:
        cells = self.points.setdefault(point, {})
        if metric in cells and not _same(cells[metric][1], value):
            raise TableError(
                f"{row.at(metric)}: {value:g}, and {cells[metric][0].place} has {cells[metric][1]:g} for "
                "the same run at the same point; add a column 'step' or 'epoch', or keep one of them"
            )
        cells[metric] = row, value


def _same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


def _runs(rows: Sequence[Row], where: str, path: Path, higher: Mapping[str, bool]) -> list[Run]:
    names = {name for row in rows for name in row.cells}
    known = {*COLUMNS} - {"key", "value"}
    metrics = _metric_columns(rows, sorted(names - known))
    if not metrics:
        raise TableError(f"{where} has no column with numbers for a metric; add one such as valid_loss")
    if not {"optimizer", "run"} & names or not {"seed", "run"} & names:
        missing = "optimizer" if not {"optimizer", "run"} & names else "seed"
        raise TableError(f"{where} has no column {missing!r}; it has: {', '.join(sorted(names))}")
    keys = _keys(rows, where)
    counted = _counted_by(rows, keys, names, metrics)
    curves: dict[_Key, _Curve] = {}
    steps: dict[tuple[_Key, int], int] = {}
    for row, key in zip(rows, keys):
        point = _whole(row, counted) if counted else 1
        curve = curves.setdefault(key, _Curve({}))
        for metric in (*metrics, "seconds"):
            if metric in row.cells:
                curve.add(point, metric, row, _number(row, metric))
        if "diverged" in row.cells:
            curve.add(point, "diverged", row, float(_truth(row, "diverged")))
        if "step" in row.cells:
            steps[key, point] = max(_whole(row, "step"), steps.get((key, point), 0))
    _check_directions(higher, metrics, where)
    return [
        run
        for task in dict.fromkeys((key.task, key.batch_size) for key in curves)
        for run in _runs_of_task(
            {key: curve for key, curve in curves.items() if (key.task, key.batch_size) == task},
            metrics,
            steps,
            counted == "step",
            path,
            higher,
        )
    ]


def _runs_of_task(
    curves: Mapping[_Key, _Curve],
    metrics: Sequence[str],
    steps: Mapping[tuple[_Key, int], int],
    by_step: bool,
    path: Path,
    higher: Mapping[str, bool],
) -> list[Run]:
    """The runs of one task; steps are counted, so that each point has a number as an epoch has."""
    points = sorted({point for curve in curves.values() for point in curve.points})
    number = {point: index for index, point in enumerate(points, start=1)} if by_step else {p: p for p in points}
    recorded = [name for name in metrics if any(name in cells for c in curves.values() for cells in c.points.values())]
    directions = {name: True for name in recorded if name.rpartition("_")[2] == "accuracy"}
    directions |= {metric_name(name) if metric_name(name) in recorded else name: more for name, more in higher.items()}
    labels = list(dict.fromkeys((key.optimizer, key.options) for key in curves))
    runs = []
    for key, curve in curves.items():
        records, last = [], max(curve.points)
        for point in sorted(curve.points):
            values = {name: cell[1] for name, cell in curve.points[point].items()}
            record: dict[str, Any] = {"epoch": number[point], **{name: _finite(values.get(name)) for name in recorded}}
            if (key, point) in steps:
                record["step"] = steps[key, point]
            if "seconds" in values:
                record["seconds"] = _finite(values["seconds"])
            record["diverged"] = bool(values.get("diverged")) or _is_lost(values, point == last)
            records.append(record)
        config = RunConfig(
            TaskConfig(key.task, key.batch_size, higher_is_better=directions),
            OptimizerConfig(
                key.optimizer, options=dict(key.options), position=labels.index((key.optimizer, key.options))
            ),
            seed=key.seed,
            epochs=number[points[-1]] if records[-1]["diverged"] else last_epoch(records),
            threads=0,
            device="",
            purpose=key.purpose,
        )
        runs.append(Run(path, config.with_changes(), records))
    _end_sparse_metrics(runs, recorded)
    return sorted(runs, key=lambda run: (run.config.optimizer.position, run.seed))


def _end_sparse_metrics(runs: Sequence[Run], metrics: Iterable[str]) -> None:
    """Give the last record of each run the last value of metrics that no run recorded at its end.

    A run that lacks a value where others have one stays without: it may have diverged.
    """
    for metric in metrics:
        if all(run.diverged or run.epochs[-1][metric] is None for run in runs):
            for run in runs:
                values = [record[metric] for record in run.epochs if record[metric] is not None]
                if values and not run.diverged:
                    run.epochs[-1][metric] = values[-1]


def _is_lost(values: Mapping[str, float], is_last: bool) -> bool:
    """Whether a run ended with a loss that is written as nan or inf."""
    return is_last and any(not math.isfinite(value) for name, value in values.items() if name.endswith("loss"))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _metric_columns(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """The columns that hold numbers; those with nothing but text are information, such as a comment."""
    metrics = []
    for name in names:
        cells = [row for row in rows if name in row.cells]
        texts = [row for row in cells if _as_number(row.cells[name]) is None]
        if len(texts) < len(cells):
            if texts:
                raise TableError(f"{texts[0].at(name)}: {texts[0].shown(name)} is not a number")
            metrics.append(name)
    return metrics


def _keys(rows: Sequence[Row], where: str) -> list[_Key]:
    """Which run each row belongs to."""
    default = Path(where).stem if where != "the table" else "table"
    named = [_named(row, default) for row in rows]
    rates: dict[tuple[Any, ...], set[Any]] = {}
    for row, name in zip(rows, named):
        rates.setdefault((name, row.cells.get("epoch"), row.cells.get("step")), set()).add(row.cells.get("lr"))
    if any(len(values) > 1 for values in rates.values()):  # several runs; in one run a schedule may change the rate
        named = [(*name[:-1], (*name[-1], row.cells.get("lr"))) for row, name in zip(rows, named)]
    runs: dict[tuple[Any, ...], list[Row]] = {}
    for row, name in zip(rows, named):
        runs.setdefault(name, []).append(row)
    options = {}
    for name, own in runs.items():
        values = {option: {_number(row, option) for row in own if option in row.cells} for option in _OPTIONS}
        options[name] = tuple((option, min(numbers)) for option, numbers in values.items() if len(numbers) == 1)
    return [
        _Key(task, size, optimizer, options[name], seed, purpose)
        for name in named
        for task, size, optimizer, seed, purpose, _ in [name]
    ]


def _named(row: Row, default_task: str) -> tuple[str, int, str, int, Purpose, tuple[Any, ...]]:
    """Task, batch size, optimizer, seed and purpose of a row, and what else its run differs from others in."""
    cells = row.cells
    read = _read_name(str(cells["run"])) if "run" in cells else None
    task = str(cells.get("task") or (read and read[0]) or default_task)
    optimizer = cells.get("optimizer", read and read[1])
    if optimizer is None:
        raise TableError(_missing(row, "optimizer"))
    if "seed" not in cells and read is None:
        raise TableError(_missing(row, "seed"))
    seed = _whole(row, "seed") if "seed" in cells else read[2] if read else 0
    if seed > LARGEST_SEED:
        raise TableError(f"{row.at('seed')}: {row.shown('seed')} is larger than any seed of a generator")
    purpose = str(cells.get("purpose", Purpose.RESULT.value)).lower()
    if purpose not in (Purpose.RESULT, Purpose.TUNING):
        raise TableError(f"{row.at('purpose')}: {row.shown('purpose')} is neither 'report' nor 'tune'")
    # Runs of one optimizer and seed with several settings differ in their names, if they have any.
    own = (str(cells["run"]),) if "run" in cells else tuple(cells.get(option) for option in _OPTIONS[1:])
    return (
        task,
        int(_number(row, "batch_size")) if "batch_size" in cells else 0,
        str(optimizer),
        seed,
        Purpose(purpose),
        own,
    )


def _missing(row: Row, column: str) -> str:
    name = f", and the run's name {row.shown('run')} does not say it, as adam-s0 does" if "run" in row.cells else ""
    return f"{row.at(column)}: there is no value{name}"


def _read_name(name: str) -> tuple[str, str, int] | None:
    """Task, optimizer and seed from the name of a run; None if it names no seed.

    >>> [_read_name(name) for name in ("mnist/adam-s3", "adamw lr=0.1 seed 12", "sgd/seed_0", "lucky-fox")]
    [('mnist', 'adam', 3), ('', 'adamw lr=0.1', 12), ('', 'sgd', 0), None]
    """
    match = _SEED.search(name)
    if match is None:
        return None
    rest = (name[: match.start()] + name[match.end() :]).strip("/_-., ")
    task, _, optimizer = rest.rpartition("/")
    return task, optimizer, int(match[1])


def _counted_by(rows: Sequence[Row], keys: Sequence[_Key], names: set[str], metrics: Sequence[str]) -> str:
    """Which column counts the points of a run: the epoch, or the step where an epoch has several values."""
    if "epoch" not in names:
        return "step" if "step" in names else ""
    if "step" not in names:
        return "epoch"
    written: set[tuple[Any, ...]] = set()
    for row, key in zip(rows, keys):
        epoch = _as_number(row.cells.get("epoch", math.nan))
        if epoch is None or not float(epoch).is_integer():
            return "step"
        for metric in metrics:
            if metric in row.cells:
                if (key, epoch, metric) in written:
                    return "step"
                written.add((key, epoch, metric))
    return "epoch"


def _check_directions(higher: Mapping[str, bool], metrics: Sequence[str], where: str) -> None:
    for name in higher:
        if name not in metrics and metric_name(name) not in metrics and f"valid_{name}" not in metrics:
            raise TableError(
                f"higher_is_better names {name!r}, which is no metric of {where}; choose among: {', '.join(metrics)}"
            )


def _as_number(cell: Any) -> float | None:
    if isinstance(cell, bool):
        return None
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


def _number(row: Row, column: str) -> float:
    value = _as_number(row.cells[column])
    if value is None:
        raise TableError(f"{row.at(column)}: {row.shown(column)} is not a number")
    return value


def _whole(row: Row, column: str) -> int:
    if column not in row.cells:
        raise TableError(_missing(row, column))
    value = _as_number(row.cells[column])
    if value is None or not value.is_integer() or value < 0:
        raise TableError(f"{row.at(column)}: {row.shown(column)} is not a whole number from 0 up")
    text = str(row.cells[column])
    return int(text) if text.isdecimal() else int(value)


def _truth(row: Row, column: str) -> bool:
    text = str(row.cells[column]).strip().lower()
    if text not in ("true", "false", "1", "0", "1.0", "0.0"):
        raise TableError(f"{row.at(column)}: {row.shown(column)} is neither true nor false")
    return text in ("true", "1", "1.0")
