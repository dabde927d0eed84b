"""What a weight per example adds to the time of a training step of the paper's MLP, as a ratio, interleaved.

    python benchmarks/examples_time.py [--rounds 60] [--threads 1] [--clock cpu] [--save]

A block of ten steps (forward pass, backward pass, Adam) on 128 images of random numbers is timed as a whole. Every
step has other images: a batch that is learnt by heart has subnormal gradients, which processors are slow with.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from interleave import caption, conditions, interleave, markdown, save
from torch.nn import functional as F

import surefoot
from surefoot.lab.spec.builtin import MLP

BASELINE = "losses.mean()"
STEPS = 10
BATCHES = 200
Make = Callable[[torch.optim.Optimizer], Any]
CONTENDERS: dict[str, Make | None] = {
    BASELINE: None,
    "the same again": None,
    'weigh, "tilted", eta=-3': lambda optimizer: surefoot.weigh(optimizer, "tilted", -3.0),
    'weigh, "tilted", eta="auto"': lambda optimizer: surefoot.weigh(optimizer, "tilted"),
    'weigh, "trimmed"': lambda optimizer: surefoot.weigh(optimizer, "trimmed"),
}


@cache
def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What all contenders are trained on, in the same order."""
    return [(torch.randn(128, 784), torch.randint(10, (128,))) for _ in range(BATCHES)]


class Bench:
    """One contender at work."""

    def __init__(self, make: Make | None, clock: Callable[[], float]) -> None:
        torch.manual_seed(0)
        self.model, self.clock = MLP(inputs=784), clock
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=True)
        self.reduce = torch.mean if make is None else make(self.optimizer)
        self.batches = itertools.cycle(batches())

    def __call__(self) -> float:
        """The seconds of a block of steps; the first, which warms its memory, is not counted."""
        self._step()
        start = self.clock()
        for _ in range(STEPS):
            self._step()
        return self.clock() - start

    def _step(self) -> None:
        self.optimizer.zero_grad()
        images, labels = next(self.batches)
        losses = F.cross_entropy(self.model(images), labels, reduction="none")
        self.reduce(losses).backward()
        self.optimizer.step()


def measure(rounds: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Time every contender."""
    return interleave({name: Bench(make, clock) for name, make in CONTENDERS.items()}, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu needs --threads 1")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/examples_time.{json,md}")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.clock == "cpu" and torch.get_num_threads() != 1:
        parser.error("--clock cpu counts one thread; add --threads 1")
    measured = measure(args.rounds, time.thread_time if args.clock == "cpu" else time.perf_counter)
    facts = conditions() | {"clock": args.clock}
    rows = [[name, f"{m['ratio']:.3f} [{m['low']:.3f}, {m['high']:.3f}]"] for name, m in measured.items()]
    unit = measured[BASELINE]["milliseconds"] / STEPS
    text = "\n\n".join(
        [
            f"Time of a training step / that with {BASELINE}: median of {args.rounds} interleaved rounds of {STEPS} "
            "steps [95% interval of the median].",
            markdown(["the loss", "ratio"], rows),
            f"1.00 is: {unit:.2f} ms. {caption(facts)}, {facts['clock']} clock",
        ]
    )
    print(f"\n{text}")
    if args.save:
        save("examples_time", facts, {"mlp": measured}, text)


if __name__ == "__main__":
    main()
