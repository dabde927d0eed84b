"""What decides how good an any-time average is: forms of it that ride on the same runs, for a look on tune seeds.

    python benchmarks/anytime_levers.py mnist-lr --lr 0.003 --horizons 1,2,4,8,16 --seeds 1000,1001
    python benchmarks/anytime_levers.py mnist-mlp --lr 0.001 --subset 20000 --horizons 1,2,4,8,16 --seeds 1000
    python benchmarks/anytime_levers.py digits-mlp --between 0.01,0.02,0.03 --horizons 1,2,4,8,16,32 --seeds 1000,1001

Adam is trained at a constant rate, and at the rate of `AnytimeLR`. Each run carries all averages. The table has the
validation loss at each horizon in percent above the lowest one there, and the mean of that over the horizons.

``--between RATES`` asks another question: what if the gradient is taken between the newest weights and their average,
as schedule-free does? Then the average is part of the training, so each memory is trained by itself, at each rate. The
table has validation losses and their geometric mean over the horizons.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
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


def train(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, epochs: int, after: Callable[[Any], None]
) -> Iterator[int]:
    """Train, with a call ``after`` each step, which gets its loss; yield the number of each epoch."""
    inputs, targets = task.train
    for epoch in range(1, epochs + 1):
        generator = torch.Generator().manual_seed(stream(seed, epoch, "batches"))
        for index in torch.randperm(len(inputs), generator=generator).split(task.batch_size):
            batch = inputs[index] if task.prepare is None else task.prepare(inputs[index], generator)
            optimizer.zero_grad()
            loss = task.loss(model(batch), targets[index])
            loss.backward()
            optimizer.step()
            after(loss)
        yield epoch


def losses(task: Task, lr: float, seed: int, horizons: list[int], *, follows: bool) -> dict[str, list[float]]:
    """The validation loss of every average at every horizon, of one run of Adam."""
    torch.manual_seed(seed)
    model = task.fresh_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    averages = {name: surefoot.WeightAverage(model.parameters(), memory) for name, memory in memories().items()}
    span = averages["kappa 0.2"]
    found: dict[str, list[float]] = {name: [] for name in ("trained weights", *averages)}

    def after(loss: Any) -> None:
        for average in averages.values():
            average.update(loss)
        if follows:
            optimizer.param_groups[0]["lr"] = lr * rate_factor(span.span, SPAN)

    for epoch in train(task, model, optimizer, seed, horizons[-1], after):
        if epoch in horizons:
            found["trained weights"].append(validation(task, model))
            for name, average in averages.items():
                with average.averaged():
                    found[name].append(validation(task, model))
    return found


def losses_between(task: Task, lr: float, seed: int, horizons: list[int], memory: Memory) -> list[float]:
    """The validation loss of an average that takes part in the training.

    Gradients are taken nine tenths of the way from the newest weights to it. With the mean of all weights this is
    schedule-free Adam. It needs no momentum: the average has its place.
    """
    torch.manual_seed(seed)
    model = task.fresh_model()
    params: list[torch.Tensor] = list(model.parameters())
    optimizer = torch.optim.Adam(params, lr=lr, betas=(0.0, 0.999), fused=True)
    average = surefoot.WeightAverage(params, memory, every=1)
    trained = [p.detach().clone() for p in params]

    def go_back(*_: Any) -> None:
        torch._foreach_copy_(params, trained)

    @torch.no_grad()
    def after(loss: Any) -> None:
        average.update(loss)
        torch._foreach_copy_(trained, params)
        torch._foreach_lerp_(params, [average.averages[p] for p in params], 0.9)

    optimizer.register_step_pre_hook(torch.no_grad()(go_back))
    found = []
    for epoch in train(task, model, optimizer, seed, horizons[-1], after):
        if epoch in horizons:
            with average.averaged():
                found.append(validation(task, model))
    return found


@torch.inference_mode()
def validation(task: Task, model: nn.Module) -> float:
    """The mean loss over the validation set."""
    total = 0.0
    for batch, target in zip(*(part.split(1024) for part in task.valid), strict=True):
        outputs = model(batch if task.prepare is None else task.prepare(batch, None))
        total += float(task.loss(outputs, target)) * len(target)
    return total / len(task.valid[0])


def table(task: Task, lr: float, seeds: list[int], horizons: list[int]) -> tuple[list[str], list[list[str]]]:
    """All averages on the same runs."""
    means: dict[str, list[float]] = {}
    for follows in (False, True):
        by_seed = [losses(task, lr, seed, horizons, follows=follows) for seed in seeds]
        for name in by_seed[0]:
            columns = zip(*(run[name] for run in by_seed), strict=True)
            means[name + (", AnytimeLR" if follows else "")] = [statistics.fmean(column) for column in columns]
    lowest = [min(column) for column in zip(*means.values(), strict=True)]
    rows = []
    for name, values in means.items():
        regrets = [100 * (value / low - 1) for value, low in zip(values, lowest, strict=True)]
        rows.append([name, *(f"{regret:.1f}" for regret in regrets), f"{statistics.fmean(regrets):.2f}"])
    return [f"lr {lr:g}, % above the lowest", *map(str, horizons), "mean"], rows


def table_between(
    task: Task, rates: list[float], seeds: list[int], horizons: list[int]
) -> tuple[list[str], list[list[str]]]:
    """Each memory and rate by itself; first the any-time average of Adam, which takes no part in the training."""
    rows = []
    kinds: dict[str, Memory | None] = {"average beside Adam": None, "mean of all (schedule-free)": Memory()}
    kinds |= {f"kappa {kappa:g}": LossDriven(kappa=kappa) for kappa in (0.2, 0.5, 1.0, 2.0)}
    for name, memory in kinds.items():
        for lr in rates:
            if memory is None:
                runs = [losses(task, lr, seed, horizons, follows=False)["kappa 0.2"] for seed in seeds]
            else:
                runs = [losses_between(task, lr, seed, horizons, memory) for seed in seeds]
            means = [statistics.fmean(column) for column in zip(*runs, strict=True)]
            overall = statistics.geometric_mean(loss for run in runs for loss in run)
            rows.append([f"{name}, lr {lr:g}", *(f"{mean:.4f}" for mean in means), f"{overall:.4f}"])
    return ["gradients between, validation loss", *map(str, horizons), "geometric mean"], rows


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--between", type=numbers, metavar="RATES")
    parser.add_argument("--horizons", default="1,2,4,8,16")
    parser.add_argument("--seeds", default="1000")
    parser.add_argument("--subset", type=int)
    args = parser.parse_args()
    if (args.lr is None) == (args.between is None):
        parser.error("give either --lr or --between")
    horizons, seeds = ([int(text) for text in given.split(",")] for given in (args.horizons, args.seeds))
    task = find_task(args.task, **({"subset": args.subset} if args.subset else {}))
    with pinned_arithmetic(threads=1):
        head, rows = (
            table_between(task, args.between, seeds, horizons)
            if args.between
            else table(task, args.lr, seeds, horizons)
        )
    head[0] = f"{args.task}, {head[0]}"
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
