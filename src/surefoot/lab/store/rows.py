"""The rows of epochs, packed by columns."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any


class Rows(Sequence[dict[str, Any]]):
    """The rows of epochs, packed by columns in blocks: as dicts, a million of them take two gigabytes.

    >>> rows = Rows({"epoch": epoch, "valid_loss": 1 / epoch} for epoch in range(1, 10_001))
    >>> len(rows), rows[-1], rows[4:5]
    (10000, {'epoch': 10000, 'valid_loss': 0.0001}, [{'epoch': 5, 'valid_loss': 0.2}])
    """

    _BLOCK = 4096

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        self._blocks: list[Sequence[dict[str, Any]]] = []
        self._tail: list[dict[str, Any]] = []  # too few for a block
        for row in rows:
            self.append(row)

    def append(self, row: dict[str, Any]) -> None:
        self._tail.append(row)
        if len(self._tail) == self._BLOCK:
            alike = all(other.keys() == row.keys() for other in self._tail)
            self._blocks.append(_Columns(self._tail) if alike else self._tail)
            self._tail = []

    def __len__(self) -> int:
        return len(self._blocks) * self._BLOCK + len(self._tail)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for block in self._blocks:
            yield from block
        yield from self._tail

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        block, place = divmod(range(len(self))[index], self._BLOCK)
        return (self._blocks[block] if block < len(self._blocks) else self._tail)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> Iterator[Any]:
        for block in self._blocks:
            yield from block.column(name) if isinstance(block, _Columns) else column(block, name)
        yield from column(self._tail, name)


class _Columns(Sequence[dict[str, Any]]):
    """Rows with the same names, each column in as few bytes as its values allow."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._names = tuple(rows[0])
        self._columns = [_packed([row[name] for row in rows]) for name in self._names]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self._names, values)) for values in zip(*self._columns))

    def __getitem__(self, index: Any) -> Any:
        return {name: values[index] for name, values in zip(self._names, self._columns)}

    def column(self, name: str) -> Iterable[Any]:
        return self._columns[self._names.index(name)] if name in self._names else repeat(None, len(self))


def _packed(values: list[Any]) -> Sequence[Any]:
    kinds = set(map(type, values))
    return array("d", values) if kinds == {float} else array("q", values) if kinds == {int} else values


def column(rows: Sequence[Mapping[str, Any]], name: str) -> Iterator[Any]:
    """The values of one name, None where a row has none; much faster than row by row where the rows are packed.

    >>> list(column([{"epoch": 1, "seconds": 0.5}, {"epoch": 2}], "seconds"))
    [0.5, None]
    """
    return rows.column(name) if isinstance(rows, Rows) else (row.get(name) for row in rows)


def last_epoch(rows: Sequence[Mapping[str, Any]]) -> int:
    """Number of the last recorded epoch, 0 when there is none.

    >>> last_epoch([{"epoch": 1}, {"epoch": 2}])
    2
    """
    return int(rows[-1]["epoch"]) if rows else 0
