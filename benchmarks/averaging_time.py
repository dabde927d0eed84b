"""What an average of the weights adds to the time of a step, as a ratio to the base optimizer alone, interleaved.

    python benchmarks/averaging_time.py [--quick] [--sets mlp,cnn] [--rounds 60] [--threads 1] [--clock cpu] [--save]

A block of twenty steps is timed as a whole, because the average is updated at every twentieth; in the first thousand
steps it is updated more often, so these are counted as taken. Everything is done as in ``step_time.py``: gradients are
written anew before each step, and those around the same fused kernel use the same parameters and moments.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from typing import Any

import schedulefree
import torch
from interleave import caption, conditions, interleave, markdown, save
from step_time import REPEATS, Memory, Shapes, sets
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import surefoot
from surefoot.averaging.memory import AverageState
from surefoot.averaging.weights import pack

BASELINE = "torch AdamW fused"
STEPS = 20


class WithAveragedModel:
    """AdamW and torch's own average of a model, updated at every so many steps."""

    def __init__(self, params: list[Tensor], every: int) -> None:
        self.base = torch.optim.AdamW(params, fused=True)
        self.model = nn.ParameterList(params)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        self.every, self.taken = every, 0

    def step(self) -> None:
        self.base.step()
        self.taken += 1
        if self.taken % self.every == 0:
            self.average.update_parameters(self.model)


def after_the_start(optimizer: surefoot.Anytime) -> surefoot.Anytime:
    """The optimizer as if it had taken two thousand steps at a loss of 0.2."""
    numbers = AverageState(count=2000.0, mean=0.2, std=0.07, best=0.2, total=50.0, spread=0.07)
    for group in optimizer.param_groups:
        group["average_numbers"] = pack(numbers)
    return optimizer


CONTENDERS: dict[str, Callable[[list[Tensor]], Any]] = {
    BASELINE: lambda ps: torch.optim.AdamW(ps, fused=True),
    "the same again": lambda ps: torch.optim.AdamW(ps, fused=True),
    "surefoot Anytime": lambda ps: after_the_start(surefoot.Anytime(torch.optim.AdamW(ps, fused=True))),
    "surefoot Anytime, every=10": lambda ps: surefoot.Anytime(torch.optim.AdamW(ps, fused=True), every=10),
    "surefoot Anytime, every=1": lambda ps: surefoot.Anytime(torch.optim.AdamW(ps, fused=True), every=1),
    "torch AveragedModel (EMA), every 20th step": lambda ps: WithAveragedModel(ps, 20),
    "torch AveragedModel (EMA)": lambda ps: WithAveragedModel(ps, 1),
    "schedulefree AdamWScheduleFree": lambda ps: schedulefree.AdamWScheduleFree(ps),
}


class Bench:
    """One contender at work."""

    def __init__(self, name: str, memory: Memory, fresh: list[Tensor], clock: Callable[[], float]) -> None:
        self.grads: list[Any] = [p.grad for p in memory.params]
        self.fresh, self.clock, self.taken = fresh, clock, 0
        self.optimizer = CONTENDERS[name](memory.params)
        self.base = getattr(self.optimizer, "base", self.optimizer)
        if hasattr(self.base, "train"):
            self.base.train()

    def __call__(self) -> float:
        """The seconds of a block of steps; the first, which warms its memory, is not counted."""
        self._step()
        return sum(self._step() for _ in range(STEPS))

    def _step(self) -> float:
        torch._foreach_copy_(self.grads, self.fresh)
        self.taken += 1
        loss = torch.tensor(0.2 + 2 / math.sqrt(self.taken) + 0.1 * math.sin(1.7 * self.taken**1.3))
        arguments = {"loss": loss} if isinstance(self.optimizer, surefoot.Anytime) else {}
        start = self.clock()
        self.optimizer.step(**arguments)
        return self.clock() - start


def measure(shapes: Shapes, rounds: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Time every contender on one set of parameters."""
    torch.manual_seed(1)
    fresh = [0.01 * torch.randn(shape) for shape in shapes]
    grads = [torch.zeros_like(x) for x in fresh]
    shuffler = random.Random(0)
    benches: dict[str, Bench] = {}

    def made_anew() -> dict[str, Bench]:
        benches.clear()
        shared, made = Memory(shapes, grads), {}
        for name in shuffler.sample(list(CONTENDERS), len(CONTENDERS)):
            joins = not name.startswith("schedulefree")
            made[name] = bench = Bench(name, shared if joins else Memory(shapes, grads), fresh, clock)
            bench()
            if joins:
                shared.serve(bench.base.state)
        benches.update({name: made[name] for name in CONTENDERS})
        return benches

    return interleave(made_anew, math.ceil(rounds / REPEATS), repeats=REPEATS)


def table(measured: dict[str, dict[str, dict[str, float]]], facts: dict[str, Any]) -> str:
    """The ratios as Markdown."""
    rows = [
        [name, *(f"{m[name]['ratio']:.3f} [{m[name]['low']:.3f}, {m[name]['high']:.3f}]" for m in measured.values())]
        for name in CONTENDERS
    ]
    rounds = " / ".join(f"{m[BASELINE]['rounds']:.0f}" for m in measured.values())
    unit = ", ".join(f"{name} {m[BASELINE]['milliseconds'] / STEPS:.2f} ms" for name, m in measured.items())
    return "\n\n".join(
        [
            f"Step time / step time of {BASELINE}: median of {rounds} interleaved rounds of {STEPS} steps "
            "[95% interval of the median].",
            markdown(["optimizer", *measured], rows),
            f"1.00 is: {unit}. {caption(facts)}, {facts['clock']} clock",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, without the 50 M set")
    parser.add_argument("--sets", help=f"some of: {', '.join(sets())}")
    parser.add_argument("--rounds", type=int, help="default 60 (50m: 15), quick 9")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu needs --threads 1")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/averaging_time.{json,md}")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.clock == "cpu" and torch.get_num_threads() != 1:
        parser.error("--clock cpu counts one thread; add --threads 1")
    clock = time.thread_time if args.clock == "cpu" else time.perf_counter
    shapes = sets()
    wanted = args.sets.split(",") if args.sets else [name for name in shapes if not (args.quick and name == "50m")]
    measured = {}
    for name in wanted:
        print(f"measuring {name} ...", flush=True)
        rounds = args.rounds or (9 if args.quick else 15 if name == "50m" else 60)
        measured[name] = measure(shapes[name], rounds, clock)
    facts = conditions() | {"clock": args.clock}
    text = table(measured, facts)
    print(f"\n{text}")
    if args.save:
        save("averaging_time", facts, measured, text)


if __name__ == "__main__":
    main()
