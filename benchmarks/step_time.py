"""Step time and memory of optimizers as ratios to ``torch.optim.Adam(fused=True)`` on the CPU, in one interleaved run.

    python benchmarks/step_time.py [--quick] [--sets mlp,cnn] [--only AdamS] [--threads 1] [--clock cpu] [--save]

Only ``step`` is timed. Before each timed step every gradient is written anew, as a backward pass would have done, and
an untimed step is taken first, so each contender starts with its own memory as warm as training leaves it. Those that
call the fused kernel do so on the same parameters and moments: where memory happens to lie makes one faster than its
twin by some hundredths, which is more than they differ. On a busy machine take ``--threads 1 --clock cpu``: it counts
the time that the thread really ran, which others disturb less.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from interleave import caption, conditions, interleave, markdown, save
from published_way import PublishedUCB
from torch import Tensor

import surefoot

Shapes = list[tuple[int, ...]]
BASELINE = "torch Adam fused"
#: How many times every optimizer and its parameters are made anew, in another order.
REPEATS = 3
#: Whose moments may lie in the same memory, by the start of their names.
KERNEL_IS_TORCHS = (BASELINE, "the same again", "surefoot")


def sets() -> dict[str, Shapes]:
    """Parameter sets by name."""
    from surefoot.lab.spec.builtin import CNN, MLP

    width, blocks = 512, [[(1536, 512), (1536,), (512, 512), (512,), (2048, 512), (2048,), (512, 2048), (512,)]] * 10
    norms = [(width,), (width,), (width,), (width,)]
    return {
        "mlp": [tuple(p.shape) for p in MLP().parameters()],
        "cnn": [tuple(p.shape) for p in CNN().parameters()],
        "50m": [(35_000, width), (1024, width), *(shape for block in blocks for shape in [*block, *norms])],
        "400x64x64": [(64, 64)] * 400,
        "policy": [(64, 8), (64,), (64, 64), (64,), (4, 64), (4,)],
        "1x64x64": [(64, 64)],
    }


def contenders() -> dict[str, Callable[[Any], Any]]:
    """Optimizers by name; the first one is the unit."""
    import pytorch_optimizer
    import schedulefree

    return {
        BASELINE: lambda ps: torch.optim.Adam(ps, fused=True),
        "the same again": lambda ps: torch.optim.Adam(ps, fused=True),
        "surefoot AdamUCB": lambda ps: surefoot.AdamUCB(ps),
        "surefoot AdamCB": lambda ps: surefoot.AdamCB(ps),
        "surefoot AdamS": lambda ps: surefoot.AdamS(ps),
        "torch Adam foreach": lambda ps: torch.optim.Adam(ps, foreach=True),
        "torch Adam for-loop": lambda ps: torch.optim.Adam(ps, foreach=False),
        "schedulefree AdamWScheduleFree": lambda ps: schedulefree.AdamWScheduleFree(ps),
        "pytorch_optimizer AdaBelief": lambda ps: pytorch_optimizer.AdaBelief(ps),
        "published way, for-loop Adam": lambda ps: PublishedUCB(ps),
        "published way, fused Adam": lambda ps: PublishedUCB(ps, inner="fused"),
    }


class Memory:
    """Parameters, and the moments of them that several optimizers may take for their own."""

    def __init__(self, shapes: Shapes, grads: list[Tensor]) -> None:
        torch.manual_seed(0)
        self.params = [torch.nn.Parameter(0.02 * torch.randn(shape)) for shape in shapes]
        for p, grad in zip(self.params, grads):
            p.grad = grad
        self.moments: list[dict[str, Tensor]] = []

    def serve(self, state: dict[Tensor, dict[str, Any]]) -> None:
        """Replace this optimizer's moments by those of the optimizer that came first."""
        if not self.moments:
            self.moments = [{name: state[p][name] for name in ("exp_avg", "exp_avg_sq")} for p in self.params]
        for p, moments in zip(self.params, self.moments):
            state[p].update(moments)


class Bench:
    """One optimizer at work; the gradients are shared and rewritten before every step."""

    def __init__(
        self, make: Callable[[Any], Any], memory: Memory, fresh: list[Tensor], clock: Callable[[], float]
    ) -> None:
        self.grads: list[Any] = [p.grad for p in memory.params]
        self.fresh, self.clock, self.steps = fresh, clock, 1
        self.optimizer = make(memory.params)
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        self.takes_loss = isinstance(self.optimizer, (surefoot.LossAware, PublishedUCB))
        self.taken = 0

    def __call__(self) -> float:
        """One warm step, then the median seconds of some timed ones."""
        self._step()
        return statistics.median(self._step() for _ in range(self.steps))

    def _step(self) -> float:
        torch._foreach_copy_(self.grads, self.fresh)
        self.taken += 1
        # A falling loss with the wobble of mini-batches, as the 0-d tensor that a training loop holds.
        loss = torch.tensor(0.2 + 2 / math.sqrt(self.taken) + 0.1 * math.sin(1.7 * self.taken**1.3))
        arguments = {"loss": loss} if self.takes_loss else {}
        start = self.clock()
        self.optimizer.step(**arguments)
        return self.clock() - start

    def bytes_of_state(self) -> int:
        """Everything the optimizer keeps beside parameters and gradients; a tensor held twice counts once."""
        sizes: dict[int, int] = {}
        numbers = 0
        for kept in [*self.optimizer.state.values(), *self.optimizer.param_groups]:
            for value in kept.values():
                if isinstance(value, Tensor):
                    sizes[value.data_ptr()] = value.numel() * value.element_size()
        if isinstance(self.optimizer, PublishedUCB):
            numbers = 8 * sum(map(len, self.optimizer.losses.values()))
        return sum(sizes.values()) + numbers


def measure(
    shapes: Shapes, chosen: dict[str, Callable[[Any], Any]], rounds: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Time every chosen optimizer on one set; few rounds tell how much slower the peers are."""
    close = {name: make for name, make in chosen.items() if name.startswith(KERNEL_IS_TORCHS)}
    far = {name: make for name, make in chosen.items() if name not in close}
    measured = side_by_side(shapes, close, rounds, clock)
    if far:
        measured |= side_by_side(shapes, {BASELINE: chosen[BASELINE]} | far, math.ceil(rounds / 5), clock) | measured
    adam = measured[BASELINE]["state_bytes"]
    for result in measured.values():
        result["extra_bytes"] = result["state_bytes"] - adam
    return measured


def side_by_side(
    shapes: Shapes, chosen: dict[str, Callable[[Any], Any]], rounds: int, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Time these in one interleaved run."""
    torch.manual_seed(1)
    fresh = [0.01 * torch.randn(shape) for shape in shapes]
    grads = [torch.zeros_like(x) for x in fresh]
    benches: dict[str, Bench] = {}
    shuffler = random.Random(0)

    def made_anew() -> dict[str, Bench]:
        benches.clear()  # before the new ones, which shall not all fit beside the old
        made: dict[str, Bench] = {}
        shared = Memory(shapes, grads)
        for name in shuffler.sample(list(chosen), len(chosen)):
            joins = name.startswith(KERNEL_IS_TORCHS)
            made[name] = bench = Bench(chosen[name], shared if joins else Memory(shapes, grads), fresh, clock)
            bench()
            if joins:
                shared.serve(bench.optimizer.state)
        # Blocks of about 15 ms by the baseline's time: long against the clock, short against the machine's moods.
        steps = max(1, min(50, round(0.015 / min(made[BASELINE]() for _ in range(5)))))
        for name in chosen:
            made[name].steps = steps
            benches[name] = made[name]
        return benches

    measured = interleave(made_anew, math.ceil(rounds / REPEATS), repeats=REPEATS)
    for name, bench in benches.items():
        measured[name]["state_bytes"] = bench.bytes_of_state()
    return measured


def size(count: float) -> str:
    """Bytes for people, signed."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= factor:
            return f"{count / factor:+.1f} {unit}"
    return f"{count:+.0f} B"


def tables(measured: dict[str, dict[str, dict[str, float]]], shapes: dict[str, Shapes], facts: dict[str, Any]) -> str:
    """The ratios and the memory, as Markdown."""

    def heading(name: str) -> str:
        count, tensors = sum(math.prod(shape) for shape in shapes[name]), len(shapes[name])
        amount = f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count / 1e3:.1f} k"
        return f"{name} ({amount}, {tensors} tensor{'s' * (tensors > 1)})"

    header = ["optimizer", *map(heading, measured)]
    names = list(next(iter(measured.values())))
    times = [
        [name, *(f"{m[name]['ratio']:.2f} [{m[name]['low']:.2f}, {m[name]['high']:.2f}]" for m in measured.values())]
        for name in names
    ]
    memory = [[name, *(size(m[name]["extra_bytes"]) for m in measured.values())] for name in names]
    unit = ", ".join(f"{name} {m[BASELINE]['milliseconds']:.2f} ms" for name, m in measured.items())
    rounds = " / ".join(
        " and ".join(str(number) for number in dict.fromkeys(result["rounds"] for result in m.values()))
        for m in measured.values()
    )
    return "\n\n".join(
        [
            f"Step time / step time of {BASELINE}: median of {rounds} interleaved rounds (first ours, then peers) "
            "[95% interval of the median].",
            markdown(header, times),
            f"1.00 is: {unit}.",
            f"State beyond that of {BASELINE}:",
            markdown(header, memory),
            f"{caption(facts)}, {facts['clock']} clock",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, without the 50 M set")
    parser.add_argument("--sets", help=f"some of: {', '.join(sets())}")
    parser.add_argument("--only", help="comma-separated parts of contenders' names; the baseline always runs")
    parser.add_argument("--rounds", type=int, help="default 101 (50m: 31), quick 11")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu needs --threads 1")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/NAME.{json,md}")
    parser.add_argument("--name", default="step_time", help="the NAME of what is saved (default: step_time)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.clock == "cpu" and torch.get_num_threads() != 1:
        parser.error("--clock cpu counts one thread; add --threads 1")
    clock = time.thread_time if args.clock == "cpu" else time.perf_counter
    shapes = sets()
    wanted = args.sets.split(",") if args.sets else [name for name in shapes if not (args.quick and name == "50m")]
    unknown = set(wanted) - set(shapes)
    if unknown:
        parser.error(f"unknown set {', '.join(sorted(unknown))}; take some of {', '.join(shapes)}")
    parts = args.only.lower().split(",") if args.only else [""]
    chosen = {
        name: make for name, make in contenders().items() if name == BASELINE or any(p in name.lower() for p in parts)
    }
    measured = {}
    for name in wanted:
        print(f"measuring {name} ...", flush=True)
        rounds = args.rounds or (11 if args.quick else 31 if name == "50m" else 101)
        measured[name] = measure(shapes[name], chosen, rounds, clock)
    facts = conditions() | {"clock": args.clock}
    text = tables(measured, shapes, facts)
    print(f"\n{text}")
    if args.save:
        save(args.name, facts, measured, text)


if __name__ == "__main__":
    main()
