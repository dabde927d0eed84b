"""What ``reference=True`` runs: the authors' published code, one tensor after the other.

It differs from Surefoot's defaults in five places: no bounds on the weights, the signed weight while there is no
spread, CB's first weight is ``eta * loss``, one noise draw per tensor, and eps is added before bias correction.

The text of the paper differs from the code in two places. Algorithm 2 adds eps to the bias correction of the loss
statistics, so that the second loss already has a spread of ``3e-4 * loss``; the code does not, and neither does
Surefoot. And it adds eps after the bias correction of the squared gradients, as Surefoot does.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from surefoot.meter import Assessment, Meter
from surefoot.noise import standard_normal
from surefoot.optim.engines.base import Bucket, Engine, Group
from surefoot.reference import algorithm_1, algorithm_2, paper_weight
from surefoot.statistics import LossStats


def published_step(
    engine: Engine, rule: str, group: Group, buckets: Iterable[Bucket], meter: Meter, assessment: Assessment
) -> Assessment:
    """Take one step of the published recipe; return the assessment with the z, tilt and weight of the last tensor."""
    stats, loss = assessment.before, assessment.loss
    mu, sigma = float(stats.mean), float(stats.std)
    weight = 0.0
    for i, bucket in enumerate(buckets):
        theta, g = bucket.params[0], bucket.grads[0]
        # One draw per tensor: their streams are numbered from a million on, clear of those of parameter groups.
        noise = standard_normal(group["seed"], int(stats.count), 1_000_000 * (meter.stream + 1) + i)
        weight = published_weight(rule, stats, loss, float(group["eta"]), noise)
        g = -g if group["maximize"] else g
        if group["decoupled_weight_decay"]:
            theta.mul_(1 - float(group["lr"]) * group["weight_decay"])
        else:
            g = g + group["weight_decay"] * theta
        bucket.step += 1
        _update(engine.name, group, theta, weight * g, [column[0] for column in bucket.state], bucket.step)
    z = 0.0 if sigma == 0 else (loss - mu) / sigma
    # The paper's scale is the std, for CB times abs(mu); the plain rule has none.
    scale = {"plain": 0.0, "cb": sigma * abs(mu)}.get(rule, sigma)
    tilt = 0.0 if scale == 0 or z == 0 else (weight / scale - 1) / z
    return assessment._replace(z=z, tilt=tilt, weight=weight)


def published_weight(rule: str, stats: LossStats, loss: float, eta: float, noise: float) -> float:
    """The weight of a gradient in the published code.

    >>> published_weight("cb", LossStats(), 2.0, 0.1, 0.0)
    0.2
    """
    if rule == "cb" and not stats.count:
        return eta * loss
    return paper_weight(rule, loss, stats.mean, stats.std, eta, noise)


def _update(engine: str, group: Group, theta: Tensor, g: Tensor, state: list[Tensor], step: Tensor) -> None:
    lr, t = float(group["lr"]), int(step.item())
    if engine == "momentum":
        algorithm_1(theta, g, state[0], t, lr, group["momentum"])
    else:
        betas = (float(group["betas"][0]), float(group["betas"][1]))
        largest = state[2] if group["amsgrad"] else None
        algorithm_2(theta, g, state[0], state[1], t, lr, betas, group["eps"], eps_first=True, largest=largest)
