"""Every optimizer through random histories, compared after each event with naive float64 loops."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor
from torch.nn import Parameter

from naive import NaiveOptimizer, Refused
from recorded import named_optimizers
from surefoot import LossAwareAdamW
from surefoot.reference import Reference

OPTIMIZERS = named_optimizers()
SHAPES = [(3, 2), (4,), (), (2, 2)]
ETAS = {"plain": [0.0], "ucb": [0.7, 0.01, 0.0, -0.4], "cb": [2.0, 1e-4], "s": [0.9, 1e-4, 0.0], "pi": [0.0, 0.2],
        "ei": [0.0, 0.2], "cvar": [0.5, 0.9, 0.0]}  # fmt: skip
PATHS = [{"foreach": None}, {"foreach": True}, {"foreach": False}]
#: What may be changed between steps, for every engine and for some.
SHARED = {
    "lr": [0.1, 0.03, 0.0625],
    "weight_decay": [0.0, 0.1],
    "decoupled_weight_decay": [False, True],
    "maximize": [False, True],
    "weighting": ["paper", "unit"],
    "loss_beta": [None, 0.5, 0.95],
    "capturable": [False, False, False, True],
    "check_gradients": [False, False, False, True],
    "seed": [3, 4],
}
BETAS = {"betas": [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99), (0.8, 0.8)], "eps": [1e-8, 1e-3],
         "gain": [(0.3, 1.5), None, (0.0, math.inf)]}  # fmt: skip
OWN = {
    "adam": {**BETAS, "amsgrad": [False, True]},
    "momentum": {"momentum": [0.9, 0.5, 0.0], "nesterov": [False, True]},
    "adamax": BETAS,
    "nadam": {**BETAS, "momentum_decay": [4e-3, 0.1]},
}
#: Eighths, which every kind of float holds exactly: the spread of equal losses is then exactly zero everywhere.
LOSSES = st.integers(-8, 40).map(lambda eighths: eighths / 8)
BAD_LOSSES = st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e25])
SEEDS = st.integers(0, 10_000)
MASKS = st.one_of(st.just(0), st.integers(0, 15))
#: Relative to the largest value that the parameters had.
CLOSE = 1e-10


def choices(cls: Any) -> dict[str, list[Any]]:
    """The values among which an optimizer's options are drawn; the first one of each is the usual one."""
    with_fused = [*({**path, "fused": None} for path in PATHS), {"foreach": None, "fused": True}]
    paths = with_fused if cls.engine.has_fused else PATHS
    decay = {"decoupled_weight_decay": [True]} if issubclass(cls, LossAwareAdamW) else {}
    return {"eta": ETAS[cls.rule.name], "path": paths, **SHARED, **OWN[cls.engine.name], **decay}


def options_of(cls: Any) -> st.SearchStrategy[dict[str, Any]]:
    drawn = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in choices(cls).items()})
    return drawn.map(lambda options: {k: v for k, v in (options | options["path"]).items() if k != "path"})


def random_tensor(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def transposed(x: Tensor) -> Tensor:
    """The same values in another order of memory."""
    return x.clone() if x.dim() < 2 else x.t().contiguous().t()


def snapshot(optimizer: Any, params: list[Parameter]) -> Any:
    return copy.deepcopy([[p.detach() for p in params], optimizer.state_dict()])


def assert_equal(first: Any, second: Any) -> None:
    """Exactly equal, through lists and dictionaries."""
    if isinstance(first, Tensor):
        assert torch.equal(first, second), (first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for x, y in zip(first, second):
            assert_equal(x, y)
    else:
        assert first == second or (first != first and second != second)


class Training(RuleBasedStateMachine):
    """An optimizer and its model: whatever happens to one happens to the other."""

    names = sorted(OPTIMIZERS)

    @initialize(data=st.data(), later_group=st.booleans(), complete=st.booleans())
    def build(self, data: st.DataObject, later_group: bool, complete: bool) -> None:
        #: Whether every parameter has a gradient at every step: once one had none, its history is its own for ever.
        self.complete = complete
        self.cls = OPTIMIZERS[data.draw(st.sampled_from(self.names))]
        self.params: list[Parameter] = []
        self.windows: list[list[tuple[float, float]]] = [[], []]
        self.recorded_tensor = False
        self.left_behind: Any = None
        self.scale = self.largest_loss = 1.0
        self.model = NaiveOptimizer(self.cls.rule.name, self.cls.engine.name)
        options = data.draw(options_of(self.cls)) | {"nonfinite": data.draw(st.sampled_from(["skip", "skip", "raise"]))}
        first = self.new_params(3, seed=0)
        self.optimizer = self.cls([{"params": first}], **options)
        self.model.add_group(dict(options), [p.detach() for p in first])
        if later_group:
            self.add_group(data)

    def new_params(self, count: int, seed: int) -> list[Parameter]:
        start = len(self.params)
        shapes = [SHAPES[(start + i) % len(SHAPES)] for i in range(count)]
        added = [Parameter(random_tensor(seed + i, shape)) for i, shape in enumerate(shapes)]
        self.params += added
        return added

    # -- steps ---------------------------------------------------------------------------------------------------------

    def set_gradients(self, seed: int, absent: int, in_place: bool) -> list[Tensor | None]:
        """New gradients for all parameters but those whose bit is set; in place, or as new tensors."""
        absent = 0 if self.complete else absent
        grads: list[Tensor | None] = []
        for i, p in enumerate(self.params):
            grad = None if absent >> i & 1 else random_tensor(1000 * seed + i, tuple(p.shape))
            if grad is not None and in_place and p.grad is not None:
                p.grad.copy_(grad)
            else:
                p.grad = None if grad is None else (transposed(grad) if seed % 7 == 0 else grad.clone())
            grads.append(grad)
        return grads

    def take_step(self, reading: float, grads: list[Tensor | None], *, as_tensor: bool, **arguments: Any) -> None:
        """The same step of both; where the model refuses it, the optimizer must raise and change nothing."""
        self.windows = [[], []]
        self.recorded_tensor = False
        self.largest_loss = max(self.largest_loss, abs(reading) if abs(reading) < 1e19 else 0.0)
        before = snapshot(self.optimizer, self.params)
        closure = arguments.pop("closure", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # many skipped steps
            try:
                self.model.step(reading, grads, as_tensor=as_tensor)
            except Refused:
                with pytest.raises(FloatingPointError, match="nonfinite='raise'"):
                    self.optimizer.step(closure, **arguments)
                assert_equal(snapshot(self.optimizer, self.params), before)
            else:
                self.optimizer.step(closure, **arguments)

    @rule(loss=LOSSES, seed=SEEDS, absent=MASKS, in_place=st.booleans())
    def step_with_number(self, loss: float, seed: int, absent: int, in_place: bool) -> None:
        self.take_step(loss, self.set_gradients(seed, absent, in_place), as_tensor=False, loss=loss)

    @rule(losses=st.lists(LOSSES, min_size=2, max_size=4), seed=SEEDS)
    def several_steps_in_a_row(self, losses: list[float], seed: int) -> None:
        for i, loss in enumerate(losses):
            self.step_with_number(loss, seed + i, 0, in_place=False)

    @rule(loss=LOSSES, seed=SEEDS, absent=MASKS, dtype=st.sampled_from([torch.float64, torch.float32, torch.float16]))
    def step_with_tensor(self, loss: float, seed: int, absent: int, dtype: torch.dtype) -> None:
        value = torch.tensor([loss], dtype=dtype, requires_grad=True)
        self.take_step(loss, self.set_gradients(seed, absent, False), as_tensor=True, loss=value)

    @rule(loss=LOSSES, seed=SEEDS, absent=MASKS)
    def step_with_closure(self, loss: float, seed: int, absent: int) -> None:
        """The loss that a closure returns counts unless losses were recorded."""
        reading, as_tensor = self.reading()
        if reading is None:
            reading, as_tensor = loss, True
        grads = [
            None if absent >> i & 1 else random_tensor(seed + i, tuple(p.shape)) for i, p in enumerate(self.params)
        ]

        def closure() -> Tensor:
            assert torch.is_grad_enabled()
            for p, grad in zip(self.params, grads):
                p.grad = None if grad is None else grad.clone()
            return torch.tensor(loss, dtype=torch.float64)

        self.take_step(reading, grads, as_tensor=as_tensor, closure=closure)

    @rule(loss=LOSSES, samples=st.integers(1, 4), as_tensor=st.booleans())
    def record(self, loss: float, samples: int, as_tensor: bool) -> None:
        self.optimizer.record_loss(torch.tensor(loss, dtype=torch.float64) if as_tensor else loss, weight=samples)
        self.windows[1].append((samples * loss, samples))
        self.recorded_tensor |= as_tensor

    @rule()
    def clear_gradients(self) -> None:
        """Losses recorded before count only if none are recorded after."""
        self.optimizer.zero_grad()
        self.windows = [self.windows[1], []]

    def reading(self) -> tuple[float | None, bool]:
        window = self.windows[1] or self.windows[0]
        total = sum(value for value, _ in window), sum(samples for _, samples in window)
        return (total[0] / total[1] if window else None), self.recorded_tensor

    @precondition(lambda self: self.reading()[0] is not None)
    @rule(seed=SEEDS, absent=MASKS)
    def step_with_recorded_losses(self, seed: int, absent: int) -> None:
        reading, as_tensor = self.reading()
        self.take_step(reading, self.set_gradients(seed, absent, True), as_tensor=as_tensor)

    @precondition(lambda self: self.reading()[0] is None)
    @rule(seed=SEEDS, from_closure=st.booleans())
    def step_without_loss(self, seed: int, from_closure: bool) -> None:
        self.set_gradients(seed, 0, False)
        before = snapshot(self.optimizer, self.params)
        with pytest.raises(RuntimeError, match="got no loss"):
            self.optimizer.step((lambda: None) if from_closure else None)
        assert_equal(snapshot(self.optimizer, self.params), before)

    @rule(loss=BAD_LOSSES, seed=SEEDS, absent=MASKS, as_tensor=st.booleans())
    def step_with_bad_loss(self, loss: float, seed: int, absent: int, as_tensor: bool) -> None:
        value = torch.tensor(loss, dtype=torch.float64) if as_tensor else loss
        self.take_step(loss, self.set_gradients(seed, absent, False), as_tensor=as_tensor, loss=value)
        self.step_with_number(1.25, seed + 1, 0, in_place=False)

    @rule(loss=LOSSES, seed=SEEDS)
    def step_with_bad_gradient(self, loss: float, seed: int) -> None:
        """Only where the gradients of every group are checked; otherwise it would be in the parameters for good."""
        if all(group.options["check_gradients"] for group in self.model.groups):
            grads = self.set_gradients(seed, 0, False)
            for gradient in (grads[0], self.params[0].grad):
                gradient.fill_(math.nan)
            self.take_step(loss, grads, as_tensor=False, loss=loss)

    @rule(loss=st.sampled_from([1e6, -1e8, 1e11]), seed=SEEDS)
    def step_with_outlier(self, loss: float, seed: int) -> None:
        """Accepted as a loss, but it gives CB weights that no gradient can be multiplied by, for some steps."""
        self.step_with_number(loss, seed, 0, in_place=False)
        self.step_with_number(1.0, seed + 1, 0, in_place=False)

    # -- what users do between steps -----------------------------------------------------------------------------------

    @contextmanager
    def in_training(self, seed: int) -> Iterator[None]:
        """Between steps in which all is as it was before, so that what is kept from step to step is in use."""
        for i in range(2):
            self.step_with_number(1.0 + i, seed + i, 0, in_place=False)
        yield
        self.step_with_number(1.5, seed + 2, 0, in_place=False)

    @rule(data=st.data(), index=st.integers(0, 3), seed=SEEDS)
    def change_an_option(self, data: st.DataObject, index: int, seed: int) -> None:
        index %= len(self.model.groups)
        name = data.draw(st.sampled_from(sorted(choices(self.cls))), label="option")
        value = data.draw(st.sampled_from(choices(self.cls)[name]), label="value")
        change = dict(value) if name == "path" else {name: value}
        self.change(index, change, seed)

    @rule(data=st.data(), index=st.integers(0, 3), seed=SEEDS)
    def change_all_options(self, data: st.DataObject, index: int, seed: int) -> None:
        self.change(index % len(self.model.groups), data.draw(options_of(self.cls)), seed)

    def change(self, index: int, options: dict[str, Any], seed: int) -> None:
        with self.in_training(seed):
            self.model.groups[index].options |= options
            self.optimizer.param_groups[index].update(options)

    @rule(index=st.integers(0, 3), value=st.sampled_from([0.125, 0.03125]))
    def make_the_rate_a_tensor(self, index: int, value: float) -> None:
        index %= len(self.model.groups)
        if self.optimizer.param_groups[index]["foreach"]:  # refused, as torch does
            return
        self.model.groups[index].options["lr"] = value
        self.optimizer.param_groups[index]["lr"] = torch.tensor(value, dtype=torch.float64)

    @precondition(lambda self: len(self.model.groups) < 3)
    @rule(data=st.data())
    def add_group(self, data: st.DataObject) -> None:
        options = data.draw(options_of(self.cls)) | {"nonfinite": self.model.groups[0].options["nonfinite"]}
        added = self.new_params(data.draw(st.integers(1, 2)), seed=50 + len(self.params))
        self.optimizer.add_param_group({"params": added, **options})
        self.model.add_group(dict(options), [p.detach() for p in added])

    @rule(seed=SEEDS, which=st.integers(0, 7), same=st.booleans(), transpose=st.booleans())
    def replace_data(self, seed: int, which: int, same: bool, transpose: bool) -> None:
        """As model.to() and weight surgery do: the parameter stays the same object."""
        which %= len(self.params)
        p = self.params[which]
        with self.in_training(seed):
            data = p.detach().clone() if same else random_tensor(seed, tuple(p.shape))
            p.data = transposed(data) if transpose else data
            if not same:
                self.model.parameters[which].theta = data.clone()

    @rule(which=st.integers(0, 7), to=st.integers(0, 3))
    def move_to_another_group(self, which: int, to: int) -> None:
        which %= len(self.params)
        to %= len(self.model.groups)
        source = next(i for i, group in enumerate(self.model.groups) if which in group.members)
        if source == to or len(self.model.groups[source].members) == 1:
            return
        position = self.model.groups[source].members.index(which)
        self.model.groups[source].members.pop(position)
        self.model.groups[to].members.append(which)
        groups = self.optimizer.param_groups
        groups[to]["params"].append(groups[source]["params"].pop(position))

    @rule(seed=SEEDS, which=st.integers(0, 7), same_object=st.booleans())
    def move_state(self, seed: int, which: int, same_object: bool) -> None:
        """Equal values in other tensors, or in the same tensors at another place, as share_memory_() does."""
        with self.in_training(seed):
            state = self.optimizer.state.get(self.params[which % len(self.params)]) or {}
            for name, value in state.items():
                if same_object:
                    value.data = value.detach().clone()
                else:
                    state[name] = value.clone()

    # -- checkpoints and copies ----------------------------------------------------------------------------------------

    def adopt(self, optimizer: Any) -> None:
        """Go on with this optimizer; the other one must stay as it is."""
        self.check_left_behind()
        self.left_behind = (self.optimizer, self.params, snapshot(self.optimizer, self.params))
        self.optimizer = optimizer
        params = dict(self.pairs(optimizer))
        self.params = [params[i] for i in range(len(params))]
        self.windows = [[], []]
        self.recorded_tensor = False

    def pairs(self, optimizer: Any) -> list[tuple[int, Parameter]]:
        """The number of each parameter, and the parameter."""
        return [
            (i, p)
            for group, mine in zip(optimizer.param_groups, self.model.groups, strict=True)
            for i, p in zip(mine.members, group["params"], strict=True)
        ]

    def check_left_behind(self) -> None:
        if self.left_behind is not None:
            optimizer, params, before = self.left_behind
            assert_equal(snapshot(optimizer, params), before)

    @rule()
    def save_and_load(self) -> None:
        """Into an optimizer with other options, on copies of the parameters."""
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        file.seek(0)
        copies = [Parameter(p.detach().clone()) for p in self.params]
        fresh = self.cls([{"params": [copies[i] for i in group.members]} for group in self.model.groups], lr=0.5)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        self.adopt(fresh)

    @rule()
    def reload_itself(self) -> None:
        self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))

    @rule()
    def copy_it(self) -> None:
        self.adopt(copy.deepcopy(self.optimizer))

    @rule()
    def pickle_it(self) -> None:
        self.adopt(pickle.loads(pickle.dumps(self.optimizer)))

    # -- what must hold ------------------------------------------------------------------------------------------------

    def tolerance(self) -> float:
        """Where losses were large, the difference of a small one and the mean has fewer digits."""
        return CLOSE + 1e-16 * self.largest_loss

    @invariant()
    def parameters_are_the_models(self) -> None:
        for p, expected in zip(self.params, self.model.parameters, strict=True):
            self.scale = max(self.scale, float(expected.theta.abs().max()))
            torch.testing.assert_close(p.detach(), expected.theta, rtol=0, atol=self.tolerance() * self.scale)
            state = self.optimizer.state.get(p)
            assert expected.t == (float(state["step"]) if state else 0)

    @invariant()
    def statistics_are_the_models(self) -> None:
        # A weight is a difference of numbers as large as the losses, or for CB as their squares.
        sizes = {"mean": self.largest_loss, "std": self.largest_loss, "weight": self.largest_loss**2}
        for actual, group in zip(self.optimizer.confidence(), self.model.groups, strict=True):
            for name, value in group.seen.described().items():
                near = pytest.approx(value, rel=100 * self.tolerance(), abs=self.tolerance() * sizes.get(name, 1.0))
                assert float(actual[name]) == near, (name, group)

    def teardown(self) -> None:
        if hasattr(self, "optimizer"):
            self.check_left_behind()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_history_ends_where_the_model_does(name: str) -> None:
    run_state_machine_as_test(
        type(f"TrainingWith{name}", (Training,), {"names": [name]}),
        settings=settings(
            max_examples=16,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            # To shrink a failing history takes minutes: add Phase.shrink when looking for a cause.
            phases=[Phase.generate],
        ),
    )


@pytest.mark.parametrize("weighting", ["paper", "unit"])
@pytest.mark.parametrize("engine", ["adam", "momentum"])
@pytest.mark.parametrize("rule_name", ["plain", "ucb", "cb", "s"])
def test_the_model_is_the_reference(rule_name: str, engine: str, weighting: str) -> None:
    theta = random_tensor(1, (3,))
    options = {"lr": 0.1, "weight_decay": 0.1, "maximize": True, "weighting": weighting, "eta": 0.7}
    reference = Reference([theta.clone()], rule=rule_name, engine=engine, **options)
    model = NaiveOptimizer(rule_name, engine)
    engine_options = {"betas": (0.9, 0.999), "gain": (0.3, 1.5)} if engine == "adam" else {"momentum": 0.9}
    unused = dict.fromkeys(("decoupled_weight_decay", "amsgrad", "nesterov", "capturable", "check_gradients"), False)
    model.add_group(
        {**options, **engine_options, **unused, "eps": 1e-8, "loss_beta": None, "seed": 0, "nonfinite": "skip"}, [theta]
    )
    for step, loss in enumerate([2.0, 2.0, 1.5, 2.5, 0.3, 1.1, 0.0, 3.0]):
        grad = random_tensor(10 + step, (3,))
        reference.step([grad], loss)
        model.step(loss, [grad], as_tensor=False)
        torch.testing.assert_close(model.parameters[0].theta, reference.thetas[0], rtol=0, atol=1e-12)
