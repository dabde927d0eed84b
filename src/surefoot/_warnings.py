"""Warnings that name the line of the user's code, however many functions of ours and of torch lie between."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Warn, and name the nearest line that is neither in this package nor in torch, which wraps our methods.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn("the loss hardly ever changes")
    >>> caught[0].category.__name__, str(caught[0].message)
    ('UserWarning', 'the loss hardly ever changes')
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours_or_torchs(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_ours_or_torchs(module: str) -> bool:
    return module.partition(".")[0] in ("surefoot", "torch")
