"""A PostgreSQL server for the tests that need one."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server on loopback, in a temporary folder."""
    candidates = [shutil.which("initdb"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))]
    initdb = next((Path(path) for path in reversed(candidates) if path), None)
    if initdb is None:
        sentence = "PostgreSQL is not installed here (apt install postgresql), so tuning on it is not tested"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    # The server refuses to run as root, so that it cannot harm; Debian's package brings a user for it.
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    options: dict[str, Any] = {"cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    if os.getuid() == 0:
        options |= {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:  # a socket's path must be short
        shutil.chown(folder, user)
        data = f"{folder}/data"
        subprocess.run(
            [initdb, "-D", data, "-U", "tuner", "-A", "trust", "--no-sync", "-E", "UTF8"], check=True, **options
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        log = open(f"{folder}/log", "wb")  # noqa: SIM115 (open as long as the server)
        server = subprocess.Popen(
            [initdb.with_name("postgres"), "-D", data, "-p", str(port), *settings], **{**options, "stderr": log}
        )
        try:
            ready = [initdb.with_name("pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
            deadline = time.monotonic() + 60
            while subprocess.run(ready).returncode != 0:
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"the PostgreSQL server did not start: {Path(folder, 'log').read_text()}")
                time.sleep(0.1)
            yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # fast shutdown
            server.wait(60)
            log.close()
