"""Optional packages: imported when they are there, named with the command that installs them when not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from surefoot._extras import require


def test_a_module_within_a_package() -> None:
    assert require("os.path", extra="lab").join("a", "b") == str(Path("a", "b"))


@pytest.mark.parametrize("module", ["surely_not_there", "surely_not_there.inside"])
def test_a_missing_package_is_named_with_the_command(module: str) -> None:
    with pytest.raises(ImportError, match=rf"^{module} is needed .* pip install '\.\[tune\]' in a checkout"):
        require(module, extra="tune")


def test_what_a_package_misses_itself_is_another_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'what_it_needs'"):
        require("half_installed", extra="lab")
    assert "half_installed" not in sys.modules
