"""Bad input: one clear sentence with the value in it, and nothing changed; or a step that is skipped and counted."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.testing._internal import common_optimizers

from surefoot import AdamS, AdamUCB, LossAware, LossWeighted, MomentumUCB, NAdamUCB
from surefoot.optim.named import OPTIMIZERS

CLASSES = list(OPTIMIZERS.values())
CLASS = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
DEVICE = pytest.mark.parametrize("capturable", [False, True])
SWITCHES = ("amsgrad", "maximize", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")


def ready(cls: type[LossAware] = AdamS, **options: Any) -> tuple[list[Tensor], LossAware]:
    """An optimizer after two ordinary steps, with gradients for the next."""
    params = [Parameter(torch.tensor([1.0, -2.0])), Parameter(torch.ones(3))]
    optimizer = cls([{"params": params[:1]}, {"params": params[1:]}], **options)
    for loss in (1.0, 2.0):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step(loss=loss)
    return params, optimizer


def everything(params: list[Tensor], optimizer: LossAware) -> list[Any]:
    """Parameters, state and statistics, as they are now."""
    state = [sorted((k, v.tolist()) for k, v in optimizer.state[p].items()) for p in params]
    seen = [group["seen"].tolist() for group in optimizer.param_groups]
    return [[p.tolist() for p in params], state, seen]


# PyTorch refuses tensors for lr and betas on some of its paths; here they work on all of them.
SUPPORTED_HERE = ("lr as a Tensor is not supported", "as a Tensor is not supported", "both floats or both Tensors")


@CLASS
def test_what_torch_refuses_is_refused(cls: type[LossAware]) -> None:
    name = {"momentum": "sgd"}.get(cls.engine.name, cls.engine.name)
    errors = getattr(common_optimizers, f"optim_error_inputs_func_{name}")("cpu", torch.float32)
    kept = [one for one in errors if not any(words in one.error_regex for words in SUPPORTED_HERE)]
    assert len(kept) >= 7
    for one in kept:
        given = one.optimizer_error_input
        params = given.params if given.params is not None else [torch.zeros(1, requires_grad=True)]
        kind, regex = one.error_type, one.error_regex
        if issubclass(kind, Warning):
            with pytest.warns(kind, match=regex):
                cls(params, **given.kwargs)
        else:
            with pytest.raises(kind, match=regex):
                cls(params, **given.kwargs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"lr": math.nan}, "Invalid learning rate: nan"),
        ({"lr": math.inf}, "Invalid learning rate: inf"),
        ({"lr": torch.tensor(-1.0)}, "Invalid learning rate: -1.0"),
        ({"lr": "fast"}, "Invalid learning rate: 'fast'; it must be a number, not str"),
        ({"eta": "0.1"}, "Invalid eta value: '0.1'; it must be a number, not str"),
        ({"eta": torch.ones(2)}, "Invalid eta value: a tensor of shape (2,); it must be one number"),
        ({"betas": (None, 0.9)}, "Invalid betas value: None; it must be a number, not NoneType"),
        ({"betas": ("0.9", 0.9)}, "Invalid betas value: '0.9'; it must be a number, not str"),
        ({"weight_decay": math.inf}, "Invalid weight_decay value: inf; it must be finite and not negative"),
        ({"eps": math.inf}, "Invalid eps value: inf; it must be finite and not negative"),
        *(({name: "no"}, f"Invalid {name} value: 'no'; it must be True or False") for name in SWITCHES),
        ({"weight_decay": None}, "Invalid weight_decay value: None; it must be a number, not NoneType"),
        ({"lr": torch.ones(2)}, "Tensor lr must be 1-element, but has shape (2,)"),
        ({"eps": -1e-8}, "Invalid eps value: -1e-08"),
        ({"eps": math.nan}, "Invalid eps value: nan"),
        ({"weight_decay": -0.1}, "Invalid weight_decay value: -0.1"),
        ({"betas": (1.0, 0.999)}, "Invalid beta parameter at index 0: 1.0"),
        ({"betas": (0.9, -0.1)}, "Invalid beta parameter at index 1: -0.1"),
        ({"betas": (0.9, math.nan)}, "Invalid beta parameter at index 1: nan"),
        ({"betas": 0.9}, "Invalid betas value: 0.9; give two decay rates"),
        ({"betas": (0.9,)}, "Invalid betas value: (0.9,); give two decay rates"),
        ({"loss_beta": 1.0}, "Invalid loss_beta value: 1.0"),
        ({"eta": math.nan}, "Invalid eta value: nan"),
        ({"weighting": "none"}, "Invalid weighting value: 'none'; take one of 'paper', 'unit'"),
        ({"nonfinite": "ignore"}, "Invalid nonfinite value: 'ignore'; take one of 'skip', 'raise'"),
        ({"seed": 1.5}, "Invalid seed value: 1.5; it must be an integer"),
    ],
)
def test_hyper_parameters_without_meaning(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        AdamUCB([torch.zeros(1)], **options)
    params, optimizer = ready(AdamUCB)
    before = everything(params, optimizer)
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.add_param_group({"params": [torch.zeros(1)], **options})
    assert len(optimizer.param_groups) == 2
    assert everything(params, optimizer) == before


def test_numbers_of_other_kinds_will_do() -> None:
    p = Parameter(torch.ones(1))
    p.grad = torch.ones(1)
    optimizer = AdamS([p], eta=np.float32(0.1), seed=np.int64(3), amsgrad=0, betas=(torch.tensor(0.9), np.float64(0.9)))
    optimizer.step(loss=1.0)
    assert p.item() < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": None}, "Invalid eta value: None; it must be a number, not NoneType"),
        ({"eta": torch.ones(2)}, "Invalid eta value: a tensor of shape (2,); it must be one number"),
        ({"betas": (1.0, 0.999)}, "Invalid beta parameter at index 0: 1.0"),
        ({"weighting": "unite"}, "Invalid weighting value: 'unite'; take one of 'paper', 'unit'"),
        ({"maximize": "no"}, "Invalid maximize value: 'no'; it must be True or False"),
    ],
)
def test_settings_changed_between_steps_are_checked_before_anything_moves(
    options: dict[str, Any], message: str
) -> None:
    params, optimizer = ready(AdamUCB)
    optimizer.step(loss=0.9)
    before = everything(params, optimizer)[:2]
    good = {name: optimizer.param_groups[1][name] for name in options}
    optimizer.param_groups[1].update(options)
    optimizer.record_loss(0.5)
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.step()
    assert everything(params, optimizer)[:2] == before
    optimizer.param_groups[1].update(good)
    count = optimizer.param_groups[0]["seen"][0].item()
    optimizer.step()  # what was recorded is still there
    assert optimizer.param_groups[0]["seen"][0] == count + 1


@DEVICE
@pytest.mark.parametrize("nonfinite", ["skip", "raise"])
def test_a_weight_that_one_group_cannot_bear_stops_the_step_of_all(nonfinite: str, capturable: bool) -> None:
    params, optimizer = ready(AdamUCB, nonfinite=nonfinite, capturable=capturable)
    before = everything(params, optimizer)
    optimizer.param_groups[1]["eta"] = 1e300
    if nonfinite == "raise":
        with pytest.raises(FloatingPointError, match=r"weights the gradient by .*nothing was changed"):
            optimizer.step(loss=5.0)
        optimizer.param_groups[1]["eta"] = optimizer.param_groups[0]["eta"]
        assert everything(params, optimizer) == before
        return
    optimizer.step(loss=5.0)
    assert everything(params, optimizer)[0] == before[0]
    assert [seen["skipped"].item() for seen in optimizer.confidence()] == [1, 1]


def test_momentum_without_meaning() -> None:
    with pytest.raises(ValueError, match=r"Invalid momentum value: 1\.0"):
        MomentumUCB([torch.zeros(1)], momentum=1.0)
    with pytest.raises(ValueError, match=r"Invalid momentum_decay value: -1"):
        NAdamUCB([torch.zeros(1)], momentum_decay=-1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fused": True, "foreach": True}, "`fused` and `foreach` cannot be `True` together"),
        ({"fused": True, "differentiable": True}, "`fused` does not support `differentiable`"),
    ],
)
def test_paths_that_exclude_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        AdamUCB([torch.zeros(1)], **options)


@pytest.mark.parametrize("param", [torch.zeros(1, dtype=torch.complex64), torch.zeros(1, device="meta")])
def test_what_the_fused_kernel_cannot_take(param: Tensor) -> None:
    message = f"fused=True requires .* got {param.dtype} on {param.device.type}; leave fused out"
    with pytest.raises(RuntimeError, match=message):
        AdamUCB([param], fused=True)
    params, optimizer = ready(AdamUCB, fused=True)
    with pytest.raises(RuntimeError, match=message):
        optimizer.add_param_group({"params": [param]})
    assert len(optimizer.param_groups) == 2
    optimizer.step(loss=1.0)
    assert optimizer.state[params[0]]["step"] == 3


def test_an_engine_without_fused_kernel() -> None:
    with pytest.raises(ValueError, match="fused=True is not available for the nadam engine"):
        NAdamUCB([{"params": [torch.zeros(1)], "fused": True}])


@DEVICE
@CLASS
def test_a_loss_that_is_not_finite_is_skipped_and_counted(cls: type[LossAware], capturable: bool) -> None:
    params, optimizer = ready(cls, capturable=capturable, weight_decay=0.1)
    before = everything(params, optimizer)
    for count, loss in enumerate([math.nan, math.inf, -math.inf, torch.tensor(math.nan)], start=1):
        optimizer.step(loss=loss)
        after = everything(params, optimizer)
        assert [seen["skipped"].item() for seen in optimizer.confidence()] == [count, count]
        for seen in after[2]:
            seen[4] = 0.0
        assert after == before
    optimizer.step(loss=1.5)
    assert [seen["skipped"].item() for seen in optimizer.confidence()] == [4, 4]
    assert everything(params, optimizer)[0] != before[0]


@DEVICE
@CLASS
def test_a_first_loss_that_is_not_finite_changes_nothing(cls: type[LossAware], capturable: bool) -> None:
    def two_steps(first: float | None) -> tuple[list[Any], float]:
        p = Parameter(torch.tensor([1.0, -2.0]))
        optimizer = cls([p], capturable=capturable)
        for loss in ([] if first is None else [first]) + [1.0, 2.0]:
            p.grad = torch.ones(2)
            optimizer.step(loss=loss)
        return everything([p], optimizer)[:2], optimizer.confidence()[0]["skipped"].item()

    clean, skipped = two_steps(None), two_steps(math.inf)
    assert clean[0] == skipped[0]
    assert (clean[1], skipped[1]) == (0, 1)


@DEVICE
def test_nonfinite_may_raise_instead(capturable: bool) -> None:
    params, optimizer = ready(nonfinite="raise", capturable=capturable)
    before = everything(params, optimizer)
    with pytest.raises(FloatingPointError, match="AdamS: the loss is nan, and nonfinite='raise' was asked for"):
        optimizer.step(loss=torch.tensor(math.nan))
    assert everything(params, optimizer) == before


@DEVICE
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gradients_are_looked_at_when_asked(value: float, capturable: bool) -> None:
    params, optimizer = ready(check_gradients=True, capturable=capturable)
    before = everything(params, optimizer)
    params[1].grad = torch.tensor([1.0, value, 1.0])  # the second group's: the first must not move either
    optimizer.step(loss=1.0)
    after = everything(params, optimizer)
    assert after[:2] == before[:2]
    assert [seen["skipped"].item() for seen in optimizer.confidence()] == [1, 1]
    for group in optimizer.param_groups:
        group["nonfinite"] = "raise"
    with pytest.raises(FloatingPointError, match="a gradient is not finite"):
        optimizer.step(loss=1.0)
    assert everything(params, optimizer)[:2] == before[:2]


@DEVICE
@pytest.mark.parametrize(
    ("dtype", "large"),  # their sum does not fit into the dtype
    [(torch.float16, 1e3), (torch.bfloat16, 3e38), (torch.float32, 3e38), (torch.complex64, 3e38)],
)
def test_large_finite_gradients_are_finite(dtype: torch.dtype, large: float, capturable: bool) -> None:
    p = Parameter(torch.zeros(200, dtype=dtype))
    p.grad = torch.full_like(p, large)
    optimizer = AdamS([p], check_gradients=True, capturable=capturable)
    optimizer.step(loss=1.0)
    assert optimizer.confidence()[0]["skipped"] == 0


@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        (torch.ones(3), ValueError, "AdamS needs one number as the loss, but the tensor has 3 elements (shape (3,))"),
        (torch.ones(0), ValueError, "AdamS needs one number as the loss, but the tensor is empty (shape (0,))"),
        (torch.tensor(1j), ValueError, "AdamS needs a real loss, but got torch.complex64"),
        ("2.5", TypeError, "AdamS needs the loss as a number or a tensor with one element, but got str: '2.5'"),
        ([1.0], TypeError, "but got list: [1.0]"),
        (1j, TypeError, "but got complex: 1j"),
        (10**400, TypeError, "but got int: 1000"),
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
def test_a_loss_without_its_name_is_told_how_to_get_in(loss: Any) -> None:
    params, optimizer = ready()
    before = everything(params, optimizer)
    wrapped = LossWeighted(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    for one in (optimizer, wrapped):
        message = f"{type(one).__name__}.step() takes the loss by name, but got {type(loss).__name__}"
        with pytest.raises(TypeError, match=re.escape(message) + r".*write step\(loss=loss\)"):
            one.step(loss)
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


@DEVICE
@CLASS
def test_sparse_gradients_are_refused_before_anything_moves(cls: type[LossAware], capturable: bool) -> None:
    params, optimizer = ready(cls, capturable=capturable)
    before = everything(params, optimizer)
    params[1].grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match=rf"{cls.__name__} does not support sparse gradients .* shape \(3,\)"):
        optimizer.step(loss=1.0)
    assert everything(params, optimizer) == before


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


def test_a_base_without_a_learning_rate_is_told_the_three_ways_too() -> None:
    """As Adafactor of Transformers, which finds its own rate."""
    weight = torch.nn.Parameter(torch.ones(2))
    base = torch.optim.SGD([weight], lr=0.1)
    base.param_groups[0]["lr"] = None
    weight.grad = torch.ones(2)
    with pytest.raises(RuntimeError, match="got no loss"):
        LossWeighted(base).step()
