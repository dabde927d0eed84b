"""The paper's theory as executable checks: each identity against autograd, enumeration or a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot import AdamS, AdamUCB, Momentum, MomentumS, MomentumUCB
from surefoot.noise import standard_normal
from surefoot.reference import Reference, algorithm_2
from surefoot.rules import RULES, weigh
from surefoot.statistics import LossStats

BATCHES, SIZE = 6, 8


def double(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distribution(beta: float, t: int) -> Tensor:
    """The paper's P_beta(p | t): exponential weights of the last t steps, the newest (p = 0) first."""
    return torch.tensor([beta**p / ((1 - beta**t) / (1 - beta)) for p in range(t)], dtype=torch.float64)


class Landscape:
    """A small network and its mini-batches at fixed parameters: losses, gradients and any objective of them."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
        self.params = list(self.model.parameters())
        self.inputs = double(BATCHES, SIZE, 5, seed=seed)
        self.targets = torch.randint(3, (BATCHES, SIZE), generator=torch.Generator().manual_seed(seed))

    def losses(self) -> Tensor:
        """The loss of every mini-batch, as functions of the parameters."""
        return torch.stack([F.cross_entropy(self.model(x), y) for x, y in zip(self.inputs, self.targets)])

    def gradient(self, value: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in torch.autograd.grad(value, self.params, retain_graph=True)])

    def gradients(self) -> Tensor:
        """The gradient of every mini-batch's loss, one row each."""
        return torch.stack([self.gradient(loss) for loss in self.losses()])


def moments(losses: Tensor, chances: Tensor) -> tuple[Tensor, Tensor]:
    mean = (chances * losses).sum()
    return mean, ((chances * losses**2).sum() - mean**2).sqrt()


# Momentum as an approximation of the full gradient


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999])
def test_bias_corrected_momentum_is_an_expectation(beta: float) -> None:
    steps, lr = 12, 0.25
    gradients = double(steps, 4)
    theta = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = Momentum([theta], lr=lr, momentum=beta)
    for t in range(1, steps + 1):
        before = theta.detach().clone()
        theta.grad = gradients[t - 1].clone()
        optimizer.step(loss=1.0)
        chances = distribution(beta, t)
        expected = (chances[:, None] * gradients[:t].flip(0)).sum(0)
        assert chances.sum().item() == pytest.approx(1.0, abs=1e-12)
        torch.testing.assert_close((before - theta.detach()) / lr, expected, rtol=1e-9, atol=1e-12)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30), st.floats(0.05, 0.99))
@settings(max_examples=50, deadline=None)
def test_statistics_of_the_loss_are_those_of_the_same_distribution(losses: list[float], beta: float) -> None:
    stats = LossStats()
    for loss in losses:
        stats = stats.with_loss(loss, beta)
    chances = distribution(beta, len(losses))
    newest_first = torch.tensor(losses[::-1], dtype=torch.float64)
    mean = (chances * newest_first).sum()
    assert stats.mean == pytest.approx(mean.item(), abs=1e-9)
    assert stats.std == pytest.approx((chances * (newest_first - mean) ** 2).sum().sqrt().item(), abs=1e-9)


# The gradient of mean + eta * std


@pytest.mark.parametrize("eta", [-0.7, 0.0, 0.01, 1.0, 3.0])
@pytest.mark.parametrize("beta", [None, 0.8])
def test_weighted_mean_of_gradients_is_the_gradient_of_the_objective(eta: float, beta: float | None) -> None:
    land = Landscape()
    uniform = torch.full((BATCHES,), 1 / BATCHES, dtype=torch.float64)
    chances = uniform if beta is None else distribution(beta, BATCHES)
    mean, std = moments(land.losses(), chances)
    by_autograd = land.gradient(mean + eta * std)
    stats = LossStats(count=9.0, mean=mean.item(), std=std.item())
    weights = [weigh(RULES["ucb"], stats, loss.item(), eta, 0.0, "unit").weight for loss in land.losses()]
    weighted = (chances * torch.tensor(weights, dtype=torch.float64)) @ land.gradients()
    torch.testing.assert_close(weighted, by_autograd, rtol=1e-9, atol=1e-12)
    scaled = [weigh(RULES["ucb"], stats, loss.item(), eta, 0.0, "paper").weight for loss in land.losses()]
    assert scaled == pytest.approx([std.item() * weight for weight in weights])


@pytest.mark.parametrize("noise", [-1.5, 0.4])
@pytest.mark.parametrize("rule", ["ucb", "cb", "s", "cvar"])
def test_every_weight_is_that_of_an_objective_with_the_tilt_held(rule: str, noise: float) -> None:
    """CB and S move their coefficient from step to step: the gradient is that of mean + tilt*std at its value now."""
    land = Landscape(seed=1)
    chances = torch.full((BATCHES,), 1 / BATCHES, dtype=torch.float64)
    mean, std = moments(land.losses(), chances)
    stats = LossStats(count=9.0, mean=mean.item(), std=std.item(), best=mean.item())
    weighed = [weigh(RULES[rule], stats, loss.item(), 0.3, noise, "unit") for loss in land.losses()]
    tilt = weighed[0].tilt
    wanted = {"ucb": 0.3, "cb": stats.std / stats.mean - 0.3, "s": 0.3 * noise, "cvar": None}[rule]
    assert wanted is None or tilt == pytest.approx(wanted)
    weights = torch.tensor([assessment.weight for assessment in weighed], dtype=torch.float64)
    weighted = (chances * weights) @ land.gradients()
    torch.testing.assert_close(weighted, land.gradient(mean + tilt * std), rtol=1e-9, atol=1e-12)


def test_momentum_ucb_takes_that_gradient_when_the_parameters_hardly_move() -> None:
    """Going round the mini-batches with a tiny step, the momentum nears the objective's gradient under P_beta."""
    land = Landscape(seed=2)
    beta, eta, rounds = 0.8, 0.5, 12
    optimizer = MomentumUCB(land.params, lr=1e-6, momentum=beta, eta=eta)
    start = torch.cat([p.detach().flatten() for p in land.params])
    for _ in range(rounds):
        for k in range(BATCHES):
            optimizer.zero_grad()
            loss = land.losses()[k]
            loss.backward()
            optimizer.step(loss=loss)
    before = torch.cat([p.detach().flatten() for p in land.params])
    optimizer.zero_grad()
    loss = land.losses()[0]
    loss.backward()
    optimizer.step(loss=loss)
    taken = (before - torch.cat([p.detach().flatten() for p in land.params])) / 1e-6
    assert torch.allclose(start, before, atol=1e-4)
    # Each gradient was weighted by the statistics of its own moment: of the losses before it.
    losses, gradients = [x.item() for x in land.losses()], land.gradients()
    order = [k % BATCHES for k in range(rounds * BATCHES + 1)]
    stats, expected = LossStats(), torch.zeros_like(taken)
    for t, k in enumerate(order):
        weight = weigh(RULES["ucb"], stats, losses[k], eta, 0.0, "unit").weight
        expected += (1 - beta) * beta ** (len(order) - 1 - t) * weight * gradients[k]
        stats = stats.with_loss(losses[k], beta)
    torch.testing.assert_close(taken, expected / (1 - beta ** len(order)), rtol=1e-3, atol=1e-4)


# The variance-gradient and REINFORCE with a baseline


def test_variance_gradient_is_a_covariance_and_half_the_gradient_of_the_variance() -> None:
    land = Landscape(seed=3)
    losses, gradients = land.losses(), land.gradients()
    mean = losses.mean()
    by_definition = ((losses - mean).detach()[:, None] * gradients).mean(0)
    covariance = (losses.detach()[:, None] * gradients).mean(0) - mean.detach() * gradients.mean(0)
    torch.testing.assert_close(by_definition, covariance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(by_definition, 0.5 * land.gradient(losses.var(correction=0)), rtol=1e-9, atol=1e-12)


def test_reinforce_with_the_mean_as_baseline_is_a_covariance() -> None:
    """A policy over five rollouts, enumerated: the gradient of the expected return by autograd and by both formulas."""
    scores = double(5, seed=4).requires_grad_()
    returns = double(5, seed=5)
    chances = scores.softmax(0)
    expected = (chances * returns).sum()
    [by_autograd] = torch.autograd.grad(expected, scores, retain_graph=True)
    score = torch.stack([torch.autograd.grad(x, scores, retain_graph=True)[0] for x in scores.log_softmax(0)])
    p = chances.detach()
    with_baseline = (p * (returns - expected.detach())) @ score
    covariance = (p * returns) @ score - (p @ returns) * (p @ score)
    torch.testing.assert_close(with_baseline, by_autograd, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(covariance, by_autograd, rtol=1e-9, atol=1e-12)


def test_with_log_likelihood_as_return_the_policy_gradient_term_is_the_variance_gradient() -> None:
    """r = log P = -loss, and the covariance taken over mini-batches: the signs cancel."""
    land = Landscape(seed=6)
    loss, gradients = land.losses().detach(), land.gradients()
    r, score = -loss, -gradients
    policy_term = (r[:, None] * score).mean(0) - r.mean() * score.mean(0)
    variance_gradient = ((loss - loss.mean())[:, None] * gradients).mean(0)
    torch.testing.assert_close(policy_term, variance_gradient, rtol=1e-9, atol=1e-12)


# Stochastic momentum


def step_of(optimizer_class: type, seed: int, **options: float) -> Tensor:
    """The last of a few steps along given losses and gradients; all but that one do not depend on the noise."""
    theta = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = optimizer_class([theta], lr=1.0, **options)
    gradients = double(4, 3, seed=7)
    for k, loss in enumerate([2.0, 1.0, 1.5, 3.0]):
        if k == 3 and "eta" in options:
            optimizer.param_groups[0].update(eta=0.4, seed=seed)
        before = theta.detach().clone()
        theta.grad = gradients[k].clone()
        optimizer.step(loss=loss)
    return before - theta.detach()


def test_momentum_s_is_unbiased_over_its_noise() -> None:
    plain = step_of(Momentum, 0)
    noises = torch.tensor([standard_normal(seed, 3, 0) for seed in range(400)], dtype=torch.float64)
    steps = torch.stack([step_of(MomentumS, seed, eta=0.0) for seed in range(400)])
    # The step is the plain one plus the noise times a fixed direction, so its mean is off by the noise's mean alone.
    direction = (steps[0] - plain) / noises[0]
    torch.testing.assert_close(steps, plain + noises[:, None] * direction, rtol=1e-9, atol=1e-12)
    assert direction.abs().min() > 1e-3
    assert abs(noises.mean().item()) < 4 / math.sqrt(len(noises))
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    chances = torch.tensor(weights / weights.sum())
    stats = LossStats(count=9.0, mean=1.0, std=0.5)
    over_noise = [weigh(RULES["s"], stats, 3.0, 0.4, float(node), "unit").weight for node in nodes]
    assert (chances @ torch.tensor(over_noise, dtype=torch.float64)).item() == pytest.approx(1.0, abs=1e-12)


def test_adams_is_not_unbiased_since_adam_divides() -> None:
    """Averaged over its noise AdamS's step is not AdamUCB's at eta 0: the noise is in the denominator too."""
    plain = step_of(AdamUCB, 0, eta=0.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    chances = torch.tensor(weights / weights.sum())
    adams = []
    for node in nodes:
        oracle = Reference([theta := torch.zeros(3, dtype=torch.float64)], rule="s", eta=0.0, lr=1.0)
        gradients = double(4, 3, seed=7)
        for k, loss in enumerate([2.0, 1.0, 1.5, 3.0]):
            before = theta.clone()
            if k == 3:
                oracle.rule, oracle.eta = "ucb", 0.4 * float(node)
            oracle.step([gradients[k]], loss)
        adams.append(before - theta)
    assert ((chances @ torch.stack(adams)) / plain - 1).abs().max() > 0.01


# What the weights do inside Adam


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_normalised_moments(beta2: float) -> None:
    """m = A*N and v = C*V, where N and V follow Adam's own recurrence on the bare gradient with moving decays."""
    beta1, steps = 0.9, 25
    gradients, weights = double(steps, 3, seed=8), double(steps, seed=9).abs() + 0.05
    m, v, n, u = (torch.zeros(3, dtype=torch.float64) for _ in range(4))
    a = c = 0.0
    for g, w in zip(gradients, weights.tolist()):
        m, v = beta1 * m + (1 - beta1) * w * g, beta2 * v + (1 - beta2) * (w * g) ** 2
        a_old, c_old = a, c
        a, c = beta1 * a + (1 - beta1) * w, beta2 * c + (1 - beta2) * w * w
        n = beta1 * a_old / a * n + (1 - beta1 * a_old / a) * g
        u = beta2 * c_old / c * u + (1 - beta2 * c_old / c) * g * g
        torch.testing.assert_close(m, a * n, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(v, c * u, rtol=1e-10, atol=1e-12)


def adam_path(gradients: Tensor, weights: list[float], eps: float) -> Tensor:
    theta = torch.zeros(gradients.shape[1], dtype=torch.float64)
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for t, (g, w) in enumerate(zip(gradients, weights), start=1):
        algorithm_2(theta, w * g, m, v, t, 0.01, (0.9, 0.999), eps)
    return theta


def test_a_constant_scale_cancels_in_adam_but_for_eps() -> None:
    gradients = double(20, 4, seed=10)
    scaled = adam_path(gradients, [0.03] * 20, 1e-3)
    torch.testing.assert_close(scaled, adam_path(gradients, [1.0] * 20, 1e-3 / 0.03), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(scaled, adam_path(gradients, [1.0] * 20, 1e-3), rtol=1e-3)


def train(optimizer_class: type, losses: list[float], **options: object) -> Tensor:
    theta = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = optimizer_class([theta], lr=0.01, **options)
    for g, loss in zip(double(len(losses), 4, seed=11), losses):
        theta.grad = g.clone()
        optimizer.step(**({} if optimizer_class is torch.optim.Adam else {"loss": loss}))
    return theta.detach()


def test_eta_zero_restores_adam_only_while_the_std_is_constant() -> None:
    """The paper says that eta = 0 restores Adam; with its own Algorithm 2 a shrinking std makes smaller steps."""
    losses = [2.0 + (-1) ** t * 0.9**t for t in range(60)]
    adam = train(torch.optim.Adam, losses)
    assert not torch.allclose(train(AdamUCB, losses, eta=0.0), adam, rtol=0.1)
    torch.testing.assert_close(train(AdamUCB, losses, eta=0.0, weighting="unit"), adam, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(train(AdamS, losses, eta=0.0, weighting="unit"), adam, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rate", [0.9998, 1.0, 1.0002])
def test_step_size_under_a_weight_that_shrinks_steadily(rate: float) -> None:
    """w_t = rate**t multiplies the step by a constant: below 1 while the weight falls, above 1 while it grows."""
    from surefoot.paper.steps import ratios

    beta1, beta2 = 0.9, 0.999
    last = ratios([rate**t for t in range(20_000)], (beta1, beta2))[-1]
    mean = (1 - beta1) / (1 - beta1 / rate)
    power = (1 - beta2) / (1 - beta2 / rate**2)
    assert last == pytest.approx(mean / math.sqrt(power), rel=1e-3)
    assert math.copysign(1, last - 1) == math.copysign(1, rate - 1) or rate == 1.0
