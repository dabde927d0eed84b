"""The checks that PyTorch runs over its own optimizers, over ours, with PyTorch's own inputs where it has them."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal import common_optimizers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import surefoot
from surefoot import LossAware
from surefoot.optim.named import OPTIMIZERS

CLASSES = list(OPTIMIZERS.values())
CLASS = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
LOSSES = [2.0, 1.5, 2.5, 0.3, 1.1, 3.0, 0.9]


def inputs_of(cls: type[LossAware]) -> list[dict[str, Any]]:
    """The settings torch tries on the plain optimizer, with those it reserves for accelerators."""
    name = cls.engine.name
    if name == "momentum":
        plain = [{}, {"lr": 0.01}, {"weight_decay": 0.1, "maximize": True}, {"nesterov": True}, {"momentum": 0.0}]
        return [*plain, {"capturable": True}, {"lr": torch.tensor(0.001), "nesterov": True, "capturable": True}]
    make = getattr(common_optimizers, f"optim_inputs_func_{name}")
    return [inputs.kwargs for inputs in make(device="cuda")] + [{"weighting": "unit", "eta": 0.3}]


def paths_of(cls: type[LossAware]) -> list[dict[str, Any]]:
    return [{"foreach": True}, {}] + ([{"fused": True}] if cls.engine.has_fused else [])


def train(
    cls: type[LossAware], options: dict[str, Any], dtype: torch.dtype = torch.float64, steps: int = len(LOSSES)
) -> tuple[list[Tensor], LossAware]:
    """Seven steps over parameters of several shapes, one of which gets its gradients now and then."""
    generator = torch.Generator().manual_seed(5)
    params = [Parameter(torch.randn(shape, dtype=dtype, generator=generator)) for shape in [(2, 3), (4,), (), (0,)]]
    optimizer = cls(params, **copy.deepcopy(options))
    for t, loss in enumerate(LOSSES[:steps]):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, dtype=dtype, generator=generator)
            if i == 1 and t % 3 == 0:
                p.grad = None
        optimizer.step(loss=loss)
    return [p.detach() for p in params], optimizer


@CLASS
def test_foreach_and_fused_match_the_for_loop(cls: type[LossAware]) -> None:
    for options in inputs_of(cls):
        slow, slow_optimizer = train(cls, {**options, "foreach": False})
        for path in paths_of(cls):
            fast, fast_optimizer = train(cls, {**options, **path})
            torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
            for p, q in zip(slow_optimizer.param_groups[0]["params"], fast_optimizer.param_groups[0]["params"]):
                torch.testing.assert_close(fast_optimizer.state[q], slow_optimizer.state[p], rtol=1e-12, atol=1e-12)


@CLASS
@pytest.mark.parametrize("contiguous", [True, False])
def test_every_setting_goes_downhill(cls: type[LossAware], contiguous: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    for options in [*inputs_of(cls), {"foreach": False}]:
        shapes = [(10, 5), (10,)] if contiguous else [(10, 5, 2), (10, 2)]
        tensors = [torch.randn(shape, generator=generator) for shape in shapes]
        before = [x.clone() for x in tensors]
        weight, bias = (Parameter(x if contiguous else x[..., 0]) for x in tensors)
        x = torch.randn(5, generator=generator)
        optimizer = cls([weight, bias], **copy.deepcopy(options))
        sign = -1 if options.get("maximize") else 1
        values = []
        for _ in range(12):
            optimizer.zero_grad()
            loss = sign * (weight.mv(x) + bias).pow(2).sum()
            loss.backward()
            optimizer.step(loss=loss)
            values.append(sign * loss.item())
        assert values[-1] < values[0], options
        if not contiguous:  # what lies between the entries of a slice belongs to somebody else
            assert all(torch.equal(x[..., 1], y[..., 1]) for x, y in zip(tensors, before))


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls.engine.has_fused], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}, {"fused": True, "capturable": True}])
def test_fused_kernels_never_see_memory_in_another_order(cls: type[LossAware], options: dict[str, Any]) -> None:
    def step(p: Tensor, grad: Tensor, settings: dict[str, Any]) -> Tensor:
        optimizer = cls([p], lr=0.1, **settings)
        for loss in (1.0, 2.0, 1.5):
            p.grad = grad
            optimizer.step(loss=loss)
        return p.detach()

    grad = torch.arange(1.0, 7.0).reshape(2, 3)
    expected = step(torch.zeros(2, 3, requires_grad=True), grad, {"foreach": False})
    transposed = grad.T.contiguous().T
    assert not transposed.is_contiguous()
    result = step(torch.zeros(2, 3, requires_grad=True), transposed, options)
    torch.testing.assert_close(result, expected)
    # A parameter that is a slice, whose neighbours must stay as they are.
    whole = torch.zeros(2, 3, 2)
    result = step(whole[..., 0].requires_grad_(), grad, options)
    torch.testing.assert_close(result, expected)
    assert not whole[..., 1].any()
    # An expanded gradient has fewer entries in memory than it seems.
    result = step(torch.zeros(2, 3, requires_grad=True), torch.ones(1).expand(2, 3), options)
    torch.testing.assert_close(
        result, step(torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3), {"foreach": False})
    )
    # The same order everywhere is fine, whichever it is.
    result = step(torch.zeros(3, 2).T.requires_grad_(), transposed, options)
    torch.testing.assert_close(result, expected)


@CLASS
def test_groups_have_their_own_settings(cls: type[LossAware]) -> None:
    def ends(settings: list[dict[str, Any]], defaults: dict[str, Any]) -> list[Tensor]:
        params = [Parameter(torch.ones(3, dtype=torch.float64)) for _ in settings]
        optimizer = cls([{"params": [p], **options} for p, options in zip(params, settings)], **defaults)
        for loss in LOSSES:
            for p in params:
                p.grad = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
            optimizer.step(loss=loss)
        return [p.detach() for p in params]

    group_options = [{}, {"lr": 1e-2}, {"weight_decay": 0.3}, {"eta": 0.25}]
    together = ends(group_options, {"lr": 1e-3})
    for i, options in enumerate(group_options):
        alone = ends([{}] * i + [options], {"lr": 1e-3})  # at the same place, where its noise is the same
        assert torch.equal(together[i], alone[i])
    assert len({tuple(x.tolist()) for x in together}) == (3 if cls.rule.name == "plain" else 4)


@CLASS
@pytest.mark.parametrize("capturable", [False, True])
def test_the_learning_rate_may_be_a_tensor(cls: type[LossAware], capturable: bool) -> None:
    plain, _ = train(cls, {"lr": 0.01, "weight_decay": 0.1})
    for shape in [(), (1,), (1, 1)]:
        for path in [{"foreach": False}, *paths_of(cls)]:
            lr = torch.full(shape, 0.01, dtype=torch.float64)
            options = {"lr": lr, "weight_decay": 0.1, "capturable": capturable, **path}
            if cls.engine.name == "adam" and path.get("foreach") and not capturable:
                with pytest.raises(ValueError, match=r"^lr as a Tensor is not supported for capturable=False"):
                    train(cls, options)  # as torch's own Adam
                continue
            result, _ = train(cls, options)
            # The fused kernel takes a tensor in single precision on a device.
            close = 1e-9 if path.get("foreach") is None and capturable else 1e-12
            torch.testing.assert_close(result, plain, rtol=close, atol=close)
            assert lr.item() == 0.01


@CLASS
def test_complex_parameters_are_pairs_of_reals(cls: type[LossAware]) -> None:
    for options in inputs_of(cls):
        for path in [{"foreach": False}, {"foreach": True}, {}]:
            generator = torch.Generator().manual_seed(3)
            p = Parameter(torch.randn(4, dtype=torch.complex128, generator=generator))
            real, imag = (Parameter(part.clone()) for part in torch.view_as_real(p.detach()).unbind(-1))
            complex_optimizer, real_optimizer = (
                cls(ps, **copy.deepcopy({**options, **path})) for ps in ([p], [real, imag])
            )
            for t, loss in enumerate(LOSSES):
                g = torch.randn(4, dtype=torch.complex128, generator=generator)
                p.grad = g.conj() if t % 2 else g.conj().resolve_conj()  # conjugation may still be pending
                real.grad, imag.grad = g.real.clone(), -g.imag
                complex_optimizer.step(loss=loss)
                real_optimizer.step(loss=loss)
            torch.testing.assert_close(torch.view_as_real(p.detach()), torch.stack([real, imag], -1).detach())


@CLASS
def test_no_gradient_and_zero_gradients_move_nothing(cls: type[LossAware]) -> None:
    for options in inputs_of(cls):
        for grad in (None, torch.zeros(3)):
            p = Parameter(torch.tensor([1.0, -2.0, 3.0]))
            optimizer = cls([p], **{**copy.deepcopy(options), "weight_decay": 0.0})
            for loss in LOSSES:
                p.grad = grad
                optimizer.step(loss=loss)
            assert torch.equal(p.detach(), torch.tensor([1.0, -2.0, 3.0])), options
            assert (optimizer.state[p].get("step", 0) == 0) == (grad is None)


@CLASS
def test_gradients_and_losses_are_never_written_to(cls: type[LossAware]) -> None:
    for options in inputs_of(cls):
        for path in [{"foreach": False}, *paths_of(cls)]:
            p = Parameter(torch.tensor([1.0, -2.0, 3.0]))
            optimizer = cls([p], **copy.deepcopy({**options, **path}))
            for loss in LOSSES:
                p.grad = torch.tensor([0.5, 2.0, -1.0])
                reading = torch.tensor(loss)
                before, versions = p.grad.clone(), (p.grad._version, reading._version)
                optimizer.step(loss=reading)
                assert torch.equal(p.grad, before)
                assert (p.grad._version, reading._version) == versions
                assert reading.item() == pytest.approx(loss)


@CLASS
def test_step_hooks_fire_once_and_in_order(cls: type[LossAware]) -> None:
    calls: list[str] = []
    p = Parameter(torch.ones(2))
    for optimizer in (cls([p]), cls([p])):  # the second finds the class already prepared
        calls.clear()
        handles = [
            register_optimizer_step_pre_hook(lambda *_: calls.append("global pre")),
            register_optimizer_step_post_hook(lambda *_: calls.append("global post")),
            optimizer.register_step_pre_hook(lambda *_: calls.append("pre")),
            optimizer.register_step_post_hook(lambda *_: calls.append("post")),
        ]
        p.grad = torch.ones(2)
        optimizer.step(loss=1.0)
        assert calls == ["global pre", "pre", "post", "global post"]
        optimizer.step(lambda: calls.append("closure") or 1.0)
        assert calls[4:] == ["global pre", "pre", "closure", "post", "global post"]
        for handle in handles:
            handle.remove()


def test_a_pre_hook_may_replace_the_loss() -> None:
    p = Parameter(torch.ones(2))
    optimizer = OPTIMIZERS["AdamUCB"]([p])
    optimizer.register_step_pre_hook(lambda _, args, kwargs: (args, {**kwargs, "loss": 7.0}))
    p.grad = torch.ones(2)
    optimizer.step(loss=1.0)
    assert optimizer.confidence()[0]["mean"] == 7


@CLASS
def test_copies_go_on_as_the_original_does(cls: type[LossAware]) -> None:
    for options in [{}, {"capturable": True}, {"weighting": "unit", "seed": 3, "eta": 0.2}]:
        for clone in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
            _, optimizer = train(cls, options, steps=4)
            twin = clone(optimizer)
            assert twin.rule == optimizer.rule
            assert twin.defaults == optimizer.defaults
            for stepped in (optimizer, twin):
                for p in stepped.param_groups[0]["params"]:
                    p.grad = torch.ones_like(p)
                stepped.step(loss=1.7)
            for p, q in zip(optimizer.param_groups[0]["params"], twin.param_groups[0]["params"]):
                assert p is not q
                assert torch.equal(p, q)
            assert torch.equal(optimizer.param_groups[0]["seen"], twin.param_groups[0]["seen"])


@CLASS
def test_the_optimizer_can_be_printed(cls: type[LossAware]) -> None:
    text = repr(cls([torch.zeros(1, requires_grad=True)], lr=0.25))
    assert text.startswith(cls.__name__)
    assert "lr: 0.25" in text


@pytest.fixture(params=[torch.float64, torch.float16])
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


@CLASS
def test_the_default_dtype_does_not_matter(cls: type[LossAware], default_dtype: torch.dtype) -> None:
    for options in ({}, {"capturable": True}, {"foreach": False}):
        result, optimizer = train(cls, options, torch.float32)
        torch.set_default_dtype(torch.float32)
        expected, _ = train(cls, options, torch.float32)
        torch.set_default_dtype(default_dtype)
        assert all(map(torch.equal, result, expected))
        assert optimizer.param_groups[0]["seen"].dtype == torch.float64


@CLASS
def test_step_counts_have_the_dtype_that_torch_gives_them(cls: type[LossAware], default_dtype: torch.dtype) -> None:
    fused = [{"fused": True}] if cls.engine.has_fused else []
    for options in ({"foreach": False}, {"foreach": True}, {}, *fused):
        _, optimizer = train(cls, options)
        expected = torch.float64 if default_dtype == torch.float64 and "fused" not in options else torch.float32
        saved = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(saved)
        for state in (*saved["state"].values(), *optimizer.state.values()):
            assert state["step"].dtype == expected
        optimizer.param_groups[0]["capturable"] = True  # the counts move to the device, and stay what they are
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        optimizer.step(loss=1.0)
        steps = [optimizer.state[p]["step"] for p in optimizer.param_groups[0]["params"]]
        assert [step.dtype for step in steps] == [expected] * len(steps)
        assert [step.item() for step in steps] == [8, 5, 8, 8]


@CLASS
@pytest.mark.parametrize("on_device", [False, True])
def test_a_step_is_skipped_where_a_loss_scaler_found_an_infinity(cls: type[LossAware], on_device: bool) -> None:
    """As torch's fused optimizers do it; the flag is not read back from a device."""
    p = Parameter(torch.ones(3))
    optimizer = cls([p], capturable=on_device)
    found = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    for step, flag in enumerate(found):
        p.grad = torch.full_like(p, math.inf if flag else 1.0)
        optimizer.found_inf = torch.full((1,), flag)
        optimizer.grad_scale = torch.ones(1) if step % 2 else None
        before = p.detach().clone()
        optimizer.step(loss=torch.tensor(1.0 + step) if on_device else 1.0 + step)
        assert torch.equal(p, before) == bool(flag)
    assert p.isfinite().all()
    assert optimizer.state[p]["step"] == 4
    assert optimizer.confidence()[0]["skipped"] == 2
    assert optimizer.param_groups[0]["seen"][0] == 4  # nor does the loss of such a step enter the statistics
    optimizer.found_inf = optimizer.grad_scale = None
    p.grad = torch.ones_like(p)
    optimizer.step(loss=1.0)
    assert optimizer.state[p]["step"] == 5


@CLASS
def test_gradients_with_a_scale_are_refused(cls: type[LossAware]) -> None:
    p = Parameter(torch.ones(3))
    optimizer = cls([p])
    p.grad = torch.ones_like(p)
    optimizer.grad_scale = torch.tensor(65536.0)
    with pytest.raises(RuntimeError, match=r"without a scale, but grad_scale is 65536; call scaler\.unscale_"):
        optimizer.step(loss=1.0)
    assert torch.equal(p, torch.ones(3))
    assert optimizer.param_groups[0]["seen"][0] == 0


def bytes_of(optimizer: torch.optim.Optimizer) -> int:
    """What an optimizer keeps in memory, shared storage counted once."""
    kept = [x for x in tree_leaves([optimizer.state, optimizer.param_groups]) if isinstance(x, Tensor)]
    parameter_ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return sum({x.data_ptr(): x.nbytes for x in kept if id(x) not in parameter_ids}.values())


@pytest.mark.parametrize("options", [{}, {"capturable": True}])
@pytest.mark.parametrize(("name", "plain"), [("AdamS", torch.optim.Adam), ("NAdamS", torch.optim.NAdam)])
def test_memory_beyond_the_plain_optimizer_does_not_grow(
    name: str, plain: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    def extra(count: int, size: int) -> int:
        params = [Parameter(torch.ones(size)) for _ in range(count)]
        for p in params:
            p.grad = torch.ones_like(p)
        ours, theirs = OPTIMIZERS[name](params, **options), plain(params)
        ours.step(loss=1.0)
        theirs.step()
        return bytes_of(ours) - bytes_of(theirs)

    assert extra(1, 1000) <= 128
    assert extra(50, 10) <= 128


class Allocations(TorchDispatchMode):
    """The largest tensor that an operation made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {x.data_ptr() for x in tree_leaves([args, kwargs]) if isinstance(x, Tensor)}
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.data_ptr() not in given:
                self.largest = max(self.largest, x.numel())
        return out


@pytest.mark.parametrize("name", ["AdamS", "MomentumS"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"decoupled_weight_decay": True, "weight_decay": 0.1}])
def test_the_fused_path_copies_no_gradient(name: str, options: dict[str, Any]) -> None:
    p = Parameter(torch.ones(1000))
    p.grad = torch.ones(1000)
    optimizer = OPTIMIZERS[name]([p], **options)
    optimizer.step(loss=1.0)
    for loss in (2.0, 0.5, 1.0):
        with Allocations() as seen:
            optimizer.step(loss=loss)
        assert seen.largest <= 8


@CLASS
def test_entries_of_others_in_the_state_are_saved_and_loaded(cls: type[LossAware]) -> None:
    _, optimizer = train(cls, {}, steps=2)
    optimizer.register_state_dict_pre_hook(lambda opt: opt.state.update({"note": 1, "history": [1.0, 2.0]}))
    saved = optimizer.state_dict()
    assert saved["state"]["note"] == 1
    assert saved["state"]["history"] == [1.0, 2.0]
    _, other = train(cls, {}, steps=1)
    other.load_state_dict(saved)
    assert other.state["note"] == 1
    for continued in (optimizer, other):  # the parameters' own states are found beside them
        continued.param_groups[0]["params"][0].grad = torch.ones(2, 3, dtype=torch.float64)
        continued.step(loss=1.0)
    assert other.state[other.param_groups[0]["params"][0]]["step"] == 3
    assert [x.state_dict()["state"][0]["step"].item() for x in (optimizer, other)] == [3, 3]


FAMILIES = [surefoot.LossAwareAdam, surefoot.LossAwareMomentum, surefoot.LossAwareAdaMax, surefoot.LossAwareNAdam]


@pytest.mark.parametrize(
    ("cls", "options"),
    [*((cls, {}) for cls in CLASSES), *((cls, {"rule": "cvar", "eta": 0.2}) for cls in FAMILIES)],
)
def test_a_copy_has_the_same_attributes(cls: type[LossAware], options: dict[str, Any]) -> None:
    _, optimizer = train(cls, options, steps=2)
    for clone in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert {x for x in vars(clone) if not x.startswith("_")} == {
            x for x in vars(optimizer) if not x.startswith("_")
        }
        assert clone.rule == optimizer.rule


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls.engine.has_fused], ids=lambda cls: cls.__name__)
def test_fused_takes_a_model_on_the_meta_device_and_refuses_its_step(cls: type[LossAware]) -> None:
    model = torch.nn.Linear(3, 2, device="meta")
    optimizer = cls(model.parameters(), fused=True)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match=r"`fused=True` requires all the params to be floating point Tensors.*meta"):
        optimizer.step(loss=1.0)
    assert optimizer.param_groups[0]["seen"][0] == 0  # nothing was remembered
    assert not optimizer.state
    real = torch.nn.Linear(3, 2)
    optimizer.param_groups[0]["params"] = list(real.parameters())
    for p in real.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step(loss=1.0)
    optimizer.step(loss=2.0)
    assert all(optimizer.state[p]["step"] == 2 for p in real.parameters())


@CLASS
def test_errors_name_the_option_before_parameters_are_looked_at(cls: type[LossAware]) -> None:
    make = getattr(
        common_optimizers, f"optim_error_inputs_func_{'sgd' if 'momentum' in cls.engine.name else cls.engine.name}"
    )
    for case in make(device="cpu", dtype=torch.float32):
        given, raised = case.optimizer_error_input, pytest.raises
        if issubclass(case.error_type, Warning):
            raised = pytest.warns
        with raised(case.error_type, match=case.error_regex):
            cls(given.params, **given.kwargs)


@pytest.mark.parametrize("name", ["AdamUCB", "AdaMaxS", "NAdamCB"])
def test_one_decay_rate_as_a_tensor_is_refused(name: str) -> None:
    for betas in [(0.9, torch.tensor(0.99)), (torch.tensor(0.9), 0.99)]:
        with pytest.raises(ValueError, match="betas must be either both floats or both Tensors"):
            OPTIMIZERS[name]([torch.zeros(1)], betas=betas)


HYPERPARAMETERS = {
    "adam": {"lr": 0.1, "weight_decay": 0.3, "betas": (0.9, 0.99)},
    "momentum": {"lr": 0.1, "weight_decay": 0.3, "momentum": 0.9},
    "adamax": {"lr": 0.1, "weight_decay": 0.3, "betas": (0.9, 0.99)},
    "nadam": {"lr": 0.1, "weight_decay": 0.3, "betas": (0.9, 0.99)},
}


@CLASS
@pytest.mark.parametrize("decoupled", [False, True])
def test_autograd_follows_every_hyperparameter(cls: type[LossAware], decoupled: bool) -> None:
    if cls.__name__.startswith("AdamW") and not decoupled:
        pytest.skip("its decay is always decoupled")
    names = HYPERPARAMETERS[cls.engine.name]
    values = [x for value in names.values() for x in (value if isinstance(value, tuple) else (value,))]

    def end(start: Tensor, *tensors: Tensor) -> Tensor:
        """The loss after four steps of full gradients that are followed too."""
        left = iter(tensors)
        options = {k: (next(left), next(left)) if isinstance(v, tuple) else next(left) for k, v in names.items()}
        p = start.clone()
        # The weight is a constant to autograd, so nothing in it may depend on a hyperparameter: the statistics of the
        # loss get a decay rate of their own, and bounds on the weight, which go by beta2, are left out.
        unbounded = {} if cls.engine.name == "momentum" else {"gain": None}
        optimizer = cls(
            [p], differentiable=True, loss_beta=0.9, decoupled_weight_decay=decoupled, **unbounded, **options
        )
        for loss in LOSSES[:4]:
            [p.grad] = torch.autograd.grad((p - 1).pow(4).sum(), p, create_graph=True)
            optimizer.step(loss=loss)
        return (p - 1).pow(4).sum()

    inputs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in ([0.3, -0.7, 2.0], *values)]
    assert torch.autograd.gradcheck(end, inputs)
    assert all(slope.any() for slope in torch.autograd.grad(end(*inputs), inputs))


@CLASS
def test_differentiable_steps_are_the_ordinary_ones(cls: type[LossAware]) -> None:
    def end(**options: Any) -> Tensor:
        p = torch.tensor([0.3, -0.7, 2.0], dtype=torch.float64)
        optimizer = cls([p], lr=0.1, weight_decay=0.2, **options)
        for loss in [*LOSSES[:3], float("nan"), *LOSSES[3:]]:
            p.grad = (2 * (p - 1)).detach()
            optimizer.step(loss=loss)
        assert optimizer.confidence()[0]["skipped"] == 1
        return p.detach()

    torch.testing.assert_close(end(differentiable=True), end(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["AdamUCB", "AdaMaxUCB", "NAdamUCB"])
def test_decay_rates_given_as_a_list_cannot_change_unnoticed(name: str) -> None:
    given = [0.9, 0.99]
    p = Parameter(torch.ones(2))
    optimizer = OPTIMIZERS[name]([{"params": [p], "betas": given}], betas=[0.5, 0.6])
    given[0] = 2.0
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.99)
    assert optimizer.defaults["betas"] == (0.5, 0.6)
    p.grad = torch.ones(2)
    optimizer.step(loss=1.0)
    optimizer.param_groups[0]["betas"] = replaced = [0.8, 0.9]
    optimizer.step(loss=2.0)
    replaced[0] = 2.0
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    with pytest.raises(TypeError):
        optimizer.param_groups[0]["betas"][0] = 2.0
    saved = optimizer.state_dict()
    saved["param_groups"][0]["betas"] = [0.8, 0.9]
    optimizer.load_state_dict(saved)
    optimizer.param_groups[0]["betas"] = [2.0, 0.9]
    with pytest.raises(ValueError, match=r"index 0: 2\.0"):
        optimizer.step(loss=2.0)
