"""Accelerate: `backward` hands the loss to the optimizer too, since the wrapped `step` takes no keyword."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from surefoot.averaging.anytime import Anytime
from surefoot.unwrap import loss_aware


def backward(accelerator: Any, loss: Tensor, optimizer: Any, weight: float = 1, **kwargs: Any) -> None:
    """``accelerator.backward(loss)``, and the optimizer's next step learns of this loss.

    Accelerate divides by ``gradient_accumulation_steps`` and scales for mixed precision after this, so the optimizer
    sees the loss as you computed it; a step uses the mean over its micro-batches.

    Args:
        accelerator: the Accelerator.
        loss: this micro-batch's loss, not divided.
        optimizer: the prepared optimizer (or the one inside it); one that takes no losses is left alone.
        weight: the micro-batch's share in that mean.
        kwargs: passed on to ``accelerator.backward``.

    >>> import torch, surefoot, accelerate
    >>> accelerator = accelerate.Accelerator(cpu=True)
    >>> model = torch.nn.Linear(3, 1)
    >>> model, optimizer = accelerator.prepare(model, surefoot.AdamS(model.parameters()))
    >>> loss = model(torch.ones(4, 3)).pow(2).mean()
    >>> backward(accelerator, loss, optimizer)
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    """
    inner = loss_aware(optimizer)
    if inner is not None:
        inner.record_loss(loss, weight)
    accelerator.backward(loss, **kwargs)


def averaged(optimizer: Any) -> AbstractContextManager[None]:
    """``Anytime.averaged`` of a prepared optimizer, which hides that method.

    Args:
        optimizer: the prepared optimizer (or the one inside it).

    >>> import torch, surefoot, accelerate
    >>> model = torch.nn.Linear(3, 1)
    >>> anytime = surefoot.Anytime(torch.optim.AdamW(model.parameters()))
    >>> optimizer = accelerate.Accelerator(cpu=True).prepare(anytime)
    >>> with averaged(optimizer):
    ...     print(anytime.is_averaged)
    True
    """
    inner = loss_aware(optimizer)
    if not isinstance(inner, Anytime):
        raise TypeError(f"averaged needs a surefoot.Anytime, prepared or not, but got {type(optimizer).__name__}")
    return inner.averaged()
