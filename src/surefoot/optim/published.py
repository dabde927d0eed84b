"""What ``reference=True`` runs: the recipe as it was published, one tensor after the other.

It differs from Surefoot's defaults in three places: the signed weight while there is no spread, one noise draw per
tensor, and eps added before bias correction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

from surefoot.meter import Assessment, Meter
from surefoot.noise import standard_normal
from surefoot.optim.engines.base import Bucket, Engine, Group
from surefoot.reference import algorithm_1, algorithm_2, paper_weight


def published_step(
    engine: Engine, rule: str, group: Group, buckets: Iterable[Bucket], meter: Meter, assessment: Assessment
) -> Assessment:
    """Take one step of the published recipe; return the assessment with the z, tilt and weight of the last tensor."""
    stats, loss = assessment.before, assessment.loss
    eps = group.get("eps", 1e-8)
    mass = 1 - float(meter.beta) ** stats.count
    mu = stats.mean * mass / (mass + eps)
    square = (stats.std**2 + stats.mean**2) * mass / (mass + eps)
    sigma = math.sqrt(max(square - mu**2, 0.0))
    weight = 0.0
    for i, bucket in enumerate(buckets):
        theta, g = bucket.params[0], bucket.grads[0]
        # One draw per tensor: their streams are numbered from a million on, clear of those of parameter groups.
        noise = standard_normal(group["seed"], int(stats.count), 1_000_000 * (meter.stream + 1) + i)
        weight = paper_weight(rule, loss, mu, sigma, group["eta"], noise)
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


def _update(engine: str, group: Group, theta: Tensor, g: Tensor, state: list[Tensor], step: Tensor) -> None:
    lr, t = float(group["lr"]), int(step.item())
    if engine == "momentum":
        algorithm_1(theta, g, state[0], t, lr, group["momentum"])
    else:
        betas = (float(group["betas"][0]), float(group["betas"][1]))
        algorithm_2(theta, g, state[0], state[1], t, lr, betas, group["eps"], eps_first=True)
