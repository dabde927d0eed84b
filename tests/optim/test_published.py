"""reference=True against a second, literal transcription of the authors' code: Algorithms 1 and 2 with its details."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import surefoot.optim.published
from surefoot import AdamCB, AdamPI, AdamS, AdamUCB, LossAware, Momentum, MomentumCB, MomentumS, MomentumUCB, NAdamUCB

LOSSES = [2.3, 1.9, 2.6, 1.2, 1.4, 0.7, 0.9, 0.2]
SHAPES = [(2, 3), (3,)]


def gradients(seed: int = 0) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(s, dtype=torch.float64, generator=generator) for s in SHAPES] for _ in range(len(LOSSES) + 1)]


class Printed:
    """The while loop of Algorithm 2 (Algorithm 1 for `momentum`) as the authors coded it, with nothing simplified.

    With `printed` eps joins the bias correction of the loss statistics, as in the text of the paper alone.
    """

    def __init__(
        self,
        theta: Tensor,
        kind: str,
        eta: float,
        lr: float,
        decay: float,
        momentum: bool,
        amsgrad: bool = False,
        printed: bool = False,
    ) -> None:
        self.theta, self.kind, self.eta, self.lr, self.decay, self.momentum = theta, kind, eta, lr, decay, momentum
        self.amsgrad, self.printed = amsgrad, printed
        self.m, self.v, self.largest = (torch.zeros_like(theta) for _ in range(3))
        self.r = self.s = 0.0
        self.t = 0

    def loop_body(self, g: Tensor, loss: float, noise: float) -> None:
        beta1, beta2, epsilon, eta = 0.9, 0.999, 1e-8, self.eta
        self.t += 1
        t = self.t
        g = g + self.decay * self.theta
        mass = 1 - beta1 ** (t - 1) + (epsilon if self.printed else 0.0)
        mu, s_hat = (self.r / mass, self.s / mass) if mass else (0.0, 0.0)
        sigma = math.sqrt(max(s_hat - mu**2, 0.0))
        if self.kind == "ucb":
            bracket = sigma + eta * (loss - mu)
        elif self.kind == "cb" and t == 1:
            bracket = eta * loss
        elif self.kind == "cb":
            bracket = sigma * abs(mu) - (eta * abs(mu) - sigma) * (loss - mu)
        else:
            bracket = sigma + noise * eta * (loss - mu)
        self.m = beta1 * self.m + (1 - beta1) * bracket * g
        self.v = beta2 * self.v + (1 - beta2) * bracket**2 * g**2
        self.r = beta1 * self.r + (1 - beta1) * loss
        self.s = beta1 * self.s + (1 - beta1) * loss**2
        m_hat = self.m / (1 - beta1**t)
        if self.momentum:
            self.theta = self.theta - self.lr * m_hat
            return
        self.largest = torch.maximum(self.largest, self.v)
        v = self.largest if self.amsgrad else self.v
        # As the published code does: eps joins the uncorrected root.
        self.theta = self.theta - self.lr * m_hat * math.sqrt(1 - beta2**t) / (v.sqrt() + epsilon)


def known_noise(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], float]:
    """Replace the noise by draws that the test knows, by step and stream."""
    drawn: dict[tuple[int, int], float] = {}

    def draw(seed: int, step: int, stream: int) -> float:
        return drawn.setdefault((step, stream), math.sin(1.0 + 7.0 * len(drawn)))

    monkeypatch.setattr(surefoot.optim.published, "standard_normal", draw)
    return drawn


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("cls", "kind", "eta"),
    [
        *((AdamUCB, "ucb", 0.5), (AdamUCB, "ucb", -0.5), (AdamCB, "cb", 0.3), (AdamS, "s", 0.8)),
        *((MomentumUCB, "ucb", 0.5), (MomentumCB, "cb", 0.3), (MomentumS, "s", 0.8)),
    ],
)
def test_the_algorithms_as_coded(
    cls: type[LossAware],
    kind: str,
    eta: float,
    decay: float,
    amsgrad: bool,
    maximize: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if amsgrad and "Momentum" in cls.__name__:
        pytest.skip("Momentum has no AMSGrad")
    drawn = known_noise(monkeypatch)
    start, *grads = gradients()
    params = [x.clone().requires_grad_() for x in start]
    options: dict[str, Any] = {"lr": 0.05, "eta": eta, "weight_decay": decay, "maximize": maximize}
    options |= {"amsgrad": True} if amsgrad else {}
    optimizer = cls(params, weighting="paper", reference=True, **options)
    printed = [Printed(x, kind, eta, 0.05, decay, "Momentum" in cls.__name__, amsgrad) for x in start]
    for step, (gs, loss) in enumerate(zip(grads, LOSSES)):
        for p, g in zip(params, gs):
            p.grad = g.clone()
        optimizer.step(loss=loss)
        sign = -1 if maximize else 1
        noises = [noise for (when, _), noise in sorted(drawn.items()) if when == step]
        assert len(set(noises)) == len(SHAPES)  # one draw for each tensor
        for recipe, g, noise in zip(printed, gs, noises):
            recipe.loop_body(sign * g, sign * loss, noise)
    for p, recipe in zip(params, printed):
        # The published sums of losses and of their squares cancel: the std of equal losses is 1e-8 there.
        torch.testing.assert_close(p.detach(), recipe.theta, rtol=0, atol=5e-8)
    assert [optimizer.state[p]["step"].item() for p in params] == [len(LOSSES)] * 2


def reference_weights(cls: type[LossAware], losses: list[float], **options: Any) -> list[float]:
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = cls([p], reference=True, **options)
    weights = []
    for loss in losses:
        p.grad = torch.ones_like(p)
        optimizer.step(loss=loss)
        weights.append(float(optimizer.confidence()[0]["weight"]))
    return weights


def test_the_second_loss_has_no_spread_in_the_code_and_one_in_the_text() -> None:
    first, second = 2.3, 2.2
    [_, weight] = reference_weights(AdamUCB, [first, second], eta=1e-4)
    assert weight == pytest.approx(1e-4 * (second - first), rel=1e-12)
    text = Printed(torch.zeros(1, dtype=torch.float64), "ucb", 1e-4, 0.1, 0.0, False, printed=True)
    for loss in (first, second):
        text.loop_body(torch.ones(1, dtype=torch.float64), loss, 0.0)
    assert text.m.item() > 0 > weight  # a spread of 3e-4 * loss, from eps alone


def test_the_first_step_of_cb_is_taken() -> None:
    assert reference_weights(AdamCB, [2.3], eta=0.1) == [pytest.approx(0.23)]


def test_reference_has_no_bounds() -> None:
    published, bounded = (reference_weights(AdamUCB, LOSSES, gain=gain) for gain in (None, (1.0, 1.0)))
    assert published == bounded


def test_the_first_step_keeps_its_sign() -> None:
    for published in (False, True):
        p = torch.zeros(1, requires_grad=True)
        p.grad = torch.ones(1)
        optimizer = AdamUCB([p], eta=-0.1, reference=published)
        optimizer.step(loss=2.0)
        assert float(optimizer.confidence()[0]["weight"]) == pytest.approx(-0.2 if published else 0.2)
        assert (p.item() > 0) == published


def test_eps_is_added_before_bias_correction() -> None:
    # One step with a root of v of 1e-8 in size: before correction eps weighs sqrt(1 - b2) times as much as after it.
    moved = {}
    for published in (False, True):
        p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        p.grad = torch.full((1,), 1e-8, dtype=torch.float64)
        AdamUCB([p], lr=1.0, eta=1.0, reference=published).step(loss=1.0)
        moved[published] = -p.item()
    assert moved[False] == pytest.approx(0.5)
    assert moved[True] == pytest.approx(1 / (1 + 1 / math.sqrt(1e-3)))


def test_default_and_published_agree_where_they_do_not_differ() -> None:
    # A second loss above the first keeps both weights without a spread positive; and without eps nothing else differs.
    start, *grads = gradients(1)
    ends = []
    for published in (False, True):
        params = [x.clone().requires_grad_() for x in start]
        optimizer = AdamUCB(params, lr=0.01, eta=0.5, eps=1e-30, gain=None, reference=published)
        for gs, loss in zip(grads, [2.0, *LOSSES]):
            for p, g in zip(params, gs):
                p.grad = g.clone()
            optimizer.step(loss=loss)
        ends.append(torch.cat([p.detach().flatten() for p in params]))
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", [AdamUCB, AdamCB, Momentum])
def test_confidence_is_the_same_with_reference(cls: type[LossAware]) -> None:
    statistics = []
    for reference in (True, False):
        p = torch.zeros(2, requires_grad=True)
        optimizer = cls([p], weighting="paper", reference=reference)
        for loss in LOSSES:
            p.grad = torch.ones(2)
            optimizer.step(loss=loss)
        statistics.append({name: float(value) for name, value in optimizer.confidence()[0].items()})
    assert statistics[0] == pytest.approx(statistics[1], rel=1e-3)


def test_a_tensor_that_sat_out_has_its_own_step_count() -> None:
    params = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    optimizer = AdamUCB(params, reference=True)
    for step in range(3):
        for i, p in enumerate(params):
            p.grad = None if i == step else torch.ones(2)
        optimizer.step(loss=1.0 + 2 * step)
    assert [optimizer.state[p]["step"].item() for p in params] == [2, 2, 2]
    first_two = [optimizer.state[p]["exp_avg"] for p in params[:2]]
    assert not torch.equal(*first_two)


def test_complex_parameters_are_pairs_of_reals() -> None:
    _, *grads = gradients(2)
    p = torch.zeros(3, dtype=torch.complex128, requires_grad=True)
    q = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    for x in (p, q):
        optimizer = AdamUCB([x], reference=True)
        for gs, loss in zip(grads, LOSSES):
            pair = gs[0].T.contiguous()
            x.grad = torch.view_as_complex(pair) if x.is_complex() else pair
            optimizer.step(loss=loss)
    torch.testing.assert_close(torch.view_as_real(p.detach()), q.detach(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (AdamUCB, {"weighting": "unit"}, "needs weighting='paper'"),
        (MomentumUCB, {}, "needs weighting='paper'"),
        (AdamPI, {}, "rules plain, ucb, cb, s, but this is adam with pi"),
        (AdamUCB, {"fused": True}, "leave fused, foreach"),
        (AdamUCB, {"capturable": True}, "leave fused, foreach"),
        (AdamUCB, {"differentiable": True}, "leave fused, foreach"),
        (MomentumUCB, {"nesterov": True, "weighting": "paper"}, "leave fused, foreach"),
    ],
)
def test_what_the_paper_does_not_have_is_refused(cls: type[LossAware], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls([torch.zeros(1)], reference=True, **options)


def test_other_engines_have_no_published_form() -> None:
    with pytest.raises(ValueError, match=r"engines adam, momentum .* this is nadam with ucb"):
        NAdamUCB([{"params": [torch.zeros(1)], "reference": True}])
