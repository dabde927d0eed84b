"""The ablation: contestants that have only one part of the method each.

With the paper's weighting the gradient of step t is multiplied by ``w_t = std + tilt * (loss - mean)``. To Adam that
does three things (see docs/theory.md): the step size is multiplied by ``A_hat / sqrt(C_hat)``, the running means of
``w`` and ``w**2``; eps is divided by ``sqrt(C_hat)``; and batches with a larger weight count more in the moments.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from surefoot.lab.analyse.groups import preferred
from surefoot.lab.spec.builtin import PAPER_WEIGHT_DECAY
from surefoot.lab.spec.code import RECORDED_AS
from surefoot.lab.spec.contestant import write_spec
from surefoot.lab.store import Run
from surefoot.paper.published import Configuration, configuration_of, eta_of
from surefoot.statistics import LossStats

#: Learning rates of the CNN's ablation, the paper's first: every contestant gets each of them.
RATES = (1e-3, 5e-4, 2.5e-4)
#: Training images of the CNN's ablation.
IMAGES = 10_000
#: Epochs of the ablation: two lengths, because a schedule that needs no horizon must do well at both.
HORIZONS = (12, 45)
CNN_EPOCHS = 20
SEEDS = 5

_SCALED = "surefoot.paper.ablation:ScaledAdam"
_SCHEDULE_FREE = "schedulefree.AdamWScheduleFree"
#: What the lab records as the class of a short name.
_CLASSES = {
    "adam": "torch.optim.Adam",
    "adamucb": "surefoot.AdamUCB",
    "adamcb": "surefoot.AdamCB",
    "adams": "surefoot.AdamS",
    **RECORDED_AS,
}


class ScaledAdam(torch.optim.Adam):
    """Plain Adam with the step size, or the eps, that the std of the loss as a common weight would give it.

    With ``w = std`` (the paper's weighting at eta = 0), ``A_hat`` and ``C_hat`` the bias-corrected running means of w
    and of w**2 at Adam's own decay rates: ``lr' = lr * A_hat / sqrt(C_hat)`` and ``eps' = eps / sqrt(C_hat)``. The
    moments are those of the plain gradient. While no spread was seen the parameters rest, as they do under w = 0.

    Args:
        scale: "eps", "lr" or "both".

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = ScaledAdam([weight], lr=0.1, scale="lr")
    >>> for loss in (3.0, 1.0, 2.0):
    ...     weight.grad = torch.ones(1)
    ...     optimizer.step(loss=loss)
    >>> round(weight.item(), 4), optimizer.param_groups[0]["lr"]
    (0.9361, 0.1)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        scale: str = "eps",
        fused: bool = True,
    ) -> None:
        if scale not in ("eps", "lr", "both"):
            raise ValueError(f"unknown scale {scale!r}; choose eps, lr or both")
        super().__init__(params, lr, betas, eps, weight_decay, fused=fused)
        self.scale = scale
        for group in self.param_groups:  # plain numbers, so that every checkpoint holds them
            group.update(seen=list(LossStats()), weight_mean=0.0, weight_power=0.0)

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:  # type: ignore[override]
        """Take one step; the loss is the one whose gradients these are."""
        asked = [(group["lr"], group["eps"]) for group in self.param_groups]
        reading = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        for group in self.param_groups:
            self._prepare(group, reading)
        try:
            return super().step(closure)
        finally:
            for group, (lr, eps) in zip(self.param_groups, asked):
                group.update(lr=lr, eps=eps)

    def _prepare(self, group: dict[str, Any], loss: float) -> None:
        stats = LossStats(*group["seen"])
        beta1, beta2 = group["betas"]
        group["weight_mean"] = beta1 * group["weight_mean"] + (1 - beta1) * stats.std
        group["weight_power"] = beta2 * group["weight_power"] + (1 - beta2) * stats.std**2
        steps = stats.count + 1
        rms = math.sqrt(group["weight_power"] / (1 - beta2**steps))
        ratio = group["weight_mean"] / (1 - beta1**steps) / rms if rms else 0.0
        if self.scale != "eps" or not rms:
            group["lr"] = group["lr"] * ratio
        if self.scale != "lr" and rms:
            group["eps"] = group["eps"] / rms
        group["seen"] = list(stats._replace(weight=ratio).with_loss(loss, beta1))

    def confidence(self) -> list[dict[str, float]]:
        """The statistics of the loss; the weight is the factor of the step size."""
        return [LossStats(*group["seen"])._asdict() for group in self.param_groups]


@dataclass(frozen=True)
class Variant:
    """A contestant of the ablation. Its runs are recognised without its class, which may not be installed.

    >>> Variant("adamucb", {"eta": 0.1, "weighting": "unit"}).spec, Variant("adam", schedule="cosine").at(5e-4).spec
    ('adamucb:eta=0.1,weighting=unit', 'adam:lr=0.0005,schedule=cosine')
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str | None = None

    @property
    def spec(self) -> str:
        """How the lab writes it."""
        return write_spec(self.name, {**self.options, **({"schedule": self.schedule} if self.schedule else {})})

    def at(self, lr: float) -> Variant:
        """The same at a learning rate."""
        return replace(self, options={**self.options, "lr": lr})

    def matches(self, run: Run) -> bool:
        """Whether a run is one of this contestant with the paper's settings otherwise."""
        optimizer = run.config.optimizer
        wanted = {"lr": 1e-3, "weight_decay": PAPER_WEIGHT_DECAY, **self.options}
        options = {name: value for name, value in optimizer.options.items() if name != "fused"}
        # Runs without bounds record no gain.
        options, wanted = ({k: v for k, v in x.items() if (k, v) != ("gain", None)} for x in (options, wanted))
        return (
            optimizer.class_path == _CLASSES.get(self.name, self.name)
            and optimizer.schedule == self.schedule
            and options == wanted
        )


def variants(configuration: Configuration) -> dict[str, Variant]:
    """The contestants of the ablation on LR and MLP: what each is, and how it is written.

    >>> variants(Configuration("mnist", "mlp", 128, False))["std scale alone"].spec
    'adamucb:eta=0,gain=None'
    """
    return {
        "plain Adam": Variant("adam"),
        "Adam at half the learning rate": Variant("adam", {"lr": 5e-4}),
        "std scale alone": Variant("adamucb", {"eta": 0, "gain": None}),
        "tilt alone, eta 0.1": Variant("adamucb", {"eta": 0.1, "weighting": "unit"}),
        "tilt alone, eta 0.3": Variant("adamucb", {"eta": 0.3, "weighting": "unit"}),
        "tilt alone, eta 1": Variant("adamucb", {"eta": 1, "weighting": "unit"}),
        "tilt alone, eta -0.3": Variant("adamucb", {"eta": -0.3, "weighting": "unit"}),
        "random tilt alone, eta 0.3": Variant("adams", {"eta": 0.3, "weighting": "unit"}),
        "both: AdamUCB": Variant("adamucb", {"eta": eta_of(configuration, "AdamUCB"), "gain": None}),
        "both: AdamS": Variant("adams", {"eta": eta_of(configuration, "AdamS"), "gain": None}),
        "scaled step size alone": Variant(_SCALED, {"scale": "lr"}),
        "scaled eps alone": Variant(_SCALED, {"scale": "eps"}),
        "cosine decay": Variant("adam", schedule="cosine"),
        "schedule-free AdamW": Variant(_SCHEDULE_FREE),
    }


def cnn_variants(configuration: Configuration) -> dict[str, Variant]:
    """The contestants of the CNN's ablation, each to be run at every rate of `RATES`."""
    return {
        "plain Adam": Variant("adam"),
        "std scale alone": Variant("adamucb", {"eta": 0, "gain": None}),
        "both: AdamS": Variant("adams", {"eta": eta_of(configuration, "AdamS"), "gain": None}),
        "both: AdamCB": Variant("adamcb", {"eta": eta_of(configuration, "AdamCB"), "gain": None}),
        "cosine decay": Variant("adam", schedule="cosine"),
        "schedule-free AdamW": Variant(_SCHEDULE_FREE),
    }


def has_schedule_free() -> bool:
    """Whether the package of schedule-free AdamW is installed."""
    return importlib.util.find_spec("schedulefree") is not None


def installed(contestants: Mapping[str, Variant]) -> list[Variant]:
    """The contestants that can be run here: all, except `schedulefree` where that is not installed."""
    return [variant for variant in contestants.values() if variant.name != _SCHEDULE_FREE or has_schedule_free()]


def runs_by_variant(runs: Sequence[Run], configuration: Configuration) -> dict[str, list[Run]]:
    """The runs of each variant of the ablation on LR or MLP, whichever comparison made them."""
    here = [run for run in runs if is_on(run, configuration, None)]
    by_variant = {
        name: one_per_seed([run for run in here if variant.matches(run)])
        for name, variant in variants(configuration).items()
    }
    return {name: seeds for name, seeds in by_variant.items() if seeds}


def runs_by_rate(runs: Sequence[Run], configuration: Configuration) -> tuple[int, dict[str, dict[float, list[Run]]]]:
    """The CNN's ablation: the length that most of its ended runs have, and those runs by contestant and rate."""
    contestants = [variant.at(lr) for variant in cnn_variants(configuration).values() for lr in RATES]
    here = [
        run
        for run in runs
        if is_on(run, configuration, IMAGES)
        and (run.finished or run.diverged)
        and any(variant.matches(run) for variant in contestants)
    ]
    lengths = Counter(run.config.epochs for run in here)
    length = max(lengths, key=lambda epochs: (lengths[epochs], epochs), default=0)
    by_name: dict[str, dict[float, list[Run]]] = {}
    for name, variant in cnn_variants(configuration).items():
        for lr in RATES:
            seeds = at_horizon(one_per_seed([run for run in here if variant.at(lr).matches(run)]), length)
            if seeds:
                by_name.setdefault(name, {})[lr] = seeds
    return length, by_name


def one_per_seed(runs: Sequence[Run]) -> list[Run]:
    """The run of each seed (and length, with a schedule) that is shown."""
    by_length: dict[int, list[Run]] = {}
    for run in runs:
        length = run.config.epochs if run.config.optimizer.schedule else 0
        by_length.setdefault(length, []).append(run)
    return [run for length in sorted(by_length) for run in preferred(by_length[length]).values()]


def is_on(run: Run, configuration: Configuration, subset: int | None) -> bool:
    """Whether a run is in one of the paper's configurations, on so many of its images."""
    task = run.config.task
    return configuration_of(task) == configuration and task.settings.get("subset") == subset


def at_horizon(runs: Sequence[Run], horizon: int) -> list[Run]:
    """The runs that were so long; a schedule must have been made for this very length."""
    return [
        run
        for run in runs
        if (run.config.epochs == horizon or not run.config.optimizer.schedule)
        and (run.diverged or len(run.epochs) >= horizon)
    ]
