"""eta="auto": the strength of the tilt from the shape of the losses, found without a host read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surefoot
from host_reads import no_host_reads
from saved import through_a_file
from surefoot.otsu import BINS, HIGHEST, LOWEST, SHARE_OF_VARIANCE, WIDTH, histogram_of, otsu
from surefoot.statistics import LossStats
from surefoot.weighing import Weigher


def exact_cut(values: np.ndarray) -> tuple[float, float]:
    """Otsu's cut of the values themselves: the best of all places."""
    values = np.sort(values)
    cuts = [
        (i / len(values) * (1 - i / len(values)) * (values[:i].mean() - values[i:].mean()) ** 2, 1 - i / len(values))
        for i in range(1, len(values))
    ]
    between, above = max(cuts)
    return between / values.var(), above


@pytest.mark.parametrize("shape", ["normal", "exponential", "uniform", "two groups"])
def test_the_cut_of_the_histogram_is_that_of_the_values(shape: str) -> None:
    random = np.random.default_rng(1)
    values = {
        "normal": random.standard_normal(2000),
        "exponential": random.exponential(size=2000),
        "uniform": random.random(2000),
        "two groups": np.concatenate([random.normal(0, 1, 1600), random.normal(6, 1, 400)]),
    }[shape]
    z = torch.from_numpy((values - values.mean()) / values.std())
    cut = otsu(histogram_of(LossStats(mean=0.0, std=1.0), z))
    variance, above = exact_cut(z.numpy())
    assert cut.variance.item() == pytest.approx(variance, abs=0.01)
    assert cut.above.item() == pytest.approx(above, abs=0.04)


@pytest.mark.parametrize("shape", ["normal", "exponential", "uniform", "a long tail"])
def test_the_cut_without_the_tail_is_that_of_values_limited_to_the_mean_of_the_upper_part(shape: str) -> None:
    random = np.random.default_rng(1)
    values = {
        "normal": random.standard_normal(2000),
        "exponential": random.exponential(size=2000),
        "uniform": random.random(2000),
        "a long tail": np.concatenate([random.normal(0, 1, 1600), 4 + random.exponential(3, 400)]),
    }[shape]
    z = (values - values.mean()) / values.std()
    _, above = exact_cut(z)
    upper_mean = np.sort(z)[round((1 - above) * len(z)) :].mean()
    histogram = histogram_of(LossStats(mean=0.0, std=1.0), torch.from_numpy(z))
    first = otsu(histogram)
    assert first.upper_mean.item() * WIDTH + (LOWEST + HIGHEST) / 2 == pytest.approx(upper_mean, abs=0.12)
    second = otsu(histogram, highest=first.upper_mean)
    variance, above = exact_cut(np.minimum(z, upper_mean))
    assert second.variance.item() == pytest.approx(variance, abs=0.012)
    assert second.above.item() == pytest.approx(above, abs=0.06)


def weighed(weigher: Weigher, losses: Tensor) -> None:
    weigher(losses.clone().requires_grad_()).backward()
    weigher.update()


def after_a_stream(wrong: float, *, fall: float = 3.0, steps: int = 250, warmup: int | None = None) -> Weigher:
    """A run in which the losses of right labels fall to a tail like that of a classifier, and the others stay high."""
    weigher, random = Weigher(rule="tilted", warmup=warmup), torch.Generator().manual_seed(0)
    for step in range(steps):
        level = fall * 0.9**step
        right = torch.empty(128, dtype=torch.float64).exponential_(2.0, generator=random)
        high = 4 + torch.randn(128, dtype=torch.float64, generator=random) * 0.6
        is_wrong = torch.rand(128, dtype=torch.float64, generator=random) < wrong
        weighed(weigher, level + torch.where(is_wrong, high, right))
    return weigher


@pytest.mark.parametrize("wrong", [0.1, 0.2, 0.4])
def test_two_groups_are_found_with_the_share_of_the_upper_one(wrong: float) -> None:
    seen = after_a_stream(wrong).confidence()[0]
    assert seen["strength"] > 0.9
    assert seen["suspected"].item() == pytest.approx(wrong, abs=0.04)
    assert seen["lowest_tenth"] > 0.1 > seen["highest_tenth"]


@pytest.mark.parametrize("wrong", [0.0, 0.03])
def test_one_group_and_a_few_outliers_leave_every_weight_at_one(wrong: float) -> None:
    weigher = after_a_stream(wrong)
    seen = weigher.confidence()[0]
    assert seen["strength"] == 0
    assert seen["suspected"] == 0
    losses = torch.tensor([0.1, 0.2, 9.0], requires_grad=True)
    weigher(losses).backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == pytest.approx([1 / 3] * 3)


def after_similar_classes(wrong: float, certainty: float, spread: float, steps: int = 250) -> Weigher:
    """A classifier that gives a class and a similar one a probability each; 15 % of the examples are hard, a long tail.

    Its logit of the right one of the two has this mean and std.
    """
    weigher, random = Weigher(rule="tilted"), torch.Generator().manual_seed(0)
    for step in range(steps):
        logit = certainty + spread * torch.randn(128, dtype=torch.float64, generator=random)
        is_wrong = torch.rand(128, dtype=torch.float64, generator=random) < wrong
        losses = F.softplus(torch.where(is_wrong, logit, -logit))
        is_hard = torch.rand(128, dtype=torch.float64, generator=random) < 0.15
        tail = torch.empty(128, dtype=torch.float64).exponential_(1 / 1.5, generator=random)
        weighed(weigher, 3 * 0.9**step + losses + torch.where(is_hard, tail, 0.0))
    return weigher


def test_two_groups_that_a_long_tail_hides_are_found() -> None:
    weigher = after_similar_classes(0.2, certainty=1.6, spread=0.6)
    cut = otsu(weigher._groups.histogram)
    assert cut.variance < SHARE_OF_VARIANCE[0], "the first cut sees nothing here"
    seen = weigher.confidence()[0]
    assert seen["strength"] > 0.9
    assert seen["suspected"].item() == pytest.approx(0.2, abs=0.08)


@pytest.mark.parametrize(("certainty", "spread"), [(3.0, 2.0), (1.0, 2.0), (1.6, 0.6), (0.3, 0.3)])
def test_a_long_tail_alone_leaves_every_weight_at_one(certainty: float, spread: float) -> None:
    assert after_similar_classes(0.0, certainty, spread).confidence()[0]["strength"] == 0


def test_it_starts_after_something_was_learnt_or_when_the_warm_up_is_over() -> None:
    assert after_a_stream(0.4, fall=0.0).confidence()[0]["strength"] == 0
    assert after_a_stream(0.4, fall=0.0, warmup=20).confidence()[0]["strength"] > 0.9
    assert after_a_stream(0.4, fall=0.0, warmup=1000).confidence()[0]["strength"] == 0


def test_the_strength_never_goes_down_and_is_resumed() -> None:
    weigher = after_a_stream(0.4)
    resumed = Weigher(rule="tilted")
    resumed.load_state_dict(through_a_file(weigher.state_dict()))
    strengths = [weigher.confidence()[0]["strength"]]
    random = torch.Generator().manual_seed(1)
    for _ in range(60):
        losses = torch.empty(128, dtype=torch.float64).exponential_(2.0, generator=random)
        weighed(weigher, losses)
        weighed(resumed, losses)
        strengths.append(weigher.confidence()[0]["strength"])
    assert strengths == sorted(strengths)
    assert strengths[0] > 0.5
    assert torch.equal(weigher.state_dict()["groups"], resumed.state_dict()["groups"])


def test_micro_batches_count_as_the_whole_batch() -> None:
    whole, parts, random = Weigher(rule="tilted"), Weigher(rule="tilted"), torch.Generator().manual_seed(2)
    for step in range(30):
        losses = torch.rand(64, dtype=torch.float64, generator=random) + 30 / (step + 1)
        weighed(whole, losses)
        for part in losses.split(16):
            parts(part.clone().requires_grad_()).backward()
        parts.update()
    torch.testing.assert_close(whole.state_dict()["groups"], parts.state_dict()["groups"], atol=1e-2, rtol=1e-6)


class OnDevice(Weigher):
    """Takes the path of an accelerator with tensors on the CPU."""

    def _reads(self, values: Tensor) -> bool:
        return False


def test_nothing_is_read_back() -> None:
    weigher = OnDevice(rule="tilted", examples=9)
    for device in ("cpu", "meta"):
        losses = torch.ones(8, device=device, requires_grad=True)
        ids = torch.arange(8, device=device)
        weigher(losses, ids=ids).backward()
        weigher.update()
        with no_host_reads():
            weigher(losses * 2, ids=ids).backward()
            weigher.update()
    assert weigher.confidence()[0]["suspected"].is_meta


@pytest.mark.parametrize(
    "groups", [None, torch.zeros(3), torch.full((2 * BINS + 4,), -1.0), torch.full((2 * BINS + 4,), 9.0)]
)
def test_damaged_groups_are_refused(groups: object) -> None:
    weigher = after_a_stream(0.0, steps=2)
    with pytest.raises(ValueError, match="'groups' in this checkpoint"):
        weigher.load_state_dict({**weigher.state_dict(), "groups": groups})


def test_auto_is_the_default_of_the_tilted_rule_and_of_no_other() -> None:
    assert surefoot.weigh(rule="tilted").eta == "auto"
    with pytest.raises(ValueError, match="eta='auto' goes with the tilted rule, but this is 'ucb'"):
        surefoot.weigh(rule="ucb", eta="auto")
    with pytest.raises(ValueError, match="must be a number"):
        surefoot.weigh(rule="tilted", eta="strong")


def blobs(kind: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ten overlapping classes: features, labels, and which labels are wrong or rare."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 20, generator=random) * {"hard": 0.6, "harder": 0.4}.get(kind, 0.9)
    labels = torch.randint(10, (4000,), generator=random)
    if kind == "rare":
        rare = labels >= 5
        keep = ~rare | (torch.rand(4000, generator=random) < 0.1)
        labels = labels[keep]
    features = centres[labels] + torch.randn(len(labels), 20, generator=random)
    marked = labels >= 5
    if kind == "wrong":
        marked = torch.rand(len(labels), generator=random) < 0.36
        labels = torch.where(marked, (labels + torch.randint(1, 10, labels.shape, generator=random)) % 10, labels)
    if kind == "next":
        marked = torch.rand(len(labels), generator=random) < 0.2
        labels = torch.where(marked, (labels + 1) % 10, labels)
    return features, labels, marked


def trained(kind: str, seed: int = 3, epochs: int = 8) -> tuple[Weigher, Tensor]:
    features, labels, marked = blobs(kind, seed)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    weigh = surefoot.weigh(optimizer, "tilted")
    smoothing = 0.1 if kind == "smooth" else 0.0
    for _ in range(epochs):
        for ids in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            losses = F.cross_entropy(model(features[ids]), labels[ids], reduction="none", label_smoothing=smoothing)
            weigh(losses, ids=ids).backward()
            optimizer.step()
    return weigh, marked


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("clean", 3), ("hard", 3), ("harder", 3), ("smooth", 3), ("rare", 3), ("rare", 51), ("rare", 52), ("rare", 55)],
)
def test_clean_hard_and_rare_classes_are_not_taken_for_errors(kind: str, seed: int) -> None:
    """Among the seeds of the rare ones are the three that looked most like wrong labels, of sixteen."""
    weigh, _ = trained(kind, seed)
    assert weigh.confidence()[0]["strength"] == 0
    assert weigh.suspects(10) == []


@pytest.mark.parametrize("kind", ["wrong", "next"])
def test_wrong_labels_are_found(kind: str) -> None:
    weigh, wrong = trained(kind)
    seen = weigh.confidence()[0]
    assert seen["strength"] > 0.5
    assert seen["suspected"].item() == pytest.approx(wrong.float().mean().item(), abs=0.1)
    suspects = weigh.suspects(int(wrong.sum()))
    assert wrong[suspects].float().mean() > 0.85
    resumed = surefoot.weigh(None, "tilted")
    resumed.load_state_dict(through_a_file(weigh.state_dict()))
    assert resumed.suspects(50) == weigh.suspects(50)


def test_regression_with_outliers_is_pulled_less() -> None:
    def error(**options: object) -> float:
        random = torch.Generator().manual_seed(5)
        x = torch.randn(3000, 4, generator=random)
        y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.3 * torch.randn(3000, generator=random)
        outlier = torch.rand(3000, generator=random) < 0.2
        y = torch.where(outlier, 12 + torch.randn(3000, generator=random), y)
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        weigh = surefoot.weigh(optimizer, **options)  # type: ignore[arg-type]
        for _ in range(4):
            for ids in torch.randperm(3000).split(50):
                optimizer.zero_grad()
                weigh((model(x[ids]).squeeze(1) - y[ids]).abs()).backward()
                optimizer.step()
        right = ~outlier
        return math.sqrt((model(x[right]).squeeze(1) - y[right]).square().mean().item())

    assert error(rule="tilted", warmup=20) < error(rule="plain")
