"""Data sets are read from their official formats, and what is wrong with a file is said in one sentence."""

import gzip
import hashlib
import io
import struct
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from surefoot.lab.spec import datasets as data
from surefoot.lab.spec.datasets import DataError, Source, fetch, load, read_cifar, read_idx


def idx(values: torch.Tensor) -> bytes:
    header = bytes((0, 0, 8, values.dim())) + struct.pack(f">{values.dim()}I", *values.shape)
    return header + values.numpy().tobytes()


def mnist_files(seed: int = 0) -> dict[str, bytes]:
    draw = torch.Generator().manual_seed(seed)
    files = {}
    for part, count in (("train", 30), ("t10k", 20)):
        pixels = torch.randint(256, (count, 28, 28), generator=draw, dtype=torch.uint8)
        labels = torch.arange(count, dtype=torch.uint8) % 10
        files[f"{part}-images-idx3-ubyte"] = idx(pixels)
        files[f"{part}-labels-idx1-ubyte"] = idx(labels)
    return files


@pytest.fixture
def mnist_dir(tmp_path):
    (tmp_path / "mnist").mkdir()
    for name, content in mnist_files().items():
        (tmp_path / "mnist" / name).write_bytes(content)
    return tmp_path


def cifar_content(records: int, label: int = 3) -> bytes:
    pixels = bytes(range(256)) * 12
    return b"".join(bytes((label,)) + pixels for _ in range(records))


@pytest.fixture
def small_cifar(monkeypatch):
    monkeypatch.setattr(data, "CIFAR_RECORDS", 4)


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch, tmp_path):
    monkeypatch.delenv("SUREFOOT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_digits_split_is_stratified_disjoint_and_always_the_same():
    first, again = load("digits"), load("digits")
    assert first.digest == again.digest
    assert first.train_x.dtype == torch.uint8
    assert len(first.train_x) + len(first.valid_x) == 1797
    share = first.valid_y.bincount() / (first.train_y.bincount() + first.valid_y.bincount())
    assert ((share - 0.2).abs() < 0.005).all()


def test_digits_split_is_the_published_one():
    # The reported numbers depend on it; a change must be deliberate.
    assert load("digits").digest == "3e6fb64fe428b31fbb5bd7857c7648f8048e1e9290869f27349b1d9de5444aad"


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_raw_and_gz_are_the_same(mnist_dir, packed):
    raw = load("mnist", mnist_dir)
    if packed:
        for path in list((mnist_dir / "mnist").iterdir()):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    loaded = load("mnist", mnist_dir)
    assert loaded.digest == raw.digest
    assert loaded.train_x.shape == (30, 1, 28, 28)
    assert loaded.valid_y.tolist() == [n % 10 for n in range(20)]
    pixels = torch.frombuffer(bytearray(mnist_files()["t10k-images-idx3-ubyte"][16:]), dtype=torch.uint8)
    assert torch.equal(loaded.valid_x.flatten(), pixels)


def test_environment_names_the_folder_and_the_argument_wins(mnist_dir, monkeypatch, tmp_path):
    monkeypatch.setenv("SUREFOOT_DATA", str(mnist_dir))
    assert len(load("mnist").train_x) == 30
    with pytest.raises(DataError, match="has no folder mnist"):
        load("mnist", tmp_path / "elsewhere")


def test_digest_sees_one_pixel(mnist_dir):
    before = load("mnist", mnist_dir).digest
    path = mnist_dir / "mnist" / "t10k-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load("mnist", mnist_dir).digest != before


def test_cifar_planes_and_labels(tmp_path, small_cifar):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(cifar_content(4, label=number))
    (folder / "test_batch.bin").write_bytes(cifar_content(4, label=9))
    loaded = load("cifar10", tmp_path)
    assert loaded.train_y.tolist() == [n for n in range(1, 6) for _ in range(4)]
    assert loaded.valid_y.tolist() == [9] * 4
    # Row-major planes: red first, and the next row 32 pixels on.
    assert loaded.train_x.shape == (20, 3, 32, 32)
    assert loaded.train_x[7, 0, 1, 0] == 32
    assert loaded.train_x[7, 2, 0, 5] == (2 * 1024 + 5) % 256


def test_unknown_data_set_lists_the_known():
    with pytest.raises(DataError, match="no data set 'mnits'; known are digits, mnist"):
        load("mnits")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda content: content[:-1],
            "is truncated: its header promises 30 x 28 x 28 bytes and 23519 follow",
        ),
        (lambda content: content[:10], "is truncated: its 10 bytes do not even hold the IDX header"),
        (lambda content: b"", "is truncated"),
        (lambda content: content + b"x", "is corrupt: its header promises"),
        (lambda content: b"\x00\x00\x0d\x03" + content[4:], r"is not an IDX file .* starts with 00000d03"),
        (lambda content: b"<html>not found</html>", "is not an IDX file"),
        (lambda content: gzip.compress(content)[:-20], "is truncated or corrupt"),
        (lambda content: gzip.compress(content)[:50] + bytes(500), "is truncated or corrupt"),
    ],
)
def test_damaged_idx_file_is_named(mnist_dir, damage, message):
    path = mnist_dir / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte {message}"):
        load("mnist", mnist_dir)


def test_damaged_labels_are_refused(mnist_dir, tmp_path):
    path = mnist_dir / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(idx(torch.full((30,), 12, dtype=torch.uint8)))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is corrupt: it has a label 12"):
        load("mnist", mnist_dir)
    path.write_bytes(idx(torch.zeros(29, dtype=torch.uint8)))
    with pytest.raises(DataError, match=r"30 images and .* has 29 labels"):
        load("mnist", mnist_dir)
    path.unlink()
    with pytest.raises(DataError, match=r"neither train-labels-idx1-ubyte nor train-labels-idx1-ubyte\.gz"):
        load("mnist", mnist_dir)


def test_damaged_cifar_file_is_named(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    for content, message in (
        (cifar_content(4)[:-1], "is truncated: 4 images of 3073 bytes are 12292 bytes, and it has 12291"),
        (cifar_content(3), "is truncated"),
        (cifar_content(5), "is corrupt"),
        (cifar_content(4, label=10), "is corrupt: it has a label 10"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"data_batch_1.bin {message}"):
            read_cifar(path, records=4)
    with pytest.raises(DataError, match=r"gone\.bin could not be read \(No such file"):
        read_cifar(tmp_path / "gone.bin")


def test_labels_file_is_not_taken_for_images(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(idx(torch.zeros(100, dtype=torch.uint8)))
    with pytest.raises(DataError, match="3 dimensions"):
        read_idx(path, 3)


# Download: a loopback server stands for the official ones.


class Quiet(SimpleHTTPRequestHandler):
    requests: list[str] = []

    def do_GET(self):
        self.requests.append(self.path)
        super().do_GET()

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """A folder and the address it is served at."""
    root = tmp_path / "served"
    root.mkdir()
    Quiet.requests = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield root, f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()


@pytest.fixture
def dead_address(tmp_path):
    """An address at which a server was and is not any more."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as httpd:
        return f"http://127.0.0.1:{httpd.server_port}/"


def serve(monkeypatch, name, root, mirrors, files):
    """Serve the files and make their hashes the known ones."""
    for file, content in files.items():
        (root / file).write_bytes(content)
    known = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    folder = data.SOURCES[name].folder
    monkeypatch.setitem(data.SOURCES, name, Source(folder, tuple(mirrors), known))


def packed_mnist() -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content) for name, content in mnist_files().items()}


def test_download_once_then_from_the_cache(server, monkeypatch, mnist_dir, tmp_path):
    root, address = server
    serve(monkeypatch, "mnist", root, [address], packed_mnist())
    loaded = load("mnist")
    assert loaded.digest == load("mnist", mnist_dir).digest
    assert len(Quiet.requests) == 4
    assert load("mnist").digest == loaded.digest
    assert len(Quiet.requests) == 4
    assert sorted(path.name for path in (tmp_path / "cache" / "surefoot" / "mnist").iterdir()) == sorted(packed_mnist())


def test_damaged_cache_is_fetched_again(server, monkeypatch, tmp_path):
    root, address = server
    serve(monkeypatch, "mnist", root, [address], packed_mnist())
    digest = load("mnist").digest
    (tmp_path / "cache" / "surefoot" / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"half a file")
    assert load("mnist").digest == digest
    assert len(Quiet.requests) == 5


def test_wrong_hash_is_refused_and_nothing_is_kept(server, monkeypatch, tmp_path):
    root, address = server
    serve(monkeypatch, "mnist", root, [address], packed_mnist())
    (root / "t10k-images-idx3-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.gz: what came does not have the known SHA-256"):
        load("mnist")
    kept = {path.name for path in (tmp_path / "cache" / "surefoot" / "mnist").iterdir()}
    assert kept == {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"}


def test_second_mirror_helps_out(server, dead_address, monkeypatch):
    root, address = server
    serve(monkeypatch, "mnist", root, [dead_address, address], packed_mnist())
    assert len(load("mnist").train_x) == 30


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_no_network_names_three_ways_out(dead_address, monkeypatch, tmp_path, name):
    source = data.SOURCES[name]
    monkeypatch.setitem(data.SOURCES, name, Source(source.folder, (dead_address,), source.files))
    with pytest.raises(DataError) as caught:
        load(name)
    message = str(caught.value)
    assert "no connection" in message
    assert f"--data-dir DIR (data_dir= in Python) with the official files in DIR/{source.folder}" in message
    assert "SUREFOOT_DATA=DIR" in message
    assert f"kept in {tmp_path / 'cache' / 'surefoot'}" in message
    assert "\n" not in message


def test_missing_file_on_the_server(server, monkeypatch):
    root, address = server
    serve(monkeypatch, "mnist", root, [address], packed_mnist())
    (root / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match="the server answered 404"):
        load("mnist")


def test_cache_that_cannot_be_written(server, monkeypatch, tmp_path):
    root, address = server
    serve(monkeypatch, "mnist", root, [address], packed_mnist())
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"could not be kept in the cache folder .* Three ways out"):
        load("mnist")


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def cifar_tar() -> dict[str, bytes]:
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    return {f"cifar-10-batches-bin/{name}.bin": cifar_content(4) for name in names}


def test_archive_is_unpacked_once_and_whole(server, monkeypatch, small_cifar, tmp_path):
    root, address = server
    serve(monkeypatch, "cifar10", root, [address], {"cifar-10-binary.tar.gz": tar_of(cifar_tar())})
    digest = load("cifar10").digest
    assert load("cifar10").digest == digest
    assert len(Quiet.requests) == 1
    assert [path.name for path in (tmp_path / "cache" / "surefoot").iterdir()] == ["cifar-10-batches-bin"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_of({**cifar_tar(), "../../escaped": b"x"}), "could not be unpacked"),
        (tar_of({"other/file": b"x"}), "holds no folder cifar-10-batches-bin"),
        (tar_of(cifar_tar())[:200], "could not be unpacked"),
        (b"no archive at all", "could not be unpacked"),
    ],
)
def test_hostile_or_broken_archive_leaves_nothing(server, monkeypatch, tmp_path, content, message):
    root, address = server
    serve(monkeypatch, "cifar10", root, [address], {"cifar-10-binary.tar.gz": content})
    with pytest.raises(DataError, match=message):
        fetch("cifar10", tmp_path / "inner" / "cache")
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "inner" / "escaped").exists()
    assert [path.name for path in (tmp_path / "inner" / "cache").iterdir()] == ["cifar-10-binary.tar.gz"]


def test_sources_are_complete():
    for name, source in data.SOURCES.items():
        assert name in data.NAMES
        assert all(mirror.endswith("/") for mirror in source.mirrors)
        assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in source.files.values())
