"""The half of an optimizer that is told the loss; what is made of it is the other half's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from surefoot import readings
from surefoot.optim.engines.base import scalar_on
from surefoot.statistics import Number, Seen


class TakesLoss(Optimizer):
    """An optimizer whose ``step`` needs the loss, and which keeps statistics of it in its parameter groups."""

    process_group: Any
    _gathered: readings.Gathered

    def record_loss(self, loss: Any, weight: float = 1) -> None:
        """Hand over a micro-batch's loss; the next step uses the weighted mean of what was recorded for it.

        Args:
            loss: a number or a one-element tensor (it stays on its device; nothing waits for it).
            weight: the micro-batch's share, such as its number of samples.
        """
        self._gathered.add(readings.as_scalar(loss, who=type(self).__name__), readings.check_mass(weight))

    def forget_losses(self) -> None:
        """Let go of what was recorded, where a step will not come and gradients are not cleared with zero_grad()."""
        self._gathered.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and let go of losses whose step was skipped."""
        self._gathered.open_window()
        super().zero_grad(set_to_none)

    def confidence(self) -> list[dict[str, Tensor]]:
        """What was seen of the loss and made of it, one dict per group: mean, std, z, tilt, weight, skipped.

        The values are 0-d tensors where the statistics live; ``float()`` reads one.
        """
        return [described(group["seen"]) for group in self.param_groups]

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        """What the closure returns, computed with gradients; None without one."""
        if closure is None:
            return None
        if not callable(closure):  # step(loss) is what everybody writes first
            raise TypeError(
                f"{type(self).__name__}.step() takes the loss by name, but got {type(closure).__name__} in place of "
                "the closure; write step(loss=loss)"
            )
        with torch.enable_grad():
            return closure()

    def _reading(self, loss: Any, returned: Any) -> Number | None:
        """The loss of this step, averaged over ranks: a float on the host or a tensor on its device."""
        recorded = self._gathered.take()
        given = loss if loss is not None else (returned if recorded is None else None)
        # In a graph to capture or to compile a number that lies on the CPU stays a tensor too.
        stays = torch.compiler.is_compiling()
        for group in self.param_groups:
            stays = stays or bool(group.get("capturable"))
        if given is not None:
            if type(given) is Tensor and given.is_cpu and given.numel() == 1 and not (stays or given.is_complex()):
                given = given.item()
            if type(given) is not float:
                given = readings.as_scalar(given, who=type(self).__name__)
            elif torch.compiler.is_compiling():  # a graph with the number in it would serve this step only
                home = self.param_groups[0]["params"][0].device
                given = scalar_on(home, given)
            recorded = (given, 1.0)
        if recorded is None:
            return None
        reading = readings.average(*recorded, self.process_group, self.param_groups)
        return reading.item() if isinstance(reading, Tensor) and reading.is_cpu and not stays else reading


def described(vector: Tensor) -> dict[str, Tensor]:
    """The statistics by name, as a copy that later steps leave alone.

    >>> from surefoot.statistics import blank
    >>> list(described(blank()))
    ['mean', 'std', 'z', 'tilt', 'weight', 'skipped']
    """
    seen = Seen(*vector.clone().unbind())
    return {name: getattr(seen, name) for name in ("mean", "std", "z", "tilt", "weight", "skipped")}
