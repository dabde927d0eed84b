"""A lab epoch against a bare PyTorch loop and against the usual pipeline, and two workers against one: ratios.

    python benchmarks/lab_epoch.py [--quick] [--tasks lr,mlp] [--parts loops,pipeline] [--save]

With SUREFOOT_DATA set the data are MNIST and CIFAR-10, else random images of the same shapes; of CIFAR-10 an epoch has
3200 of the training images and validates on all 10 000. Everything a run does is timed: building the model, training,
validating, writing metrics and the checkpoint; starting a process and loading the data are not. The lab's runs are
those of the command `surefoot compare`, with one thread, as it has by default, and so is the bare loop. The usual
pipeline has as many threads as torch takes by itself, one for each core, and once more only one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleave import caption, conditions, interleave, markdown, save, saved
from loops import bare, usual
from torch import Tensor

from surefoot import lab
from surefoot.lab import find_task
from surefoot.lab.spec import datasets as data

HERE = Path(__file__).parent
BASELINE = "bare loop, Adam fused"
USUAL = "usual pipeline"
Measured = dict[str, dict[str, float]]

#: By model: the named task, the data set, and how many training images an epoch has (None: all).
TASKS: dict[str, tuple[str, str, int | None]] = {
    "lr": ("mnist-lr", "mnist", None),
    "mlp": ("mnist-mlp", "mnist", None),
    "cnn": ("cifar10-cnn", "cifar10", 3200),
}


def spec_of(model: str) -> str:
    """The task by the name that workers can find it under."""
    return TASKS[model][0] if os.environ.get("SUREFOOT_DATA") else f"{HERE / 'synthetic_tasks.py'}:{model}"


def size_of(model: str, quick: bool) -> int | None:
    size = TASKS[model][2]
    return (1280 if size else 6400) if quick else size


def load(model: str, quick: bool) -> tuple[lab.Task, tuple[Tensor, Tensor]]:
    """The task, and its raw images for the pipeline that prepares them one by one."""
    name = TASKS[model][1]
    task = find_task(spec_of(model), subset=size_of(model, quick))
    count = len(task.train[0])
    if os.environ.get("SUREFOOT_DATA"):
        images = data.load(name)
        raw = (images.train_x[:count], images.train_y[:count])
    else:
        shape = (3, 32, 32) if model == "cnn" else (1, 28, 28)
        raw = (torch.randint(256, (count, *shape), dtype=torch.uint8), task.train[1])
    return task, raw


def timed(work: Callable[[], Any]) -> Callable[[], float]:
    """The same work, returning the seconds it took."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def in_lab(task: str, optimizer: str, epochs: int, jobs: int = 1, seeds: int = 1, subset: int | None = None) -> float:
    """The command, in a folder of its own so that nothing is found done; the seconds from first to last write."""
    with tempfile.TemporaryDirectory() as out:
        options = {"seeds": seeds, "epochs": epochs, "jobs": jobs, "weight-decay": 1e-4, "out": out}
        options |= {"subset": subset} if subset else {}
        words = [f"--{name}={value}" for name, value in options.items()]
        command = [Path(sys.executable).with_name("surefoot"), "compare", task, "-o", optimizer, "--quiet", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        starts = [path.stat().st_mtime for path in Path(out).glob("*/*/config.json")]
        ends = [path.stat().st_mtime for path in Path(out).glob("*/*/*") if path.name != "lock"]
        return max(ends) - min(starts)


def epochs_of(model: str, quick: bool) -> int:
    return {"lr": 10, "mlp": 1, "cnn": 1}[model] if not quick else 1


def compare_loops(model: str, quick: bool, rounds: int) -> Measured:
    """Seconds of a whole run in the lab, in units of the bare loop."""
    task, _ = load(model, quick)
    epochs = epochs_of(model, quick)
    return interleave(
        {
            BASELINE: timed(lambda: bare(task, epochs)),
            "the same again": timed(lambda: bare(task, epochs)),
            "lab, Adam": lambda: in_lab(spec_of(model), "adam", epochs, subset=size_of(model, quick)),
            "lab, AdamS": lambda: in_lab(spec_of(model), "adams", epochs, subset=size_of(model, quick)),
        },
        rounds,
    )


def compare_pipeline(model: str, quick: bool, rounds: int) -> Measured:
    """Seconds of the usual pipeline, in units of the lab: as people run it, with torch's own threads, and with one."""
    task, raw = load(model, quick)
    epochs = min(3, epochs_of(model, quick))

    def with_threads(number: int) -> float:
        torch.set_num_threads(number)
        try:
            return timed(lambda: usual(task, raw, model == "cnn", epochs))()
        finally:
            torch.set_num_threads(1)

    return interleave(
        {
            "lab, Adam": lambda: in_lab(spec_of(model), "adam", epochs, subset=size_of(model, quick)),
            USUAL: lambda: with_threads(os.cpu_count() or 1),
            f"{USUAL}, one thread": lambda: with_threads(1),
        },
        rounds,
        warm_up=False,  # all start processes of their own
    )


def compare_workers(model: str, quick: bool, rounds: int) -> Measured:
    """Seconds of the same runs with one process and with two."""
    spec = spec_of(model)
    epochs = (2 if quick else 40) if model == "lr" else (1 if quick else 2)
    options: dict[str, Any] = {"seeds": 4, "subset": 6400 if quick else None}
    return interleave(
        {
            "one worker": lambda: in_lab(spec, "adam", epochs, jobs=1, **options),
            "two workers": lambda: in_lab(spec, "adam", epochs, jobs=2, **options),
        },
        rounds,
        warm_up=False,
    )


#: What is measured of each task, by the name that `--parts` knows it under.
PARTS: dict[str, Callable[[str, bool, int], Measured]] = {
    "loops": compare_loops,
    "pipeline": compare_pipeline,
    "workers": compare_workers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small subsets, few rounds: shows that it works")
    parser.add_argument("--tasks", default="lr,mlp,cnn", help="some of lr, mlp, cnn")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them; the workers need two idle cores")
    parser.add_argument("--rounds", type=int, help="of the loops, and half as many of the others; default 6, quick 2")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/lab_epoch.{json,md}")
    args = parser.parse_args()
    tasks, parts = args.tasks.split(","), args.parts.split(",")
    for given, known in ((tasks, TASKS), (parts, PARTS)):
        if not set(given) <= set(known):
            parser.error(f"unknown word in {','.join(given)!r}; take some of {', '.join(known)}")
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    rounds = args.rounds or (2 if args.quick else 6)
    facts = conditions() | {"data": "MNIST, CIFAR-10" if os.environ.get("SUREFOOT_DATA") else "random images"}
    measured = {part: {} for part in PARTS} | (saved("lab_epoch", facts) if args.save else {})
    for model in tasks:
        for part in parts:
            if part == "workers" and model == "cnn":
                continue
            print(f"measuring {part} on {model} ...", flush=True)
            measured[part][model] = PARTS[part](model, args.quick, rounds if part == "loops" else -(-rounds // 2))
            if args.save:  # it takes long: what is measured is kept
                save("lab_epoch", facts, measured, tables(measured, facts))
    print(f"\n{tables(measured, facts)}")


def tables(measured: dict[str, dict[str, Measured]], facts: dict[str, Any]) -> str:
    """Ratios and speed-ups, as Markdown."""

    def cell(timing: dict[str, float], inverse: bool = False) -> str:
        numbers = [timing["ratio"], timing["quartile_1"], timing["quartile_3"]]
        middle, *ends = [1 / x for x in numbers] if inverse else numbers
        return f"{middle:.2f} [{min(ends):.2f}, {max(ends):.2f}]"

    def part(name: str, title: str, rows: list[str], inverse: bool = False) -> list[str]:
        by_model = measured[name]
        if not by_model:
            return []
        rounds = " / ".join(str(next(iter(timings.values()))["rounds"]) for timings in by_model.values())
        lines = [[row, *(cell(timings[row], inverse) for timings in by_model.values())] for row in rows]
        return [f"{title}: median of {rounds} interleaved rounds [quartiles].", markdown(["", *by_model], lines)]

    loops = measured["loops"]
    unit = ", ".join(f"{model} {timings[BASELINE]['milliseconds'] / 1e3:.2f} s" for model, timings in loops.items())
    names = list(next(iter(loops.values()), ()))
    return "\n\n".join(
        [
            *part("loops", f"Time of a run / time of the {BASELINE}", names),
            *([f"1.00 is: {unit}."] if loops else []),
            *part("pipeline", f"Time of the {USUAL} / time of the lab", [USUAL, f"{USUAL}, one thread"]),
            *part(
                "workers",
                "Throughput of two workers / one, from the start of the first run to the end of the last",
                ["two workers"],
                inverse=True,
            ),
            f"{caption(facts)}; {facts['data']}",
        ]
    )


if __name__ == "__main__":
    main()
