"""A page: sections of HTML and figures, put into one file that needs nothing else."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from surefoot._extras import require
from surefoot.lab.report.draw import DASHES, PALETTE, plotly, style_of
from surefoot.lab.report.figures import CurveData, CurvePanel, Panel


@dataclass(frozen=True)
class Section:
    """A part of the page: a title, a plain sentence, HTML of one's own, panels, and sections within.

    The title and the lead are plain text and escaped; `html` is taken as it is, so escape in it what others
    wrote (`escape`). `controls` adds the switches of curves, `plain` leaves the heading out.

    >>> Section("Tuning & more", lead="What was tried.", html="<p>Twelve settings.</p>").anchor
    'tuning-more'
    """

    title: str
    lead: str = ""
    html: str = ""
    panels: Sequence[Panel | CurvePanel] = ()
    sections: Sequence[Section] = ()
    controls: Literal["", "curves", "inside"] = ""
    plain: bool = False

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"


def escape(text: object) -> str:
    """Text as it may stand in HTML.

    >>> escape("<b> & co")
    '&lt;b&gt; &amp; co'
    """
    return html.escape(str(text), quote=True)


def write_page(
    path: Path | str, title: str, sections: Sequence[Section], *, subtitle: str = "", footer: str = ""
) -> Path:
    """Write sections as one HTML file, through a temporary file, so that a reader never sees half of it.

    Args:
        path: the file.
        title: the page's heading, plain text.
        sections: what it shows.
        subtitle: a line under the heading, plain text.
        footer: the last line, plain text.
    """
    return write_html(path, render_page(title, sections, subtitle=subtitle, footer=footer))


def write_html(path: Path | str, text: str) -> Path:
    """Write a finished page."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        why = error.strerror or error
        raise type(error)(f"the report {path} cannot be written ({why}); write it to another place") from error
    finally:
        with suppress(OSError):  # a place that takes no file gives none back
            part.unlink(missing_ok=True)
    return path


def render_page(title: str, sections: Sequence[Section], *, subtitle: str = "", footer: str = "") -> str:
    """The whole HTML of a page."""
    builder = _Builder()
    body = "".join(builder.section(section, 2) for section in sections)
    links = "".join(f'<a href="#{anchor}">{escape(name)}</a>' for anchor, name in builder.anchors_of_top(sections))
    parts = {
        "title": escape(title),
        "subtitle": escape(subtitle),
        "navigation": links,
        "body": body,
        "footer": escape(footer),
        "style": _asset("report.css"),
        "plotly": _plotly(),
        "script": _asset("ticks.js") + _asset("report.js"),
        "data": builder.json(),
    }
    # One pass over the template, so that nothing inserted is ever taken for a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


class _Builder:
    """Numbers the figures and gathers their data while the sections become HTML."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []
        self.blocks: list[CurveData] = []
        self.anchors: dict[str, int] = {}

    def anchors_of_top(self, sections: Sequence[Section]) -> Iterable[tuple[str, str]]:
        seen: dict[str, int] = {}
        return [(_unique(section.anchor, seen), section.title) for section in sections]

    def section(self, section: Section, level: int) -> str:
        name = "section" if level == 2 else "div"
        # only top sections are linked to; those within may share a title
        anchor = f' id="{_unique(section.anchor, self.anchors)}"' if level == 2 else ""
        lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
        figures = "".join(self.figure(panel) for panel in section.panels)
        columns = 3 if len(section.panels) % 3 == 0 else 2
        grid = f'<div class="figures" style="--columns:{columns}">{figures}</div>' if figures else ""
        inner = "".join(self.section(each, level + 1) for each in section.sections)
        controls = _asset("controls.html").replace("{{kind}}", section.controls) if section.controls else ""
        heading = "" if section.plain else f"<h{level}>{escape(section.title)}</h{level}>"
        return f'<{name} class="part"{anchor}>{heading}{lead}{controls}{section.html}{grid}{inner}</{name}>'

    def figure(self, panel: Panel | CurvePanel) -> str:
        number = len(self.figures)
        spec: dict[str, Any] = {"title": panel.title, "height": panel.height}
        if isinstance(panel, CurvePanel):
            if not any(panel.data is block for block in self.blocks):
                self.blocks.append(panel.data)
            block = next(i for i, block in enumerate(self.blocks) if block is panel.data)
            spec |= {"kind": "curves", "block": block, "metric": panel.metric, "log": panel.log}
            spec["inside"] = panel.inside
        else:
            spec |= {"kind": "plot", **plotly(panel)}
        self.figures.append(spec)
        wide = " wide" if panel.wide else ""
        caption = f"<figcaption>{escape(panel.caption)}</figcaption>" if panel.caption else ""
        return (
            f'<figure class="plot{wide}"><h4>{escape(panel.title)}</h4>'
            f'<div class="canvas" id="figure-{number}" style="height:{panel.height}px" role="img" '
            f'aria-label="{escape(panel.title)}"></div>{caption}</figure>'
        )

    def json(self) -> str:
        blocks = ",".join(block.json() for block in self.blocks)
        figures = json.dumps(self.figures, separators=(",", ":"), allow_nan=False)
        dashes = json.dumps(DASHES)
        return escape_json(f'{{"figures":{figures},"blocks":[{blocks}],"colours":{len(PALETTE)},"dashes":{dashes}}}')


def escape_json(text: str) -> str:
    r"""JSON as it may stand inside a script element: no tag can begin in it.

    >>> escape_json('"</script>"')
    '"\\u003c/script\\u003e"'
    """
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _unique(anchor: str, seen: dict[str, int]) -> str:
    seen[anchor] = seen.get(anchor, 0) + 1
    return anchor if seen[anchor] == 1 else f"{anchor}-{seen[anchor]}"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    offline = require("plotly.offline", extra="lab")
    script: str = offline.get_plotlyjs()
    return script.replace("</script", "<\\/script")


def swatch(series: int) -> str:
    """The line of a contestant, for legends and tables."""
    colour, dash = style_of(series)
    dashes = "" if dash == "solid" else f' stroke-dasharray="{dash.replace("px", "")}"'
    return (
        f'<svg class="swatch" viewBox="0 0 30 8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4" '
        f'stroke="var(--s{colour})" stroke-width="3"{dashes}/></svg>'
    )
