"""LossAware: a torch optimizer that weights each gradient by how unusual the current loss is.

A step reads the loss, assesses it, updates the parameters and remembers the loss. What the update collects (parameters,
gradients, state) is nearly always the same as in the last step. The fast path is a cache of the uncached one, and is
kept in ``step_cache.py``: it is verified in every step and changes nothing but the time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)

from surefoot.losses import RecordedLosses, TakesLoss
from surefoot.meter import Assessment, Meter, decide, gradients_are_sound
from surefoot.optim import checkpoint
from surefoot.optim.engines.base import Bucket, Engine, Group
from surefoot.optim.options import (
    CHANGEABLE,
    check_group,
    check_new_group,
    check_params,
    settle_decay,
    with_fixed_pairs,
)
from surefoot.optim.published import published_step
from surefoot.optim.state import make_buckets, prepare, state_names, unshare_scalars
from surefoot.optim.step_cache import StepCache
from surefoot.rules import RULES, Rule, find_rule
from surefoot.statistics import LossStats, Number, no_statistics, pack, stats_for_new_group, unpack, widest_float

#: Decay rate of the loss statistics if the engine has no momentum to take it from: at 0 nothing would be remembered.
DEFAULT_LOSS_BETA = 0.9


def with_grad_mode(step: Callable[..., Any]) -> Callable[..., Any]:
    """Run a step without gradients, or with them for ``differentiable=True``; in a graph by torch's own decorator."""
    in_graph = _use_grad_for_differentiable(step)

    def eagerly(self: LossAware, *args: Any, **options: Any) -> Any:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self.defaults["differentiable"])
        try:
            return step(self, *args, **options)
        finally:
            torch._C._set_grad_enabled(before)

    @functools.wraps(step)
    def run(self: LossAware, *args: Any, **options: Any) -> Any:
        return (in_graph if torch.compiler.is_compiling() else eagerly)(self, *args, **options)

    run.eagerly = eagerly  # type: ignore[attr-defined]
    return run


class LossAware(TakesLoss):
    """Rule x engine: the statistics of the loss give the weight, the engine updates the parameters.

    Subclasses set ``engine``, and ``rule`` if it is not the plain one; their constructors have the options. The
    statistics of the loss are in the parameter groups (key ``"seen"``), so every kind of checkpoint contains them.
    """

    engine: ClassVar[Engine]
    rule: Rule = RULES["plain"]
    #: What a loss scaler may set before a step, as on torch's fused optimizers: whether a gradient is not finite, and
    #: the scale of the gradients, which must be 1.
    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(
        self, params: ParamsT, defaults: dict[str, Any], *, rule: str | Rule | None, process_group: Any
    ) -> None:
        if rule is not None:
            self.rule = self._chosen(find_rule(rule))
        if defaults.get("eta") is None:
            defaults["eta"] = self.rule.eta
        check_new_group(defaults, self.engine, self.rule)
        self.process_group = process_group
        self._start_without_caches()
        super().__init__(params, with_fixed_pairs(defaults))

    def _chosen(self, rule: Rule) -> Rule:
        """Refuse another rule than the one that the name of the class promises."""
        named: Any = next(cls for cls in type(self).__mro__ if "rule" in vars(cls))
        if named is not LossAware and rule != named.rule:
            family = named.__mro__[1].__name__
            raise ValueError(
                f"{type(self).__name__} has the rule {named.rule.name!r}, but got rule={rule.name!r}; for another rule "
                f"take {family}(params, rule=...)"
            )
        return rule

    def _start_without_caches(self) -> None:
        """Set up what is only remembered between steps and never saved."""
        self._recorded = RecordedLosses()
        self._cache = StepCache()
        self._checked: dict[int, _CheckedOptions] = {}
        self._last_params: dict[int, list[Tensor]] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; a group that is added later starts from the statistics of the first."""
        check_new_group({**self.defaults, **param_group}, self.engine, self.rule)
        super().add_param_group(param_group)
        group = with_fixed_pairs(self.param_groups[-1])
        settle_decay(group, self.param_groups[:-1], type(self).__name__)
        if "seen" not in group:
            first = self.param_groups[0]
            negated = bool(first["maximize"]) != bool(group["maximize"])
            group["seen"] = stats_for_new_group(first.get("seen"), negated)
        group.setdefault("gain_power", torch.zeros(1, dtype=torch.float64, device="cpu"))

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``step`` as torch does, for hooks and profilers, unless there are none: in tiny models that is slow."""
        observed, eagerly = Optimizer.profile_hook_step(func), getattr(func, "eagerly", func)

        @functools.wraps(func)
        def step(self: LossAware, *args: Any, **options: Any) -> Any:
            if (
                torch.compiler.is_compiling()
                or torch.autograd._profiler_enabled()
                or self._optimizer_step_pre_hooks
                or self._optimizer_step_post_hooks
                or _global_optimizer_pre_hooks
                or _global_optimizer_post_hooks
            ):
                return observed(self, *args, **options)
            return eagerly(self, *args, **options)

        return step

    @overload
    def step(self, closure: None = None, *, loss: Any = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], Any], *, loss: Any = None) -> Any: ...

    @with_grad_mode
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """Take one step, weighted by the loss it is given.

        Args:
            closure: computes the loss and the gradients again, and returns the loss.
            loss: the loss whose gradients these are; it is preferred to recorded losses, and these to the closure's.
        """
        returned = None if closure is None else self._evaluate(closure)
        is_compiling = torch.compiler.is_compiling()
        meters = self._meters(is_compiling)
        loss = self._read_loss(loss, returned, is_compiling)
        if loss is None:
            self._create_state_only(closure)
            return returned

        groups = self.param_groups
        cached = self._cache.look_up(groups, self.state) if type(loss) is float else [None] * len(groups)
        sound = self._gradients_are_sound(loss) if None in cached else True
        if self.found_inf is not None or self.grad_scale is not None:
            sound = sound & self._scaler_found_nothing(loss)
        # All groups are assessed before any is updated: if one weight is unusable, the whole step is skipped.
        assessments = []
        for index, meter in enumerate(meters):
            assessments.append(self._assess(index, meter, loss, sound))

        decisions = decide(assessments) if len(assessments) > 1 else [assessments[0].usable]
        for index, (meter, assessment, proceed) in enumerate(zip(meters, assessments, decisions)):
            if proceed is not False:
                assessment = self._update(index, meter, cached[index], assessment, proceed)
            self._write_stats(index, meter.remember(assessment, proceed), assessment.power)
        return returned

    def _meters(self, is_compiling: bool = False) -> list[Meter]:
        """A meter for each group; options that were replaced since the last step are checked first.

        The learning rate is not: schedulers set it in every step.
        """
        if is_compiling:
            return [self._make_meter(index, group) for index, group in enumerate(self.param_groups)]
        meters = []
        for index, group in enumerate(self.param_groups):
            checked = self._checked.get(index)
            if (
                checked is None
                or checked.rule is not self.rule
                or not all(map(operator.is_, checked.read(group), checked.values))
            ):
                check_group(with_fixed_pairs(group), self.engine, self.rule)
                meter = self._make_meter(index, group)
                checked = self._checked[index] = _CheckedOptions(group, self.rule, meter)
            meters.append(checked.meter)
        return meters

    def _make_meter(self, index: int, group: Group) -> Meter:
        # Autograd follows the statistics too, where it follows the step.
        read = (lambda value: value) if group["differentiable"] else _detached
        beta = group["loss_beta"]
        # The published recipe weighs for itself.
        rule = RULES["plain"] if group["reference"] else self.rule
        return Meter(
            rule,
            group["eta"],
            group["weighting"],
            read(self.engine.momentum(group)) or DEFAULT_LOSS_BETA if beta is None else read(beta),
            group["seed"],
            index,
            bool(group["maximize"]),
            group["nonfinite"],
            type(self).__name__,
            # Only the paper's weighting has a scale, and the published recipe has no bounds.
            gain=group["gain"] if group["weighting"] == "paper" and rule.scales else None,
            gain_beta=read(group["betas"][1]) if "betas" in group else 0.999,
        )

    def _create_state_only(self, closure: Any) -> None:
        """A step without a loss: distributed checkpointing creates state with it; any other is refused."""
        self._check_that_no_loss_is_needed(closure)
        for group in self.param_groups:
            # Losses of parameters on an accelerator will come from there, and decide what state is kept.
            on_device = bool(group["capturable"] or group["differentiable"])
            on_device = on_device or any(p.device.type != "cpu" for p in group["params"])
            self._init_group(group, [], [], [], on_device=on_device)

    def _gradients_are_sound(self, loss: Number) -> bool | Tensor:
        """Refuse what no kernel can take; where ``check_gradients`` is set, say whether all gradients are finite."""
        check_params(self)
        checked = [group for group in self.param_groups if group["check_gradients"]]
        gradients = [p.grad for group in checked for p in group["params"] if p.grad is not None]
        return gradients_are_sound(gradients, loss.device if isinstance(loss, Tensor) else None)

    def _scaler_found_nothing(self, loss: Number) -> bool | Tensor:
        """Whether the gradients are finite by ``found_inf``; a scale would change the weight of L2 decay and eps."""
        if self.grad_scale is not None and float(self.grad_scale) != 1:
            raise RuntimeError(
                f"{type(self).__name__} takes gradients without a scale, but grad_scale is {float(self.grad_scale):g}; "
                "call scaler.unscale_(optimizer) before the step"
            )
        if self.found_inf is None:
            return True
        is_finite = torch.as_tensor(self.found_inf).reshape(()) == 0
        return is_finite.to(loss.device) if isinstance(loss, Tensor) else bool(is_finite)

    def _assess(self, index: int, meter: Meter, loss: Number, sound: bool | Tensor) -> Assessment:
        """Judge the loss where the statistics of the group are: on the host, or without waiting for the device."""
        group = self.param_groups[index]
        vector = group["seen"]
        # Numbers stay tensors, as on a device, for a CUDA graph or for autograd.
        on_device = bool(
            group["capturable"] or group["differentiable"] or isinstance(loss, Tensor) or not vector.is_cpu
        )
        if not on_device or group["reference"]:
            stats = tuple.__new__(LossStats, self._cache.vector(index, group).values)  # saves the constructor's call
            return meter.assess(stats, float(loss), bool(sound), self._cache.powers[index].values[0])
        device = loss.device if isinstance(loss, Tensor) else vector.device
        if vector.device != device or vector.dtype != widest_float(device):
            group["seen"] = vector.to(device, widest_float(device))
        group["gain_power"] = group["gain_power"].to(device, widest_float(device))  # as it is, nearly always
        return meter.assess(unpack(group["seen"], on_device=True), loss, sound, group["gain_power"].clone()[0])

    def _write_stats(self, index: int, stats: LossStats, power: Number) -> None:
        group = self.param_groups[index]
        if isinstance(stats.mean, Tensor):
            vector = group["seen"]
            vector.copy_(pack(stats, vector.device))
            group["gain_power"].copy_(power)
        else:
            self._cache.vectors[index].write(stats)
            self._cache.powers[index].values[0] = power

    def _update(
        self, index: int, meter: Meter, cached: Bucket | None, assessment: Assessment, proceed: bool | Tensor
    ) -> Assessment:
        """Update the parameters of a group, on a device only if ``proceed`` turns out to be true."""
        group, weight = self.param_groups[index], assessment.multiplier
        if isinstance(proceed, Tensor):
            self._cache.drop(index)  # state is about to change its place or its units
            for bucket in self._make_buckets(group, on_device=True, separate=torch.compiler.is_compiling()):
                device = bucket.params[0].device
                self.engine.update(bucket, group, weight.to(device), proceed.to(device))
        elif cached is not None:
            self.engine.update(cached, group, weight, proceed)
        elif group["reference"]:
            buckets = self._make_buckets(group, on_device=True, separate=True)
            return published_step(self.engine, self.rule.name, group, buckets, meter, assessment)
        else:
            buckets = self._make_buckets(group, on_device=False)
            for bucket in buckets:
                self.engine.update(bucket, group, weight, proceed)
            self._cache.keep(index, group, self.state, self.engine, buckets)
        return assessment

    def _make_buckets(self, group: Group, *, on_device: bool, separate: bool = False) -> list[Bucket]:
        """Collect what has a gradient: parameters, gradients, step counters and the engine's state."""
        params: list[Tensor] = []
        grads: list[Tensor] = []
        steps: list[Tensor] = []
        columns: list[list[Tensor]] = [[] for _ in state_names(self.engine, group, on_device)]
        self._init_group(group, params, grads, steps, *columns, on_device=on_device, separate=separate)
        return list(
            make_buckets(self.engine, group, params, grads, steps, columns, on_device=on_device, separate=separate)
        )

    def _init_group(
        self,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        steps: list[Tensor],
        *columns: list[Tensor],
        on_device: bool = False,
        separate: bool = False,
    ) -> None:
        """Create state where it is missing and fill the lists; torch.compile calls this by its name."""
        self._unshare_moved_params(group)
        ready, states = prepare(self.engine, self.state, group, on_device=on_device, separate=separate)
        params.extend(ready)
        grads.extend([p.grad for p in ready])  # type: ignore[misc]
        steps.extend([state["step"] for state in states])
        for name, tensors in zip(state_names(self.engine, group, on_device), columns):
            tensors.extend([state[name] for state in states])

    def _unshare_moved_params(self, group: Group) -> None:
        """A parameter that was moved between groups must not be counted in both."""
        index = next(i for i, candidate in enumerate(self.param_groups) if candidate is group)
        before, now = self._last_params.get(index, []), group["params"]
        if len(before) != len(now) or not all(map(operator.is_, before, now)):
            unshare_scalars(self.engine, self.state, now)
            self._last_params[index] = list(now)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the engine's state, and the statistics of the loss in the parameter groups."""
        # Before the user's hooks, which may put it into another form.
        hook = self.register_state_dict_post_hook(
            lambda _, written: checkpoint.unshared(self, self.engine, written), prepend=True
        )
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this optimizer, of an older version, or of a plain torch optimizer."""
        complete: dict[str, Any] = {}
        if not isinstance(state_dict, dict):  # torch copies it before any hook sees it
            checkpoint.check_kind(state_dict, self)

        def complete_and_check(_: Any, loaded: dict[str, Any]) -> dict[str, Any]:
            whole = checkpoint.completed(loaded, self, self.rule)
            for group, _ in zip(whole["param_groups"], self.param_groups):
                check_group(group, self.engine, self.rule)
            checkpoint.check_state(self, self.engine, whole)
            complete.update(checkpoint.with_checked_scalars(self.engine, whole))
            return complete

        # After the user's hooks, which may rewrite the checkpoint, and before those that look at the result.
        before = self.register_load_state_dict_pre_hook(complete_and_check)
        after = self.register_load_state_dict_post_hook(
            lambda _: checkpoint.restore_scalars(self, self.engine, complete), prepend=True
        )
        try:
            with checkpoint.unchanged_on_error(self):
                super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __getstate__(self) -> dict[str, Any]:
        kept = {"rule": self.rule} if "rule" in self.__dict__ else {}  # otherwise it is that of the class
        return {**super().__getstate__(), **kept, "process_group": self._picklable_process_group()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not hasattr(self, "_recorded"):
            self._start_without_caches()
        for group in self.param_groups:
            # A group that was saved before there were bounds goes on without them.
            for key, value in {**self.defaults, "gain": None}.items():
                group.setdefault(key, value)
            group.setdefault("seen", no_statistics())
            group.setdefault("gain_power", torch.zeros(1, dtype=torch.float64, device="cpu"))


def _detached(value: Number) -> Number:
    return float(value.detach()) if isinstance(value, Tensor) else value


class _CheckedOptions:
    """The options of a group when they were checked, and the meter made of them."""

    def __init__(self, group: Group, rule: Rule, meter: Meter) -> None:
        self.rule, self.meter = rule, meter
        self.read = operator.itemgetter(*(name for name in CHANGEABLE if name in group))
        #: The very objects: to ask whether tensors are equal would read them.
        self.values = self.read(group)
