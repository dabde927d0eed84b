"""Anytime: any torch optimizer, and beside it an average of its weights that is good at every moment."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from surefoot.averaging.buffers import (
    ABOUT_BATCH_NORM,
    BufferAverage,
    belong_to_batch_norm,
    has_batch_norm,
)
from surefoot.averaging.memory import AverageState, LossDriven
from surefoot.averaging.weights import (
    WeightAverage,
    are_finite,
    check_average,
    check_every,
    checksum,
    pack,
    put,
    reshard,
    started,
    swapped,
    unpack,
    version_of,
)
from surefoot.losses import RecordedLosses, TakesLoss, maximizes
from surefoot.optim import checkpoint
from surefoot.optim.engines.base import Group
from surefoot.optim.loss_aware import LossAware
from surefoot.optim.options import check_option
from surefoot.optim.wrapper import Wrapper, check_is_optimizer
from surefoot.statistics import Number

#: The average in the state of a parameter, and its numbers in a parameter group.
AVERAGE, NUMBERS = "average", "average_numbers"
#: The averages of the buffers, in the first parameter group.
BUFFERS = "average_buffers"


class Anytime(Wrapper):
    """Wrap any torch optimizer: it trains as before, and an average of its weights is kept whose memory the loss sets.

    ``x += share * (z - x)`` for the weights ``z``. While the loss falls, in units of its own spread, the average ``x``
    follows; on a plateau it remembers everything since the plateau began; weights of a spike hardly count. There is
    no horizon and no decay rate to choose, and no mode: the model has the trained weights, except inside `averaged`.

    Args:
        base: the optimizer that trains the weights; it takes the very steps that it would take alone.
        kappa: how far the loss has to fall, in units of its std, until older weights are forgotten.
        loss_beta: decay rate of the loss statistics.
        every: update the average at every so many steps (None: at first at every step, and from the thousandth on at
            every twentieth); the statistics see every loss.
        device: where the average is kept, such as "cpu" (None: with the parameters). Nothing waits for the copies.
        model: the model, whose floating buffers are then averaged too: batch norm needs that, or `update_bn`.
        process_group: where to average the loss (None: the default group when there is one, False: nowhere).

    >>> model = torch.nn.Linear(3, 1)
    >>> opt = Anytime(torch.optim.AdamW(model.parameters(), lr=1e-3))
    >>> for x in torch.eye(3):
    ...     opt.zero_grad()
    ...     loss = model(x).pow(2).sum()
    ...     loss.backward()
    ...     opt.step(loss=loss)
    >>> with opt.averaged():
    ...     error = model(torch.ones(3))
    >>> sorted(opt.averaged_state_dict(model))
    ['bias', 'weight']
    """

    settings = ("memory", "every", "device", "_averages", "_buffers", "_handed_over")
    # A step without hooks and profilers is not wrapped for them.
    profile_hook_step = staticmethod(LossAware.profile_hook_step)

    def __init__(
        self,
        base: Optimizer,
        *,
        kappa: float = 0.2,
        loss_beta: float = 0.99,
        every: int | None = None,
        device: torch.device | str | None = None,
        model: nn.Module | None = None,
        process_group: Any = None,
    ) -> None:
        check_base(base)
        check_every(every)
        check_option(
            "kappa", kappa, ("number", lambda value: 0 < value < float("inf"), "it must be finite and above 0")
        )
        check_option(
            "loss_beta", loss_beta, ("number", lambda value: 0 <= value < 1, "it must be at least 0 and below 1")
        )
        self.memory = LossDriven(float(loss_beta), float(kappa))
        self.every = every
        self.device = None if device is None else torch.device(device)
        self.process_group = process_group
        self._averages: dict[Tensor, Tensor] = {}
        # Tensors in which the average was left, with the version that tells whether they still have it.
        self._handed_over: dict[Tensor, int] = {}
        self._buffers = None if model is None else BufferAverage(model)
        self._adopt(base)
        if model is not None:
            self._check_model(model)

    def _adopt(self, base: Optimizer) -> None:
        # The average as it was last in the model: its checksums, and the versions of the trained weights after that.
        self._shown: dict[Tensor, tuple[int, Tensor]] = {}
        self._observers: list[WeightAverage] = []
        self._numbers: list[Tensor | None] = []
        # Losses that wait for the next update of the average, where all are dealt with in one go: in training the
        # processor's caches are cold at each step, so ten at once take little longer than a single one.
        self._unseen: list[float] = []
        self._room = 0
        self._is_swapped = False
        self._has_asked_for_batch_norm = False
        super()._adopt(base)

    def _complete(self, group: Group) -> None:
        """Give a group numbers; one that is added later knows the loss, and starts an average of its own."""
        if NUMBERS in group:
            return
        first = self.base.param_groups[0].get(NUMBERS)
        fresh = AverageState()
        if first is not None and maximizes(self.base, self.base.param_groups[0]) == maximizes(self.base, group):
            known = unpack(first)
            fresh = known._replace(total=known.total * 0, forget=known.forget * 0 + 1, pending=known.pending * 0)
        group[NUMBERS] = pack(fresh)

    # -- training ----------------------------------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None, *, loss: Any = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Any], *, loss: Any = None) -> Any: ...

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Let the base take one step, and take notice of its loss.

        Args:
            closure: computes the loss and the gradients again, and returns the loss; the base calls it.
            loss: the loss whose gradients these are; it is preferred to recorded losses, and these to the closure's.
        """
        self._refuse_if_swapped("step()")
        if closure is not None and not callable(closure):
            self._evaluate(closure)  # refuses it
        returned = None
        if closure is not None and isinstance(self.base, TakesLoss):
            returned, closure = self._evaluate(closure), None  # as the base would do, and then both read the loss
            loss = returned if loss is None and self._recorded.windows is RecordedLosses.EMPTY else loss
        recorded = self._recorded.windows
        # What the closure records belongs to this step too.
        value = self._read_loss(loss, returned) if closure is None or loss is not None else None
        if closure is None and type(value) is float and len(self._unseen) < self._room:
            self._step_base(**self._arguments_for_base(loss, recorded))
            self._unseen.append(value)
            return returned
        self._handed_over, self._shown = {}, {}
        self._current_observers()
        if closure is None:
            if value is None:
                self._check_that_no_loss_is_needed(None if returned is None else lambda: None)
            self._let_averages_take_in_the_weights(value)
            self._step_base(**self._arguments_for_base(loss, recorded))
        else:
            self._let_averages_take_in_the_weights(value)
            returned, first_value = self._step_base_with(closure)
            value = self._read_loss(None, first_value) if value is None else value
            if value is None:
                self._check_that_no_loss_is_needed(closure)
        self._observe([] if value is None else [value])
        return returned

    def _observe(self, losses: list[Number]) -> None:
        """Let the averages take notice of losses, and put their numbers where checkpoints find them."""
        for index, (observer, group) in enumerate(zip(self._observers, self.param_groups)):
            for loss in losses:
                observer.observe(loss)
            group[NUMBERS] = self._numbers[index] = pack(observer.state)
        self._room = min((observer.room for observer in self._observers), default=0)

    def _let_averages_take_in_the_weights(self, loss: Number | None) -> None:
        """Update the averages if it is time, with weights whose own loss is known by now.

        Weights whose loss is not finite or out of all proportion are left out. A closure computes the loss too late for
        that; then the weights themselves are looked at.
        """
        for index, observer in enumerate(self._observers):
            if observer.room <= 0:
                sound = are_finite(observer.tensors) if loss is None else observer.accepts(loss)
                share = observer.commit(sound)
                if index == 0 and self._buffers is not None:
                    self._buffers.move(share, sound)
            elif observer.pending == 0:
                observer.prepare()

    def _current_observers(self) -> list[WeightAverage]:
        """An average for each group, that goes on from the group's numbers: they may have come with a checkpoint."""
        groups, unseen = self.param_groups, self._unseen
        if unseen:
            self._unseen = []
            self._observe(unseen)
        if len(self._observers) != len(groups):
            self._observers = [WeightAverage([], self.memory, every=self.every, device=self.device) for _ in groups]
            self._numbers = [None] * len(groups)
        for index, (observer, group) in enumerate(zip(self._observers, groups)):
            self._complete(group)
            observer.tensors, observer.averages = group["params"], self._averages
            observer.maximize = maximizes(self.base, group)
            if group[NUMBERS] is not self._numbers[index]:
                observer.load(group[NUMBERS])
                self._numbers[index] = group[NUMBERS]
        return self._observers

    def _arguments_for_base(self, loss: Any, recorded: Any) -> dict[str, Any]:
        """A base that takes the loss too gets it as we did."""
        if not isinstance(self.base, TakesLoss):
            return {}
        self.base._recorded.windows = recorded
        return {"loss": loss}

    def _step_base_with(self, closure: Callable[[], Any]) -> tuple[Any, Any]:
        """Let the base call the closure, as often as it likes; what it returned, and the first value of the closure."""
        values: list[Any] = []

        def remembered() -> Any:
            # Only the first value is used, so only that is looked at.
            value = closure() if values else self._evaluate(closure)
            values.append(value)
            return value

        returned = self._step_base(remembered)
        return returned, values[0] if values else None

    # -- the average -------------------------------------------------------------------------------------------------

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights are in the model inside, and the trained ones again afterwards, whatever happens."""
        self._refuse_if_swapped("averaged()")
        values = self._values()
        if self._buffers is None and values and not self._has_asked_for_batch_norm:
            self._has_asked_for_batch_norm = True
            if belong_to_batch_norm(self._params()):
                warnings.warn(f"Anytime: {ABOUT_BATCH_NORM}", stacklevel=3)
        sums: dict[Tensor, Tensor] = {}
        try:
            with swapped(values):
                self._is_swapped = True
                sums = {x: checksum(x) for x, _ in values}
                yield
        finally:
            self._is_swapped = False
            self._shown |= {x: (version_of(x), total) for x, total in sums.items()}
            self._room = 0  # the next step has to notice

    @property
    def span(self) -> Number:
        """How many steps the average of the first group spans, as of its last update."""
        return unpack(self.param_groups[0][NUMBERS]).span(self.every)

    def hand_over(self) -> None:
        """Leave the averaged weights in the model for good, at the end of training: the trained ones are lost.

        From then on `averaged` and `averaged_state_dict` give just these. A further step trains on from them.
        """
        self._refuse_if_swapped("hand_over()")
        put(self._values())
        self.model_has_average()

    def model_has_average(self) -> None:
        """Say that the weights now in the model are an average already, such as the best one of a run.

        `averaged` and `averaged_state_dict` then leave them as they are, until a step or other weights come.
        """
        self._refuse_if_swapped("model_has_average()")
        self._handed_over = {x: version_of(x) for x in self._averaged_tensors()}
        self._room = 0  # the next step has to notice

    def _values(self) -> list[tuple[Tensor, Tensor]]:
        """The tensors of the model, and for each the average as of now; without those that have it already."""
        observers = self._current_observers()
        values = [pair for observer in observers for pair in observer.values()]
        if self._buffers is not None:
            values += self._buffers.values(observers[0].share())
        kept = self._still_handed_over()
        return [(x, value) for x, value in values if x not in kept] if kept else values

    def _still_handed_over(self) -> dict[Tensor, int]:
        """The tensors that have the average: it was left in them, or it was read from `averaged` and loaded again."""
        changed = [(x, total) for x, (version, total) in self._shown.items() if version_of(x) != version]
        loaded = [x for x, total in changed if math.isclose(checksum(x).item(), total.item(), rel_tol=1e-12)]
        self._handed_over |= {x: version_of(x) for x in loaded}
        return {x: version for x, version in self._handed_over.items() if version_of(x) == version}

    def _averaged_tensors(self) -> list[Tensor]:
        return [*self._averages, *([] if self._buffers is None else self._buffers.tensors())]

    @property
    def is_averaged(self) -> bool:
        """Whether the averaged weights are in the model now."""
        return self._is_swapped or set(self._averaged_tensors()) <= self._still_handed_over().keys() > set()

    def averaged_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """``model.state_dict()`` with the averaged weights, as a copy: the weights to keep, to publish, to serve.

        Tensors are matched as objects, so the model may be wrapped or compiled, or be what a wrapper was made of; the
        names are those that this model gives them.
        """
        self._check_model(model)
        if self._buffers is None and not self._has_asked_for_batch_norm and self._averages:
            self._has_asked_for_batch_norm = True
            if has_batch_norm(model):
                warnings.warn(f"Anytime: {ABOUT_BATCH_NORM}", stacklevel=2)
        if self._is_swapped:
            return copy.deepcopy(model.state_dict())
        with self.averaged():
            return copy.deepcopy(model.state_dict())

    def restart_average(self) -> None:
        """Start the average anew from the weights as they are now, after others were loaded into the model.

        Where they have another loss the average notices by itself; weights with the same loss it would mix.
        """
        self._refuse_if_swapped("restart_average()")
        self._averages.clear()
        self._handed_over, self._shown = {}, {}
        self._observers, self._unseen, self._room = [], [], 0
        for group in self.param_groups:
            group[NUMBERS] = pack(AverageState())
        if self._buffers is not None:
            self._buffers = BufferAverage(self._buffers.model)

    def update_bn(
        self, loader: Iterable[Any], model: nn.Module | None = None, device: torch.device | str | None = None
    ) -> None:
        """Recompute the statistics of batch norm for the averaged weights, by a pass over the training data.

        They are in the model inside `averaged`; the trained weights keep their own. From now on the buffers of the
        model are averaged with its weights.

        Args:
            loader: batches, as ``torch.optim.swa_utils.update_bn`` takes them: inputs, or tuples that begin with them.
            model: the model, if it was not given to the constructor.
            device: where to move the inputs.
        """
        self._refuse_if_swapped("update_bn()")
        if model is not None and (self._buffers is None or self._buffers.model is not model):
            self._check_model(model)
            self._buffers = BufferAverage(model)
        if self._buffers is None:
            raise ValueError("update_bn needs the model: write update_bn(loader, model), or Anytime(base, model=model)")
        with self.averaged():
            self._buffers.recompute(loader, device)

    def _check_model(self, model: nn.Module) -> None:
        """Refuse a model of other tensors: they are matched as objects."""
        reshard(self._params())  # or the model would have gathered parameters, which are others
        ours = set(map(id, self._params()))
        if not any(id(p) in ours for p in model.parameters()):
            raise ValueError(
                f"none of the parameters of this {type(model).__name__} is one that {type(self.base).__name__} trains; "
                "pass the model whose parameters the optimizer was built with, not a copy of it"
            )

    def confidence(self) -> list[dict[str, Tensor]]:
        """For each group the mean and std of the loss, how many steps the average spans, and the skipped losses.

        If the base takes the loss too, its statistics are shown instead of ours.
        """
        self._current_observers()
        result = []
        for group in self.param_groups:
            numbers = AverageState(*group[NUMBERS].clone().unbind())
            shown = {name: getattr(numbers, name) for name in ("mean", "std", "skipped")}
            result.append({**shown, "span": numbers.span(self.every)})
        if isinstance(self.base, TakesLoss):
            result = [{**own, **base} for own, base in zip(result, self.base.confidence())]
        return result

    @property
    def weighs_gradients(self) -> bool:  # type: ignore[override]
        """Whether the base does."""
        return isinstance(self.base, TakesLoss) and self.base.weighs_gradients

    def _refuse_if_swapped(self, what: str) -> None:
        if self._is_swapped:
            raise RuntimeError(
                f"{what} was called inside averaged(), where the model has the averaged weights; call it after the "
                "with block, where the model has the trained weights again"
            )

    # -- checkpoints -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the base, and the averages."""
        self._arrive()
        return _StateWithAverages(self.base.state, self._averages)

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    def state_dict(self) -> dict[str, Any]:
        """The state of the base, with the averages and their numbers in it."""
        self._current_observers()
        self._arrive()
        return super().state_dict()

    def _arrive(self) -> None:
        for observer in self._observers:
            observer.arrive()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the base; they get an average of their own."""
        self._current_observers()
        self._room = 0
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        # A copy made there with its model would take the averaged weights for the trained ones.
        self._refuse_if_swapped("copy.deepcopy or pickle")
        self._handed_over = self._still_handed_over()
        self._current_observers()
        self._arrive()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # Copies count their versions anew.
        self._handed_over = {x: version_of(x) for x in state.get("_handed_over", {})}

    def _with_own_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        if self._buffers is not None:
            first, *others = state_dict["param_groups"]
            state_dict = {**state_dict, "param_groups": [{**first, BUFFERS: self._buffers.vector()}, *others]}
        if "state" not in state_dict:  # the base has a form of its own
            return {**state_dict, AVERAGE: [self._averages.get(p) for p in self._params()]}
        state = {key: {**values} for key, values in state_dict["state"].items()}
        for key, p in self._keys(state_dict):
            if p in self._averages:
                state.setdefault(key, {})[AVERAGE] = self._averages[p]
        return {**state_dict, "state": state}

    def _load_base(self, state_dict: dict[str, Any]) -> None:
        self._refuse_if_swapped("load_state_dict()")
        saved = [values.get(AVERAGE) for values in state_dict.get("state", {}).values() if isinstance(values, dict)]
        for average in (*saved, *state_dict.get(AVERAGE, [])):
            check_average(average)
        super()._load_base({name: value for name, value in state_dict.items() if name != AVERAGE})
        if "state" in state_dict:
            state, pairs = state_dict["state"], self._keys(state_dict)
            loaded = [(p, state[key].get(AVERAGE)) for key, p in pairs if isinstance(state.get(key), dict)]
        else:
            loaded = list(zip(self._params(), state_dict.get(AVERAGE, [])))
        # Uncast: torch would cast them to the dtype of the parameters.
        self._averages = {p: started(p, average, self.device) for p, average in loaded if isinstance(average, Tensor)}
        self._observers, self._unseen, self._room = [], [], 0
        self._handed_over, self._shown = {}, {}
        # Only checkpoints have it in the group: between them the buffers have it.
        vector = self.param_groups[0].pop(BUFFERS, None)
        if self._buffers is not None:
            self._buffers = BufferAverage(self._buffers.model)
            if vector is not None:
                self._buffers.load(vector)

    def _completed_checkpoint(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """What the base is to load: its own state, and groups with numbers."""
        checkpoint.check_kind(state_dict, self)
        groups = [{NUMBERS: pack(AverageState()), **group} for group in state_dict["param_groups"]]
        for group in groups:
            unpack(group[NUMBERS])  # refuses what it cannot read
        state = {
            key: {name: value for name, value in values.items() if name != AVERAGE}
            for key, values in state_dict["state"].items()
        }
        return {**state_dict, "state": {key: values for key, values in state.items() if values}, "param_groups": groups}

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _keys(self, state_dict: dict[str, Any]) -> list[tuple[Any, Tensor]]:
        """The parameters, and the key of each in the state of a checkpoint."""
        return list(zip((key for group in state_dict["param_groups"] for key in group["params"]), self._params()))


class _StateWithAverages(MutableMapping[Tensor, dict[str, Any]]):
    """The state of the base with the averages in it; the base itself never sees them.

    Many optimizers take a parameter whose state is not empty for one that they have set up already.
    """

    def __init__(self, base: MutableMapping[Tensor, dict[str, Any]], averages: dict[Tensor, Tensor]) -> None:
        self._base, self._averages = base, averages

    def __getitem__(self, p: Tensor) -> dict[str, Any]:
        own = {AVERAGE: self._averages[p]} if p in self._averages else {}
        return {**self._base[p], **own}

    def __setitem__(self, p: Tensor, values: dict[str, Any]) -> None:
        if AVERAGE in values:
            self._averages[p] = values[AVERAGE]
        self._base[p] = {name: value for name, value in values.items() if name != AVERAGE}

    def __delitem__(self, p: Tensor) -> None:
        self._averages.pop(p, None)
        del self._base[p]

    def __iter__(self) -> Iterator[Tensor]:
        return iter({**self._base, **self._averages})

    def __len__(self) -> int:
        return len({**self._base, **self._averages})


def check_base(base: Any) -> None:
    """Refuse what cannot be wrapped."""
    check_is_optimizer(base, "Anytime")
    if isinstance(base, Anytime):
        raise TypeError("Anytime keeps an average of these weights already; wrap the optimizer inside it once")
