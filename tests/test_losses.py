"""How the loss gets in: which way wins, what is accepted, and what is left behind (nothing)."""

from __future__ import annotations

import math
import re
import warnings
import weakref
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import pytorch_optimizer
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from torch import Tensor
from torch.distributed.checkpoint.state_dict import _init_optim_state, get_optimizer_state_dict
from torch.nn import Parameter

from surefoot import AdamCB, AdamS, LossAware, LossWeighted, MomentumUCB, weigh
from surefoot.optim.named import OPTIMIZERS
from surefoot.statistics import no_statistics
from warm import everything, ready


def make(cls: type[LossAware] = AdamCB, **options: Any) -> tuple[Tensor, LossAware]:
    p = Parameter(torch.tensor([1.0, -2.0, 3.0]))
    p.grad = torch.tensor([0.5, 1.0, -1.0])
    return p, cls([p], **options)


def mean_of(optimizer: LossAware) -> float:
    return float(optimizer.confidence()[0]["mean"])


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    "loss",
    [
        *(3, 3.0, True + 2, Fraction(3), np.float32(3), np.array(3.0), np.array([3.0])),
        *(torch.tensor(3), torch.tensor(3.0), torch.tensor([3.0]), torch.tensor([[3.0]])),
        *(torch.tensor(3.0, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int64)),
        torch.tensor(3.0, requires_grad=True),
    ],
    ids=lambda x: f"{type(x).__name__} {getattr(x, 'dtype', '')} {tuple(getattr(x, 'shape', ()))}",
)
def test_any_single_number_is_a_loss(loss: Any, capturable: bool) -> None:
    ends = []
    for hand_over in (
        lambda optimizer: optimizer.step(loss=loss),
        lambda optimizer: optimizer.step(lambda: loss),
        lambda optimizer: (optimizer.record_loss(loss), optimizer.step()),
    ):
        p, optimizer = make(capturable=capturable)
        optimizer.step(loss=1.0)
        hand_over(optimizer)
        ends.append(p.detach())
        assert mean_of(optimizer) == pytest.approx((0.9 * 1.0 + 3.0) / 1.9)
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_a_given_loss_wins_over_recorded_ones_and_those_over_the_closure() -> None:
    _, optimizer = make()
    optimizer.record_loss(5.0)
    assert optimizer.step(lambda: 7.0, loss=3.0) == 7.0
    assert mean_of(optimizer) == 3.0
    _, optimizer = make()
    optimizer.record_loss(5.0)
    assert optimizer.step(lambda: 7.0) == 7.0
    assert mean_of(optimizer) == 5.0
    _, optimizer = make()
    assert optimizer.step(lambda: 7.0) == 7.0
    assert mean_of(optimizer) == 7.0
    assert optimizer.step(loss=7.0) is None


def test_a_closure_runs_once_with_gradients_enabled() -> None:
    p, optimizer = make(AdamS)
    calls = []

    def closure() -> Tensor:
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        returned = optimizer.step(closure)
    assert calls == [True]
    assert isinstance(returned, Tensor)
    assert mean_of(optimizer) == returned.item() == 14.0
    assert torch.equal(p.grad, torch.tensor([2.0, -4.0, 6.0]))


@pytest.mark.parametrize("capturable", [False, True])
def test_micro_batches_are_averaged_by_their_share(capturable: bool) -> None:
    _, optimizer = make(capturable=capturable)
    for loss, weight in [(torch.tensor(1.0), 3), (torch.tensor(5.0), 1), (2.0, 0.5)]:
        optimizer.record_loss(loss, weight)
    optimizer.step()
    assert mean_of(optimizer) == pytest.approx((3 * 1.0 + 5.0 + 0.5 * 2.0) / 4.5)
    with pytest.raises(RuntimeError, match="got no loss"):  # nothing was left behind
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_many_half_precision_losses_add_up(dtype: torch.dtype) -> None:
    _, optimizer = make()
    for _ in range(300):
        optimizer.record_loss(torch.tensor(1.5, dtype=dtype), weight=1000)  # half precision ends at 65504
    optimizer.step()
    assert mean_of(optimizer) == 1.5


def test_a_recorded_loss_that_is_not_finite_skips_the_step() -> None:
    p, optimizer = make()
    before = p.detach().clone()
    optimizer.record_loss(1.0)
    optimizer.record_loss(torch.tensor(float("nan")))
    optimizer.step()
    assert torch.equal(p.detach(), before)
    assert optimizer.confidence()[0]["skipped"] == 1
    optimizer.record_loss(2.0)
    optimizer.step()
    assert mean_of(optimizer) == 2.0


def test_zero_grad_opens_a_new_window() -> None:
    _, optimizer = make()
    optimizer.zero_grad(set_to_none=False)
    optimizer.record_loss(100.0)  # its step never comes
    optimizer.zero_grad(set_to_none=False)
    optimizer.record_loss(2.0)
    optimizer.record_loss(4.0)
    optimizer.step()
    assert mean_of(optimizer) == 3.0


def test_a_loss_may_be_recorded_before_the_gradients_are_cleared() -> None:
    p, optimizer = make()
    for _ in range(2):  # the first step never comes, as on an overflow
        loss = (p * p).sum()
        optimizer.record_loss(loss)
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    assert mean_of(optimizer) == 14.0
    loss = (p * p).sum()
    optimizer.record_loss(loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert mean_of(optimizer) == pytest.approx((0.9 * 14.0 + loss.item()) / 1.9)


def test_clearing_twice_keeps_nothing_from_before() -> None:
    p, optimizer = make()
    optimizer.record_loss(100.0)
    optimizer.zero_grad()
    optimizer.zero_grad()
    p.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="got no loss"):
        optimizer.step()


def test_recorded_losses_can_be_forgotten() -> None:
    _, optimizer = make()
    optimizer.record_loss(100.0)
    optimizer.forget_losses()
    optimizer.record_loss(2.0)
    optimizer.step()
    assert mean_of(optimizer) == 2.0


@pytest.mark.parametrize("capturable", [False, True])
def test_no_graph_is_kept_alive(capturable: bool) -> None:
    p, optimizer = make(capturable=capturable)
    for hand_over in ("step", "record", "closure"):
        hidden = p * 2.0
        loss = hidden.sum()
        graph = weakref.ref(hidden)
        if hand_over == "step":
            optimizer.step(loss=loss)
        elif hand_over == "record":
            optimizer.record_loss(loss)
        else:
            optimizer.step(lambda loss=loss: loss)
        del hidden, loss
        assert graph() is None
        assert not optimizer.param_groups[0]["seen"].requires_grad


def test_what_is_maximized_is_read_as_its_negative() -> None:
    p, up = make(MomentumUCB, eta=0.5, maximize=True)
    q, down = make(MomentumUCB, eta=0.5)
    q.grad = -q.grad
    for loss in (1.0, 2.0, 0.5, 3.0):
        up.step(loss=loss)
        down.step(loss=-loss)
    assert torch.equal(p, q)
    assert mean_of(up) == mean_of(down) < 0
    assert up.confidence()[0]["weight"] == down.confidence()[0]["weight"]


def test_confidence_is_a_copy_with_one_dict_per_group() -> None:
    params = [Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = AdamS([{"params": [params[0]]}, {"params": [params[1]], "loss_beta": 0.5}])
    for loss in (1.0, 2.0):
        for p in params:
            p.grad = torch.ones(2)
        optimizer.step(loss=loss)
    first, second = before = optimizer.confidence()
    assert set(first) == {"mean", "std", "z", "tilt", "weight", "skipped"}
    assert first["mean"] < second["mean"]
    copied = [{name: float(value) for name, value in stats.items()} for stats in before]
    optimizer.step(loss=9.0)
    assert copied == [{name: float(value) for name, value in stats.items()} for stats in before]


@pytest.mark.parametrize("lr", [1e-3, torch.tensor(1e-3)])
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("cls", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_distributed_checkpointing_may_create_state(cls: type[LossAware], capturable: bool, lr: Any) -> None:
    def start() -> tuple[Tensor, LossAware]:
        p = Parameter(torch.tensor([1.0, -2.0]))
        return p, cls([p], lr=lr, weight_decay=0.1, capturable=capturable)

    p, optimizer = start()
    _init_optim_state(optimizer)
    assert torch.equal(p.detach(), torch.tensor([1.0, -2.0]))
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(1e-3)
    assert torch.equal(optimizer.param_groups[0]["seen"], no_statistics())
    state = optimizer.state[p]
    assert {name for name, x in state.items() if x.shape == p.shape} == set(
        cls.engine.state_names(optimizer.param_groups[0])
    )
    assert state["step"] == 0
    assert not any(x.any() for x in state.values() if x.shape == p.shape)
    # Training goes on from there as if nothing had happened.
    q, plain = start()
    for loss in (2.0, 1.0, 3.0):
        for x, stepped in ((p, optimizer), (q, plain)):
            x.grad = torch.tensor([0.5, 1.0])
            stepped.step(loss=loss)
    assert torch.equal(p, q)


def test_the_checkpoint_of_an_optimizer_that_never_stepped() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = AdamS(model.parameters())
    saved = get_optimizer_state_dict(model, optimizer)
    assert set(saved["state"]) == {"weight", "bias"}
    assert all(p.grad is None for p in model.parameters())


def test_only_that_call_may_come_without_a_loss() -> None:
    p, optimizer = make(lr=0.0)
    with pytest.raises(RuntimeError, match="got no loss"):  # gradients that are not zero
        optimizer.step()
    p.grad.zero_()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(RuntimeError, match="got no loss"):
        optimizer.step()
    # A closure that left its batch out gives neither a loss nor a gradient.
    p.grad = None
    assert optimizer.step(lambda: None) is None
    assert torch.equal(optimizer.param_groups[0]["seen"], no_statistics())


@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        (torch.ones(3), ValueError, "AdamS needs one number as the loss, but the tensor has 3 elements (shape (3,))"),
        (torch.ones(0), ValueError, "AdamS needs one number as the loss, but the tensor is empty (shape (0,))"),
        (torch.tensor(1j), ValueError, "AdamS needs a real loss, but got torch.complex64"),
        ("2.5", TypeError, "AdamS needs the loss as a number or a tensor with one element, but got str: '2.5'"),
        ([1.0], TypeError, "but got list: [1.0]"),
        (1j, TypeError, "but got complex: 1j"),
        (np.complex64(1 + 2j), ValueError, "AdamS needs a real loss, but got np.complex64(1+2j)"),
        (np.array(1 + 2j), ValueError, "AdamS needs a real loss, but got array(1.+2.j)"),
        (10**400, TypeError, "but got int: 1000"),
        pytest.param(10**5000, TypeError, "but got int: an integer of 16610 bits", id="10**5000"),
        ({"loss": 1.0}, TypeError, "but got dict"),
    ],
)
def test_what_is_not_a_loss(loss: Any, kind: type[Exception], message: str) -> None:
    params, optimizer = ready()
    before = everything(params, optimizer)
    for hand_over in (
        lambda: optimizer.step(loss=loss),
        lambda: optimizer.step(lambda: loss),
        lambda: optimizer.record_loss(loss),
    ):
        with pytest.raises(kind, match=re.escape(message)):
            hand_over()
    assert everything(params, optimizer) == before


@pytest.mark.parametrize("loss", [1.0, torch.tensor(1.0)])
def test_a_positional_loss_is_refused_with_the_way_to_pass_it(loss: Any) -> None:
    params, optimizer = ready()
    before = everything(params, optimizer)
    wrapped = LossWeighted(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    for stepped in (optimizer, wrapped):
        message = f"{type(stepped).__name__}.step() takes the loss by name, but got {type(loss).__name__}"
        with pytest.raises(TypeError, match=re.escape(message) + r".*write step\(loss=loss\)"):
            stepped.step(loss)
    assert everything(params, optimizer) == before


def test_a_missing_loss_names_the_three_ways() -> None:
    params, optimizer = ready()
    before = everything(params, optimizer)
    for hand_over in (lambda: optimizer.step(), lambda: optimizer.step(lambda: None)):
        with pytest.raises(RuntimeError, match=r"AdamS.step\(\) got no loss.*step\(loss=loss\).*closure.*record_loss"):
            hand_over()
    assert everything(params, optimizer) == before


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, "3", None])
def test_a_micro_batch_needs_a_positive_share(weight: Any) -> None:
    _, optimizer = ready()
    with pytest.raises(ValueError, match=re.escape(f"positive, finite weight, but got {weight!r}")):
        optimizer.record_loss(1.0, weight)
    with pytest.raises(RuntimeError, match="got no loss"):
        optimizer.step()


@pytest.mark.parametrize(
    ("weight", "shown"),
    [(10**400, "1000"), (10**5000, "an integer of 16610 bits"), (1j, "1j"), (np.complex128(2), "np.complex128(2+0j)")],
    ids=["10**400", "10**5000", "complex", "NumPy complex"],
)
def test_a_share_that_no_float_can_hold(weight: Any, shown: str) -> None:
    _, optimizer = ready()
    with pytest.raises(ValueError, match="record_loss needs a positive, finite weight, but got " + re.escape(shown)):
        optimizer.record_loss(1.0, weight)
    weigher = weigh(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    with pytest.raises(ValueError, match="weigh needs a positive, finite share, but got " + re.escape(shown)):
        weigher(torch.ones(1, requires_grad=True).sum(), weight)


# -- wrappers of others, whose step takes no loss --------------------------------------------------------------------


def accelerate(model: Any, optimizer: Any) -> Any:
    return Accelerator(cpu=True).prepare(optimizer)


def fabric(model: Any, optimizer: Any) -> Any:
    return Fabric(accelerator="cpu", devices=1).setup(model, optimizer)[1]


def lookahead(model: Any, optimizer: Any) -> Any:
    return pytorch_optimizer.Lookahead(optimizer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [accelerate, fabric, lookahead])
def test_the_error_inside_a_wrapper_names_record_loss_and_that_works(wrap: Any) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = AdamS(model.parameters(), lr=0.1)
    wrapper = wrap(model, optimizer)
    loss = model(torch.ones(4, 3)).pow(2).mean()
    loss.backward()
    with pytest.raises(TypeError, match="unexpected keyword argument 'loss'"):
        wrapper.step(loss=loss)  # the wrapper's own words; then one tries it without
    name = wrap.__name__.title()
    message = rf"got no loss: .*\(.*{name}.*\) call record_loss\(loss\) on this optimizer"
    with pytest.raises(RuntimeError, match=message):
        wrapper.step()
    optimizer.record_loss(loss)
    wrapper.step()
    assert optimizer.confidence()[0]["mean"] == loss.item()


def test_the_error_inside_sam_names_record_loss_and_that_works() -> None:
    model = torch.nn.Linear(3, 1)
    sam = pytorch_optimizer.SAM(model.parameters(), AdamS, lr=0.1)
    records = False

    def closure() -> Tensor:
        sam.zero_grad()
        loss = model(torch.ones(4, 3)).pow(2).mean()
        if records:
            sam.base_optimizer.record_loss(loss)
        loss.backward()
        return loss

    closure()
    with pytest.raises(RuntimeError, match=r"got no loss: .*SAM\) call record_loss\(loss\) on this optimizer"):
        sam.step(closure)
    records = True
    closure()
    sam.step(closure)
    assert sam.base_optimizer.confidence()[0]["mean"] > 0


def closures(p: Parameter, optimizer: LossAware) -> dict[str, Any]:
    """Closures after a backward pass, by what they do with its gradients."""

    def backward() -> Tensor:
        loss = p.pow(2).sum()
        loss.backward()
        return loss

    def clear(how: Any) -> Any:
        return lambda: (how(), backward())[1]

    return {
        "adds": backward,
        "clears": clear(optimizer.zero_grad),
        "clears in place": clear(lambda: optimizer.zero_grad(set_to_none=False)),
        "clears on the model": clear(lambda: setattr(p, "grad", None)),
        "only returns": lambda: 3.0,
        "records": clear(lambda: optimizer.record_loss(2.0)),
    }


@pytest.mark.parametrize("name", closures(*make(AdamS)))
def test_a_closure_whose_loss_is_not_that_of_all_gradients_is_noticed_once(name: str) -> None:
    p, optimizer = make(AdamS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.step(closures(p, optimizer)[name])
            optimizer.step(closures(p, optimizer)["adds"], loss=1.0)  # the loss is given
    messages = [str(warning.message) for warning in caught if "added its gradients" in str(warning.message)]
    assert len(messages) == (name == "adds")
