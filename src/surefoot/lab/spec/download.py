"""Fetch the official files once, into the user's cache folder, checked against their known SHA-256."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot._extras import require


class DataError(RuntimeError):
    """A data set that is missing, damaged or out of reach; the message says what to do."""


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
    # pooch needs requests itself; its exceptions are OSErrors, so they are told apart before fetch sees them.
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
    """A network error as a reader wants it: requests nests the cause deep inside reprs of its own objects."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code}"
    return {
        "ConnectionError": "no connection",
        "ConnectTimeout": "no answer",
        "ReadTimeout": "no answer",
    }.get(type(error).__name__, type(error).__name__)


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
