"""WeightAverage: the average of some tensors, and how it takes their place for a while."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from surefoot.averaging.memory import AverageState, Memory, Number, find_memory, gap_after
from surefoot.losses import as_scalar
from surefoot.meter import is_sound
from surefoot.statistics import LossStats, scalar_on, widest_float


class WeightAverage:
    """An average of tensors that something else changes; several averages may observe the same tensors.

    Call `update` with the loss after every step of the optimizer. `averaged` puts the average into the tensors for a
    while. The average of float16 and bfloat16 tensors is kept in float32.

    Args:
        tensors: the parameters (floating buffers too, if you like).
        memory: "anytime", "poly:8", "ema:0.999", "uniform", or a `Memory`.
        every: update the average at every so many steps (None: at first at every step, and from the thousandth on at
            every twentieth); the statistics see every loss.
        device: where the average is kept, such as "cpu" (None: where the tensors are).

    >>> weights = torch.zeros(1)
    >>> mean = WeightAverage([weights], "uniform", every=1)
    >>> for step in range(1, 5):
    ...     weights += 1
    ...     mean.update(loss=1.0)
    >>> with mean.averaged():
    ...     print(weights)
    tensor([2.5000])
    >>> weights
    tensor([4.])
    """

    def __init__(
        self,
        tensors: Iterable[Tensor],
        memory: str | Memory = "anytime",
        *,
        every: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        check_every(every)
        self.device = None if device is None else torch.device(device)
        self._transfer: Transfer | None = None
        self.tensors: Sequence[Tensor] = list(tensors)
        self.memory = find_memory(memory)
        self.every = every
        self.maximize = False
        self.averages: dict[Tensor, Tensor] = {}
        self.state = AverageState()
        #: Steps since the last update, and all before it; the state has them too, but there only the device may know.
        self.pending = self.before = 0

    def update(self, loss: Any) -> None:
        """Take notice of a step: its loss enters the statistics, and if it is time the tensors enter the average."""
        if not self.averages:
            self.prepare()
        loss = as_scalar(loss, owner="WeightAverage")
        self.observe(loss.item() if isinstance(loss, Tensor) and loss.is_cpu else loss)
        if self.room <= 0:
            self.commit(are_finite(self.tensors))

    @property
    def span(self) -> Number:
        """How many steps the average spans, as of its last update."""
        return self.state.span(self.every)

    @property
    def room(self) -> int:
        """How many steps may pass until the next update."""
        return gap_after(self.before, self.every) - self.pending

    def observe(self, loss: Number) -> None:
        """Add the loss of a step to the statistics; one that is not finite is counted and left out."""
        if isinstance(loss, Tensor):
            self._place(loss)
        state, accepted = self.state, is_sound(loss)
        self.pending += 1
        left_out = None
        if accepted is not True:
            left_out = state._replace(skipped=state.skipped + 1, pending=state.pending + 1)
            if accepted is False:
                self.state = left_out
                return
        loss = -loss if self.maximize else loss
        after = LossStats(*state[:4]).with_loss(loss, self.memory.loss_beta)
        observed = state.with_step(self.memory, after, _exp(state))
        self.state = observed if left_out is None else _choose(accepted, observed, left_out)

    def accepts(self, loss: Number) -> bool | Tensor:
        """Whether the tensors as they are now may enter the average, if this is their loss."""
        return is_sound(loss) & self.memory.accepts(self.state, -loss if self.maximize else loss)

    def commit(self, sound: bool | Tensor = True) -> Number:
        """Let the tensors as they are now enter the average, if they are ``sound``; return their share in it.

        If they are not, this update is left out, on the host as on a device, where nobody can try again at once.
        """
        self.before, self.pending = self.before + self.pending, 0
        left_out = self.state._replace(pending=self.state.pending * 0)
        if sound is False:
            self.state = left_out
            return 0.0
        self.prepare()
        share, after = self.state.with_update(self.memory, self.every, _exp(self.state))
        if isinstance(sound, Tensor):
            share = scalar_on(sound.device, share)
            share = torch.where(sound, share, torch.zeros_like(share))
            after = _choose(sound, after, left_out)
        self.arrive()
        tensors = [x for x in self.tensors if x in self.averages]
        away = [x for x in tensors if is_elsewhere(x, self.device)]
        if away:
            self._transfer = Transfer(away, share, sound, self.device)
            tensors = [x for x in tensors if not is_elsewhere(x, self.device)]
        move([self.averages[x] for x in tensors], tensors, share, sound)
        self.state = after
        return share

    def arrive(self) -> None:
        """Let the weights that are on their way to the device of the average enter it."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.finish(self.averages)

    def prepare(self) -> None:
        """Start an average for tensors that have none and are trained: it is what they are now."""
        for x in self.tensors:
            if x not in self.averages and (x.requires_grad or not isinstance(x, torch.nn.Parameter)):
                self.averages[x] = started(x, device=self.device)
            elif x in self.averages and is_elsewhere(self.averages[x], self.device):  # a framework has moved it
                self.averages[x] = self.averages[x].to(self.device)

    def values(self) -> list[tuple[Tensor, Tensor]]:
        """The tensors, and for each the average as of now: as if it had been updated with the last step."""
        self.arrive()
        pairs = [(x, self.averages[x]) for x in self.tensors if x in self.averages]
        share = self.share()
        return [(x, averaged_now(average, x, share)) for x, average in pairs]

    def share(self) -> Number:
        """The share that the tensors as they are now have in the average as of now."""
        if self.pending == 0:
            return 0.0
        return self.state.with_update(self.memory, self.every, _exp(self.state))[0]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The average is in the tensors inside, and what was there before is there again afterwards."""
        with swapped(self.values()):
            yield

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        self.arrive()
        averages = [self.averages.get(x) for x in self.tensors]
        return {"state": pack(self.state), "averages": [None if x is None else x.clone() for x in averages]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        unpack(state_dict["state"])  # refuses what it cannot read, before anything changes
        pairs = list(zip(self.tensors, state_dict["averages"], strict=True))
        for _, average in pairs:
            check_average(average)
        self.averages = {x: started(x, average, self.device) for x, average in pairs if average is not None}
        self._transfer = None
        self.load(state_dict["state"])

    def load(self, vector: Tensor) -> None:
        """Continue from the numbers of a state."""
        self.state = unpack(vector)
        # Once, not at every step.
        self.pending = int(self.state.pending)
        self.before = int(self.state.count + self.state.skipped) - self.pending

    def _device(self) -> torch.device | None:
        """Where the state is; None if it is on the host."""
        return self.state.mean.device if isinstance(self.state.mean, Tensor) else None

    def _place(self, loss: Tensor) -> None:
        """Move the state to the device of the loss."""
        if self._device() != loss.device:
            self.state = AverageState(*(scalar_on(loss.device, x) for x in self.state))


class Transfer:
    """Copies of weights on their way to the device of their average; nothing waits for them before they are used.

    From an accelerator to the host they go through pinned memory, as ``non_blocking`` needs it.
    """

    def __init__(self, tensors: list[Tensor], share: Number, sound: bool | Tensor, device: torch.device | None) -> None:
        self.tensors, self.event = tensors, None
        accelerator = torch.accelerator.current_accelerator()
        pinned = accelerator is not None and tensors[0].device.type == accelerator.type
        self.copies = [torch.empty_like(x, device=device, pin_memory=pinned, requires_grad=False) for x in tensors]
        for copied, x in zip(self.copies, tensors):
            copied.copy_(x.detach(), non_blocking=True)
        self.share, self.sound = (
            x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in (share, sound)
        )
        if pinned:
            self.event = torch.get_device_module(tensors[0].device).Event()
            self.event.record()

    def finish(self, averages: dict[Tensor, Tensor]) -> None:
        """Let the copies enter the averages."""
        if self.event is not None:
            self.event.synchronize()
        pairs = [(averages[x], copied) for x, copied in zip(self.tensors, self.copies) if x in averages]
        move([average for average, _ in pairs], [copied for _, copied in pairs], self.share, self.sound)


def is_elsewhere(x: Tensor, device: torch.device | None) -> bool:
    """Whether a tensor is on another device than its average is to be."""
    return device is not None and x.device.type != device.type


def check_every(every: Any) -> None:
    """Refuse a number of steps that has no meaning."""
    if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
        raise ValueError(f"Invalid every: {every!r}; it must be a whole number of steps, at least 1, or None")


def pack(state: AverageState) -> Tensor:
    """The state as the vector that checkpoints have."""
    if isinstance(state.mean, Tensor):
        return torch.stack([scalar_on(state.mean.device, x) for x in state])
    return torch.tensor(state, dtype=torch.float64, device="cpu")


def unpack(vector: Tensor) -> AverageState:
    """The state in a vector, as floats or, on a device, as 0-d tensors; on the host only one that a run can reach."""
    if not isinstance(vector, Tensor) or vector.is_complex() or vector.dim() != 1:
        raise ValueError(
            f"the checkpoint's average has {vector!r:.100} in the place of its numbers, so it is damaged; load an "
            "earlier one"
        )
    if vector.numel() == len(AverageState._fields) - 1:  # before the usual std was kept
        vector = torch.cat([vector, vector[2:3]])
    if vector.numel() != len(AverageState._fields):
        raise ValueError(
            f"the checkpoint's average has {vector.numel()} numbers, this version keeps {len(AverageState._fields)}; "
            "load it with the version that wrote it"
        )
    if not vector.is_cpu:
        return AverageState(*vector.to(widest_float(vector.device)).unbind())
    state = AverageState(*vector.tolist())
    least = {"mean": -math.inf, "best": -math.inf}
    wrong = [
        f"{name} = {value}"
        for name, value in zip(AverageState._fields, state)
        if not (least.get(name, 0.0) <= value < math.inf or (name == "best" and value == math.inf and not state.count))
    ]
    if wrong:
        raise ValueError(
            f"the checkpoint's average has {', '.join(wrong)}, which no training reaches: the checkpoint is damaged; "
            "load an earlier one"
        )
    return state


def check_average(average: Any) -> None:
    """Refuse what cannot be the average of a tensor (None: it has none yet)."""
    if average is not None and not isinstance(average, Tensor):
        raise ValueError(
            f"the checkpoint has {average!r:.100} in the place of the average of a tensor, so it is damaged; load an "
            "earlier one"
        )


def started(x: Tensor, like: Tensor | None = None, device: torch.device | None = None) -> Tensor:
    """A new average of a tensor, from its present value or from that of a checkpoint: of at least float32.

    Its device is that of the tensor, if no other is asked for. There a part of a sharded tensor has no place.

    >>> started(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    value = x.detach() if like is None else like.detach()
    if value.shape != x.shape:
        raise ValueError(
            f"the checkpoint's average has the shape {tuple(value.shape)}, the parameter {tuple(x.shape)}: it is of "
            "another model; start without it instead"
        )
    if is_elsewhere(x, device) and hasattr(x, "to_local"):
        raise ValueError(
            f"device={str(device)!r} is for whole parameters, but this one is sharded over ranks; leave device out"
        )
    return value.to(x.device if device is None else device, dtype, copy=True)


def are_finite(tensors: Iterable[Tensor]) -> bool | Tensor:
    """Whether all numbers are finite: a bool, or a tensor on the device on which they are.

    >>> are_finite([torch.ones(2), torch.tensor([1e38, 3e38])]), are_finite([torch.tensor([1.0, math.nan])])
    (True, False)
    """
    sound: bool | Tensor = True
    for x in map(_local, tensors):
        # By the sum, which is one read and no temporary; it may overflow where no number does.
        finite = x.sum(dtype=None if x.dtype.itemsize >= 4 else torch.float32).isfinite()
        if x.is_cpu:
            if not finite and not x.isfinite().all():
                return False
        else:
            finite = finite | x.isfinite().all()
            sound = sound & (finite.to(sound.device) if isinstance(sound, Tensor) else finite)
    return sound


def move(averages: list[Tensor], tensors: list[Tensor], share: Number, sound: bool | Tensor) -> None:
    """``average += share * (tensor - average)`` for all of them; those on a device without waiting for it."""
    averages = [_real(_local(x)) for x in averages]
    tensors = [_real(_local(x.detach())) for x in tensors]
    tensors = [x if x.dtype == average.dtype else x.to(average.dtype) for x, average in zip(tensors, averages)]
    if not averages or not (isinstance(share, Tensor) or share):
        return
    if not isinstance(share, Tensor):
        torch._foreach_lerp_(averages, tensors, share)
        return
    distances = list(torch._foreach_sub(tensors, averages))
    shares: dict[Any, Tensor] = {}
    for distance in distances:
        kind = (distance.device, distance.dtype)
        if kind not in shares:
            shares[kind] = share.to(*kind, non_blocking=True)
        distance.mul_(shares[kind])
        if isinstance(sound, Tensor):
            # Not by a product: NaN times 0 is NaN.
            distance.masked_fill_(~sound.to(distance.device, non_blocking=True), 0)
    torch._foreach_add_(averages, distances)


def averaged_now(average: Tensor, x: Tensor, share: Number) -> Tensor:
    """``average + share * (x - average)`` as a new tensor, or the average itself where that is not finite."""
    average = _local(average)
    if not isinstance(share, Tensor) and not share:
        return average
    now = average.to(_local(x).device, copy=True)
    move([now], [x], share, True)
    return torch.where(now.isfinite().all(), now, average.to(now.device))


@contextmanager
def swapped(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Put other values into tensors, in place, and the former ones back whatever happens inside."""
    pairs = list(pairs)
    with torch.no_grad():
        former = [(x, _local(x).clone()) for x, _ in pairs]
    try:
        put(pairs)
        yield
    finally:
        put(former)


@torch.no_grad()
def put(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Put other values into tensors, in place."""
    pairs = list(pairs)
    for x, value in pairs:
        _local(x).copy_(_local(value))
    reshard(x for x, _ in pairs)


def checksum(x: Tensor) -> Tensor:
    """The sum of a tensor, to recognize its values by; nothing waits for it."""
    return _real(_local(x.detach())).sum(dtype=widest_float(x.device))


def version_of(x: Tensor) -> int:
    """How often a tensor was changed in place."""
    return _local(x)._version


def reshard(tensors: Iterable[Tensor]) -> None:
    """Let FSDP2 gather its parameters anew.

    A root module keeps what it gathered for a forward pass until a backward pass, which does not come in validation. It
    would go on with the weights from before the swap. Its modules are looked for among all objects: a parameter does
    not know them.
    """
    if not any(hasattr(x, "to_local") for x in tensors):
        return
    from torch.distributed.fsdp import FSDPModule

    for module in [x for x in gc.get_objects() if issubclass(type(x), FSDPModule)]:
        module.reshard()


def _local(x: Any) -> Tensor:
    """A rank's own part of a sharded tensor."""
    return x.to_local() if hasattr(x, "to_local") else x


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _exp(state: AverageState) -> Any:
    return torch.exp if isinstance(state.mean, Tensor) else math.exp


def _choose(condition: Tensor, then: AverageState, otherwise: AverageState) -> AverageState:
    return AverageState(
        *(
            torch.where(condition, scalar_on(condition.device, a), scalar_on(condition.device, b))
            for a, b in zip(then, otherwise)
        )
    )
