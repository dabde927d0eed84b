"""What `anytime` compared, in `anytime.json` beside its runs: the runs alone do not tell.

They do not say at which horizons they were compared, nor which of the averages that rode along took part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.lab.spec.config import FORMAT
from surefoot.lab.store.files import StoreError, parse_json, read_plain, unreadable, write_atomic

NAME = "anytime.json"


@dataclass(frozen=True)
class HorizonRecord:
    """What was compared, and how.

    Args:
        contestants: for each horizon every contestant by its label, in their order, with the keys of its runs.
        margin: what counts as not inferior.
        command: what to type to get the same again.
        rates: how the learning rates were chosen, if they were.
    """

    contestants: Mapping[int, Mapping[str, Sequence[str]]]
    margin: str
    command: str
    rates: str = ""

    def write(self, folder: Path) -> None:
        """Write it beside the runs, in place of what was compared there before."""
        data = {
            "format": FORMAT,
            "margin": self.margin,
            "command": self.command,
            "rates": self.rates,
            "horizons": [
                {"epochs": epochs, "contestants": {label: list(keys) for label, keys in entries.items()}}
                for epochs, entries in self.contestants.items()
            ],
        }
        write_atomic(folder / NAME, (json.dumps(data, indent=1) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> HorizonRecord | None:
        """What is recorded in a folder; None if nothing is."""
        path = folder / NAME
        try:
            data = parse_json(read_plain(path))
            contestants: dict[int, dict[str, list[str]]] = {
                _checked(row["epochs"], int): {
                    label: [_checked(key, str) for key in _checked(keys, list)]
                    for label, keys in _checked(row["contestants"], dict).items()
                }
                for row in _checked(data["horizons"], list)
            }
            if not contestants or not all(part and all(part.values()) for part in contestants.values()):
                raise ValueError("it names no runs")
            texts = [_checked(data[name], str) for name in ("margin", "command", "rates")]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"{path} cannot be read ({error!r:.200}); delete it, and run 'surefoot anytime' again"
            ) from error
        return cls(contestants, *texts)


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r:.50} is no {kind.__name__}")
    return value
