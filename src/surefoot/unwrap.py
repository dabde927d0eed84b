"""The optimizer inside the wrapper that a framework put around it."""

from __future__ import annotations

from typing import Any


def unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside Accelerate's wrapper, which is a torch optimizer by type but has none of its hooks.

    >>> import torch
    >>> adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    >>> unwrapped(adam) is adam
    True
    """
    while not hasattr(optimizer, "_optimizer_step_post_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def loss_aware(optimizer: Any) -> Any | None:
    """The optimizer that takes losses: this one, or the one inside Lightning's or Accelerate's wrapper, or None.

    >>> import torch, surefoot
    >>> weights = [torch.nn.Parameter(torch.ones(2))]
    >>> type(loss_aware(surefoot.AdamS(weights))).__name__
    'AdamS'
    >>> loss_aware(torch.optim.Adam(weights)) is None
    True
    """
    while optimizer is not None:
        if hasattr(optimizer, "record_loss") and hasattr(optimizer, "confidence"):
            return optimizer
        optimizer = getattr(optimizer, "optimizer", None)
    return None
