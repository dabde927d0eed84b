"""Renders a page into one HTML file that needs nothing else, and writes it."""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot._extras import require
from surefoot.lab.analyse.groups import metric_name
from surefoot.lab.report.context import ReportContext, Section
from surefoot.lab.report.draw import plotly, style_of
from surefoot.lab.report.figures import CurveData, CurvePanel, Panel
from surefoot.lab.report.tables import MARKS, headline
from surefoot.lab.store import check_place, open_plain
from surefoot.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


def render(page: ReportContext) -> str:
    """The whole HTML of a page."""
    trusted = require("markupsafe", extra="lab").Markup  # our scripts and styles; everything else is escaped
    library = require("plotly.offline", extra="lab").get_plotlyjs().replace("</script", "<\\/script")
    scripts = ['window.PlotlyConfig = {MathJaxConfig: "local"};', library, asset("ticks.js") + asset("report.js")]
    return (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            sections=_with_anchors(page.sections),
            figures=_FigureData(page.tables),
            version=__version__,
            today=datetime.datetime.now(datetime.UTC).date().isoformat(),
            style=trusted(asset("report.css")),
            policy=_policy(scripts),
            scripts=[trusted(script) for script in scripts],
        )
    )


def _policy(scripts: Sequence[str]) -> str:
    """What the browser lets the page do: run these scripts and no others, and load nothing, whatever a text says."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def write_page(path: Path | str, page: ReportContext) -> Path:
    """Render a page into a file."""
    return write_html(path, render(page))


def write_html(path: Path | str, text: str) -> Path:
    """Write a finished page, through a temporary file, so that a reader never sees half of it."""
    path = Path(path)
    check_place(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        with os.fdopen(open_plain(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        why = error.strerror or error
        raise type(error)(f"the report {path} cannot be written ({why}); write it to another place") from error
    finally:
        with suppress(OSError):  # where no file can be written there is none to remove
            part.unlink(missing_ok=True)
    return path


def asset(name: str) -> str:
    """The text of a script or style sheet of the page."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    jinja = require("jinja2", extra="lab")
    environment: Environment = jinja.Environment(
        loader=jinja.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(style_of=style_of, metric_name=metric_name, headline=headline, MARKS=MARKS)
    environment.filters["code_spans"] = code_spans
    # NaN is no JSON: a page with it would not load, so it is refused here
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def code_spans(text: str) -> Any:
    """A text with what stands between backticks as code, everything escaped."""
    markup = require("markupsafe", extra="lab")
    return markup.Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(markup.escape(text))))


def _with_anchors(sections: Sequence[Section]) -> list[tuple[str, Section]]:
    """Top sections with the anchors that links lead to, which must differ."""
    counts: dict[str, int] = {}
    pairs = []
    for section in sections:
        number = counts[section.anchor] = counts.get(section.anchor, 0) + 1
        pairs.append((section.anchor if number == 1 else f"{section.anchor}-{number}", section))
    return pairs


class _FigureData:
    """Numbers the figures while the page is rendered, and collects what the script draws them from."""

    def __init__(self, tables: Mapping[str, str]) -> None:
        self.tables = dict(tables)
        self.figures: list[dict[str, Any]] = []
        self.blocks: dict[int, CurveData] = {}

    def add(self, panel: Panel | CurvePanel) -> int:
        """The number of the next figure, which shows this panel."""
        figure: dict[str, Any] = {"title": panel.title, "height": panel.height}
        if isinstance(panel, CurvePanel):
            self.blocks.setdefault(id(panel.data), panel.data)
            block = list(self.blocks).index(id(panel.data))
            figure |= {"kind": "curves", "block": block, "metric": panel.metric}
            figure |= {"log": panel.log, "inside": panel.inside}
        else:
            figure |= {"kind": "plot", **plotly(panel)}
        self.figures.append(figure)
        return len(self.figures) - 1

    def data(self) -> dict[str, Any]:
        blocks = [block.to_json() for block in self.blocks.values()]
        traces = [trace for figure in self.figures for trace in figure.get("data", ())]
        drawn = [*traces, *(entry for block in blocks for entry in block["entries"])]
        series = sorted({trace["series"] for trace in drawn if "series" in trace})
        styles = {number: style_of(number) for number in series}
        return {"figures": self.figures, "blocks": blocks, "styles": styles, "tables": self.tables}
