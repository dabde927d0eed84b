"""The optimizers by name: each is a rule and an engine."""

from __future__ import annotations

import inspect
from typing import Any, Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from surefoot.optim import engines
from surefoot.optim.loss_aware import LossAware
from surefoot.optim.options import Options, constructor_arguments, takes_options
from surefoot.rules import RULES


class LossAwareAdam(LossAware):
    """Adam on the weighted gradient: ``m, v`` of ``weight * g``, ``param -= lr * m_hat / (sqrt(v_hat) + eps)``.

    Args:
        params: parameters, or parameter groups; all options but rule and process_group may differ between groups.
        lr: learning rate, a float or a one-element tensor.
        betas: decay rates of the moments.
        eps: added to the denominator.
        weight_decay: L2 decay, added to the gradient before weighting.
        amsgrad: keep the largest second moment.
        rule: the rule by name, or a Rule of your own; the named classes have theirs.
        eta: the rule's strength (None: the rule's default).
        weighting: "paper" multiplies by the std of the loss (CB: and by its abs(mean)), "unit" keeps the weight near 1.
        decoupled_weight_decay: decay as AdamW does (None: L2, with a warning where weight_decay is 0.01 or more).
        maximize: maximize the loss; its statistics are then those of its negative.
        foreach, fused: which kernels to use (None: the fastest that applies).
        capturable: keep all statistics on the device, for CUDA graphs.
        differentiable: let autograd follow the step, through gradients and tensors given as options; the loss is a
            constant to it.
        loss_beta: decay rate of the loss statistics (None: the engine's, betas[0]; 0.9 if that is 0).
        seed: of the noise (rule S); the same seed gives the same noise on every rank and after a resume.
        nonfinite: "skip" skips and counts a step whose loss is not finite, or whose loss or weight exceeds 1e19;
            "raise" stops with an error.
        check_gradients: skip a step with a gradient that is not finite too; costs one more read of all gradients.
        process_group: where to average the loss (None: the default group when there is one, False: nowhere).
        reference: follow the published code to the letter, slowly; it has no bounds.
        gain: with weighting="paper", the least and the largest weight of a batch, as a multiple of the root mean square
            of the weights so far (None: no bounds, as published). Without bounds training stands still where the std
            of the loss goes to zero, and a surprise after a quiet time makes steps several times as long as Adam's.
    """

    engine = engines.Adam()

    @takes_options()
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        **options: Unpack[Options],
    ) -> None:
        engine_options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, **constructor_arguments(engine_options, options))


class LossAwareAdamW(LossAwareAdam):
    """AdamW on the weighted gradient: ``param *= 1 - lr * weight_decay``, then a step as LossAwareAdam takes it.

    Args as for LossAwareAdam; the decay is always decoupled, and weight_decay is 0.01 by default as in
    torch.optim.AdamW. With ``eta=0, weighting="unit"`` it is torch.optim.AdamW.
    """

    @takes_options(without=("reference",), decoupled_weight_decay=True)
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, whose decay is decoupled too."""
        if not {**self.defaults, **param_group}["decoupled_weight_decay"]:
            raise ValueError(
                f"{type(self).__name__} decouples its weight decay, but got decoupled_weight_decay=False; take the "
                "class without the W for L2"
            )
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a checkpoint of Adam says otherwise, one of an old AdamW nothing
            group["decoupled_weight_decay"] = True


class LossAwareMomentum(LossAware):
    """SGD with bias-corrected momentum (Algorithm 1): ``m = b*m + (1-b)*weight*g``, ``param -= lr * m / (1 - b**t)``.

    Args as for LossAwareAdam, with ``momentum`` in place of betas and ``nesterov`` for the look ahead. The default
    weighting is "unit": SGD does not cancel a common scale, and with "paper" the std of the loss acts as a
    learning-rate schedule. Gradients are averaged, not summed up: with momentum 0.9 lr is in the long
    run ten times that of torch.optim.SGD. The first steps are bias-corrected, so they are that long at once; multiplied
    by ``1 - momentum**t``, the rate gives SGD's steps exactly.
    """

    engine = engines.Momentum()

    @takes_options(without=("gain",), weighting="unit", decoupled_weight_decay=False)  # L2 is what SGD does
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0,
        nesterov: bool = False,
        **options: Unpack[Options],
    ) -> None:
        engine_options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, **constructor_arguments(engine_options, options))


class LossAwareAdaMax(LossAware):
    """AdaMax on the weighted gradient; args as for LossAwareAdam.

    The default weighting is "unit": AdaMax divides by the largest weighted gradient so far, so with "paper" a single
    large weight shortens thousands of steps.
    """

    engine = engines.AdaMax()

    @takes_options(without=("fused", "reference"), weighting="unit")
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        **options: Unpack[Options],
    ) -> None:
        engine_options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, **constructor_arguments(engine_options, options))


class LossAwareNAdam(LossAware):
    """NAdam on the weighted gradient; args as for LossAwareAdam, with NAdam's ``momentum_decay``."""

    engine = engines.NAdam()

    @takes_options(without=("fused", "reference"))
    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        **options: Unpack[Options],
    ) -> None:
        engine_options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        engine_options["momentum_decay"] = momentum_decay
        super().__init__(params, **constructor_arguments(engine_options, options))


class AdamUCB(LossAwareAdam):
    """Upper confidence bounded Adam on mean + eta*std of the mini-batch loss: ``weight = std + eta*(loss - mean)``.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> opt = AdamUCB(model.parameters(), lr=1e-3, eta=0.01)
    >>> loss = model(torch.ones(4, 3)).pow(2).mean()
    >>> loss.backward()
    >>> opt.step(loss=loss)
    """

    rule = RULES["ucb"]


class AdamCB(LossAwareAdam):
    """Confidence bounded Adam: holds std/abs(mean) near eta, from both sides."""

    rule = RULES["cb"]


class AdamS(LossAwareAdam):
    """Adam with stochastic momentum: mean + N(0, eta)*std, a new draw each step; eta is the standard deviation."""

    rule = RULES["s"]


class AdamPI(LossAwareAdam):
    """Adam on the probability of improving on the best mean so far by a margin of eta."""

    rule = RULES["pi"]


class AdamEI(LossAwareAdam):
    """Adam on the expected improvement on the best mean so far, with a margin of eta."""

    rule = RULES["ei"]


class AdamCVaR(LossAwareAdam):
    """Adam on the mean of the worst (1 - eta) share of batches, taking the loss as Gaussian."""

    rule = RULES["cvar"]


class AdamWUCB(LossAwareAdamW):
    """AdamW on mean + eta*std of the mini-batch loss."""

    rule = RULES["ucb"]


class AdamWCB(LossAwareAdamW):
    """AdamW that holds std/abs(mean) near eta."""

    rule = RULES["cb"]


class AdamWS(LossAwareAdamW):
    """AdamW on mean + N(0, eta)*std.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> opt = AdamWS(model.parameters(), lr=3e-4, weight_decay=0.1)  # was: torch.optim.AdamW
    >>> loss = model(torch.ones(4, 3)).pow(2).mean()
    >>> loss.backward()
    >>> opt.step(loss=loss)
    """

    rule = RULES["s"]


class Momentum(LossAwareMomentum):
    """Plain SGD with bias-corrected momentum (Algorithm 1), the baseline of its family."""

    rule = RULES["plain"]


class MomentumUCB(LossAwareMomentum):
    """Momentum on mean + eta*std of the mini-batch loss."""

    rule = RULES["ucb"]


class MomentumCB(LossAwareMomentum):
    """Momentum that holds std/abs(mean) near eta."""

    rule = RULES["cb"]


class MomentumS(LossAwareMomentum):
    """Stochastic momentum: mean + N(0, eta)*std, unbiased over its noise."""

    rule = RULES["s"]


class AdaMaxUCB(LossAwareAdaMax):
    """AdaMax on mean + eta*std of the mini-batch loss."""

    rule = RULES["ucb"]


class AdaMaxCB(LossAwareAdaMax):
    """AdaMax that holds std/abs(mean) near eta."""

    rule = RULES["cb"]


class AdaMaxS(LossAwareAdaMax):
    """AdaMax on mean + N(0, eta)*std."""

    rule = RULES["s"]


class NAdamUCB(LossAwareNAdam):
    """NAdam on mean + eta*std of the mini-batch loss."""

    rule = RULES["ucb"]


class NAdamCB(LossAwareNAdam):
    """NAdam that holds std/abs(mean) near eta."""

    rule = RULES["cb"]


class NAdamS(LossAwareNAdam):
    """NAdam on mean + N(0, eta)*std."""

    rule = RULES["s"]


#: All named optimizers: tests and the lab go through this table.
OPTIMIZERS: dict[str, type[LossAware]] = {
    cls.__name__: cls
    for cls in (
        AdamUCB, AdamCB, AdamS, AdamPI, AdamEI, AdamCVaR, AdamWUCB, AdamWCB, AdamWS,
        Momentum, MomentumUCB, MomentumCB, MomentumS,
        AdaMaxUCB, AdaMaxCB, AdaMaxS, NAdamUCB, NAdamCB, NAdamS,
    )
}  # fmt: skip

for _cls in OPTIMIZERS.values():  # help() of a named optimizer shows the arguments of its family too
    _summary, _family = (inspect.cleandoc(_base.__doc__ or "") for _base in _cls.__mro__[:2])
    _cls.__doc__ = f"{_summary}\n\n{_family}\n"
