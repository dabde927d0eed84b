"""weigh(loss) and weigh(losses): the rule as a transform of the loss, per backward pass or per example."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from surefoot.examples import (
    ExampleRule,
    Moments,
    Ramp,
    add_weights,
    example_shares,
    find_any_rule,
    has_spread,
    moments_of,
    shares_of_tenths,
    with_moments,
)
from surefoot.losses import TakesLoss, as_scalar, check_share, maximizes
from surefoot.meter import MAX_LOSS, Meter
from surefoot.optim.checkpoint import as_plain, checked
from surefoot.optim.options import check_eta, check_weighing_options
from surefoot.otsu import LOOK_EVERY, histogram_of, is_damaged, no_groups, pack_groups, unpack_groups
from surefoot.rules import Rule, Weighting, where
from surefoot.statistics import (
    LossSample,
    LossStats,
    Number,
    by_name,
    choose,
    is_distributed,
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
        self._stats, self._device = LossStats(), torch.device("cpu")
        self._sample = LossSample()
        self.warmup, self.signed = warmup, signed
        #: How strongly the weights of examples count by now.
        self.ramp = Ramp()
        self._weighs_examples = False
        #: What is known of the two groups of losses, for eta="auto"; since the last look at them: the steps, the
        #: histogram, and batches of losses that are not in it yet, with the statistics to measure them by.
        self._groups, self._steps = no_groups(), 0
        self._counts: Tensor | None = None
        self._waiting: list[tuple[LossStats, Tensor, Tensor | None]] = []
        #: The last losses of examples, their shares of the weight, and which of them count (None: all).
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
            maximize=self._maximizes(),
            nonfinite=self.nonfinite,
            owner="weigh",
            skipping="leaves such a loss out of the statistics",
        )

    def _maximizes(self) -> bool:
        return self.optimizer is not None and maximizes(self.optimizer, self.optimizer.param_groups[0])

    @property
    def seen(self) -> Tensor:
        """The statistics of the loss as one vector, the form of checkpoints."""
        return pack(self._stats, self._device)

    def _statistics(self, *, on_device: bool) -> LossStats:
        """The statistics of the loss as tensors on the device of the losses, or as floats."""
        if on_device:
            return LossStats(*(scalar_on(self._device, x) for x in self._stats))
        return self._stats if isinstance(self._stats.mean, float) else LossStats(*map(float, self._stats))

    def _number(self) -> float:
        """The eta of the rule: at full strength, where it is "auto"."""
        return self.rule.eta if self.eta == "auto" else self.eta

    def _strength(self) -> Number:
        """How strongly the weights of examples count by now, from 0 to 1."""
        return self._groups.strength if self.eta == "auto" else self.ramp.strength

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
        on_device = not (self._reads(value) and self._device.type == "cpu")
        if on_device:
            self._device = device
        stats = self._statistics(on_device=on_device)
        assessment = self._meter().assess(stats, value if on_device else value.item())
        self._add_to_sample(assessment.loss, share, assessment.accepted, assessment.usable)
        given = stats._replace(z=assessment.z, tilt=assessment.tilt, weight=assessment.weight)
        self._stats = choose(assessment.usable, given, stats)
        return _Weighted.apply(loss, where(assessment.usable, assessment.weight, 1.0))

    def _weigh_examples(self, losses: Tensor, mask: Tensor | None, ids: Tensor | None) -> Tensor:
        """The plain mean of the losses, with a weight on the gradient of each."""
        self._check_examples(losses, mask, ids)
        device, negate = losses.device, self._maximizes()
        batch = self._read_on_host(losses, negate) if mask is None else None
        if batch is None:
            batch = self._keep_on_device(losses, mask, negate)
        if not losses.requires_grad:
            return batch.plain_mean
        self._move_to(device)
        on_host = batch.valid is None
        stats = self._statistics(on_device=not on_host)
        noise = self._meter().noise(stats.count) if self.rule.uses_noise else 0.0
        strength = float(self._strength()) if on_host else self._strength()
        eta = float(self._number())
        shares = example_shares(self.rule, stats, batch.losses, batch.valid, eta, strength, noise, signed=self.signed)
        self._sample = with_moments(self._sample, batch.moments, batch.left_out)
        if self.eta == "auto" and has_spread(stats) is not False:
            self._waiting.append((stats, batch.losses, batch.valid))
        if ids is not None:
            add_weights(self._history, ids.reshape(-1).to(device), shares, strength, batch.valid)
        self._last = batch.losses, shares, batch.valid
        return _WeightedMean.apply(losses, (batch.plain_mean, shares))

    def _read_on_host(self, losses: Tensor, negate: bool) -> _Batch | None:
        """The losses of a batch with their moments as floats; None if they are on a device, or one is not sound."""
        if not self._reads(losses):
            return None
        values = losses.detach() if losses.dtype in (torch.float32, torch.float64) else losses.detach().float()
        variance, mean = torch.var_mean(values, correction=0)
        count, middle = values.numel(), mean.item()
        deviation = variance.item() * count
        if not abs(middle) + math.sqrt(deviation) <= MAX_LOSS:  # no loss is farther from the mean than this
            return None
        moments = Moments(count, -middle if negate else middle, deviation)
        return _Batch(-values if negate else values, None, moments, 0.0, mean.to(losses.dtype))

    def _keep_on_device(self, losses: Tensor, mask: Tensor | None, negate: bool) -> _Batch:
        """The losses of a batch with what counts of them, as tensors that are not read."""
        values = losses.detach().to(widest_float(losses.device))
        counted = torch.ones_like(values, dtype=torch.bool) if mask is None else mask.to(values.device, torch.bool)
        valid = counted & (values.abs() <= MAX_LOSS)
        if self.nonfinite == "raise" and not bool((valid == counted).all()):
            raise FloatingPointError("weigh: a loss is not finite, and nonfinite='raise' was asked for")
        values = torch.where(valid, -values if negate else values, 0.0)
        moments = moments_of(values, valid)
        mean = -moments.mean if negate else moments.mean
        return _Batch(values, valid, moments, (counted & ~valid).sum(), mean.to(losses.dtype))

    def _reads(self, values: Tensor) -> bool:
        """Whether the host may read values and keep statistics as floats: not while a graph is made of it."""
        return values.is_cpu and not torch.compiler.is_compiling()

    @property
    def weighted(self) -> Tensor | None:
        """The weighted mean of the last losses of examples; what the call returned has the value of the plain mean."""
        if self._last is None:
            return None
        losses, shares, _ = self._last
        return (losses * shares).sum() * (-1 if self._maximizes() else 1)

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
        if self._device != device or self._history.device != device:
            self._device, self._history = device, self._history.to(device, widest_float(device))

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
        sample = self._sample.over_ranks(self.process_group, self._device)
        self._sample = LossSample()
        on_device = isinstance(sample.weight, Tensor)
        if not on_device and not sample.weight and not sample.left_out:
            return  # a step without a loss
        stats = self._statistics(on_device=on_device)
        stats = stats._replace(skipped=stats.skipped + sample.left_out).with_sample(sample, self.loss_beta)
        self._stats = stats
        if self._weighs_examples:
            device = self._device if on_device else None
            self.ramp = self.ramp.to(device).after(stats, self.warmup, sample.weight)
            if self.eta == "auto":
                self._look_for_groups(device)

    def _count(self) -> Tensor | None:
        """The histogram of the batches that wait, of every rank, added to that of the steps since the last look."""
        counts = None
        for waiting in self._waiting:
            new = histogram_of(*waiting)
            counts = new if counts is None else counts + new
        self._waiting.clear()
        if is_distributed(self.process_group):
            empty = torch.zeros_like(self._groups.histogram, device=self._device)
            counts = empty if counts is None else counts.to(empty)  # a rank without losses takes part too
            dist.all_reduce(counts, group=self.process_group)
        if self._counts is None or counts is None:
            return self._counts if counts is None else counts
        return self._counts + counts

    def _look_for_groups(self, device: torch.device | None) -> None:
        """Add the histogram to what is known of the two groups; on the host not at every step."""
        self._steps += 1
        looks = device is not None or self._steps >= LOOK_EVERY
        if looks or is_distributed(self.process_group):
            self._counts = self._count()
        if looks and self._counts is not None:
            # A warm-up that the user chose ends at full strength.
            learnt = self.ramp.learnt if self.warmup is None else where(self.ramp.strength >= 1, 1.0, 0.0)
            self._groups = self._groups.to(device).with_counts(self._counts, learnt)
            self._steps, self._counts = 0, None

    def confidence(self) -> list[dict[str, Tensor]]:
        """The statistics of the loss and what was made of them: a list of one dict, like that of optimizers.

        For one loss the last z, tilt and weight. For the losses of examples how strongly their weights count, and the
        shares of the weight that the tenths with the lowest and the highest losses of the last batch got. With
        eta="auto" ``suspected`` is the share of the examples whose labels look wrong.
        """
        named = by_name(self.seen)
        if not self._weighs_examples:
            return [named]
        device = self._device
        named = {name: named[name] for name in ("mean", "std", "skipped")}
        named["strength"] = scalar_on(device, self._strength()).clone()
        if self._last is not None:
            named["lowest_tenth"], named["highest_tenth"] = shares_of_tenths(*self._last)
        if self.eta == "auto":
            groups = self._groups.to(device)
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
        state = {"seen": self.seen, "eta": as_plain(self.eta)}
        if self._weighs_examples:
            state["ramp"] = torch.stack(self.ramp.to(self._device))
            if self.eta == "auto":
                if self._waiting:  # with several ranks none wait between two steps
                    self._counts = self._count()
                state["groups"] = pack_groups(self._groups, self._steps, self._counts)
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
        groups = state_dict.get("groups", pack_groups(no_groups(), 0, None))
        history = state_dict.get("history", self._history[:0])
        if is_damaged(groups):
            raise ValueError(f"'groups' in this checkpoint is {groups!r}, but must be what state_dict() wrote"[:200])
        if not isinstance(history, Tensor) or history.dim() != 2 or history.shape[1] != 2:
            raise ValueError(f"'history' in this checkpoint is {history!r}, but must be a table of two columns"[:200])
        if not self._may_grow and len(history) > len(self._history):
            raise ValueError(
                f"'history' in this checkpoint has {len(history)} examples, but examples={len(self._history)} was given"
            )
        ramp = state_dict.get("ramp", torch.tensor(Ramp(), dtype=torch.float64))
        if not isinstance(ramp, Tensor) or ramp.shape != (3,) or not all(0 <= x <= 1 for x in ramp[1:].tolist()):
            raise ValueError(
                f"'ramp' in this checkpoint is {ramp!r}, but must be a first mean and two shares from 0 to 1"
            )
        seen, self.eta = checked(state_dict["seen"]).detach(), state_dict["eta"]
        self._stats, self._device = unpack(seen, on_device=not seen.is_cpu), seen.device
        self._weighs_examples = "ramp" in state_dict
        self.ramp = Ramp(*(ramp.tolist() if ramp.is_cpu else ramp.detach().clone().unbind()))
        self._groups, self._steps, self._counts = unpack_groups(groups.detach())
        missing = 0 if self._may_grow else len(self._history) - len(history)
        history = history.detach().to(seen)
        self._history = torch.cat([history, history.new_zeros(missing, 2)])
        self._sample, self._last = LossSample(), None
        self._waiting.clear()


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
    """A mean that is known already, whose gradient has another share for each loss."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, known: tuple[Tensor, Tensor]) -> Tensor:
        mean, ctx.shares = known
        ctx.dtype = losses.dtype
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return (grad * ctx.shares).to(ctx.dtype), None


class _Batch(NamedTuple):
    """The losses of a batch, negated where they are maximized, and what is known of them."""

    losses: Tensor
    #: Which of them count; None if all do and the host has seen it.
    valid: Tensor | None
    moments: Moments
    left_out: Number
    plain_mean: Tensor


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
