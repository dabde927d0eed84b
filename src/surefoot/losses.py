"""How a loss reaches an optimizer: what counts as a loss, losses recorded for the next step, the mean over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from surefoot._warnings import warn
from surefoot.statistics import Number, by_name, is_distributed, scalar_on

HOW_TO_PASS_THE_LOSS = (
    "pass it as step(loss=loss), return it from the closure of step(closure), or hand over each micro-batch's loss "
    "with record_loss(loss) before step(). Inside a wrapper whose step() takes no loss= (Accelerate, Fabric, "
    "Lookahead, SAM) call record_loss(loss) on this optimizer before the wrapper's step(). For Transformers import "
    "Trainer from surefoot.integrations.transformers, for Lightning LossGathering from "
    "surefoot.integrations.lightning, for Accelerate backward from surefoot.integrations.accelerate"
)


#: After so many losses it shows whether they are those of mini-batches. A loss that is the same in most of the first
#: ten steps and of the first hundred never was; one that comes to rest later may be that of a model that has converged.
LOOKS = (10, 100)
#: After so many equal losses in a row, one that had varied before is stale, unless it is the best so far.
STALE_AFTER = 100
#: After so many losses in a row that were above the one before, it is probably a sum that is not reset.
RISING_AFTER = 100


def as_scalar(loss: Any, *, owner: str) -> Number:
    """Turn a loss into a float, or into a detached 0-d tensor that stays on its device.

    >>> as_scalar(torch.tensor([2.5], requires_grad=True), owner="AdamS").item()
    2.5
    """
    if type(loss) is float:
        return loss
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            what = "is empty" if loss.numel() == 0 else f"has {loss.numel()} elements"
            raise ValueError(
                f"{owner} needs one number as the loss, but the tensor {what} (shape {tuple(loss.shape)}); "
                "reduce it first, for example with loss.mean()"
            )
        if loss.is_complex():
            raise ValueError(f"{owner} needs a real loss, but got {loss.dtype}; pass its real part or its abs()")
        loss = loss.detach()
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        # In half precision a sum of many losses would round or overflow.
        is_precise = loss.is_floating_point() and loss.dtype.itemsize >= 4
        return loss.reshape(()) if is_precise else loss.reshape(()).to(torch.float32)
    if _is_complex(loss):
        raise ValueError(f"{owner} needs a real loss, but got {loss!r}; pass its real part or its abs()")
    if getattr(loss, "size", 0) == 1 and hasattr(loss, "item"):  # an array of NumPy or JAX
        loss = loss.item()
    try:
        return math.fsum((loss,))  # like float(), but refuses a string
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{owner} needs the loss as a number or a tensor with one element, but got {type(loss).__name__}: "
            f"{_shown(loss)}"
        ) from error


def _is_complex(value: Any) -> bool:
    """Whether a number is one of NumPy's complex ones, which float() makes real with nothing but a warning."""
    return getattr(getattr(value, "dtype", None), "kind", None) == "c"


def _shown(value: Any) -> str:
    """A value in an error message: Python refuses to write huge integers out."""
    is_huge = isinstance(value, int) and value.bit_length() > 10_000
    return f"an integer of {value.bit_length()} bits" if is_huge else repr(value)


def check_share(weight: Any, owner: str = "record_loss", name: str = "weight") -> float:
    """Refuse a micro-batch weight that has no meaning; numbers of any kind are accepted, also NumPy's."""
    if isinstance(weight, Tensor):
        raise TypeError(f"{owner} needs its {name} as a number, but got a tensor; pass {name}.item()")
    try:
        share = math.nan if isinstance(weight, (str, bytes)) or _is_complex(weight) else float(weight)
    except (TypeError, ValueError, OverflowError):
        share = math.nan
    if not 0 < share < math.inf:
        raise ValueError(
            f"{owner} needs a positive, finite {name}, but got {_shown(weight)}; pass the number of samples"
        )
    return share


class RecordedLosses:
    """Losses recorded since the last step, as a weighted sum on their device.

    A step may never come (GradScaler skips one on overflow), and its losses must not be left to the next one. So
    `zero_grad` opens a new window, and a step reads the newest window that is not empty.
    """

    EMPTY: tuple[tuple[Number, float], tuple[Number, float]] = ((0.0, 0.0), (0.0, 0.0))

    def __init__(self) -> None:
        self.windows = self.EMPTY
        #: How often gradients were cleared.
        self.clearings = 0
        #: Whether the last closure added its gradients to others, so that its loss is not that of the whole step.
        self.is_partial = False
        self.partial_was_said = False
        #: The last loss that was read, how many were, and how many of them were equal to the one before.
        self.last: float = math.nan
        self.read = self.repeated = 0
        #: How many equal ones came last, and the range of all of them.
        self.streak = 0
        self.lowest, self.highest = math.inf, -math.inf
        self.stale_was_said = False
        #: How many came last that were above the one before.
        self.rises = 0
        self.total_was_said = False
        #: When to look at these numbers.
        self.next_look = LOOKS[0]

    def add(self, loss: Number, weight: float) -> None:
        """Add the loss of a micro-batch."""
        older, (total, total_weight) = self.windows
        self.windows = (older, (total + weight * loss, total_weight + weight))

    def open_window(self) -> None:
        """Gradients were cleared."""
        self.clearings += 1
        self.windows = (self.windows[1], (0.0, 0.0)) if self.windows[1][1] else self.EMPTY

    def take(self) -> tuple[Number, float] | None:
        """The weighted sum and the total weight of the losses recorded for this step, or None; then all are dropped."""
        if self.windows is self.EMPTY:
            return None
        older, newest = self.windows
        self.clear()
        return newest if newest[1] else older

    def clear(self) -> None:
        """Drop all recorded losses."""
        self.windows = self.EMPTY


def maximizes(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether a group maximizes the loss; some optimizers have that option as an attribute."""
    return bool(group.get("maximize", getattr(optimizer, "maximize", False)))


def mean_over_ranks(total: Number, weight: float, group: Any, param_groups: list[dict[str, Any]]) -> Number:
    """The mean loss of all ranks."""
    on_host = not isinstance(total, Tensor)
    if on_host:  # gloo reduces on the CPU, NCCL only on its device
        device = torch.device("cpu")
        if "gloo" not in str(dist.get_backend(group)):
            device = next((p.device for param_group in param_groups for p in param_group["params"]), device)
        pair = torch.tensor([total, weight], dtype=torch.float64, device=device)
    else:
        pair = torch.stack([total.double(), torch.full_like(total, weight, dtype=torch.float64)])
    dist.all_reduce(pair, group=group)
    return pair[0].item() / pair[1].item() if on_host else pair[0] / pair[1]


class TakesLoss(Optimizer):
    """The part of an optimizer that receives the loss; its statistics are in the parameter groups."""

    #: Whether it weights gradients by the loss, which may be done only once.
    weighs_gradients: bool = True
    process_group: Any
    _recorded: RecordedLosses

    def record_loss(self, loss: Any, weight: float = 1) -> None:
        """Hand over a micro-batch's loss; the next step uses the weighted mean of the losses recorded for it.

        Args:
            loss: a number or a one-element tensor (it stays on its device; nothing waits for it).
            weight: the micro-batch's share, such as its number of samples.
        """
        self._recorded.add(as_scalar(loss, owner=type(self).__name__), check_share(weight))

    def forget_losses(self) -> None:
        """Drop recorded losses, for a step that will not come and gradients that are not cleared with zero_grad()."""
        self._recorded.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and drop losses whose step was skipped."""
        self._recorded.open_window()
        super().zero_grad(set_to_none)

    def confidence(self) -> list[dict[str, Tensor]]:
        """The statistics of the loss and the last z, tilt and weight: a dict per group, with mean, std, skipped too.

        The values are 0-d tensors on the device of the statistics; ``float()`` reads one.
        """
        return [by_name(group["seen"].detach()) for group in self.param_groups]

    def _evaluate(self, closure: Callable[[], Any] | None) -> Any:
        """The closure's value, computed with gradients; None without a closure."""
        if closure is None:
            return None
        if not callable(closure):  # step(loss) is what everybody writes first
            raise TypeError(
                f"{type(self).__name__}.step() takes the loss by name, but got {type(closure).__name__} in place of "
                "the closure; write step(loss=loss)"
            )
        holder = next((p for group in self.param_groups for p in group["params"] if p.grad is not None), None)
        before = None if holder is None else holder.grad
        version, clearings = None if before is None else before._version, self._recorded.clearings
        with torch.enable_grad():
            returned = closure()
        self._recorded.is_partial = (
            holder is not None
            and holder.grad is before
            and before._version != version
            and self._recorded.clearings == clearings
        )
        return returned

    def _warn_of_partial_loss(self) -> None:
        """Say, once, that the loss of a closure is only that of the last micro-batch."""
        if self._recorded.partial_was_said:
            return
        self._recorded.partial_was_said = True
        warn(
            f"{type(self).__name__}: the closure of step(closure) added its gradients to some that were there before "
            "and cleared none, so the loss that it returned is that of the last micro-batch alone; hand over the loss "
            "of every micro-batch with record_loss(loss). In Lightning the callback "
            "surefoot.integrations.lightning.LossGathering() does it",
        )

    def _read_loss(self, loss: Any, returned: Any, is_compiling: bool | None = None) -> Number | None:
        """The loss of this step, averaged over ranks: a float on the host or a tensor on its device."""
        recorded = self._recorded.take()
        given = loss if loss is not None else (returned if recorded is None else None)
        if self._recorded.is_partial and given is returned is not None:
            self._warn_of_partial_loss()
        # In a graph to capture or to compile, a loss on the CPU stays a tensor too.
        if is_compiling is None:
            is_compiling = torch.compiler.is_compiling()
        stays_tensor = is_compiling
        for group in self.param_groups:
            stays_tensor = stays_tensor or bool(group.get("capturable"))
        if given is not None:
            if (
                type(given) is Tensor
                and given.is_cpu
                and given.numel() == 1
                and not (stays_tensor or given.is_complex())
            ):
                given = given.item()
            if type(given) is not float:
                given = as_scalar(given, owner=type(self).__name__)
            elif is_compiling:  # a graph with the number in it would serve this step only
                given = scalar_on(self.param_groups[0]["params"][0].device, given)
            recorded = (given, 1.0)
        if recorded is None:
            return None
        total, weight = recorded
        if is_distributed(self.process_group):  # otherwise replicas would diverge
            mean = mean_over_ranks(total, weight, self.process_group, self.param_groups)
        else:
            mean = total if weight == 1 else total / weight
        if isinstance(mean, Tensor):
            if stays_tensor or not mean.is_cpu:
                return mean
            mean = mean.item()
        history = self._recorded
        if mean == history.last:
            history.repeated += 1
            history.streak += 1
            if history.streak == STALE_AFTER:
                self._look_for_stale_loss()
        else:
            history.rises = history.rises + 1 if mean > history.last else 0
            if history.rises == RISING_AFTER:
                self._look_for_running_total()
            history.last, history.streak = mean, 0
            history.lowest = mean if mean < history.lowest else history.lowest
            history.highest = mean if mean > history.highest else history.highest
        history.read += 1
        if history.read == history.next_look:
            self._look_for_repeated_losses()
        return mean

    def _look_for_repeated_losses(self) -> None:
        """Warn, once, if three of four losses were those of the step before, from the start on."""
        history = self._recorded
        is_last, hardly_changes = history.read == LOOKS[-1], 4 * history.repeated > 3 * history.read
        history.next_look = LOOKS[-1] if hardly_changes and not is_last else 0  # 0: never again
        if is_last and hardly_changes and not self._is_plain():
            warn(
                f"{type(self).__name__} was given the loss of the step before in {history.repeated} of {history.read} "
                f"steps (now {history.last:g}), so its weights say nothing; pass the loss of the current mini-batch at "
                "every step, not a constant or the mean of an epoch: step(loss=loss)",
            )

    def _look_for_stale_loss(self) -> None:
        """Warn, once, of a loss that varied and then stopped between its extremes; a converged one is at an extreme."""
        history = self._recorded
        near = 1e-3 * (history.highest - history.lowest)  # a converged loss may rest a rounding error above its lowest
        is_inside = history.lowest + near < history.last < history.highest - near
        if history.stale_was_said or not is_inside or self._is_plain():
            return
        history.stale_was_said = True
        warn(
            f"{type(self).__name__} was given the same loss, {history.last:g}, for the last {STALE_AFTER} steps, after "
            f"losses between {history.lowest:g} and {history.highest:g}: if training goes on, this is the loss of an "
            "earlier step; pass that of the current mini-batch: step(loss=loss)",
        )

    def _look_for_running_total(self) -> None:
        """Warn, once, of a loss that rises at every step, where it is minimized."""
        history = self._recorded
        maximized = any(maximizes(self, group) for group in self.param_groups)
        if history.total_was_said or maximized or self._is_plain():
            return
        history.total_was_said = True
        warn(
            f"{type(self).__name__} was given a larger loss in each of the last {RISING_AFTER} steps (now "
            f"{history.last:g}): if this is a running total, pass the loss of the current mini-batch instead: "
            "step(loss=loss); otherwise training diverges",
        )

    def _is_plain(self) -> bool:
        """Whether the loss changes nothing."""
        return getattr(getattr(self, "rule", None), "name", "") == "plain"

    def _picklable_process_group(self) -> bool | None:
        """A process group cannot be pickled; the copy averages over the default group, or nowhere as before."""
        return False if self.process_group is False else None

    def _check_that_no_loss_is_needed(self, closure: Any) -> None:
        """Accept a step without a loss only where there is nothing to weight.

        Distributed checkpointing makes such a call to create state. And a closure that left out its batch returns
        neither a loss nor gradients.
        """
        groups = self.param_groups
        if closure is not None and all(p.grad is None for group in groups for p in group["params"]):
            return
        creates_state = closure is None and all(
            float(group.get("lr") or 0) == 0 and all(p.grad is None or not p.grad.any() for p in group["params"])
            for group in groups
        )
        if not creates_state:
            raise RuntimeError(f"{type(self).__name__}.step() got no loss: {HOW_TO_PASS_THE_LOSS}")
