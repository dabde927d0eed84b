"""Labels of contestants, short enough for a figure and still apart."""

from __future__ import annotations

from collections.abc import Sequence


def shortened(labels: Sequence[str], most: int = 36) -> list[str]:
    """Labels cut to so many letters, and no two that differ alike: in the middle, or else around what differs.

    >>> shortened(["Adam", "AdamS eta=0.1 weighting=unit"], 12)
    ['Adam', 'AdamS …=unit']
    >>> shortened(["AdamS lr=0.001 eta=0.1 weighting=unit", "AdamS lr=0.001 eta=0.2 weighting=unit"], 20)
    ['AdamS …eta=0.1 weig…', 'AdamS …eta=0.2 weig…']
    """
    cut = [_cut(label, most) for label in labels]
    groups = [sorted({other for other, short in zip(labels, cut) if short == mine}) for mine in cut]
    cut = [
        short if len(group) == 1 else _around(label, _difference(group), most)
        for label, short, group in zip(labels, cut, groups)
    ]
    # labels that differ in several far places may still look alike: then their row tells them apart
    return [
        f"{row}: {short}" if len({other for other, its in zip(labels, cut) if its == short}) > 1 else short
        for row, short in enumerate(cut, start=1)
    ]


def _cut(label: str, letters: int) -> str:
    tail = (letters - 1) // 2
    return label if len(label) <= letters else f"{label[: letters - 1 - tail]}…{label[len(label) - tail :]}"


def _difference(labels: Sequence[str]) -> int:
    """Where labels begin to differ."""
    return next((k for k, column in enumerate(zip(*labels)) if len(set(column)) > 1), min(map(len, labels)))


def _around(label: str, place: int, letters: int) -> str:
    head = letters // 3
    start = max(head, label.rfind(" ", 0, place) + 1)
    rest, room = label[start:], letters - head - 1
    return f"{label[:head]}…{rest if len(rest) <= room else rest[: room - 1] + '…'}"
