"""Adam and Momentum with each rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import jax.numpy as jnp
import optax
from jax import Array

from surefoot._warnings import warn
from surefoot.optax.engines import Engine, adam_engine, guarded, momentum_engine
from surefoot.optax.rules import RULES, Rule
from surefoot.optax.tilt import GAIN, Weighting, scale_by_tilt

Options = ParamSpec("Options")
#: As in surefoot.optim.options, which imports torch.
DECAY_OF_ADAMW = 0.01


def _chain(
    tilt: optax.GradientTransformationExtraArgs,
    engine: Engine,
    learning_rate: Any,
    weight_decay: Any,
    decoupled: bool,
    mask: Any,
    check_gradients: bool,
    near_one: bool,
) -> optax.GradientTransformationExtraArgs:
    # A constant 0 is left out, because decay asks for params; inject_hyperparams makes an array of it.
    decays = not (isinstance(weight_decay, (int, float)) and weight_decay == 0)
    decay = optax.add_decayed_weights(weight_decay, mask) if decays else optax.identity()
    rate = optax.scale_by_learning_rate(learning_rate)
    options = {"decoupled": decoupled, "check_gradients": check_gradients, "near_one": near_one}
    return guarded(tilt, engine, decay, rate, **options)


def _own_beta(beta: Any) -> Any:
    """The decay of the loss statistics that goes with an engine's; an engine without momentum still needs a spread."""
    if isinstance(beta, (int, float)):
        return beta or 0.9
    return jnp.where(beta == 0, 0.9, beta)


def adam(
    rule: str | Rule,
    learning_rate: float | Array | Callable[[Array], Any],
    eta: float | Array | Callable[[Array], Any] | None = None,
    b1: float | Array = 0.9,
    b2: float | Array = 0.999,
    eps: float | Array = 1e-8,
    *,
    weight_decay: float | Array = 0.0,
    decoupled_weight_decay: bool | None = None,
    mask: Any = None,
    weighting: Weighting = "paper",
    loss_beta: float | Array | None = None,
    seed: int | Array = 0,
    group: int | Array = 0,
    mu_dtype: Any = None,
    gain: tuple[float, float] | None = GAIN,
    check_gradients: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Adam on the weighted gradient.

    ``chain(add_decayed_weights, scale_by_tilt, scale_by_adam, scale_by_learning_rate)``, which skips a step whose loss
    or weight is not finite; with ``decoupled_weight_decay=True`` the decay comes after ``scale_by_adam``.

    Args:
        rule: as in :func:`scale_by_tilt`; ``adam_ucb`` and the like have it filled in.
        learning_rate: a number or a schedule.
        eta: as in :func:`scale_by_tilt`.
        b1: decay of the mean gradient.
        b2: decay of the mean squared gradient.
        eps: added to the denominator.
        weight_decay: strength of the decay; ``update`` then needs ``params``.
        decoupled_weight_decay: AdamW's decay instead of L2 in the gradient, which is weighted with it (None: L2, with
            a warning where weight_decay is 0.01 or more).
        mask: tree of booleans (or a function of params) that says what decays.
        weighting: as in :func:`scale_by_tilt`, but ``"paper"`` by default: Adam cancels its scale.
        loss_beta: as in :func:`scale_by_tilt`; None is ``b1``, and 0.9 where that is 0.
        seed: as in :func:`scale_by_tilt`.
        group: as in :func:`scale_by_tilt`.
        mu_dtype: dtype of the mean gradient.
        gain: as in :func:`scale_by_tilt`, with ``b2`` as its decay; None is the published form.
        check_gradients: skip a step with a gradient that is not finite too; costs one more read of all gradients.

    >>> optimizer = adam("ucb", learning_rate=1e-3, eta=0.1, weight_decay=1e-4)
    """
    if decoupled_weight_decay is None and isinstance(weight_decay, (int, float)) and weight_decay >= DECAY_OF_ADAMW:
        warn(
            f"surefoot.optax.adam adds weight_decay={weight_decay} to the gradient, as published (L2), and weights the "
            "gradient after that: this is not AdamW's decay, and much stronger. decoupled_weight_decay=True, or "
            "adamw_s in the place of adam_s, is what optax.adamw does; decoupled_weight_decay=False keeps L2 and "
            "silences this warning",
        )
    loss_beta = _own_beta(b1) if loss_beta is None else loss_beta
    noise = {"seed": seed, "group": group}
    tilt = scale_by_tilt(rule, eta, weighting=weighting, loss_beta=loss_beta, gain=gain, gain_beta=b2, **noise)
    engine = adam_engine(b1, b2, eps, mu_dtype)
    near_one = weighting == "unit" or gain is not None
    decay = (weight_decay, bool(decoupled_weight_decay), mask)
    return _chain(tilt, engine, learning_rate, *decay, check_gradients, near_one)


def adamw(
    rule: str | Rule,
    learning_rate: float | Array | Callable[[Array], Any],
    eta: float | Array | Callable[[Array], Any] | None = None,
    b1: float | Array = 0.9,
    b2: float | Array = 0.999,
    eps: float | Array = 1e-8,
    *,
    weight_decay: float | Array = 1e-4,
    mask: Any = None,
    weighting: Weighting = "paper",
    loss_beta: float | Array | None = None,
    seed: int | Array = 0,
    group: int | Array = 0,
    mu_dtype: Any = None,
    gain: tuple[float, float] | None = GAIN,
    check_gradients: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """AdamW on the weighted gradient: :func:`adam` with decoupled decay, and the default decay of ``optax.adamw``.

    >>> optimizer = adamw("s", learning_rate=3e-4, weight_decay=0.1)
    """
    more: dict[str, Any] = {"weighting": weighting, "loss_beta": loss_beta, "seed": seed, "group": group}
    more["check_gradients"] = check_gradients
    decay = {"weight_decay": weight_decay, "decoupled_weight_decay": True, "mask": mask}
    return adam(rule, learning_rate, eta, b1, b2, eps, mu_dtype=mu_dtype, gain=gain, **decay, **more)


def momentum(
    rule: str | Rule,
    learning_rate: float | Array | Callable[[Array], Any],
    eta: float | Array | Callable[[Array], Any] | None = None,
    beta: float | Array = 0.9,
    *,
    weight_decay: float | Array = 0.0,
    decoupled_weight_decay: bool = False,
    mask: Any = None,
    weighting: Weighting = "unit",
    loss_beta: float | Array | None = None,
    seed: int | Array = 0,
    group: int | Array = 0,
    accumulator_dtype: Any = None,
    check_gradients: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """SGD with bias-corrected momentum (the paper's Algorithm 1) on the weighted gradient.

    As :func:`adam` with ``optax.ema(beta)`` in the place of ``scale_by_adam``; ``weighting`` is ``"unit"``,
    because nothing cancels the paper's scale here.

    >>> optimizer = momentum("cb", learning_rate=0.1)
    """
    loss_beta = _own_beta(beta) if loss_beta is None else loss_beta
    tilt = scale_by_tilt(rule, eta, weighting=weighting, loss_beta=loss_beta, seed=seed, group=group)
    engine = momentum_engine(beta, accumulator_dtype)
    decay = (weight_decay, decoupled_weight_decay, mask)
    return _chain(tilt, engine, learning_rate, *decay, check_gradients, weighting == "unit")


def _named(
    engine: Callable[Concatenate[Any, Options], optax.GradientTransformationExtraArgs], rule: str
) -> Callable[Options, optax.GradientTransformationExtraArgs]:
    """Fill the rule in. The signature stays whole, because ``optax.inject_hyperparams`` reads it."""

    def build(*args: Options.args, **kwargs: Options.kwargs) -> optax.GradientTransformationExtraArgs:
        return engine(rule, *args, **kwargs)

    build.__name__ = build.__qualname__ = f"{engine.__name__}_{rule}"
    build.__doc__ = f":func:`{engine.__name__}` with the rule ``{rule!r}``."
    signature = inspect.signature(engine)
    fields = [
        field.replace(default=RULES[rule].eta) if name == "eta" else field
        for name, field in signature.parameters.items()
        if name != "rule"
    ]
    build.__signature__ = signature.replace(parameters=fields)  # type: ignore[attr-defined]
    return build


adam_ucb, adam_cb, adam_s = _named(adam, "ucb"), _named(adam, "cb"), _named(adam, "s")
adamw_ucb, adamw_cb, adamw_s = _named(adamw, "ucb"), _named(adamw, "cb"), _named(adamw, "s")
adam_pi, adam_ei, adam_cvar = _named(adam, "pi"), _named(adam, "ei"), _named(adam, "cvar")
momentum_ucb, momentum_cb, momentum_s = _named(momentum, "ucb"), _named(momentum, "cb"), _named(momentum, "s")
