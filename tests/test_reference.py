"""The oracle itself, against numbers computed by hand: what everything else is compared with."""

from __future__ import annotations

import pytest
import torch

from surefoot.reference import Reference, algorithm_1, algorithm_2, paper_weight


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("plain", 1.0),
        ("ucb", 0.5 + 0.1 * 3),  # sigma + eta * (loss - mu)
        ("cb", 0.5 * 2 - (0.1 * 2 - 0.5) * 3),  # sigma * abs(mu) - (eta * abs(mu) - sigma) * (loss - mu)
        ("s", 0.5 + 0.7 * 0.1 * 3),  # sigma + noise * eta * (loss - mu)
    ],
)
def test_the_brackets_of_the_paper(rule: str, expected: float) -> None:
    assert paper_weight(rule, loss=1.0, mu=-2.0, sigma=0.5, eta=0.1, noise=0.7) == pytest.approx(expected)


def test_algorithm_1_by_hand() -> None:
    theta, m = tensor(1.0), tensor(0.0)
    for t, g in enumerate((1.0, -1.0), start=1):  # m = 1/2, -1/4, corrected: 1, -1/3
        algorithm_1(theta, tensor(g), m, t, lr=0.1, beta=0.5)
    assert theta.item() == pytest.approx(1 - 0.1 + 0.1 / 3)


@pytest.mark.parametrize(("eps_first", "moved"), [(False, 0.1 / 2), (True, 0.1 * 0.5 / (0.5 + 1.0))])
def test_algorithm_2_by_hand(eps_first: bool, moved: float) -> None:
    theta, m, v = tensor(1.0), tensor(0.0), tensor(0.0)
    algorithm_2(theta, tensor(1.0), m, v, 1, lr=0.1, betas=(0.5, 0.75), eps=1.0, eps_first=eps_first)
    assert (m.item(), v.item()) == (0.5, 0.25)  # corrected: 1 and 1
    assert 1 - theta.item() == pytest.approx(moved)


def test_the_statistics_are_those_of_the_losses_before() -> None:
    oracle = Reference([], rule="ucb", eta=0.5, lr=0.1, betas=(0.5, 0.999))
    weights = []
    for loss in (1.0, 4.0, 2.0):
        weights.append(oracle.weight_of(loss))
        oracle.step([], loss)
    # Without a spread the weight is eta * abs(loss - mean). The losses 1 and 4 have the shares 1/3 and 2/3: mean 3, std
    # sqrt(2).
    assert weights == pytest.approx([0.5, 1.5, 2**0.5 - 0.5])


def test_the_oracle_knows_only_the_papers_rules() -> None:
    with pytest.raises(ValueError, match="the paper has no rule 'pi'"):
        Reference([], rule="pi", eta=0.0, lr=0.1).step([], 1.0)
