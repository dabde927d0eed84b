"""AnytimeModel: a second model that has the averaged weights, in place of torch's AveragedModel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from surefoot.averaging.memory import Memory
from surefoot.averaging.weights import WeightAverage, are_finite, move, pack, started
from surefoot.losses import as_scalar


class AnytimeModel(AveragedModel):
    """A copy of a model whose weights are an average of those of the model; the loss sets how long it remembers.

    It is used as ``torch.optim.swa_utils.AveragedModel`` is, and ``update_bn`` takes it too; only
    ``update_parameters`` needs the loss. `surefoot.Anytime` needs no second model.

    Args:
        model: the model; it is copied.
        device: where the copy is.
        memory: "anytime", "poly:8", "ema:0.999", "uniform", or a `Memory`.
        every: update the average at every so many steps (None: at first at every step, and from the thousandth on at
            every twentieth); the statistics see every loss.
        use_buffers: average the floating buffers too. If not, they are those of the model at the last update.

    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> average = AnytimeModel(model)
    >>> for x in torch.eye(3):
    ...     optimizer.zero_grad()
    ...     loss = model(x).pow(2).sum()
    ...     loss.backward()
    ...     optimizer.step()
    ...     average.update_parameters(model, loss=loss)
    >>> average(torch.ones(3)).shape
    torch.Size([1])
    """

    def __init__(
        self,
        model: nn.Module,
        device: int | torch.device | str | None = None,
        *,
        memory: str | Memory = "anytime",
        every: int | None = None,
        use_buffers: bool = True,
    ) -> None:
        super().__init__(model, None if device is None else torch.device(device), use_buffers=use_buffers)
        self.module.requires_grad_(False)
        self._average = WeightAverage([], memory, every=every)
        #: Whether the average has been updated; until then it is the newest weights.
        self._has_begun = False
        #: Averages of weights in half precision, by their place.
        self._wide: dict[int, Tensor] = {}

    @torch.no_grad()
    def update_parameters(self, model: nn.Module, loss: Any = None) -> None:
        """Take notice of a step of the model.

        Args:
            model: the model that is trained, also compiled or wrapped.
            loss: the loss of this step.
        """
        if loss is None:
            raise TypeError("AnytimeModel needs the loss of the step: update_parameters(model, loss=loss)")
        loss = as_scalar(loss, owner="AnytimeModel")
        ours, theirs = _tensors_of(self.module, self.use_buffers), _tensors_of(model, self.use_buffers)
        if [x.shape for x in ours] != [x.shape for x in theirs]:
            raise ValueError(
                f"this {type(model).__name__} has other parameters than the model that was copied; pass that model, or "
                "what torch.compile or DDP made of it"
            )
        average = self._average
        average.observe(loss.item() if isinstance(loss, Tensor) and loss.is_cpu else loss)
        self.n_averaged += 1
        is_due = average.room <= 0
        if self._has_begun and not is_due:
            return
        theirs = [new.to(mine.device) for mine, new in zip(ours, theirs)]
        sound = are_finite(theirs)
        if is_due:
            self._move(ours, theirs, average.commit(sound), sound)
            self._has_begun = True
        else:
            self._move(ours, theirs, 1.0 if sound is True else 1.0 * sound, sound)
        for mine, new in zip(_others_of(self.module, self.use_buffers), _others_of(model, self.use_buffers)):
            mine.copy_(new)

    def _move(self, ours: list[Tensor], theirs: list[Tensor], share: Any, sound: Any) -> None:
        for index, x in enumerate(ours):
            if x.dtype.itemsize < 4 and index not in self._wide:
                self._wide[index] = started(x)
        move([self._wide.get(index, x) for index, x in enumerate(ours)], theirs, share, sound)
        for index, wide in self._wide.items():
            ours[index].copy_(wide)

    def get_extra_state(self) -> dict[str, Any]:
        """What a checkpoint needs beside the averaged weights."""
        return {"numbers": pack(self._average.state), "has_begun": self._has_begun, "wide": dict(self._wide)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._average.load(state["numbers"])
        self._has_begun = bool(state["has_begun"])
        ours = _tensors_of(self.module, self.use_buffers)
        self._wide = {index: started(ours[index], wide) for index, wide in state["wide"].items()}


def _tensors_of(model: nn.Module, with_buffers: bool) -> list[Tensor]:
    """What is averaged: the parameters, and the floating buffers if asked for."""
    buffers = [x for x in model.buffers() if with_buffers and x.is_floating_point()]
    return [*(p.detach() for p in model.parameters()), *buffers]


def _others_of(model: nn.Module, with_buffers: bool) -> list[Tensor]:
    """Buffers that are copied."""
    return [x for x in model.buffers() if not (with_buffers and x.is_floating_point())]
