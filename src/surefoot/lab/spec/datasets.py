"""The data sets, as tensors in memory: read from their official formats, never from a pickle."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from surefoot._extras import require
from surefoot.lab.spec.download import SOURCES, DataError, cache_folder, fetch, ways_out

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10")

CIFAR_RECORDS = 10_000  # images in every file of the binary version, which has no header to say so
CIFAR_SHAPE = (3, 32, 32)

_AGAIN = "delete it and get the official file again"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (uint8, N x channels x height x width), labels (int64) and the SHA-256 of all of them."""

    name: str
    train_x: Tensor
    train_y: Tensor
    valid_x: Tensor
    valid_y: Tensor
    digest: str


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set into memory.

    Args:
        name: `digits` (comes with scikit-learn), `mnist`, `fashion-mnist` or `cifar10`.
        data_dir: folder with `mnist/`, `fashion-mnist/` (IDX files, raw or .gz) and `cifar-10-batches-bin/`.
            None takes the folder in the environment variable SUREFOOT_DATA and, when that is not set either,
            the user's cache folder, into which the files are downloaded.

    >>> digits = load("digits")
    >>> digits.train_x.shape, digits.valid_x.shape
    (torch.Size([1438, 1, 8, 8]), torch.Size([359, 1, 8, 8]))
    """
    if name == "digits":
        return _dataset(name, *_digits())
    if name not in NAMES:
        raise DataError(f"there is no data set {name!r}; known are {', '.join(NAMES)}")
    folder = _folder(name, data_dir)
    return _dataset(name, *(_cifar10(folder) if name == "cifar10" else _mnist(folder)))


def digest(*tensors: Tensor) -> str:
    """SHA-256 of the tensors' types, shapes and bytes.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)) != digest(torch.zeros(3))
    True
    """
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read an IDX file of bytes, raw or gzip-compressed (known by its first bytes, not by its name).

    Args:
        path: the file.
        dimensions: how many dimensions it must have: 3 for images, 1 for labels.
    """
    content = _read(path)
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path} is truncated: its {len(content)} bytes do not even hold the IDX header; {_AGAIN}")
    if bytes(content[:4]) != bytes((0, 0, 8, dimensions)):
        raise DataError(
            f"{path} is not an IDX file of bytes with {dimensions} dimension{'s'[: dimensions > 1]} "
            f"(it starts with {bytes(content[:4]).hex()}); {_AGAIN}"
        )
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    promised, found = math.prod(shape), len(content) - header
    if promised != found or promised == 0:
        problem = "is truncated" if found < promised else "is corrupt"
        size = " x ".join(map(str, shape))
        raise DataError(f"{path} {problem}: its header promises {size} bytes and {found} follow; {_AGAIN}")
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(shape)


def read_cifar(path: Path, records: int | None = None) -> tuple[Tensor, Tensor]:
    """Read one file of CIFAR-10's binary version: records of a label byte and the red, green and blue planes.

    Args:
        path: the file.
        records: how many images it must hold; 10,000 (every official file) when None.
    """
    records = CIFAR_RECORDS if records is None else records
    content = _read(path)
    size = 1 + math.prod(CIFAR_SHAPE)
    if len(content) != records * size:
        problem = "is truncated" if len(content) < records * size else "is corrupt"
        raise DataError(
            f"{path} {problem}: {records} images of {size} bytes are {records * size} bytes, "
            f"and it has {len(content)}; {_AGAIN}"
        )
    table = torch.frombuffer(content, dtype=torch.uint8).reshape(records, size)
    return table[:, 1:].reshape(-1, *CIFAR_SHAPE), _labels(table[:, 0], path)


def _read(path: Path) -> bytearray:
    try:
        with open(path, "rb") as file:
            content = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(content)
        if content[:2] == b"\x1f\x8b":
            content = bytearray(gzip.decompress(content))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is truncated or corrupt (gzip: {error}); {_AGAIN}") from error
    except OSError as error:
        raise DataError(f"{path} could not be read ({error.strerror or error}); check the file") from error
    return content


def _labels(labels: Tensor, path: Path) -> Tensor:
    if int(labels.max()) > 9:
        raise DataError(f"{path} is corrupt: it has a label {int(labels.max())}, and labels are 0 to 9; {_AGAIN}")
    return labels.to(torch.int64)


def _folder(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    origin = "the data folder"
    if data_dir is None:
        data_dir, origin = os.environ.get("SUREFOOT_DATA") or None, "SUREFOOT_DATA is"
    if data_dir is None:
        return fetch(name)
    root = Path(data_dir).expanduser()
    folder = root / SOURCES[name].folder
    if not folder.is_dir():
        # A folder that was named is meant: downloading behind the user's back would hide a wrong path.
        raise DataError(
            f"{name} was not found: {origin} {root}, which has no folder {folder.name}. "
            f"{ways_out(name, cache_folder())}"
        )
    return folder


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    digits = require("sklearn.datasets", extra="lab").load_digits()
    images = torch.from_numpy(digits.images).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    # Every fifth image of each class is for validation: stratified, and the same everywhere and for ever,
    # which a random generator of another library does not promise.
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        held_out[(labels == label).nonzero().squeeze(1)[2::5]] = True
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def _mnist(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = []
    for part in ("train", "t10k"):
        image_file, label_file = (_raw_or_gz(folder, f"{part}-{kind}") for kind in ("images-idx3", "labels-idx1"))
        images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
        if len(images) != len(labels):
            raise DataError(
                f"{image_file} has {len(images)} images and {label_file} has {len(labels)} labels: "
                f"they do not belong together; delete both and get the official files again"
            )
        found += [images.unsqueeze(1), _labels(labels, label_file)]
    return found[0], found[1], found[2], found[3]


def _raw_or_gz(folder: Path, stem: str) -> Path:
    for path in (folder / f"{stem}-ubyte", folder / f"{stem}-ubyte.gz"):
        if path.exists():
            return path
    raise DataError(f"{folder} has neither {stem}-ubyte nor {stem}-ubyte.gz; put the official file there")


def _cifar10(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts = [read_cifar(folder / f"data_batch_{number}.bin") for number in range(1, 6)]
    images, labels = (torch.cat(column) for column in zip(*parts))
    return images, labels, *read_cifar(folder / "test_batch.bin")


def _dataset(name: str, train_x: Tensor, train_y: Tensor, valid_x: Tensor, valid_y: Tensor) -> Dataset:
    return Dataset(name, train_x, train_y, valid_x, valid_y, digest(train_x, train_y, valid_x, valid_y))
