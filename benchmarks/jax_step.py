"""Step time of the JAX aliases as ratios to ``optax.adam`` on the CPU, in one interleaved run.

    python benchmarks/jax_step.py [--rounds 60] [--repeats 1] [--sets 10m,400x64x64] [--save]

A step is ``update`` and ``apply_updates`` in one jitted function. The aliases skip a step whose loss or weight is not
finite; with ``check_gradients`` also one whose gradients are not. Parameters and state are donated, as training loops
do, or kept. Only the step is timed, when gradients and loss are there; the time is that of the process, which others
on the machine disturb less. Where memory happens to lie matters, so several repeats make everything anew.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from interleave import caption, conditions, interleave, markdown, save

import surefoot.optax as so

BASELINE = "optax adam"
BLOCK = [(1536, 512), (1536,), (512, 512), (512,), (2048, 512), (2048,), (512, 2048), (512,)]
SETS = {"10m": [*BLOCK * 3, (1000, 512)], "400x64x64": [(64, 64)] * 400}


def contenders() -> dict[str, Callable[[], Any]]:
    """Optimizers by name; the first one is the unit."""
    tilt = so.scale_by_tilt("ucb", weighting="paper")
    chain = (tilt, optax.scale_by_adam(), optax.scale_by_learning_rate(1e-3))
    return {
        BASELINE: lambda: optax.adam(1e-3),
        "the same again": lambda: optax.adam(1e-3),
        "surefoot adam_ucb": lambda: so.adam_ucb(1e-3),
        "surefoot adam_s": lambda: so.adam_s(1e-3),
        "adam_ucb, check_gradients": lambda: so.adam_ucb(1e-3, check_gradients=True),
        "skip_nonfinite(chain)": lambda: so.skip_nonfinite(optax.chain(*chain)),
        "optax apply_if_finite(adam)": lambda: optax.apply_if_finite(optax.adam(1e-3), 5),
    }


class Bench:
    """One optimizer at work on parameters of its own."""

    def __init__(self, optimizer: Any, shapes: list[tuple[int, ...]], donate: bool, steps: int) -> None:
        keys = jax.random.split(jax.random.key(0), len(shapes))
        self.params = [0.02 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes)]
        self.grads = [0.01 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes)]
        self.state = optimizer.init(self.params)
        optimizer = optax.with_extra_args_support(optimizer)

        def step(params: Any, state: Any, grads: Any, value: Any) -> Any:
            updates, state = optimizer.update(grads, state, params, value=value)
            return optax.apply_updates(params, updates), state

        self.step = jax.jit(step, donate_argnums=(0, 1) if donate else ())
        self.steps, self.taken = steps, 0

    def __call__(self) -> float:
        """The median seconds of some steps."""
        return statistics.median(self._timed() for _ in range(self.steps))

    def _timed(self) -> float:
        self.taken += 1
        value = jnp.float32(1.0 + 0.1 * (self.taken % 7))
        start = time.process_time()
        self.params, self.state = self.step(self.params, self.state, self.grads, value)
        jax.block_until_ready((self.params, self.state))
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--only", help="comma-separated parts of contenders' names; the baseline always runs")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/jax_step.{json,md}")
    args = parser.parse_args()
    parts = args.only.split(",") if args.only else [""]
    chosen = {name: x for name, x in contenders().items() if name == BASELINE or any(part in name for part in parts)}
    measured = {}
    for name in args.sets.split(","):
        for donate in (True, False):
            label = f"{name}, {'donated' if donate else 'kept'}"
            print(f"measuring {label} ...", flush=True)

            def benches(shapes: list[tuple[int, ...]] = SETS[name], donate: bool = donate) -> dict[str, Any]:
                built = {key: Bench(make(), shapes, donate, steps=3) for key, make in chosen.items()}
                # The baseline runs between all others. Several take turns, so that none runs more often than another:
                # arrays that are used more often are faster, and "the same again" took 1.04 of a single baseline.
                copies = [Bench(chosen[BASELINE](), shapes, donate, steps=3) for _ in range(len(chosen) - 2)]
                turns = itertools.cycle([built[BASELINE], *copies])
                return built | {BASELINE: lambda: next(turns)()}

            measured[label] = interleave(benches, args.rounds, repeats=args.repeats)
    facts = conditions() | {"jax": jax.__version__, "optax": optax.__version__}
    rows = [
        [key, *(f"{m[key]['ratio']:.2f} [{m[key]['low']:.2f}, {m[key]['high']:.2f}]" for m in measured.values())]
        for key in chosen
    ]
    unit = ", ".join(f"{label} {m[BASELINE]['milliseconds']:.2f} ms" for label, m in measured.items())
    text = "\n\n".join(
        [
            f"Step time / step time of {BASELINE}: median of {args.repeats} x {args.rounds} interleaved rounds [95% "
            "interval of it].",
            markdown(["optimizer", *measured], rows),
            f"1.00 is: {unit}.",
            f"{caption(facts)}, jax {facts['jax']}, optax {facts['optax']}, process time",
        ]
    )
    print(f"\n{text}")
    if args.save:
        save("jax_step", facts, measured, text)


if __name__ == "__main__":
    main()
