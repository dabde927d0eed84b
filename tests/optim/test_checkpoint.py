"""Checkpoints: training killed and resumed goes on bit for bit; older, plain and foreign ones load or say why not."""

from __future__ import annotations

import copy
import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from saved import through_a_file
from surefoot import (
    AdaMaxUCB,
    AdamCB,
    AdamS,
    AdamUCB,
    AdamWS,
    EtaSchedule,
    LossAware,
    LossWeighted,
    MomentumS,
    MomentumUCB,
    NAdamUCB,
    weigh,
)
from surefoot.optim.named import OPTIMIZERS
from surefoot.statistics import LossStats, no_statistics
from warm import everything, ready

STEPS, HALF = 12, 5


Run = tuple[list[Parameter], LossAware]


def fresh(cls: type[LossAware], options: dict[str, Any], dtype: torch.dtype) -> Run:
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in [(3, 2), (4,), (), (2,)]]
    return params, cls([{"params": params[:3]}, {"params": params[3:], "lr": 0.02}], **{"lr": 0.01, **options})


def train(run: Run, start: int, stop: int) -> list[Tensor]:
    """Steps whose gradients depend on the parameters; the second one misses some, the third all but the last few."""
    params, optimizer = run
    for t in range(start, stop):
        optimizer.zero_grad()
        loss = sum((p.abs() ** 2).sum() * (1 + 0.3 * ((7 * t + i) % 5)) for i, p in enumerate(params))
        loss.backward()
        if t % 4 == 1:
            params[1].grad = None
        if t < HALF + 1:
            params[2].grad = None
        optimizer.step(loss=loss)
    return [p.detach().clone() for p in params]


def saved_by(run: Run) -> dict[str, Any]:
    params, optimizer = run
    return through_a_file({"params": [p.detach() for p in params], "optimizer": optimizer.state_dict()})


def resumed(run: Run, saved: dict[str, Any]) -> Run:
    params, optimizer = run
    with torch.no_grad():
        for p, value in zip(params, saved["params"]):
            p.copy_(value)
    optimizer.load_state_dict(saved["optimizer"])
    return run


OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "weighting": "unit", "seed": 5},
    {"foreach": True},
    {"capturable": True},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_killed_and_resumed_goes_on_bit_for_bit(cls: type[LossAware], dtype: torch.dtype) -> None:
    for options in OPTIONS:
        through = fresh(cls, options, dtype)
        expected = train(through, 0, STEPS)
        killed = fresh(cls, options, dtype)
        train(killed, 0, HALF)
        saved = saved_by(killed)
        # A new process may even have built the optimizer with other settings: the checkpoint's count.
        run = resumed(fresh(cls, {**options, "lr": 0.5, "eta": 0.9, "seed": 77}, dtype), saved)
        continued = train(run, HALF, STEPS)
        assert all(map(torch.equal, continued, expected)), options
        assert_same_state(run, through)


def assert_same_state(first: Run, second: Run) -> None:
    for a, b in zip(first[1].param_groups, second[1].param_groups):
        assert torch.equal(a["seen"], b["seen"])
    for p, q in zip(first[0], second[0]):
        mine, theirs = first[1].state[p], second[1].state[q]
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[k], theirs[k]) and mine[k].dtype == theirs[k].dtype for k in mine)


@pytest.mark.parametrize("cls", [AdamUCB, AdamCB, AdamS, MomentumS])
def test_the_published_recipe_resumes_too(cls: type[LossAware]) -> None:
    options = {"reference": True, "weighting": "paper"}
    expected = train(fresh(cls, options, torch.float32), 0, STEPS)
    killed = fresh(cls, options, torch.float32)
    train(killed, 0, HALF)
    continued = train(resumed(fresh(cls, options, torch.float32), saved_by(killed)), HALF, STEPS)
    assert all(map(torch.equal, continued, expected))


@pytest.mark.parametrize("cls", [AdamS, MomentumS, NAdamUCB, AdaMaxUCB])
@pytest.mark.parametrize(("first", "then"), [(False, True), (True, False)])
def test_a_checkpoint_moves_between_host_and_device(cls: type[LossAware], first: bool, then: bool) -> None:
    expected = train(fresh(cls, {}, torch.float64), 0, STEPS)
    killed = fresh(cls, {"capturable": first}, torch.float64)
    train(killed, 0, HALF)
    run = resumed(fresh(cls, {}, torch.float64), saved_by(killed))
    for group in run[1].param_groups:
        group["capturable"] = then
    torch.testing.assert_close(train(run, HALF, STEPS), expected, rtol=1e-12, atol=1e-12)


def test_state_is_tensors_of_parameters_and_statistics_are_in_the_groups() -> None:
    run = fresh(AdamS, {}, torch.float32)
    train(run, 0, 2)
    saved = run[1].state_dict()
    assert set(saved) == {"state", "param_groups"}
    assert all(isinstance(key, int) for key in saved["state"])
    assert all(isinstance(x, Tensor) for state in saved["state"].values() for x in state.values())
    assert all(group["seen"].shape == (len(LossStats._fields),) for group in saved["param_groups"])
    assert str(saved) == str(run[1].state_dict())


def test_parameters_of_one_history_share_their_scalars_again() -> None:
    params = [Parameter(torch.ones(2)) for _ in range(5)]
    optimizer = AdamS(params)
    for loss in (1.0, 2.0):
        for p in params:
            p.grad = torch.ones(2)
        optimizer.step(loss=loss)
    again = AdamS(params)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for name in ("step", "weight_mean", "weight_power"):
        assert len({id(again.state[p][name]) for p in params}) == 1
    optimizer.step(loss=1.0)  # the copy has scalars of its own
    assert again.state[params[0]]["step"] == 2


PLAIN: list[tuple[type[torch.optim.Optimizer], type[LossAware], dict[str, Any]]] = [
    (torch.optim.Adam, AdamS, {}),
    (torch.optim.Adam, AdamS, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, AdamUCB, {"weight_decay": 0.1}),
    (torch.optim.NAdam, NAdamUCB, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    (torch.optim.Adamax, AdaMaxUCB, {"weight_decay": 0.1}),
]


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(("plain", "cls", "options"), PLAIN)
def test_training_may_go_on_from_a_plain_checkpoint(
    plain: type[torch.optim.Optimizer], cls: type[LossAware], options: dict[str, Any], capturable: bool
) -> None:
    grads = torch.randn(STEPS, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def go(p: Parameter, optimizer: torch.optim.Optimizer, start: int, stop: int) -> None:
        for t in range(start, stop):
            p.grad = grads[t].clone()
            optimizer.step(**({"loss": 1.0 + t % 3} if isinstance(optimizer, LossAware) else {}))

    torch.set_default_dtype(torch.float64)  # of NAdam's running product
    p = Parameter(torch.ones(4))
    written = plain([p], lr=0.01, **options)
    go(p, written, 0, HALF)
    saved = copy.deepcopy(written.state_dict())
    q = Parameter(p.detach().clone())
    other = cls([q], lr=0.5, eta=0.0, weighting="unit", decoupled_weight_decay=plain is torch.optim.AdamW)
    other.load_state_dict(saved)
    other.param_groups[0]["capturable"] = capturable
    go(p, written, HALF, STEPS)
    go(q, other, HALF, STEPS)
    torch.set_default_dtype(torch.float32)
    assert other.param_groups[0]["lr"] == 0.01
    assert other.param_groups[0]["weighting"] == "unit"
    torch.testing.assert_close(q, p, rtol=1e-12, atol=1e-12)
    assert other.confidence()[0]["mean"] > 1


@pytest.mark.parametrize("missing", [("seen",), ("seen", "loss_beta", "eta", "check_gradients", "reference", "seed")])
def test_an_older_checkpoint_lacks_something(missing: tuple[str, ...]) -> None:
    run = fresh(AdamS, {}, torch.float32)
    train(run, 0, HALF)
    saved = copy.deepcopy(run[1].state_dict())
    for group in saved["param_groups"]:
        for name in missing:
            del group[name]
    before = copy.deepcopy(saved)
    params, optimizer = fresh(AdamS, {"eta": 0.25}, torch.float32)
    optimizer.load_state_dict(saved)
    assert str(saved) == str(before)
    for group in optimizer.param_groups:
        assert torch.equal(group["seen"], no_statistics())
        assert group["eta"] == (0.25 if "eta" in missing else AdamS.rule.eta)
    train((params, optimizer), HALF, STEPS)


def test_a_step_count_may_be_a_plain_number() -> None:
    run = fresh(AdamS, {}, torch.float32)
    train(run, 0, HALF)
    saved = copy.deepcopy(run[1].state_dict())
    for state in saved["state"].values():
        state["step"] = int(state["step"].item())
    again = resumed(fresh(AdamS, {}, torch.float32), {"params": [p.detach() for p in run[0]], "optimizer": saved})
    assert all(map(torch.equal, train(again, HALF, STEPS), train(run, HALF, STEPS)))


def test_names_of_parameters_are_kept() -> None:
    model = torch.nn.Linear(2, 1)
    named, plain = AdamS(model.named_parameters()), AdamS(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    for optimizer in (named, plain):
        optimizer.step(loss=1.0)
    saved_named, saved_plain = copy.deepcopy(named.state_dict()), copy.deepcopy(plain.state_dict())
    named.load_state_dict(saved_plain)
    plain.load_state_dict(saved_named)
    for optimizer in (named, plain):
        assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize("saved_as", [torch.float32, torch.float64])
def test_scalars_are_not_rounded_to_the_parameters_dtype(saved_as: torch.dtype) -> None:
    run = fresh(AdamS, {}, saved_as)
    train(run, 0, HALF)
    params, optimizer = fresh(AdamS, {}, torch.bfloat16)
    optimizer.load_state_dict(copy.deepcopy(run[1].state_dict()))
    for p, q in zip(params, run[0]):
        state = optimizer.state[p]
        for name in ("step", "weight_mean", "weight_power") if state else ():
            assert torch.equal(state[name], run[1].state[q][name])
        assert all(state[name].dtype == torch.bfloat16 for name in ("exp_avg", "exp_avg_sq") if state)
    train((params, optimizer), HALF, STEPS)
    assert all(p.isfinite().all() for p in params)


def test_state_saved_in_another_memory_order() -> None:
    p = Parameter(torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last))
    q = Parameter(p.detach().contiguous())
    first = AdamS([p])
    p.grad = torch.ones_like(p) * p.detach()
    first.step(loss=1.0)
    second = AdamS([q])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with torch.no_grad():
        q.copy_(p)
    for x, optimizer in ((p, first), (q, second)):
        x.grad = torch.zeros_like(x)
        x.grad[0, 1] = 1.0
        optimizer.step(loss=2.0)
    torch.testing.assert_close(q.detach(), p.detach().contiguous())


def test_amsgrad_may_be_switched_on() -> None:
    run = fresh(AdamS, {}, torch.float32)
    train(run, 0, HALF)
    saved = copy.deepcopy(run[1].state_dict())
    for group in saved["param_groups"]:
        group["amsgrad"] = True
    params, optimizer = fresh(AdamS, {}, torch.float32)
    optimizer.load_state_dict(saved)
    train((params, optimizer), HALF, STEPS)
    assert all(optimizer.state[p]["max_exp_avg_sq"].any() for p in params)
    train(run, HALF, HALF + 1)  # or in the middle of a training, on the steady path
    run[1].param_groups[0]["amsgrad"] = True
    train(run, HALF + 1, STEPS)
    assert all(run[1].state[p]["max_exp_avg_sq"].any() for p in run[1].param_groups[0]["params"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (torch.optim.SGD, "no step, exp_avg, exp_avg_sq for parameter 0, only momentum_buffer"),
        (torch.optim.Adamax, "no exp_avg_sq for parameter 0"),
    ],
)
def test_a_foreign_checkpoint_is_refused_before_anything_changes(other: Any, message: str) -> None:
    p = Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    foreign = other([p], **({"momentum": 0.9} if other is torch.optim.SGD else {}))
    foreign.step()
    optimizer = AdamS([p], lr=0.25)
    optimizer.step(loss=1.0)
    before = str(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(foreign.state_dict())
    assert str(optimizer.state_dict()) == before


def test_statistics_of_another_version_are_refused() -> None:
    _, optimizer = fresh(AdamS, {}, torch.float32)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["seen"] = torch.zeros(5)
    with pytest.raises(ValueError, match="statistics have 5 entries"):
        optimizer.load_state_dict(saved)


def test_hooks_see_what_is_saved_and_may_change_what_is_loaded() -> None:
    run = fresh(AdamS, {}, torch.float32)
    train(run, 0, HALF)
    params, optimizer = run
    calls: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda _: calls.append("saving"))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "note": "kept"})
    saved = copy.deepcopy(optimizer.state_dict())
    assert calls == ["saving"]
    assert saved["note"] == "kept"
    wrapped = {"inside": saved}

    def unwrap(_: Any, loaded: dict[str, Any]) -> dict[str, Any]:
        calls.append("loading")
        inside = copy.deepcopy(loaded["inside"])
        for state in inside["state"].values():
            state["step"] = state["step"] + 100
        return inside

    def look(loaded: torch.optim.Optimizer) -> None:
        calls.append("loaded")
        assert loaded.state[params[0]]["weight_mean"].dtype == torch.float64

    optimizer.register_load_state_dict_pre_hook(unwrap)
    optimizer.register_load_state_dict_post_hook(look)
    for _ in range(2):  # loading leaves no hooks of its own behind
        calls.clear()
        optimizer.load_state_dict(wrapped)
        assert calls == ["loading", "loaded"]
    assert optimizer.state[params[0]]["step"] == HALF + 100


def test_numbers_of_numpy_do_not_get_into_a_file() -> None:
    """A schedule computed with NumPy sets them; a file that has one cannot be loaded with weights_only=True."""
    params = [Parameter(torch.ones(2))]
    options = {"eta": np.float64(0.5), "lr": np.float32(0.25), "betas": (np.float64(0.5), 0.9), "seed": np.int64(3)}
    schedule = EtaSchedule(AdamS(params, **options), lambda step: np.exp(-step))
    schedule.step()
    wrapped = LossWeighted(torch.optim.SGD(params, lr=0.1), eta=np.float64(0.5))
    weigher = weigh(None, "ucb", eta=np.float64(0.5))
    for saved in (schedule.optimizer, schedule, wrapped, weigher):
        assert through_a_file(saved.state_dict())
    [group] = through_a_file(schedule.optimizer.state_dict())["param_groups"]
    assert (group["lr"], group["betas"], group["seed"]) == (0.25, (0.5, 0.9), 3)
    assert group["eta"] == pytest.approx(0.5 * math.exp(-1))


@pytest.mark.parametrize("wrap", [False, True])
def test_statistics_go_where_the_parameters_are(wrap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's GPUs have no float64, and Accelerate moves all of a state dict to the parameters' device."""
    params = [Parameter(torch.ones(2))]
    optimizer = LossWeighted(torch.optim.SGD(params, lr=0.1)) if wrap else AdamS(params)
    for loss in (1.0, 2.0):
        params[0].grad = torch.ones(2)
        optimizer.step(loss=loss)
    assert optimizer.state_dict()["param_groups"][0]["seen"].dtype == torch.float64
    monkeypatch.setattr("surefoot.optim.checkpoint.widest_float", lambda device: torch.float32)
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["seen"].dtype == torch.float32
    optimizer.load_state_dict(saved)
    optimizer.step(loss=1.5)
    assert float(optimizer.confidence()[0]["mean"]) == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("cls", [AdamS, MomentumUCB])
@pytest.mark.parametrize(
    ("state_dict", "what"),
    [({"weight": torch.ones(1)}, "a dict with the keys weight"), ({}, "a dict"), (None, "a NoneType"), ([], "a list")],
)
def test_what_is_not_an_optimizers_checkpoint(cls: type[LossAware], state_dict: Any, what: str) -> None:
    params, optimizer = ready(cls)
    before = everything(params, optimizer)
    with pytest.raises(ValueError, match=rf"has state and param_groups, this is {what}.*pass what {cls.__name__}"):
        optimizer.load_state_dict(state_dict)
    assert everything(params, optimizer) == before


def test_statistics_that_a_file_holds_as_plain_numbers_are_taken() -> None:
    params, optimizer = ready()
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        group["seen"] = group["seen"].tolist()
    again = AdamS([{"params": params[:1]}, {"params": params[1:]}])
    again.load_state_dict(saved)
    again.step(loss=1.5)
    assert again.confidence()[0]["mean"] > 1


def test_nadam_refuses_a_checkpoint_without_its_product() -> None:
    p = Parameter(torch.ones(1))
    for other in (torch.optim.Adam([p]), AdamUCB([p])):
        p.grad = torch.ones(1)
        other.step(**({"loss": 1.0} if isinstance(other, AdamUCB) else {}))
        with pytest.raises(ValueError, match="has no mu_product"):
            NAdamUCB([p]).load_state_dict(other.state_dict())


def test_an_eta_that_the_rule_has_no_meaning_for_is_refused_when_it_is_loaded() -> None:
    p = Parameter(torch.ones(1))
    saved = AdamUCB([p], eta=-0.1).state_dict()
    with pytest.raises(ValueError, match=r"Invalid eta value: -0\.1; the s rule takes"):
        AdamS([p]).load_state_dict(saved)


def stepped(cls: Any, **options: Any) -> Any:
    p = Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    optimizer = cls([p], **options)
    optimizer.step(loss=1.0)
    return optimizer


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_eta_of_another_rule_is_said(wrapped: bool) -> None:
    def make(cls: Any, rule: str) -> Any:
        if not wrapped:
            return stepped(cls)
        return stepped(lambda params: LossWeighted(torch.optim.SGD(params, lr=0.1), rule))

    saved = through_a_file(make(AdamS, "s").state_dict())
    optimizer = make(AdamUCB, "ucb")
    message = (
        f"the checkpoint is of the rule 's', and its eta=0.0001 now goes with the rule 'ucb' of "
        f"{type(optimizer).__name__}; to have another eta, set it in param_groups after loading (the default of 'ucb' "
        "is 0.01)"
    )
    with pytest.warns(UserWarning, match=re.escape(message)) as caught:
        optimizer.load_state_dict(saved)
    assert len(caught) == 1
    assert optimizer.param_groups[0]["eta"] == 1e-4
    assert "loss_rule" not in optimizer.param_groups[0]
    assert optimizer.state_dict()["param_groups"][0]["loss_rule"] == "ucb"


def test_nothing_is_said_of_the_same_rule_or_of_a_checkpoint_that_names_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved = stepped(AdamS).state_dict()
        stepped(AdamWS).load_state_dict(saved)
        for group in saved["param_groups"]:
            del group["loss_rule"]  # as older versions wrote them
        stepped(AdamUCB).load_state_dict(saved)
        stepped(AdamUCB).load_state_dict(torch.optim.Adam([Parameter(torch.ones(2))]).state_dict())


def with_statistics(saved: dict[str, Any], group: int, **values: float) -> dict[str, Any]:
    """A copy of a checkpoint with some of the loss statistics of a group replaced."""
    saved = copy.deepcopy(saved)
    for name, value in values.items():
        saved["param_groups"][group]["seen"][LossStats._fields.index(name)] = value
    return saved


DAMAGED_STATISTICS = [
    {"mean": math.nan}, {"mean": math.inf}, {"mean": -1e300}, {"std": math.nan}, {"std": 1e300}, {"std": -0.1},
    {"count": 0.5}, {"count": 1e300},
    {"count": -1.0}, {"count": math.nan}, {"count": math.inf}, {"best": math.nan}, {"best": -math.inf},
    {"best": math.inf}, {"skipped": -2.0}, {"skipped": math.nan}, {"skipped": 1e300},
]  # fmt: skip


@pytest.mark.parametrize("values", DAMAGED_STATISTICS, ids=str)
def test_damaged_loss_statistics_are_refused_with_their_name(values: dict[str, float]) -> None:
    [(name, value)] = values.items()
    params, optimizer = ready(AdamUCB, lr=0.25)
    saved = optimizer.state_dict()
    before = everything(params, optimizer)
    damaged = with_statistics(saved, 1, **values)
    damaged["param_groups"][0]["lr"] = 0.5
    with pytest.raises(ValueError, match=re.escape(f"loss statistics of group 1 have {name} = {value}, which no")):
        optimizer.load_state_dict(damaged)
    assert everything(params, optimizer) == before
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer.step(loss=1.5)
    optimizer.load_state_dict(saved)  # the sound one still loads
    assert everything(params, optimizer)[1:] == before[1:]


@pytest.mark.parametrize("values", DAMAGED_STATISTICS, ids=str)
def test_the_wrapper_and_weigh_refuse_them_too(values: dict[str, float]) -> None:
    [(name, value)] = values.items()
    p = Parameter(torch.ones(2))
    optimizer = LossWeighted(torch.optim.Adam([p], lr=0.25), "ucb")
    weigher = weigh(torch.optim.SGD([p], lr=0.1), "ucb")
    for loss in (1.0, 2.0):
        p.grad = torch.ones(2)
        optimizer.step(loss=loss)
        weigher((p * loss).sum()).backward()
        weigher.update()
    damaged = with_statistics(optimizer.state_dict(), 0, **values)
    damaged["param_groups"][0]["lr"] = 0.5
    before = str(optimizer.state_dict()), str(weigher.state_dict())
    with pytest.raises(ValueError, match=re.escape(f"statistics of group 0 have {name} = {value}")):
        optimizer.load_state_dict(damaged)
    seen = damaged["param_groups"][0]["seen"]
    with pytest.raises(ValueError, match=re.escape(f"statistics have {name} = {value}")):
        weigher.load_state_dict({"seen": seen, "eta": 0.5})
    assert (str(optimizer.state_dict()), str(weigher.state_dict())) == before


def test_statistics_of_a_run_at_its_limits_load() -> None:
    p = Parameter(torch.ones(2))
    optimizer = AdamUCB([p])
    optimizer.load_state_dict(optimizer.state_dict())  # before the first loss
    for loss in (1e19, -1e19, 1e19, math.nan, math.inf):
        p.grad = torch.ones(2)
        optimizer.step(loss=loss)
        for dtype in (torch.float64, torch.float32):
            saved = optimizer.state_dict()
            saved["param_groups"][0]["seen"] = saved["param_groups"][0]["seen"].to(dtype)
            optimizer.load_state_dict(saved)


@pytest.mark.parametrize(
    ("cls", "name", "value", "message"),
    [
        (AdamS, "step", "ten", "step for parameter 0 is a str, not a number: 'ten'"),
        (AdamS, "step", -1.0, "step for parameter 0 is -1, which no training reaches"),
        (AdamS, "step", math.nan, "step for parameter 0 is nan"),
        (AdamS, "step", torch.ones(2), "step for parameter 0 is a tensor of shape (2,)"),
        (AdamS, "weight_mean", math.nan, "weight_mean for parameter 0 is nan, which no training reaches"),
        (AdamS, "weight_mean", torch.tensor(-0.5), "weight_mean for parameter 0 is -0.5"),
        (AdamS, "weight_power", math.inf, "weight_power for parameter 0 is inf"),
        (AdamS, "weight_power", 1e300, "weight_power for parameter 0 is 1e+300"),
        (AdamS, "exp_avg", "text", "exp_avg for parameter 0 is a str, not a tensor"),
        (MomentumUCB, "weight_mean", 1e30, "weight_mean for parameter 0 is 1e+30"),
        (NAdamUCB, "mu_product", math.nan, "mu_product for parameter 0 is nan"),
        (NAdamUCB, "mu_product", 1.5, "mu_product for parameter 0 is 1.5"),
    ],
)
def test_damaged_state_is_refused_with_its_name(cls: type[LossAware], name: str, value: Any, message: str) -> None:
    params, optimizer = ready(cls, lr=0.25)
    damaged = copy.deepcopy(optimizer.state_dict())
    damaged["state"][0][name] = value
    damaged["param_groups"][0]["lr"] = 0.5
    before, state = everything(params, optimizer), optimizer.state[params[0]]
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.load_state_dict(damaged)
    assert everything(params, optimizer) == before
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.state[params[0]] is state
    optimizer.step(loss=1.0)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr", math.nan, "Invalid learning rate: nan"),
        ("betas", (2.0, 0.9), "Invalid beta parameter at index 0: 2.0"),
        ("eta", "much", "Invalid eta value: 'much'; it must be a number"),
        ("weighting", "heavy", "Invalid weighting value: 'heavy'"),
        ("seed", 1.5, "Invalid seed value: 1.5"),
    ],
)
def test_damaged_options_are_refused_at_load(option: str, value: Any, message: str) -> None:
    params, optimizer = ready(AdamS, lr=0.25)
    damaged = copy.deepcopy(optimizer.state_dict())
    damaged["param_groups"][1][option] = value
    before = everything(params, optimizer)
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.load_state_dict(damaged)
    assert everything(params, optimizer) == before
    optimizer.step(loss=1.0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"param_groups": None}, "param_groups are not a list of groups"),
        ({"param_groups": [{"lr": 1.0}]}, "a group in the checkpoint's param_groups has no list of params"),
        ({"state": [1, 2]}, "state is a list, not a dict"),
        ({"state": {0: 3.0}}, "state of parameter 0 is a float, not a dict"),
    ],
)
def test_damaged_structure_is_refused(damage: dict[str, Any], message: str) -> None:
    params, optimizer = ready()
    before = everything(params, optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict({**optimizer.state_dict(), **damage})
    assert everything(params, optimizer) == before


def test_a_base_that_fails_while_it_loads_stays_as_it_was() -> None:
    p = Parameter(torch.ones(2))
    optimizer = LossWeighted(torch.optim.Adam([p], lr=0.25), "ucb")
    p.grad = torch.ones(2)
    optimizer.step(loss=1.0)
    damaged = copy.deepcopy(optimizer.state_dict())
    damaged["state"][0]["step"] = {"ten": 10}  # Adam looks at it after it has replaced its groups
    damaged["param_groups"][0]["lr"] = 0.5
    before = str(optimizer.state_dict())
    with pytest.raises(TypeError):
        optimizer.load_state_dict(damaged)
    assert str(optimizer.state_dict()) == before


def test_a_hook_that_fails_after_loading_leaves_the_optimizer_as_it_was() -> None:
    params, optimizer = ready(AdamS, lr=0.25)
    other = copy.deepcopy(optimizer.state_dict())
    other["param_groups"][0]["lr"] = 0.5
    other["param_groups"][0]["seen"][1] = 7.0
    other["state"][0]["exp_avg"].fill_(3.0)

    def refuse(_: Any) -> None:
        raise RuntimeError("not this one")

    optimizer.register_load_state_dict_post_hook(refuse)
    before, state = everything(params, optimizer), optimizer.state[params[0]]
    with pytest.raises(RuntimeError, match="not this one"):
        optimizer.load_state_dict(other)
    assert everything(params, optimizer) == before
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.state[params[0]] is state
    optimizer.step(loss=1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300, "text", None, [1.0, 2.0]], ids=str)
def test_a_damaged_mean_square_of_weights_is_refused_with_its_name(value: Any) -> None:
    p = torch.zeros(2, requires_grad=True)
    optimizer = AdamS([p])
    for loss in (1.0, 2.0, 1.5):
        p.grad = torch.ones(2)
        optimizer.step(loss=loss)
    saved = optimizer.state_dict()
    before = optimizer.param_groups[0]["gain_power"].clone()
    assert before > 0
    saved["param_groups"][0]["gain_power"] = torch.tensor([value]) if isinstance(value, float) else value
    with pytest.raises(ValueError, match=r"gain_power of group 0 is .* damaged"):
        optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.param_groups[0]["gain_power"], before)
    saved["param_groups"][0]["gain_power"] = before.tolist()  # as a file may hold it
    optimizer.load_state_dict(saved)
    assert torch.equal(optimizer.param_groups[0]["gain_power"], before)
