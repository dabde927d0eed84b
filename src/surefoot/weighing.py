"""weigh(loss) and weigh(losses): the rule as a transform of the loss, per backward pass or per example."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from surefoot.examples import (
    ExampleRule,
    Ramp,
    add_weights,
    deviations,
    example_weights,
    find_any_rule,
    moments_of,
    shares_of_tenths,
    with_moments,
)
from surefoot.losses import TakesLoss, as_scalar, check_share, maximizes
from surefoot.meter import MAX_LOSS, Meter
from surefoot.optim.checkpoint import as_plain, checked
from surefoot.optim.options import check_eta, check_weighing_options
from surefoot.otsu import histogram_of, is_damaged, no_groups, pack_groups, unpack_groups
from surefoot.rules import Rule, Weighting, where
from surefoot.statistics import (
    LossSample,
    LossStats,
    Number,
    by_name,
    choose,
    is_distributed,
    no_statistics,
    pack,
    scalar_on,
    unpack,
    widest_float,
)
from surefoot.unwrap import unwrapped


class Weigher:
    """Call it with a loss: the same value comes back, its gradient multiplied by ``scale * (1 + tilt * z)``.

    Every micro-batch and every rank gets the weight of its own loss. All losses of one optimizer step are weighted by
    the statistics before that step. After the step they enter the statistics together: their mean moves the mean, and
    their spread about it is part of the std.

    Args:
        optimizer: any torch optimizer, whose ``step`` ends the step; without one call ``weigh.update()`` at its end.
        rule: the rule by name, or a Rule of your own.
        eta: the rule's strength (None: the rule's default); ``weigh.eta`` may be changed between steps. "auto", for the
            tilted rule and its default, goes from 0 to -3 where the losses fall into two groups, as they do where many
            labels are wrong, and stays 0 elsewhere.
        weighting: "unit" keeps the weight near 1, "paper" multiplies by the std of the loss (not for examples, whose
            mean weight is 1).
        loss_beta: decay rate of the loss statistics, per step.
        seed: of the noise (rule S): one draw per step, the same for all micro-batches and ranks.
        nonfinite: what to do with a loss that is not finite, or whose weight or size exceeds 1e19. "skip" gives it the
            weight 1 and counts it; a loss that is not finite does not enter the statistics (guard its gradients
            yourself). "raise" stops with an error.
        process_group: whose losses make up the statistics (None: the default group when there is one, False: its own).
        warmup: for the losses of examples: over how many steps the weights come to count (None: by how far the mean
            loss has fallen in units of its std, never going down). With eta="auto": from which step on it may act.
        signed: for the losses of examples: let the weights ``1 + tilt * z`` be negative.
        examples: how many examples there are, for ``ids=`` on an accelerator (None: as many as the ids need, which only
            ids on the CPU can tell).

    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> weigh = weigh(optimizer, "ucb", eta=0.1)
    >>> for x in torch.eye(3):
    ...     optimizer.zero_grad()
    ...     loss = model(x).pow(2).sum()
    ...     weigh(loss).backward()
    ...     optimizer.step()
    >>> weigh.confidence()[0]["std"] > 0
    tensor(True)
    """

    def __init__(
        self,
        optimizer: Optimizer | None = None,
        rule: str | Rule = "ucb",
        eta: float | str | None = None,
        *,
        weighting: Weighting = "unit",
        loss_beta: float = 0.9,
        seed: int = 0,
        nonfinite: str = "skip",
        process_group: Any = None,
        warmup: int | None = None,
        signed: bool = False,
        examples: int | None = None,
    ) -> None:
        optimizer = unwrapped(optimizer)
        _check_optimizer(optimizer)
        check_weighing_options(weighting=weighting, loss_beta=loss_beta, seed=seed, nonfinite=nonfinite)
        self.rule = find_any_rule(rule)
        default = "auto" if self.rule.name == "tilted" else self.rule.eta
        self.eta: Any = default if eta is None else eta
        _check_eta(self.eta, self.rule)
        self.weighting, self.loss_beta, self.seed, self.nonfinite = weighting, float(loss_beta), seed, nonfinite
        self.process_group = process_group
        self.optimizer = optimizer
        self.seen = no_statistics()
        self._sample = LossSample()
        self.warmup, self.signed = warmup, signed
        #: How strongly the weights of examples count by now: the numbers of `surefoot.examples.Ramp`.
        self.ramp = torch.tensor(Ramp(), dtype=torch.float64, device="cpu")
        self._weighs_examples = False
        #: What is known of the two groups of losses, for eta="auto"; and the histogram of this step.
        self._groups = no_groups()
        self._counts: Tensor | None = None
        #: The last losses of examples, their weights, and which of them count (None: all).
        self._last: tuple[Tensor, Tensor, Tensor | None] | None = None
        #: The sum and the number of the weights of every example, by its id.
        self._history = torch.zeros(examples or 0, 2, dtype=torch.float64, device="cpu")
        self._may_grow = examples is None
        self._follow()

    def _follow(self) -> None:
        """End the step when the optimizer does."""
        if self.optimizer is not None:
            self.optimizer.register_step_post_hook(lambda *_: self.update())

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._follow()  # torch drops hooks when it copies an optimizer

    def _meter(self) -> Meter:
        return Meter(
            self.rule,
            self._number(),
            self.weighting,
            self.loss_beta,
            seed=self.seed,
            maximize=self.optimizer is not None and maximizes(self.optimizer, self.optimizer.param_groups[0]),
            nonfinite=self.nonfinite,
            owner="weigh",
            skipping="leaves such a loss out of the statistics",
        )

    def _number(self) -> float:
        """The eta of the rule: at full strength, where it is "auto"."""
        return self.rule.eta if self.eta == "auto" else self.eta

    def _strength(self) -> Number:
        """How strongly the weights of examples count by now, from 0 to 1."""
        return self._groups.strength if self.eta == "auto" else self.ramp[1]

    def __call__(
        self, loss: Tensor, share: float = 1, *, mask: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Return the loss with its gradient weighted; a loss without a graph (of an evaluation) is returned as it is.

        Args:
            loss: a tensor with one element, or the losses of the examples (of the tokens), which get a weight each:
                their plain mean comes back, with the gradient of the weighted one. Weigh it before it is divided by
                the number of micro-batches or scaled.
            share: how much a loss of one element counts in the statistics, such as its number of samples.
            mask: which of the losses count, such as tokens that are no padding.
            ids: the numbers of the examples in the data set, from 0: then `suspects` lists the most distrusted ones.
        """
        if not isinstance(loss, Tensor):
            raise TypeError(f"weigh needs the loss as a tensor with a graph, but got {type(loss).__name__}: {loss!r}")
        examples = self._weighs_examples or isinstance(self.rule, ExampleRule)  # then a vector of one is an example too
        if loss.dim() and (examples or loss.numel() != 1 or mask is not None):
            return self._weigh_examples(loss, mask, ids)
        if isinstance(self.rule, ExampleRule):
            raise ValueError(
                f"the {self.rule.name} rule weighs examples, but got one loss; pass the losses of the batch, "
                "computed with reduction='none'"
            )
        value = as_scalar(loss, owner="weigh")
        share = check_share(share, owner="weigh", name="share")
        if not loss.requires_grad:
            return loss
        device = value.device
        on_device = not (self._reads(value) and self.seen.is_cpu)
        if on_device:
            self.seen = self.seen.to(device, widest_float(device))
        stats = unpack(self.seen, on_device=on_device)
        assessment = self._meter().assess(stats, value if on_device else value.item())
        self._add_to_sample(assessment.loss, share, assessment.accepted, assessment.usable)
        given = stats._replace(z=assessment.z, tilt=assessment.tilt, weight=assessment.weight)
        self.seen = pack(choose(assessment.usable, given, stats), device)
        return _Weighted.apply(loss, where(assessment.usable, assessment.weight, 1.0))

    def _weigh_examples(self, losses: Tensor, mask: Tensor | None, ids: Tensor | None) -> Tensor:
        """The plain mean of the losses, with a weight on the gradient of each."""
        self._check_examples(losses, mask, ids)
        device, meter = losses.device, self._meter()
        values = losses.detach().to(widest_float(device))
        valid, left_out = self._valid(values, mask)
        if valid is not None:
            values = torch.where(valid, values, 0.0)
        values = -values if meter.maximize else values
        batch = moments_of(values, valid)
        mean = -batch.mean if meter.maximize else batch.mean
        if not losses.requires_grad:
            return scalar_on(device, mean).to(losses.dtype)
        self._move_to(device)
        on_host = valid is None
        stats = unpack(self.seen, on_device=not on_host)
        z = deviations(stats, values)
        noise = meter.noise(stats.count) if self.rule.uses_noise else 0.0
        strength = float(self._strength()) if on_host else self._strength()
        weights = example_weights(
            self.rule, stats, values, z, valid, float(meter.eta), strength, noise, signed=self.signed
        )
        self._sample = with_moments(self._sample, batch, left_out)
        if self.eta == "auto":
            self._count(z, valid, stats.std > 0)
        if ids is not None:
            add_weights(self._history, ids.reshape(-1).to(device), weights, strength, valid)
        self._last = values, weights, valid
        factors = weights / (batch.count if on_host else batch.count.clamp(min=1))
        return _WeightedMean.apply(losses, scalar_on(device, mean).to(losses.dtype), factors)

    def _valid(self, values: Tensor, mask: Tensor | None) -> tuple[Tensor | None, Number]:
        """Which losses count, None if all do and the host may know it; and how many are unsound."""
        if mask is None and self._reads(values) and values.abs().max().item() <= MAX_LOSS:
            return None, 0.0
        counted = torch.ones_like(values, dtype=torch.bool) if mask is None else mask.to(values.device, torch.bool)
        valid = counted & (values.abs() <= MAX_LOSS)
        if self.nonfinite == "raise" and not bool((valid == counted).all()):
            raise FloatingPointError("weigh: a loss is not finite, and nonfinite='raise' was asked for")
        return valid, (counted & ~valid).sum()

    def _reads(self, values: Tensor) -> bool:
        """Whether the host may read values and keep statistics as floats: not while a graph is made of it."""
        return values.is_cpu and not torch.compiler.is_compiling()

    def _count(self, z: Tensor, valid: Tensor | None, has_spread: bool | Tensor) -> None:
        """Add the z of a batch to the histogram of this step; in the first step there is no spread to measure by."""
        if has_spread is False:
            return
        counts = histogram_of(z, None if valid is None else valid & has_spread)
        self._counts = counts if self._counts is None else self._counts.add_(counts)

    @property
    def weighted(self) -> Tensor | None:
        """The weighted mean of the last losses of examples; what the call returned has the value of the plain mean."""
        if self._last is None:
            return None
        values, weights, valid = self._last
        count = values.numel() if valid is None else valid.sum().clamp(min=1)
        weighted = (values * weights).sum() / count
        return -weighted if self._meter().maximize else weighted

    def _check_examples(self, losses: Tensor, mask: Tensor | None, ids: Tensor | None) -> None:
        """Refuse losses, a mask or ids that have no meaning; make room for new ids."""
        if losses.numel() == 0 or losses.is_complex():
            raise ValueError(f"weigh needs real losses, but got {losses.dtype} of shape {tuple(losses.shape)}")
        if self.weighting == "paper":
            raise ValueError(
                "the weights of examples have the mean 1, so weighting='paper' means nothing for them; leave it out"
            )
        for name, given in (("mask", mask), ("ids", ids)):
            if given is not None and given.shape != losses.shape:
                raise ValueError(f"{name} has shape {tuple(given.shape)}, but the losses have {tuple(losses.shape)}")
        if ids is None:
            return
        if ids.is_floating_point() or ids.is_complex():
            raise ValueError(f"ids are whole numbers from 0, but got {ids.dtype}")
        if self._may_grow:
            if not ids.is_cpu:
                raise ValueError(
                    f"the ids are on {ids.device}, where reading the largest would wait; pass weigh(..., examples=N) "
                    "with the number of examples"
                )
            missing = int(ids.max()) + 1 - len(self._history)
            if missing > 0:
                self._history = torch.cat([self._history, self._history.new_zeros(missing, 2)])

    def _move_to(self, device: torch.device) -> None:
        """Keep what is known of examples where their losses are."""
        self._weighs_examples = True
        if self.seen.device != device or self.ramp.device != device:
            kept = (self.seen, self.ramp, self._history)
            self.seen, self.ramp, self._history = (x.to(device, widest_float(device)) for x in kept)
            self._groups = self._groups.to(device, on_host=device.type == "cpu")

    def _add_to_sample(self, loss: Number, share: float, accepted: bool | Tensor, usable: bool | Tensor) -> None:
        """Add an accepted loss to those of this step, and count one whose weight cannot be used."""
        sample = self._sample
        if isinstance(accepted, Tensor):
            sample = sample.with_loss(loss, share * scalar_on(accepted.device, accepted))
            self._sample = sample._replace(left_out=sample.left_out + scalar_on(accepted.device, ~usable))
        else:
            sample = sample.with_loss(loss, share) if accepted else sample
            self._sample = sample._replace(left_out=sample.left_out + (not usable))

    def update(self) -> None:
        """End the step: add its losses, of every rank, to the statistics. The optimizer's step calls this."""
        sample = self._sample.over_ranks(self.process_group, self.seen.device)
        self._sample = LossSample()
        on_device = isinstance(sample.weight, Tensor)
        if not on_device and not sample.weight and not sample.left_out:
            return  # a step without a loss
        stats = unpack(self.seen, on_device=on_device)
        stats = stats._replace(skipped=stats.skipped + sample.left_out).with_sample(sample, self.loss_beta)
        self.seen = pack(stats, self.seen.device)
        if self._weighs_examples:
            self._raise_ramp(stats, sample.weight)
            if self.eta == "auto":
                self._look_for_groups(on_host=not on_device)

    def _raise_ramp(self, stats: LossStats, number: Number) -> None:
        """How strongly weights count after this step."""
        ramp = self.ramp.to(self.seen.device)
        if isinstance(stats.mean, Tensor):
            self.ramp = torch.stack(Ramp(*ramp.unbind()).after(stats, self.warmup, number))
        else:
            self.ramp = ramp.new_tensor(Ramp(*ramp.tolist()).after(stats, self.warmup, number))

    def _look_for_groups(self, *, on_host: bool) -> None:
        """Add this step's histogram, of every rank, to what is known of the two groups."""
        counts, self._counts = self._counts, None
        groups = self._groups.to(self.seen.device, on_host=on_host)
        if is_distributed(self.process_group):
            counts = torch.zeros_like(groups.histogram) if counts is None else counts  # all ranks take part
            dist.all_reduce(counts, group=self.process_group)
        if counts is None:
            return
        _, strength, learnt = self.ramp.tolist() if on_host else self.ramp.unbind()
        if self.warmup is not None:  # a warm-up that the user chose ends at full strength
            learnt = strength >= 1 if on_host else (strength >= 1).to(strength.dtype)
        self._groups = groups.with_counts(counts, learnt)

    def confidence(self) -> list[dict[str, Tensor]]:
        """The statistics of the loss and what was made of them: a list of one dict, like that of optimizers.

        For one loss the last z, tilt and weight. For the losses of examples how strongly their weights count, and the
        shares of the weight that the tenths with the lowest and the highest losses of the last batch got. With
        eta="auto" ``suspected`` is the share of the examples whose labels look wrong.
        """
        named = by_name(self.seen)
        if not self._weighs_examples:
            return [named]
        device = self.seen.device
        named = {name: named[name] for name in ("mean", "std", "skipped")}
        named["strength"] = scalar_on(device, self._strength()).clone()
        if self._last is not None:
            named["lowest_tenth"], named["highest_tenth"] = shares_of_tenths(*self._last)
        if self.eta == "auto":
            groups = self._groups.to(device, on_host=False)
            named["suspected"] = torch.where(groups.strength > 0.5, groups.above, 0.0)
        return [named]

    def suspects(self, k: int) -> list[int]:
        """The ids of the k examples with the lowest mean weight so far, the most distrusted first.

        A history, because the loss of a wrong label that is learnt by heart is low. Examples that were weighed while
        all weights were 1 are not listed; a rank of several knows those that it was given.
        """
        sums, numbers = self._history.cpu().unbind(1)
        known = (numbers > 0).nonzero().flatten()
        return known[(sums[known] / numbers[known]).argsort(stable=True)][:k].tolist()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, taken between two steps."""
        state = {"seen": self.seen.clone(), "eta": as_plain(self.eta)}
        if self._weighs_examples:
            state["ramp"] = self.ramp.clone()
            if self.eta == "auto":
                state["groups"] = pack_groups(self._groups)
            if len(self._history):
                state["history"] = self._history.clone()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        if not isinstance(state_dict, dict) or not {"seen", "eta"} <= state_dict.keys():
            raise ValueError(
                "a checkpoint of weigh has seen and eta, this has not; pass what its state_dict() returned"
            )
        _check_eta(state_dict["eta"], self.rule)
        groups, history = (
            state_dict.get("groups", pack_groups(no_groups())),
            state_dict.get("history", self._history[:0]),
        )
        if is_damaged(groups):
            raise ValueError(f"'groups' in this checkpoint is {groups!r}, but must be what state_dict() wrote"[:200])
        if not isinstance(history, Tensor) or history.dim() != 2 or history.shape[1] != 2:
            raise ValueError(f"'history' in this checkpoint is {history!r}, but must be a table of two columns"[:200])
        if not self._may_grow and len(history) > len(self._history):
            raise ValueError(
                f"'history' in this checkpoint has {len(history)} examples, but examples={len(self._history)} was given"
            )
        ramp = state_dict.get("ramp", self.ramp)
        if not isinstance(ramp, Tensor) or ramp.shape != (3,) or not all(0 <= x <= 1 for x in ramp[1:].tolist()):
            raise ValueError(
                f"'ramp' in this checkpoint is {ramp!r}, but must be a first mean and two shares from 0 to 1"
            )
        self.seen, self.eta = checked(state_dict["seen"]).detach().clone(), state_dict["eta"]
        self._weighs_examples = "ramp" in state_dict
        self.ramp = ramp.detach().clone()
        self._groups = unpack_groups(groups.detach().clone()).to(self.seen.device, on_host=self.seen.is_cpu)
        missing = 0 if self._may_grow else len(self._history) - len(history)
        history = history.detach().to(self.seen)
        self._history = torch.cat([history, history.new_zeros(missing, 2)])
        self._sample, self._counts, self._last = LossSample(), None, None


#: ``weigh = surefoot.weigh(optimizer, "ucb", eta=0.1)``, then ``weigh(loss).backward()``.
weigh = Weigher


class _Weighted(torch.autograd.Function):
    """The identity, whose gradient is multiplied by the weight."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, weight: Number) -> Tensor:
        ctx.weight = weight
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return (grad * ctx.weight).to(grad.dtype), None


class _WeightedMean(torch.autograd.Function):
    """A value that is known already, with a factor on the gradient of each loss."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, value: Tensor, factors: Tensor) -> Tensor:
        ctx.factors, ctx.dtype = factors, losses.dtype
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return (grad * ctx.factors).to(ctx.dtype), None, None


def _check_eta(eta: Any, rule: Rule) -> None:
    if isinstance(eta, str) and eta == "auto":
        if rule.name != "tilted":
            raise ValueError(f"eta='auto' goes with the tilted rule, but this is {rule.name!r}; give a number")
        return
    check_eta(eta, rule)


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, Tensor):
        raise TypeError(
            "surefoot.weigh keeps statistics of one loss, so make one first: weigh = surefoot.weigh(optimizer, 'ucb', "
            "eta=0.1), then weigh(loss).backward()"
        )
    if isinstance(optimizer, TakesLoss) and optimizer.weighs_gradients:
        raise TypeError(f"{type(optimizer).__name__} weighs its gradients by the loss already; pass it step(loss=loss)")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(f"weigh needs a torch optimizer, or None, but got {type(optimizer).__name__}: {optimizer!r}")
