"""Wrapper: an optimizer around another one, with its parameter groups, its state and its step hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch.optim import Optimizer

from surefoot.losses import RecordedLosses, TakesLoss
from surefoot.optim import checkpoint
from surefoot.optim.engines.base import Group
from surefoot.unwrap import unwrapped


class Wrapper(TakesLoss):
    """Wrap a torch optimizer, the base, and take its place in a training loop.

    The parameter groups and the state are those of the base, so learning-rate schedulers, GradScaler and clipping work
    on either. What a subclass keeps is in them too, so every kind of checkpoint contains it.
    """

    #: GradScaler then unscales and skips for us, also when the base would do it itself.
    _step_supports_amp_scaling = False
    #: The attributes that a copy has, beside the base and the process group.
    settings: ClassVar[tuple[str, ...]] = ()
    base: Optimizer

    def _adopt(self, base: Optimizer) -> None:
        """Take the base's place: one set of step hooks for both, since only the outer step may run them."""
        self.base = base
        self._recorded = RecordedLosses()
        shared = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        Optimizer.__setstate__(self, {name: getattr(base, name) for name in shared} | {"defaults": base.defaults})
        for group in base.param_groups:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """Give a group what the wrapper keeps in it, where it is missing."""
        raise NotImplementedError

    def _completed_checkpoint(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy of a checkpoint in which every group has what the wrapper keeps in it."""
        raise NotImplementedError

    def _with_own_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint of the base, with what the wrapper keeps for each parameter."""
        return state_dict

    @property
    def param_groups(self) -> list[Group]:  # type: ignore[override]
        """Those of the base."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[Group]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the base."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    def __getattr__(self, name: str) -> Any:
        # What only the base has, such as train() and eval() of schedule-free optimizers.
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.base, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the base."""
        self.base.add_param_group(param_group)
        self._complete(self.param_groups[-1])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and drop losses whose step was skipped."""
        self._recorded.open_window()
        self.base.zero_grad(set_to_none)

    def _step_base(self, closure: Callable[[], Any] | None = None, **arguments: Any) -> Any:
        """Call the step of the base without its hooks, which the outer step has run."""
        step = type(self.base).step
        unhooked: Any = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
        returned = unhooked(self.base, *([] if closure is None else [closure]), **arguments)
        self.base._opt_called = True  # type: ignore[attr-defined]  # for a scheduler that was built on the base
        return returned

    def state_dict(self) -> dict[str, Any]:
        """The base's state, which has what the wrapper keeps in it."""
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        state_dict = self.base.state_dict()
        state_dict = {**state_dict, "param_groups": checkpoint.portable_groups(self, state_dict)}
        state_dict = self._with_own_state(state_dict)
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint of this optimizer, or of the base alone, which lacks what the wrapper keeps."""
        state_dict = dict(state_dict)
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        with checkpoint.unchanged_on_error(self.base):
            self._load_base(state_dict)
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def _load_base(self, state_dict: dict[str, Any]) -> None:
        """Load the base, and what the wrapper keeps in the groups."""
        if "state" in state_dict or "param_groups" in self.base.state_dict():
            self.base.load_state_dict(self._completed_checkpoint(state_dict))
            return
        # The base has a form of its own, such as pytorch_optimizer.Lookahead; the wrapper has added the groups to it.
        groups = state_dict.get("param_groups", [])
        groups = self._completed_checkpoint({"state": {}, "param_groups": groups})["param_groups"]
        self.base.load_state_dict({name: value for name, value in state_dict.items() if name != "param_groups"})
        for group, options in zip(self.param_groups, groups):
            group.update(options)
        for group in self.param_groups:
            self._complete(group)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: self.__dict__[name] for name in ("base", *self.settings)}
        return {**kept, "process_group": self._picklable_process_group()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._adopt(state["base"])


def check_is_optimizer(base: Any, owner: str) -> None:
    """Refuse to wrap what is not a torch optimizer, or is a framework's wrapper around it."""
    name = type(base).__name__
    if not isinstance(base, Optimizer):
        raise TypeError(
            f"{owner} wraps a torch optimizer, but got {name}; build the optimizer first, as in "
            f"{owner}(torch.optim.AdamW(params))"
        )
    if unwrapped(base) is not base:
        raise TypeError(
            f"{name} is a wrapper around {type(unwrapped(base)).__name__}; give that to {owner}, then prepare() the "
            "result"
        )
