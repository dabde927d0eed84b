"""What `make docs` adds to mkdocs: files outside of docs/ that the pages link to, and notebooks as pages.

On GitHub a link such as `../results/demo.md` leads to that file. In the site the file gets a page of its own, below
`repository/`, and so do the files that it links to.
"""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(```).*?^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
PICTURE = re.compile(r'<p>(<img [^>]*src="(?!data:)([^"]+)"[^>]*>)</p>')
CODE = {".py": "python", ".jsonl": "json", ".json": "json", ".txt": "text", "": "text"}

#: Pages with wide tables or figures: they get the place of the list of their sections.
WIDE = {"evidence.md", "replication.md", "benchmarks.md", "gallery.md"}
#: Where a page shows the help of the commands.
HELP = "<!-- the help of every command -->"
#: The page or file of the site for each file of the repository.
places: dict[Path, str] = {}


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of docs/ that a page links to, and what that file links to."""
    places.clear()
    places[ROOT / "README.md"] = "index.md"  # the first page of the site says the same
    waiting = []
    for file in list(files):
        path = Path(file.abs_src_path or "")
        if not path.is_relative_to(DOCS):
            continue  # of the theme
        if path.suffix == ".ipynb":
            files.remove(file)
            file = File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=notebook(path))
            files.append(file)
        places[path] = file.src_uri
        waiting.append(path)
    while waiting:
        for target in linked_files(waiting.pop()):
            if target not in places:
                file = page_of(target, config)
                places[target] = file.src_uri
                files.append(file)
                waiting.append(target)
    return files


def linked_files(page: Path) -> Iterator[Path]:
    """The files outside of docs/ that a page links to."""
    if page.suffix != ".md":
        return
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        target = (page.parent / match[2]).resolve()
        if target.is_relative_to(ROOT) and not target.is_relative_to(DOCS) and target.exists():
            yield target


def page_of(path: Path, config: Any) -> File:
    """A Markdown file as a page, source code as a page that shows it, a folder as a list, anything else as it is."""
    uri = f"repository/{path.relative_to(ROOT).as_posix()}"
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir() if file.suffix in CODE and file.is_file())
        code = [f"## {name}\n\n```{CODE[Path(name).suffix]}\n{(path / name).read_text()}```" for name in names]
        return File.generated(config, f"{uri}/index.md", content="\n\n".join([f"# {path.name}", *code]))
    if path.suffix in CODE and path.stat().st_size < 100_000:
        code = f"# {path.name}\n\n```{CODE[path.suffix]}\n{path.read_text()}```\n"
        return File.generated(config, f"{uri}.md", content=code)
    return File.generated(config, uri, abs_src_path=str(path))


def notebook(path: Path) -> str:
    """A notebook with its recorded results; it is executed in the tests, not here."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_filename(str(path))
    for name, data in resources["outputs"].items():
        kind = {"png": "png", "svg": "svg+xml"}[name.rpartition(".")[2]]
        text = text.replace(f"({name})", f"(data:image/{kind};base64,{base64.b64encode(data).decode()})")
    return text


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Links between files of the repository become links between pages of the site."""
    if page.file.src_uri.startswith("repository/"):
        page.meta["search"] = {"boost": 0.3}  # below the pages that explain
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if HELP in markdown:
        markdown = markdown.replace(HELP, help_texts())
    here = Path(page.file.abs_src_path or DOCS / page.file.src_uri)

    def in_the_site(match: re.Match[str]) -> str:
        target = places.get((here.parent / match[2]).resolve())
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + match[3]

    return LINK.sub(in_the_site, markdown)


def on_page_content(html: str, page: Page, config: Any, files: Files) -> str:
    """A picture leads to itself in full size: three panels beside each other are small, on a phone above all."""
    return PICTURE.sub(r'<p><a href="\2">\1</a></p>', html)


def help_texts() -> str:
    """The help of every command, from the snapshot that a test compares with the program."""
    recorded = (ROOT / "tests" / "fixtures" / "public_surface.txt").read_text()
    commands = re.findall(r"^\$ (surefoot.*?) --help\n(.*?)(?=^\$ |\Z)", recorded, re.MULTILINE | re.DOTALL)
    return "\n\n".join(f"## {command}\n\n```text\n{text.strip()}\n```" for command, text in commands)


def on_post_page(output: str, page: Page, config: Any) -> str:
    """The theme takes a script from a server, so that the search works without one; docs/scripts/ has it instead."""
    local = posixpath.relpath("scripts/worker-from-files.js", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("https://unpkg.com/iframe-worker/shim", local)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """The page for addresses that do not exist is no page of the docs, but has the same script."""
    return output.replace("https://unpkg.com/iframe-worker/shim", "/scripts/worker-from-files.js")
