"""Damage to a folder of runs: wrong values, broken bytes, and special files where plain ones belong."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m‮"
HUGE = int("9" * 400)
#: What stands in the place of an entry.
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, -(2**70), HUGE, 0.5, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"),
    "", "x", "1", "9" * 5000, ESCAPE, "\ud800", "\x00", "a\nb", "<script>", "__proto__", [], [1], [[1]], ["x"],
    {}, {"x": 1}, {"": {}}, {"lr": [1]},
]  # fmt: skip
NAMES = ["constructor", "toString", "__proto__", "", ESCAPE, "valid_<b>", "\ud800", "epoch", "x" * 3000]


def mutate(chance: random.Random, root: Path, outside: Path) -> list[str]:
    """Damage one to three files of the runs under a folder; returns what was done.

    Args:
        outside: a file that links lead to, and that must stay as it is.
    """
    done = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        folder = chance.choice(sorted(path for path in root.rglob("*-s[0-9]-*") if path.is_dir()))
        name = chance.choices(
            ["config.json", "metrics.jsonl", "checkpoint.pt", "error.txt", "lock", "../task.json"], [8, 8, 2, 1, 1, 1]
        )[0]
        path = folder / name
        plain = not path.is_symlink() and (not path.exists() or (path.is_file() and path.stat().st_size < 1 << 30))
        change = chance.choice([_value, _value, _value, _value, _bytes, _bytes, _special] if plain else [_special])
        what = change(chance, path, outside)
        done.append(f"{path.parent.name}/{path.name}: {what}")
    return done


def _value(chance: random.Random, path: Path, outside: Path) -> str:
    """Change an entry of a JSON file, or of one of its lines."""
    try:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = chance.randrange(len(lines))
        data = json.loads(lines[number])
    except (OSError, ValueError):
        return _bytes(chance, path, outside)
    if chance.random() < 0.05:
        depth = 100_000
        lines[number], what = '{"epoch":' + "[" * depth + "]" * depth + "}", "nested deeply"
    else:
        what = _change(chance, data)
        lines[number] = json.dumps(data)
    path.write_text("\n".join(lines) + "\n", errors="surrogatepass")
    return f"entry {number + 1}: {what}"


def _change(chance: random.Random, data: Any) -> str:
    """Replace, delete, rename or add an entry somewhere in the tree; in place."""
    if not isinstance(data, dict) or not data:
        return "nothing"
    name = chance.choice(sorted(data))
    if isinstance(data[name], dict) and data[name] and chance.random() < 0.7:
        return f"{name}.{_change(chance, data[name])}"
    action = chance.choices(["replace", "delete", "rename", "add"], [8, 1, 1, 1])[0]
    if action == "delete":
        del data[name]
    elif action == "rename":
        name = chance.choice(NAMES)
        data[name] = data.pop(sorted(data)[0])
    else:
        name = name if action == "replace" else chance.choice(NAMES)
        data[name] = chance.choice(VALUES)
        return f"{name[:20]!r} = {str(data[name])[:20]!r}" if data[name] != HUGE else f"{name[:20]!r} huge"
    return f"{action} {name[:20]!r}"


def _bytes(chance: random.Random, path: Path, outside: Path) -> str:
    data = bytearray(path.read_bytes() if path.is_file() else b"x\n")
    place = chance.randrange(len(data) + 1)
    kind = chance.choice(["flip", "cut", "insert", "twice", "latin-1", "empty", "zeros"])
    if kind == "flip" and data:
        data[place % len(data)] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[place:]
    elif kind == "insert":
        data[place:place] = chance.randbytes(chance.randrange(1, 20))
    elif kind == "twice":
        data *= 2
    elif kind == "latin-1":
        data[place:place] = "é".encode("latin-1")
    else:
        data = bytearray(0 if kind == "empty" else 300)
    path.write_bytes(data)
    return f"{kind} at byte {place}"


def _special(chance: random.Random, path: Path, outside: Path) -> str:
    kind = chance.choice(["link", "endless", "loop", "fifo", "folder", "sparse", "missing", "dangling"])
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind in ("link", "endless", "loop", "dangling"):
        targets = {"link": outside, "endless": Path("/dev/zero"), "loop": path, "dangling": outside.parent / "none"}
        path.symlink_to(targets[kind])
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    return kind
