"""AnytimeLR: the learning rate that goes with an any-time average."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from surefoot.averaging.anytime import Anytime
from surefoot.averaging.memory import EVERY, SPAN, Number, rate_factor
from surefoot.averaging.weights import Transfer
from surefoot.optim.options import check_option
from surefoot.unwrap import loss_aware


class AnytimeLR(LRScheduler):
    """A learning rate that stays high while the loss falls, and falls on a plateau; it needs no horizon.

    ``lr = initial_lr / (1 + steps / span)``, where ``steps`` is how many steps the average of `Anytime` spans. While
    the loss falls the average forgets, so ``steps`` is small; on a plateau it grows, and the rate falls like 1/t. If
    the loss begins to fall again, the rate rises again.

    Call ``step()`` after every step of the optimizer. The rate changes at every twentieth step, by what was known
    twenty steps before: so no step waits for an accelerator.

    Args:
        optimizer: an `Anytime`, or what a framework made of it.
        span: how many steps the average has to span for half of the rate.
        warmup: the number of steps over which the rate first rises linearly.
        last_epoch: as in every scheduler of torch.

    >>> model = torch.nn.Linear(3, 1)
    >>> opt = Anytime(torch.optim.AdamW(model.parameters(), lr=1e-2))
    >>> scheduler = AnytimeLR(opt)
    >>> for _ in range(1000):          # on a plateau
    ...     opt.zero_grad()
    ...     loss = (model(torch.randn(8, 3)) - torch.randn(8, 1)).pow(2).mean()
    ...     loss.backward()
    ...     opt.step(loss=loss)
    ...     scheduler.step()
    >>> 0.002 < scheduler.get_last_lr()[0] < 0.008
    True
    """

    def __init__(self, optimizer: Any, span: float = SPAN, warmup: int = 0, last_epoch: int = -1) -> None:
        check_option("span", span, ("number", lambda value: 0 < value < float("inf"), "it must be finite and above 0"))
        check_option("warmup", warmup, ("number", lambda value: value >= 0, "it must be a number of steps"))
        _anytime(optimizer)
        self.span, self.warmup = float(span), warmup
        #: Steps that the average spans, as the rate knows them, and as they were later: the next to be known.
        self.known: float = 0.0
        self.next: float | Transfer = 0.0
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each group."""
        if self.last_epoch % EVERY == 0:
            self.known, self.next = self._arrived(), _sent(_anytime(self.optimizer).span)
        rising = min(1.0, (self.last_epoch + 1) / self.warmup) if self.warmup else 1.0
        return [lr * (rising * rate_factor(self.known, self.span)) for lr in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        self.next = self._arrived()
        return super().state_dict()

    def _arrived(self) -> float:
        """The number that was sent twenty steps ago."""
        if isinstance(self.next, Transfer):
            self.next.finish({})
            return float(self.next.copies[0])
        return self.next


def _sent(number: Number) -> float | Transfer:
    """A number on its way to the host; nothing waits for it."""
    if not isinstance(number, Tensor):
        return number
    return Transfer([number], 0.0, True, torch.device("cpu"))


def _anytime(optimizer: Any) -> Anytime:
    """The `Anytime` whose average the rate follows."""
    inner = loss_aware(optimizer)
    if not isinstance(inner, Anytime):
        raise TypeError(
            f"AnytimeLR follows the average of a surefoot.Anytime, but got {type(optimizer).__name__}; write "
            "AnytimeLR(Anytime(optimizer))"
        )
    return inner
