"""The documentation site: it builds without a warning and without network, and every link in it leads somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import surefoot
import surefoot.lab
from browser import open_browser

ROOT = Path(__file__).parents[2]
DEAD = "http://127.0.0.1:9"  # nothing listens there: whoever asks the network gets an error
OFFLINE = {"http_proxy": DEAD, "https_proxy": DEAD, "HTTP_PROXY": DEAD, "HTTPS_PROXY": DEAD}


def build(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site), *options]
    env = {**os.environ, **OFFLINE, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


class Html(HTMLParser):
    """What a page links to, what it loads, and the anchors in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values:
            self.loads.append(values["src"])
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.loads.append(values["href"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    """Every page that mkdocs made; a report that is shown as it is belongs to other tests."""
    made = [path for path in site.rglob("*.html") if 'id="__config"' in path.read_text()]
    return {path: Html(path) for path in made}


def test_every_page_of_the_docs_is_in_the_site(site: Path, pages: dict[Path, Html]) -> None:
    sources = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/*.ipynb")]
    assert len(sources) > 25
    for source in sources:
        assert site / source.relative_to(ROOT / "docs").with_suffix(".html") in pages, source


def test_links_lead_somewhere(site: Path, pages: dict[Path, Html]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            is_missing = anchor and target in pages and anchor not in pages[target].anchors
            if not target.is_file() or is_missing:
                broken.append(f"{path.relative_to(site)} -> {link}")
    assert broken == []


def test_no_page_loads_anything_from_elsewhere(pages: dict[Path, Html]) -> None:
    loaded = {link for page in pages.values() for link in page.loads}
    assert loaded
    assert [link for link in loaded if urlsplit(link).scheme not in ("", "data") or link.startswith("//")] == []


def test_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Start\n\nRead [on](nowhere.md).\n")
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nhooks: []\nextra_css: []\nnav: [index.md]\n"
        "plugins: [search]\n"
    )
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode == 1
    assert "contains a link 'nowhere.md'" in done.stderr


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Html]) -> None:
    anchors = set().union(*(page.anchors for path, page in pages.items() if path.parent == site / "reference"))
    names = {
        f"surefoot.{name}" for name in surefoot.__all__ if not name.isupper() and name not in ("__version__", "rules")
    }
    names |= {f"surefoot.lab.{name}" for name in surefoot.lab.__all__}
    assert names <= anchors


def test_shared_options_are_shown_with_their_defaults(pages: dict[Path, Html]) -> None:
    made = "".join(path.read_text() for path in pages if "reference" in path.parts)
    shown = re.sub(r"<[^>]+>", "", made)
    assert re.search(r"gain\s*=\s*\(0\.3,\s*1\.5\)", shown)
    assert not re.search(r"=\s*\.\.\.\s*[,)]", shown)


def test_the_help_of_every_command_is_shown(site: Path, pages: dict[Path, Html]) -> None:
    from typer.main import get_command

    from surefoot.cli import app

    names = {f"surefoot-{name}" for name in get_command(app).commands}  # type: ignore[attr-defined]
    assert names <= pages[site / "reference" / "command-line.html"].anchors


def test_the_gallery_shows_every_figure(site: Path, pages: dict[Path, Html]) -> None:
    shown = {Path(link).name for link in pages[site / "gallery.html"].loads}
    assert {path.name for path in ROOT.glob("results/paper/figures/*.png")} <= shown


def test_a_figure_leads_to_itself_in_full_size(site: Path, pages: dict[Path, Html]) -> None:
    page = pages[site / "gallery.html"]
    figures = [link for link in page.loads if link.endswith(".png")]
    assert figures
    assert set(figures) <= set(page.links)


def test_the_search_knows_the_pages(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    locations = {entry["location"].partition("#")[0] for entry in entries if "AdamWS" in entry["title"] + entry["text"]}
    assert {"recipes.html", "guide.html", "reference/optimizers.html"} <= locations


def test_code_of_the_repository_is_shown(site: Path) -> None:
    page = (site / "repository" / "examples" / "ddp.py.html").read_text()
    assert "init_process_group" in re.sub(r"<[^>]+>", "", page)


def test_the_notebook_is_executed(tmp_path: Path) -> None:
    """It runs in an empty folder; what it prints need not be what is recorded, which another machine computed."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    recorded = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in recorded), "save the notebook with its results"
    NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser("The site") as chromium:
        yield chromium


def test_the_site_in_a_browser(site: Path, browser: Any) -> None:
    """Opened from disk: the search finds, nothing is asked of the network, and no page is wider than a phone."""
    requests: list[str] = []
    troubles: list[str] = []
    page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    for name in ("index", "recipes", "evidence", "reference/optimizers", "notebook", "gallery"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    page.type(".md-search__input", "cosine")
    page.wait_for_selector(".md-search-result__item", timeout=60_000)
    assert "cosine" in page.inner_text(".md-search-result__list").lower()
    assert troubles == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
