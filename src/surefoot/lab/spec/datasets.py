"""The data sets: downloaded once, checked, and read from their official formats (never a pickle) into tensors."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from surefoot._extras import require


class DataError(RuntimeError):
    """A data set that is missing, damaged or out of reach; the message says what to do."""


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
    if name not in NAMES:
        raise DataError(f"there is no data set {name!r}; known are {', '.join(NAMES)}")
    if name == "digits":
        tensors = _digits()
    elif name == "cifar10":
        tensors = _cifar10(_folder(name, data_dir))
    else:
        tensors = _mnist(_folder(name, data_dir))
    return Dataset(name, *tensors, digest(*tensors))


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
    promised, there = math.prod(shape), len(content) - header
    if promised != there or promised == 0:
        problem = "is truncated" if there < promised else "is corrupt"
        size = " x ".join(map(str, shape))
        raise DataError(f"{path} {problem}: its header promises {size} bytes and {there} follow; {_AGAIN}")
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
    parts = []
    for part in ("train", "t10k"):
        image_file, label_file = (_raw_or_gz(folder, f"{part}-{kind}") for kind in ("images-idx3", "labels-idx1"))
        images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
        if len(images) != len(labels):
            raise DataError(
                f"{image_file} has {len(images)} images and {label_file} has {len(labels)} labels: "
                f"they do not belong together; delete both and get the official files again"
            )
        parts += [images.unsqueeze(1), _labels(labels, label_file)]
    return parts[0], parts[1], parts[2], parts[3]


def _raw_or_gz(folder: Path, stem: str) -> Path:
    for path in (folder / f"{stem}-ubyte", folder / f"{stem}-ubyte.gz"):
        if path.exists():
            return path
    raise DataError(f"{folder} has neither {stem}-ubyte nor {stem}-ubyte.gz; put the official file there")


def _cifar10(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts = [read_cifar(folder / f"data_batch_{number}.bin") for number in range(1, 6)]
    images, labels = (torch.cat(column) for column in zip(*parts))
    return images, labels, *read_cifar(folder / "test_batch.bin")


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: its folder, mirrors (tried in order), and the SHA-256 of each file."""

    folder: str
    mirrors: tuple[str, ...]
    files: Mapping[str, str]


#: The hashes are those of the files as their authors publish them.
SOURCES = {
    "mnist": Source(
        "mnist",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": Source(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": Source(
        "cifar-10-batches-bin",
        ("https://www.cs.toronto.edu/~kriz/",),
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
}


def ways_out(name: str, cache: Path) -> str:
    """The three ways to a data set that is not here, in one sentence."""
    folder = SOURCES[name].folder
    return (
        f"Three ways out: pass --data-dir DIR (data_dir= in Python) with the official files in DIR/{folder}; "
        f"set SUREFOOT_DATA=DIR; or connect to the network once without either, "
        f"and {name} is downloaded and kept in {cache}."
    )


def cache_folder() -> Path:
    """The folder that downloads are kept in, as the operating system wants it."""
    return Path(require("pooch", extra="lab").os_cache("surefoot"))


def fetch(name: str, cache: Path | None = None) -> Path:
    """Return the folder that holds a data set, downloading what is not there yet.

    Args:
        name: `mnist`, `fashion-mnist` or `cifar10`.
        cache: where downloads are kept; the user's cache folder when None.
    """
    cache = cache_folder() if cache is None else cache
    source = SOURCES[name]
    folder = cache / source.folder
    archives = [file for file in source.files if file.endswith(".tar.gz")]
    if archives and folder.is_dir():
        return folder  # an unpacked folder appears whole or not at all
    try:
        for file, sha256 in source.files.items():
            _download(name, file, sha256, cache if file in archives else folder, cache)
        for file in archives:
            _unpack(cache / file, source.folder)
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"{name} could not be kept in the cache folder {cache} ({error}). {ways_out(name, cache)}"
        ) from error
    return folder


def _download(name: str, file: str, sha256: str, folder: Path, cache: Path) -> None:
    pooch = require("pooch", extra="lab")
    # The errors of requests, which pooch needs itself, are OSErrors: caught here, or `fetch` would blame the disk.
    network_error = require("requests", extra="lab").RequestException
    reasons = []
    for mirror in SOURCES[name].mirrors:
        try:
            pooch.retrieve(
                mirror + file,
                known_hash=f"sha256:{sha256}",
                fname=file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=30),
            )
            return
        except network_error as error:
            reasons.append(f"{mirror + file}: {_reason(error)}")
        except ValueError:  # pooch's word for a wrong hash; it has deleted what came
            reasons.append(f"{mirror + file}: what came does not have the known SHA-256 {sha256} and was not kept")
    raise DataError(f"{name} could not be downloaded ({'; '.join(reasons)}). {ways_out(name, cache)}")


def _reason(error: Exception) -> str:
    """A network error in a few words: requests nests the cause deep inside its objects."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code}"
    kind = type(error).__name__
    return {"ConnectionError": "no connection", "ConnectTimeout": "no answer", "ReadTimeout": "no answer"}.get(
        kind, kind
    )


def _unpack(archive: Path, folder: str) -> None:
    target = archive.parent / folder
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(temporary, filter="data")  # refuses absolute paths, "..", links and devices outside
        except (tarfile.TarError, EOFError) as error:
            raise DataError(f"{archive} could not be unpacked ({error}); delete it and try again") from error
        unpacked = Path(temporary) / folder
        if not unpacked.is_dir():
            raise DataError(f"{archive} holds no folder {folder}; delete it and try again")
        try:
            os.rename(unpacked, target)
        except OSError:
            if not target.is_dir():  # otherwise another process has just put the same files there
                raise
            shutil.rmtree(unpacked)
    archive.unlink(missing_ok=True)
