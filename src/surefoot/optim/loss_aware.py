"""LossAware: a torch optimizer that weights each gradient by how unusual the current loss is."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, _use_grad_for_differentiable

from surefoot import readings
from surefoot.losses import TakesLoss
from surefoot.noise import standard_normal, standard_normal_tensor
from surefoot.optim import checkpoint
from surefoot.optim import options as checks
from surefoot.optim import state as histories
from surefoot.optim.engines.base import Engine, Members, scalar_on, wide
from surefoot.reference import published_step
from surefoot.rules import Rule, find_rule, weigh, weigh_on_host
from surefoot.statistics import Ledger, Number, Seen, blank, inherited, observe

#: Decay rate of the loss statistics where the engine has no momentum to take it from: at 0 nothing would be remembered.
WITHOUT_MOMENTUM = 0.9


#: On the host: where a group's statistics are, what is made of the loss, and whether a gradient can bear it.
Weighed = tuple[Ledger, Seen, bool]
_USABLE = operator.itemgetter(2)


class Judged(NamedTuple):
    """What is made of a loss on a device: statistics, weight, the loss itself, whether it counts and moves anything."""

    after: Seen
    weight: Tensor
    loss: Tensor
    heard: Tensor
    usable: Tensor


class LossAware(TakesLoss):
    """Rule x engine: what was seen of the loss gives the weight, the engine moves the parameters.

    Subclasses set ``engine`` and ``rule``; their constructors say what may be set. The statistics of the loss live in
    the parameter groups (key ``"seen"``), so every kind of checkpoint carries them.
    """

    engine: ClassVar[Engine]
    rule: Rule

    def __init__(
        self, params: ParamsT, defaults: dict[str, Any], *, rule: str | Rule | None, process_group: Any
    ) -> None:
        if rule is not None:
            self.rule = find_rule(rule)
        if defaults.get("eta") is None:
            defaults["eta"] = self.rule.eta
        self.process_group = process_group
        self._forget()
        super().__init__(params, defaults)

    def _forget(self) -> None:
        """Start without what is only remembered between steps, never saved."""
        self._gathered = readings.Gathered()
        self._ledgers: dict[int, Ledger] = {}
        self._rosters: dict[int, histories.Roster | None] = {}
        self._lineups: dict[int, list[Tensor]] = {}
        self._settings: dict[int, checks.Settings] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; a group that comes later starts from what was already seen of the loss."""
        merged = {**self.defaults, **param_group}
        checks.check_group(merged, self.engine, self.rule)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            checks.check_params(group, self.engine, type(self).__name__)
        except RuntimeError:
            self.param_groups.pop()
            raise
        self._settings[len(self.param_groups) - 1] = checks.Settings(group)
        if "seen" not in group:
            first = self.param_groups[0]
            turned = bool(first["maximize"]) != bool(group["maximize"])
            group["seen"] = inherited(first["seen"], turned) if first is not group else blank()

    @overload
    def step(self, closure: None = None, *, loss: Any = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Any], *, loss: Any = None) -> Any: ...

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Take one step, weighted by the loss it is given.

        Args:
            closure: computes the loss and the gradients again, and returns the loss.
            loss: the loss whose gradients these are; wins over recorded losses, which win over the closure's value.
        """
        self._notice_settings()
        returned = None if closure is None else self._evaluate(closure)
        reading = self._reading(loss, returned)
        if type(reading) is float and self._step_steadily(reading):
            return returned
        if reading is None:
            checks.only_creates_state(self, closure)
            for group in self.param_groups:
                # The losses of parameters on an accelerator will come from there, and decide what state is kept.
                on_device = bool(group["capturable"]) or any(p.device.type != "cpu" for p in group["params"])
                self._init_group(group, [], [], [], on_device=on_device)
            return returned
        checks.check_gradients(self)
        fine = checks.is_fine(self, reading)
        here: list[tuple[int, dict[str, Any], Number]] = []
        there: list[tuple[int, dict[str, Any], Number]] = []
        for index, group in enumerate(self.param_groups):
            # What is maximized is a loss turned around, so that pessimism stays pessimism.
            turn = (index, group, -reading if group["maximize"] else reading)
            (there if self._lives_on_device(group, reading) else here).append(turn)
        # All are weighed before any is moved: where one weight is of no use, the step is left out as a whole.
        weighed = [self._weigh_on_host(index, group, float(value), bool(fine)) for index, group, value in here]
        usable = all(map(_USABLE, weighed))
        judged = [self._weigh_on_device(index, group, value, fine) for index, group, value in there]
        for (index, group, value), (ledger, after, _) in zip(here, weighed):
            self._move_on_host(index, group, float(value), ledger, after, usable, bool(fine))
        for (_, group, _), one in zip(there, judged):
            self._move_on_device(group, one, [each.usable for each in judged])
        return returned

    def _notice_settings(self) -> None:
        """Check what a user may have changed since the last step, before anything is read or counted.

        The learning rate is left to schedulers, which set it at every step.
        """
        if torch.compiler.is_compiling():
            return
        for index, group in enumerate(self.param_groups):
            known = self._settings.get(index)
            if known is None or not known.are_those_of(group):
                checks.check_group(group, self.engine, self.rule)
                self._settings[index] = checks.Settings(group)

    def _step_steadily(self, reading: float) -> bool:
        """Take the step where all is as it was in the last one, as it nearly always is; else change nothing."""
        if not abs(reading) <= checks.LARGEST:
            return False
        ready = []
        for index, group in enumerate(self.param_groups):
            roster = self._rosters.get(index)
            members = roster.members(group, self.state) if roster is not None else None
            if members is None:
                return False
            ready.append((index, group, -reading if group["maximize"] else reading, members))
        weighed = [self._weigh_on_host(index, group, loss, True) for index, group, loss, _ in ready]
        usable = all(map(_USABLE, weighed))
        for (index, group, loss, members), (ledger, after, _) in zip(ready, weighed):
            self._move_on_host(index, group, loss, ledger, after, usable, True, members)
        return True

    def _lives_on_device(self, group: dict[str, Any], reading: Number) -> bool:
        if group["reference"]:
            return False
        return bool(group["capturable"]) or isinstance(reading, Tensor) or group["seen"].device.type != "cpu"

    def _loss_beta(self, group: dict[str, Any]) -> float:
        beta = group["loss_beta"]
        return self.engine.momentum(group) or WITHOUT_MOMENTUM if beta is None else float(beta)

    def _weigh_on_host(self, index: int, group: dict[str, Any], loss: float, fine: bool) -> Weighed:
        """What the rule makes of the loss, and whether a gradient can bear it; nothing is changed."""
        ledger = self._ledger(index, group)
        seen = ledger.read()
        if not fine or group["reference"]:
            return ledger, seen, fine
        noise = standard_normal(group["seed"], int(seen.count), index) if self.rule.uses_noise else 0.0
        after = weigh_on_host(self.rule, seen, loss, group["eta"], noise, group["weighting"])
        usable = abs(after.weight) <= checks.LARGEST or bool(checks.is_usable(after.weight, group, self))
        return ledger, after, usable

    def _move_on_host(
        self,
        index: int,
        group: dict[str, Any],
        loss: float,
        ledger: Ledger,
        after: Seen,
        usable: bool,
        heard: bool,
        members: Members | None = None,
    ) -> None:
        """Move the parameters and take the loss in, or count the step as skipped."""
        if not usable:
            seen = ledger.read()
            kept = observe(after, loss, self._loss_beta(group)) if heard else seen
            ledger.write(kept._replace(skipped=seen.skipped + 1))
            if seen.skipped + 1 == checks.MANY and index == 0:
                checks.warn_of_skipping(self, seen, loss)
            return
        if members is not None:
            self.engine.update(members, group, after.weight, 1, self._rosters[index].path)  # type: ignore[union-attr]
        elif group["reference"]:
            after = published_step(self, index, group, loss, after)
        else:
            self._update_on_host(index, group, after.weight)
        ledger.write(observe(after, loss, self._loss_beta(group)))

    def _ledger(self, index: int, group: dict[str, Any]) -> Ledger:
        """The host statistics of a group; a vector that is new, or elsewhere, came with a checkpoint or a copy."""
        ledger = self._ledgers.get(index)
        if ledger is None or not ledger.serves(group["seen"]):
            ledger = self._ledgers[index] = Ledger(group["seen"])
            group["seen"] = ledger.vector
        return ledger

    def _update_on_host(self, index: int, group: dict[str, Any], weight: float) -> None:
        """Move the parameters, and remember the way there where all of them went together."""
        roster = self._rosters.get(index)
        steady = roster.members(group, self.state) if roster is not None else None
        if roster is not None and steady is not None:
            self.engine.update(steady, group, weight, 1, roster.path)
            return
        params, grads, steps, lists = self._lists(group, on_device=False)
        every = list(histories.bucket(self.engine, group, params, grads, steps, lists, on_device=False))
        paths = [checks.choose_path(group, self.engine, members) for members in every]
        for members, path in zip(every, paths):
            self.engine.update(members, group, weight, 1, path)
        self._rosters[index] = histories.Roster.of(self.engine, group, self.state, every, *paths[:1])

    def _weigh_on_device(self, index: int, group: dict[str, Any], loss: Number, fine: bool | Tensor) -> Judged:
        """What the rule makes of the loss where the group's statistics live, without waiting for the answer."""
        if self._rosters.get(index) is not None:
            self._rosters[index] = None  # state is about to change its place or units
        home = loss.device if isinstance(loss, Tensor) else group["seen"].device
        dtype = wide(home)
        if group["seen"].device != home or group["seen"].dtype != dtype:
            group["seen"] = group["seen"].to(home, dtype)
        loss = scalar_on(home, loss)
        seen = Seen(*group["seen"].clone().unbind())
        fine = fine.to(home) if isinstance(fine, Tensor) else torch.full((), fine, device=home)
        safe = torch.where(fine, loss, seen.mean)
        noise = standard_normal_tensor(group["seed"], seen.count, index) if self.rule.uses_noise else 0.0
        after = weigh(self.rule, seen, safe, group["eta"], noise, group["weighting"])
        weight = scalar_on(home, after.weight)
        return Judged(after, weight, safe, fine, fine & checks.is_usable(weight, group, self))

    def _move_on_device(self, group: dict[str, Any], one: Judged, usable: list[Tensor]) -> None:
        """Move the parameters and take the loss in where all groups may; which it is only the device knows."""
        home = one.usable.device
        proceed = functools.reduce(operator.and_, [each.to(home) for each in usable])
        params, grads, steps, lists = self._lists(group, on_device=True)
        compiling = torch.compiler.is_compiling()
        for members in histories.bucket(
            self.engine, group, params, grads, steps, lists, on_device=True, singly=compiling
        ):
            target = members.params[0].device
            path = checks.choose_path(group, self.engine, members)
            self.engine.update(members, group, one.weight.to(target), proceed.to(target), path)
        after = observe(one.after, one.loss, self._loss_beta(group))
        stacked = torch.stack([scalar_on(home, x) for x in after])
        group["seen"].copy_(torch.where(one.heard, stacked, group["seen"]))
        group["seen"][Seen._fields.index("skipped")] += ~proceed

    def _lists(
        self, group: dict[str, Any], *, on_device: bool, apart: bool = False
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[list[Tensor]]]:
        """Collect what has a gradient: parameters, gradients, step counters and the engine's state, in step."""
        params: list[Tensor] = []
        grads: list[Tensor] = []
        steps: list[Tensor] = []
        lists: list[list[Tensor]] = [[] for _ in histories.names(self.engine, group, on_device)]
        apart = apart or torch.compiler.is_compiling()
        self._init_group(group, params, grads, steps, *lists, on_device=on_device, apart=apart)
        return params, grads, steps, lists

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        steps: list[Tensor],
        *lists: list[Tensor],
        on_device: bool = False,
        apart: bool = False,
    ) -> None:
        """Create state where it is missing and fill the lists; torch.compile knows this by its name."""
        self._notice_moves(group)
        ready, states = histories.prepare(self.engine, self.state, group, on_device=on_device, apart=apart)
        params.extend(ready)
        grads.extend([p.grad for p in ready])  # type: ignore[misc]
        steps.extend([state["step"] for state in states])
        for name, tensors in zip(histories.names(self.engine, group, on_device), lists):
            tensors.extend([state[name] for state in states])

    def _notice_moves(self, group: dict[str, Any]) -> None:
        """A parameter that was moved between groups must not be counted in both."""
        index = next(i for i, one in enumerate(self.param_groups) if one is group)
        before, now = self._lineups.get(index, []), group["params"]
        if len(before) != len(now) or not all(map(operator.is_, before, now)):
            histories.part(self.engine, self.state, now)
            self._lineups[index] = list(now)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the engine's state, and the statistics of the loss in the parameter groups."""
        # Before the user's own hooks, which may put it into another form.
        hook = self.register_state_dict_post_hook(checkpoint.unshared, prepend=True)  # type: ignore[arg-type]
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint: this optimizer's, an older one that lacks something, or a plain torch optimizer's."""
        complete: dict[str, Any] = {}
        if not isinstance(state_dict, dict):  # torch copies it before any hook sees it
            checkpoint.check_kind(state_dict, self)

        def prepare(_: Any, loaded: dict[str, Any]) -> dict[str, Any]:
            complete.update(checkpoint.completed(loaded, self))
            checkpoint.check_state(self, complete)
            return complete

        # After the user's own hooks, which may rewrite the checkpoint, and before those that look at the result.
        before = self.register_load_state_dict_pre_hook(prepare)
        after = self.register_load_state_dict_post_hook(
            lambda _: checkpoint.restore_scalars(self, complete), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __getstate__(self) -> dict[str, Any]:
        # A process group cannot be pickled; the copy averages over the default group until told otherwise.
        opted_out = False if self.process_group is False else None
        return {**super().__getstate__(), "rule": self.rule, "process_group": opted_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not hasattr(self, "_gathered"):
            self._forget()
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            group.setdefault("seen", blank())
