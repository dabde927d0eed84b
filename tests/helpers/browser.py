"""A real browser for pages that were written: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def browser_path(
    what: str,
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    has_playwright: bool | None = None,
) -> str:
    """Chromium's path; without a browser the test is skipped with a sentence, but under CI it fails."""
    if has_playwright is None:
        has_playwright = importlib.util.find_spec("playwright") is not None
    path = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path and has_playwright:
        return path
    missing = "no playwright (pip install)" if path else "no Chromium on this machine (Debian: apt install chromium)"
    sentence = f"{what} was not opened in a browser: {missing}."
    if environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


@contextlib.contextmanager
def open_browser(what: str) -> Iterator[Any]:
    """A browser to open pages in; `what` is named if there is none."""
    path = browser_path(what)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()
