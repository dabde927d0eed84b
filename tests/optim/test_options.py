"""Options that have no meaning are refused with one clear sentence, and nothing is changed."""

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

from surefoot import AdamS, AdamUCB, AdamWS, LossAware, MomentumUCB, NAdamUCB
from surefoot.optim.named import OPTIMIZERS
from warm import everything, ready

CLASSES = list(OPTIMIZERS.values())


CLASS = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


SWITCHES = ("amsgrad", "maximize", "foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")


# PyTorch refuses tensors for lr and betas on some of its paths; here they work on all of them.
SUPPORTED_HERE = ("lr as a Tensor is not supported", "as a Tensor is not supported", "both floats or both Tensors")


@CLASS
def test_what_torch_refuses_is_refused(cls: type[LossAware]) -> None:
    name = {"momentum": "sgd"}.get(cls.engine.name, cls.engine.name)
    errors = getattr(common_optimizers, f"optim_error_inputs_func_{name}")("cpu", torch.float32)
    kept = [error for error in errors if not any(words in error.error_regex for words in SUPPORTED_HERE)]
    assert len(kept) >= 7
    for error in kept:
        given = error.optimizer_error_input
        params = given.params if given.params is not None else [torch.zeros(1, requires_grad=True)]
        kind, regex = error.error_type, error.error_regex
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
    for betas in [(torch.tensor(0.9), torch.tensor([0.9])), (0, np.float64(0.9))]:
        p = Parameter(torch.ones(1))
        p.grad = torch.ones(1)
        optimizer = AdamS([p], eta=np.float32(0.1), seed=np.int64(3), amsgrad=0, betas=betas)
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
    message = f"fused=True` requires .* got {param.dtype} on {param.device.type}; leave fused out"
    params, optimizer = ready(AdamUCB, fused=True)
    optimizer.add_param_group({"params": [param]})
    optimizer.step(loss=1.0)  # without a gradient it does no harm
    assert optimizer.state[params[0]]["step"] == 3
    param.grad = torch.zeros_like(param)
    before = everything(params, optimizer)
    with pytest.raises(RuntimeError, match=message):
        optimizer.step(loss=1.0)
    assert everything(params, optimizer) == before


def test_an_engine_without_fused_kernel() -> None:
    with pytest.raises(ValueError, match="fused=True is not available for the nadam engine"):
        NAdamUCB([{"params": [torch.zeros(1)], "fused": True}])


@pytest.mark.parametrize(("name", "pair"), [("betas", [0.9, 0.999]), ("gain", [0.3, 1.5])])
def test_a_list_that_is_changed_in_place_later_changes_nothing(name: str, pair: list[float]) -> None:
    p = Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    optimizer = AdamUCB([p], **{name: pair})
    kept = tuple(pair)
    optimizer.step(loss=1.0)
    pair[0] = 2.0
    assert optimizer.param_groups[0][name] == kept
    optimizer.param_groups[0][name] = later = list(kept)
    optimizer.step(loss=1.5)
    later[0] = 2.0
    optimizer.step(loss=1.2)
    assert optimizer.param_groups[0][name] == kept


def test_an_option_that_is_not_there_is_refused_by_the_name_of_the_class() -> None:
    with pytest.raises(TypeError, match=r"AdamWS\(\) got an unexpected keyword argument 'momentum'.*help\(AdamWS\)"):
        AdamWS([Parameter(torch.zeros(1))], momentum=0.9)
