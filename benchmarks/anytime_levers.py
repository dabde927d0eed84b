"""What decides how good an any-time average is: forms of it that ride on the same runs, for a look on tune seeds.

    python benchmarks/anytime_levers.py mnist-lr --lr 0.003 --horizons 1,2,4,8,16 --seeds 1000,1001
    python benchmarks/anytime_levers.py mnist-mlp --lr 0.001 --subset 20000 --horizons 1,2,4,8,16 --seeds 1000

Adam is trained at a constant rate, and at the rate of `AnytimeLR`. Each run carries all averages. The table has the
validation loss at each horizon in percent above the lowest one there, and the mean of that over the horizons.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from interleave import markdown
from torch import nn

import surefoot
from surefoot.averaging.memory import SPAN, LossDriven, Memory, find_memory, rate_factor
from surefoot.lab.run.trainer import pinned_arithmetic, stream
from surefoot.lab.spec.find import find_task
from surefoot.lab.spec.task import Task

FIXED = ("poly:8", "poly:16", "ema:0.99", "ema:0.999", "uniform")


class OwnStd(LossDriven):
    """Distances in units of the std of the moment, not of the usual one of the run."""

    def forget(self, before: Any, best: Any, std: Any, exp: Any) -> Any:
        return super().forget(before, best, before.std, exp)

    def trust(self, stats: Any, exp: Any) -> Any:
        return super().trust(stats._replace(usual=0.0), exp)


class WithoutTrust(LossDriven):
    """Weights of a spike count like all others."""

    def trust(self, stats: Any, exp: Any) -> Any:
        return 1.0


def memories() -> dict[str, Memory]:
    """The averages by name."""
    kappas = {f"kappa {kappa:g}": LossDriven(kappa=kappa) for kappa in (0.1, 0.2, 0.4)}
    betas = {f"loss_beta {beta:g}": LossDriven(loss_beta=beta) for beta in (0.9, 0.999)}
    without = {"without the usual std": OwnStd(), "without trust": WithoutTrust()}
    return {**kappas, **betas, **without, **{name: find_memory(name) for name in FIXED}}


def losses(task: Task, lr: float, seed: int, horizons: list[int], *, follows: bool) -> dict[str, list[float]]:
    """The validation loss of every average at every horizon, of one run of Adam."""
    torch.manual_seed(seed)
    model = task.fresh_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    averages = {name: surefoot.WeightAverage(model.parameters(), memory) for name, memory in memories().items()}
    span = averages["kappa 0.2"]
    inputs, targets = task.train
    found: dict[str, list[float]] = {name: [] for name in ("trained weights", *averages)}
    for epoch in range(1, horizons[-1] + 1):
        generator = torch.Generator().manual_seed(stream(seed, epoch, "batches"))
        for index in torch.randperm(len(inputs), generator=generator).split(task.batch_size):
            batch = inputs[index] if task.prepare is None else task.prepare(inputs[index], generator)
            if follows:
                optimizer.param_groups[0]["lr"] = lr * rate_factor(span.span, SPAN)
            optimizer.zero_grad()
            loss = task.loss(model(batch), targets[index])
            loss.backward()
            optimizer.step()
            for average in averages.values():
                average.update(loss)
        if epoch in horizons:
            found["trained weights"].append(validation(task, model))
            for name, average in averages.items():
                with average.averaged():
                    found[name].append(validation(task, model))
    return found


@torch.inference_mode()
def validation(task: Task, model: nn.Module) -> float:
    """The mean loss over the validation set."""
    total = 0.0
    for batch, target in zip(*(part.split(1024) for part in task.valid), strict=True):
        outputs = model(batch if task.prepare is None else task.prepare(batch, None))
        total += float(task.loss(outputs, target)) * len(target)
    return total / len(task.valid[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--horizons", default="1,2,4,8,16")
    parser.add_argument("--seeds", default="1000")
    parser.add_argument("--subset", type=int)
    args = parser.parse_args()
    horizons, seeds = ([int(text) for text in given.split(",")] for given in (args.horizons, args.seeds))
    task = find_task(args.task, **({"subset": args.subset} if args.subset else {}))
    means: dict[str, list[float]] = {}
    with pinned_arithmetic(threads=1):
        for follows in (False, True):
            by_seed = [losses(task, args.lr, seed, horizons, follows=follows) for seed in seeds]
            for name in by_seed[0]:
                columns = zip(*(run[name] for run in by_seed), strict=True)
                means[name + (", AnytimeLR" if follows else "")] = [statistics.fmean(column) for column in columns]
    lowest = [min(column) for column in zip(*means.values(), strict=True)]
    rows = []
    for name, values in means.items():
        regrets = [100 * (value / low - 1) for value, low in zip(values, lowest, strict=True)]
        rows.append([name, *(f"{regret:.1f}" for regret in regrets), f"{statistics.fmean(regrets):.2f}"])
    print(markdown([f"{args.task}, lr {args.lr:g}, % above the lowest", *map(str, horizons), "mean"], rows))


if __name__ == "__main__":
    main()
