"""A task for the study of examples: which package of Python's standard library do five lines of source come from?

    surefoot compare benchmarks/small_text.py --label-noise 0.4 -o adam -o adam:examples=tilted:-3

The text ships with Python, so it differs a little from version to version; the run's key has its digest.
"""

from __future__ import annotations

import re
import sysconfig
import zlib
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from surefoot.lab import Task
from surefoot.lab.spec.builtin import MLP

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml")
LINES, TRAIN, VALID, FEATURES = 5, 580, 150, 1024


def snippets(package: str) -> list[str]:
    """The source of a package in pieces of five lines that are not blank, without its tests."""
    folder = Path(sysconfig.get_path("stdlib")) / package
    files = sorted(path for path in folder.rglob("*.py") if "test" not in path.parts)
    lines = [line for path in files for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    return ["\n".join(lines[at : at + LINES]) for at in range(0, len(lines) - LINES, LINES)]


def words(text: str) -> Tensor:
    """How often each word occurs, by its hash; as a logarithm."""
    places = [zlib.crc32(word.encode()) % FEATURES for word in re.findall(r"[a-z]+", text.lower())]
    return torch.bincount(torch.tensor(places, dtype=torch.int64), minlength=FEATURES).float().log1p()


def task(data_dir: str | None = None) -> Task:
    """As many snippets of each package, drawn at random; training and validation share none."""
    random = torch.Generator().manual_seed(0)
    features, labels = [], []
    for label, package in enumerate(PACKAGES):
        found = snippets(package)
        features += [words(found[i]) for i in torch.randperm(len(found), generator=random)[: TRAIN + VALID]]
        labels += [label] * (TRAIN + VALID)
    x, y = torch.stack(features), torch.tensor(labels)
    is_train = (torch.arange(len(y)) % (TRAIN + VALID)) < TRAIN
    model = partial(MLP, FEATURES, 128, len(PACKAGES))
    return Task("source-text", model, (x[is_train], y[is_train]), (x[~is_train], y[~is_train]))
