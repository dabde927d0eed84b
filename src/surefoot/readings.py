"""How the loss gets in: what counts as a loss, micro-batches gathered until the next step, the average over ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from surefoot.statistics import Number

THREE_WAYS = (
    "pass it as step(loss=loss), return it from the closure of step(closure), or hand over each micro-batch's loss "
    "with record_loss(loss) before step() (inside Lightning, Transformers or Accelerate, surefoot.integrations does it "
    "for you)"
)


_AVAILABLE = dist.is_available()  # built in or not


def as_scalar(loss: Any, *, who: str) -> Number:
    """Turn a loss into a float, or into a detached 0-d tensor that stays on its device.

    >>> as_scalar(torch.tensor([2.5], requires_grad=True), who="AdamS").item()
    2.5
    """
    if type(loss) is float:
        return loss
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            what = "is empty" if loss.numel() == 0 else f"has {loss.numel()} elements"
            raise ValueError(
                f"{who} needs one number as the loss, but the tensor {what} (shape {tuple(loss.shape)}); "
                "reduce it first, for example with loss.mean()"
            )
        if loss.is_complex():
            raise ValueError(f"{who} needs a real loss, but got {loss.dtype}; pass its real part or its abs()")
        loss = loss.detach()
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        # In half precision sums of many losses would round, or overflow.
        whole = loss.is_floating_point() and loss.dtype.itemsize >= 4
        return loss.reshape(()) if whole else loss.reshape(()).to(torch.float32)
    try:
        return math.fsum((loss,))  # as float(), which would also read a string
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{who} needs the loss as a number or a tensor with one element, but got {type(loss).__name__}: {loss!r}"
        ) from error


class Gathered:
    """Losses recorded since the last step, as a weighted sum on their own device.

    A step that never came (GradScaler skips one on overflow) must not leave its losses to the next: `zero_grad` opens a
    new window, and a step reads the newest window that holds anything.
    """

    NOTHING: tuple[tuple[Number, float], tuple[Number, float]] = ((0.0, 0.0), (0.0, 0.0))

    def __init__(self) -> None:
        self.windows = self.NOTHING

    def add(self, loss: Number, weight: float) -> None:
        """Take one micro-batch in."""
        older, (total, mass) = self.windows
        self.windows = (older, (total + weight * loss, mass + weight))

    def open_window(self) -> None:
        """Gradients were cleared."""
        self.windows = (self.windows[1], (0.0, 0.0)) if self.windows[1][1] else self.NOTHING

    def take(self) -> tuple[Number, float] | None:
        """The sum and the mass of what was recorded for this step, or None; nothing stays behind."""
        if self.windows is self.NOTHING:
            return None
        older, newest = self.windows
        self.clear()
        return newest if newest[1] else older

    def clear(self) -> None:
        """Forget what was recorded."""
        self.windows = self.NOTHING


def check_mass(weight: Any, who: str = "record_loss", name: str = "weight") -> float:
    """Refuse a micro-batch weight that has no meaning; numbers of every kind will do, also NumPy's."""
    if isinstance(weight, Tensor):
        raise TypeError(f"{who} needs its {name} as a number, but got a tensor; pass {name}.item()")
    if isinstance(weight, (str, bytes)) or not (hasattr(weight, "__float__") and 0 < weight < math.inf):
        raise ValueError(f"{who} needs a positive, finite {name}, but got {weight!r}; pass the number of samples")
    return float(weight)


def average(total: Number, mass: float, group: Any, param_groups: list[dict[str, Any]]) -> Number:
    """The mean loss, over all ranks where training is distributed: otherwise replicas would drift apart."""
    if group is False or not (_AVAILABLE and dist.is_initialized()) or dist.get_world_size(group) <= 1:
        return total if mass == 1 else total / mass
    on_host = not isinstance(total, Tensor)
    if on_host:  # gloo reduces on the CPU, NCCL only on its device
        home = torch.device("cpu")
        if "gloo" not in str(dist.get_backend(group)):
            home = next((p.device for each in param_groups for p in each["params"]), home)
        pair = torch.tensor([total, mass], dtype=torch.float64, device=home)
    else:
        pair = torch.stack([total.double(), torch.full_like(total, mass, dtype=torch.float64)])
    dist.all_reduce(pair, group=group)
    return pair[0].item() / pair[1].item() if on_host else pair[0] / pair[1]
