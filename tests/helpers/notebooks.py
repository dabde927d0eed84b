"""A notebook that remembers what it was given to display."""

from __future__ import annotations

import sys
import types

import pytest

from surefoot.lab.run import progress


class Shown:
    """What a notebook was given to display: first, and in all."""

    def __init__(self) -> None:
        self.displayed: list[str] = []
        self.texts: list[str] = []

    @classmethod
    def of_a_notebook(cls, monkeypatch: pytest.MonkeyPatch) -> Shown:
        """Stand in for IPython's display, and let every change be drawn."""
        shown = cls()
        module = types.SimpleNamespace(display=shown.display, HTML=str)
        monkeypatch.setitem(sys.modules, "IPython.display", module)  # type: ignore[arg-type]
        monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", -1.0)
        return shown

    def display(self, content: object, display_id: bool) -> Shown:
        assert display_id
        self.displayed.append(str(content))
        self.update(content)
        return self

    def update(self, content: object) -> None:
        self.texts.append(str(content))
