"""Why does the scale help the CNN? Adam with weights that keep one property of the std of the loss and lose another.

The std scale alone, `AdamUCB(eta=0)`, multiplies the gradient of step t by s_t, the std of the losses before it. If s
helps because of *when* it is large, then other weights of the same sizes do not help: those of another run, in another
order, an epoch late, or its reciprocal. If it helps by what it does inside one of Adam's moments, then weighting that
moment alone does the same.
"""

from __future__ import annotations

import csv
import hashlib
import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from surefoot.lab.store import Run
from surefoot.paper.ablation import IMAGES, Variant, is_on, one_per_seed
from surefoot.paper.published import Configuration
from surefoot.statistics import LossStats

#: The paper's learning rate and half of it, at which the scale alone was decided to be better than Adam.
RATES = (1e-3, 5e-4)
SEEDS = 10
#: Full length, and two early looks: in the runs of Adam and of the scale alone, which were there before any other of
#: this study, the gain shows after 3 epochs and is as clear after 7 as after 20. Longer runs continue shorter ones.
HORIZONS = (3, 7, 20)
#: Steps of an epoch of the CNN's ablation: 10 000 images in batches of 128.
STEPS = math.ceil(IMAGES / 128)
#: The seed whose weights are replayed on the others; no comparison has it.
DONOR = 1000

#: How many contestants are run first: Adam, the scale, and the five that tell most.
TELLING = 7

ADAM, SCALE = "plain Adam", "std scale alone"
_RECORDING = "why.csv"
_WEIGHTED = "surefoot.paper.why:WeightedAdam"
_RECORDED = ("replayed", "drawn")
_WEIGHTS = ("own", "reciprocal", "shuffled", "lagged", "smoothed", *_RECORDED)


class WeightedAdam(torch.optim.Adam):
    """Adam on ``w_t * gradient``, with weights made from the std s_t of the losses so far, or recorded in another run.

    With A and C the bias-corrected running means of w and of w**2, m and v the moments of the plain gradient, m_w and
    v_w those of the weighted one, the step is ``m_w / sqrt(v_w)``, or with one moment weighted ``m_w / sqrt(C * v)`` or
    ``m / sqrt(v_w / C)``: C takes out the unit of the weights. While no spread was seen, the parameters rest.

    Args:
        weights: "own" (s_t itself: the std scale alone), "reciprocal" (1/s_t), "shuffled" (one of the last `lag` s, at
            random), "lagged" (s of `lag` steps before), "smoothed" (the running mean of s over about `lag` steps),
            "replayed" (s of another run at the same step), "drawn" (s of a random step of that run).
        moments: which of Adam's moments have weighted gradients: "both", "first" or "second".
        lag: steps of an epoch.
        recording: digest of the recorded weights, so that runs with others are other runs.
        seed: of the weights that are picked at random.

    >>> parameter = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = WeightedAdam([parameter], lr=0.1, weights="reciprocal")
    >>> for loss in (3.0, 1.0, 2.0):
    ...     parameter.grad = torch.ones(1)
    ...     optimizer.step(loss=loss)
    >>> round(parameter.item(), 4), round(optimizer.confidence()[0]["weight"], 4)
    (0.9361, 1.0014)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        weights: str = "own",
        moments: str = "both",
        lag: int = STEPS,
        recording: str = "",
        seed: int = 0,
    ) -> None:
        if weights not in _WEIGHTS:
            raise ValueError(f"unknown weights {weights!r}; choose {', '.join(_WEIGHTS)}")
        if moments not in ("both", "first", "second"):
            raise ValueError(f"unknown moments {moments!r}; choose both, first or second")
        super().__init__(params, lr, betas, eps, weight_decay, fused=True)
        self.weights, self.moments, self.lag, self.seed = weights, moments, lag, seed
        self.recorded = check_recording(lr, recording) if weights in _RECORDED else ()
        for group in self.param_groups:  # plain numbers, so that every checkpoint holds them
            group.update(seen=list(LossStats()), past=[], first=0.0, second=0.0, power=0.0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:  # type: ignore[override]
        """Take one step; the loss is the one whose gradients these are."""
        reading = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        for group in self.param_groups:
            stats = LossStats(*group["seen"])
            weight = self._weight(group, stats) if stats.std else 0.0
            self._update(group, weight, int(stats.count) + 1)
            group["seen"] = list(stats._replace(weight=weight).with_loss(reading, group["betas"][0]))

    def _weight(self, group: dict[str, Any], stats: LossStats) -> float:
        step, std, past = int(stats.count), float(stats.std), group["past"]
        if self.weights == "reciprocal":
            return 1 / std
        if self.weights == "replayed":
            return self.recorded[step]
        if self.weights == "drawn":
            return self._luck(step).choice(self.recorded[2:])  # before its third step no run has a spread
        if self.weights == "smoothed":
            group["past"] = past = [past[0] + 1, past[1]] if past else [1, 0.0]
            past[1] += (std - past[1]) / min(past[0], self.lag)  # a plain mean until there are `lag` of them
            return float(past[1])
        if self.weights in ("shuffled", "lagged"):
            group["past"] = past = [*past, std][-self.lag - 1 :]
            if self.weights == "shuffled":
                return float(self._luck(step).choice(past[-self.lag :]))
            return float(past[0] if len(past) > self.lag else std)  # the first epoch has none before it
        return std

    def _luck(self, step: int) -> random.Random:
        """The draws of a step: the same ones in a run that was resumed."""
        return random.Random(f"{self.seed}/{step}")

    def _update(self, group: dict[str, Any], weight: float, t: int) -> None:
        """One call of torch's kernel on the plain gradient: what the weights do is in its decays, lr and eps.

        N = m_w / A and V = v_w / C follow the plain recurrences with the decays b1 * A_old / A and b2 * C_old / C.
        """
        beta1, beta2 = group["betas"]
        in_first, in_second = (weight if self.moments != other else float(weight > 0) for other in ("second", "first"))
        first = beta1 * group["first"] + (1 - beta1) * in_first
        second = beta2 * group["second"] + (1 - beta2) * in_second**2
        power = beta2 * group["power"] + (1 - beta2) * weight**2
        moments = (beta1, group["first"], first), (beta2, group["second"], second)
        decays = [beta * old / new if new else 1.0 for beta, old, new in moments]
        group.update(first=first, second=second, power=power)
        if not weight:
            return
        rms = math.sqrt(power / (1 - beta2**t))
        lr, eps = group["lr"], group["eps"]
        if self.moments != "second":
            lr *= first / (1 - beta1**t) / rms
        if self.moments != "first":
            eps /= rms
        self._call_kernel(group, lr, eps, decays)

    def _call_kernel(self, group: dict[str, Any], lr: float, eps: float, decays: Sequence[float]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if p not in self.state:
                zero = torch.zeros_like(p, memory_format=torch.preserve_format)
                # So large a step count that the kernel's own bias correction is 1.
                self.state[p] = {"step": torch.tensor(1e30), "exp_avg": zero, "exp_avg_sq": zero.clone()}
        first, second, steps = ([self.state[p][name] for p in params] for name in ("exp_avg", "exp_avg_sq", "step"))
        torch._fused_adam_(
            params, [p.grad for p in params], first, second, [], steps, lr=lr, beta1=decays[0], beta2=decays[1],
            weight_decay=group["weight_decay"], eps=eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def confidence(self) -> list[dict[str, float]]:
        """The statistics of the loss, and the weight of the last step."""
        return [LossStats(*group["seen"])._asdict() for group in self.param_groups]


@cache
def recorded_weights() -> dict[float, tuple[float, ...]]:
    """The std scale at every step of a run of the scale alone with the seed `DONOR`, by learning rate.

    They are in a file of the package, which `surefoot.paper.steps.record_weights` writes.
    """
    return read_weights(resources.files(__package__).joinpath(_RECORDING).read_text(encoding="utf-8"))


def read_weights(text: str) -> dict[float, tuple[float, ...]]:
    """The weights of every step by learning rate.

    >>> read_weights("lr,weight\\n0.001,0\\n0.001,0.5\\n")
    {0.001: (0.0, 0.5)}
    """
    weights: dict[float, list[float]] = {}
    for line in csv.DictReader(text.splitlines()):
        weights.setdefault(float(line["lr"]), []).append(float(line["weight"]))
    return {lr: tuple(values) for lr, values in weights.items()}


def digest(lr: float) -> str:
    """What names the recorded weights of a learning rate in the options of a run."""
    return hashlib.sha256(repr(recorded_weights()[lr]).encode()).hexdigest()[:8]


def check_recording(lr: float, recording: str) -> tuple[float, ...]:
    """The recorded weights of a learning rate, if they are those that are asked for."""
    known = {f"lr {rate:g}": digest(rate) for rate in recorded_weights()}
    if known.get(f"lr {lr:g}") != recording:
        raise ValueError(f"there is no recording {recording!r} of weights at lr {lr:g}; there are {known}")
    return recorded_weights()[lr]


def contestants(lr: float) -> dict[str, Variant]:
    """The contestants of the study at a learning rate, the most telling first.

    >>> contestants(1e-3)["reciprocal of the std"].spec
    'surefoot.paper.why:WeightedAdam:weights=reciprocal,lr=0.001'
    """
    own: dict[str, dict[str, Any]] = {
        "reciprocal of the std": {"weights": "reciprocal"},
        "std in random order": {"weights": "shuffled"},
        "std an epoch late": {"weights": "lagged"},
        "std in the first moment alone": {"moments": "first"},
        "std in the second moment alone": {"moments": "second"},
        "std smoothed over an epoch": {"weights": "smoothed"},
    }
    variants = {ADAM: Variant("adam"), SCALE: Variant("adamucb", {"eta": 0, "gain": None})}
    variants |= {name: Variant(_WEIGHTED, options) for name, options in own.items()}
    variants["std as a factor of the step size alone"] = Variant("surefoot.paper.ablation:ScaledAdam", {"scale": "lr"})
    if lr in recorded_weights():
        recording = digest(lr)
        variants["std of another seed"] = Variant(_WEIGHTED, {"weights": "replayed", "recording": recording})
        variants["std of another seed, drawn at random"] = Variant(
            _WEIGHTED, {"weights": "drawn", "recording": recording}
        )
    return {name: variant.at(lr) for name, variant in variants.items()}


def runs_by_contestant(runs: Sequence[Run], configuration: Configuration, lr: float) -> dict[str, list[Run]]:
    """The runs of each contestant at a learning rate, whichever comparison made them."""
    here = [run for run in runs if is_on(run, configuration, IMAGES)]
    by_name = {name: one_per_seed([run for run in here if variant.matches(run)])
               for name, variant in contestants(lr).items()}  # fmt: skip
    return {name: seeds for name, seeds in by_name.items() if seeds}
