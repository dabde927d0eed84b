"""The file a run goes on from: written whole or not at all, loaded without pickle, checked before use."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from surefoot.lab.store import StoreError, write_atomic


def save_checkpoint(path: Path, content: dict[str, Any]) -> bool:
    """Write a checkpoint; False, and no file, when its content could not be loaded again without pickle."""
    buffer = io.BytesIO()
    try:
        torch.save(content, buffer)
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda among an optimizer's options
        return False
    if not path.exists():  # the first of a run shows whether this optimizer's state is plain data
        buffer.seek(0)
        try:
            torch.load(buffer, weights_only=True)
        except pickle.UnpicklingError:
            return False
    write_atomic(path, buffer.getvalue())
    return True


def load_checkpoint(path: Path, key: str) -> dict[str, Any] | None:
    """Read the checkpoint of the run with this key; None when there is none, StoreError when damaged."""
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not compare the checksums
        if damaged is not None:
            raise ValueError(f"wrong checksum of {damaged}")
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["key"] != key:
            raise ValueError(f"it belongs to the run {content['key'][:8]}")
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile,
            pickle.UnpicklingError) as error:  # fmt: skip
        reason = str(error).strip().splitlines() or [repr(error)]
        raise StoreError(
            f"{path} is damaged ({reason[0][:120]}); nothing was changed. Delete this file and run the same "
            "command again: the run is computed anew and checked against the epochs recorded so far"
        ) from error
    return content
