"""A lab epoch against a bare PyTorch loop and against the usual pipeline, and two workers against one: ratios.

    python benchmarks/lab_epoch.py [--quick] [--tasks lr,mlp,cnn] [--threads 2] [--no-workers] [--save]

With SUREFOOT_DATA set the data are MNIST and CIFAR-10, else random images of the same shapes. Everything a run does is
timed: building the model, training, validating, writing metrics and the checkpoint; starting a process and loading the
data are not. The lab's runs are those of the command `surefoot compare`. One thread per process, as the lab has it by
default; with ``--threads`` as many for all of them as torch takes by itself, say, as a tutorial's loop would.
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
from surefoot.lab import data, find_task

HERE = Path(__file__).parent
BASELINE = "bare loop, Adam fused"

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
        found = data.load(name)
        raw = (found.train_x[:count], found.train_y[:count])
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
        options["threads"] = torch.get_num_threads()
        options |= {"subset": subset} if subset else {}
        words = [f"--{name}={value}" for name, value in options.items()]
        command = [Path(sys.executable).with_name("surefoot"), "compare", task, "-o", optimizer, "--quiet", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        starts = [path.stat().st_mtime for path in Path(out).glob("*/*/config.json")]
        ends = [path.stat().st_mtime for path in Path(out).glob("*/*/*") if path.name != "lock"]
        return max(ends) - min(starts)


def epochs_of(model: str, quick: bool) -> int:
    return {"lr": 10, "mlp": 1, "cnn": 1}[model] if not quick else 1


def compare_loops(model: str, quick: bool, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of a whole run with each loop, in units of the bare one."""
    task, raw = load(model, quick)
    epochs = epochs_of(model, quick)
    baseline = timed(lambda: bare(task, epochs))
    close = interleave(
        {
            BASELINE: baseline,
            "the same again": timed(lambda: bare(task, epochs)),
            "lab, Adam": lambda: in_lab(spec_of(model), "adam", epochs, subset=size_of(model, quick)),
            "lab, AdamS": lambda: in_lab(spec_of(model), "adams", epochs, subset=size_of(model, quick)),
        },
        rounds,
    )
    # So much slower that a few rounds tell, and that more of them would take most of the time.
    slow = {BASELINE: baseline, "usual pipeline": timed(lambda: usual(task, raw, model == "cnn", epochs))}
    return close | {"usual pipeline": interleave(slow, min(rounds, 2), warm_up=False)["usual pipeline"]}


def compare_workers(model: str, quick: bool) -> dict[str, dict[str, float]]:
    """Seconds of the same runs with one process and with two."""
    spec = spec_of(model)
    epochs = (2 if quick else 40) if model == "lr" else (1 if quick else 2)
    options: dict[str, Any] = {"seeds": 4, "subset": 6400 if quick else None}
    return interleave(
        {
            "one worker": lambda: in_lab(spec, "adam", epochs, jobs=1, **options),
            "two workers": lambda: in_lab(spec, "adam", epochs, jobs=2, **options),
        },
        rounds=1,  # minutes, between two runs of the baseline
        warm_up=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small subsets, few rounds: shows that it works")
    parser.add_argument("--tasks", default="lr,mlp,cnn", help="some of lr, mlp, cnn")
    parser.add_argument("--no-workers", action="store_true", help="leave the workers out: they need two idle cores")
    parser.add_argument("--no-loops", action="store_true", help="measure the workers only")
    parser.add_argument("--threads", type=int, default=1, help="of every process; with more than 1 no workers")
    parser.add_argument("--rounds", type=int, help="default 5, quick 2")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/lab_epoch.{json,md}, or lab_epoch_N_threads"
    )
    args = parser.parse_args()
    chosen = args.tasks.split(",")
    if set(chosen) - set(TASKS):
        parser.error(f"unknown task in {args.tasks!r}; take some of {', '.join(TASKS)}")
    torch.set_num_threads(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    name = "lab_epoch" if args.threads == 1 else f"lab_epoch_{args.threads}_threads"
    rounds = args.rounds or (2 if args.quick else 5)
    facts = conditions() | {"data": "MNIST, CIFAR-10" if os.environ.get("SUREFOOT_DATA") else "random images"}
    kept = saved(name, facts) if args.save else {}
    loops, workers = kept.get("loops", {}), kept.get("workers", {})
    for model in chosen:
        print(f"measuring {model} ...", flush=True)
        if not args.no_loops:
            loops[model] = compare_loops(model, args.quick, rounds)
        print(f"\n{tables(loops, workers, facts)}\n", flush=True)  # it takes long: what is measured is shown and kept
        if model != "cnn" and args.threads == 1 and not args.no_workers:
            workers[model] = compare_workers(model, args.quick)
        if args.save:
            save(name, facts, {"loops": loops, "workers": workers}, tables(loops, workers, facts))
    print(f"\n{tables(loops, workers, facts)}")


def tables(loops: dict[str, Any], workers: dict[str, Any], facts: dict[str, Any]) -> str:
    """Ratios and speed-ups, as Markdown."""

    def cell(one: dict[str, float]) -> str:
        return f"{one['ratio']:.2f} [{one['quartile_1']:.2f}, {one['quartile_3']:.2f}]"

    names = list(next(iter(loops.values()), ()))
    rows = [[name, *(cell(measured[name]) for measured in loops.values())] for name in names]
    unit = ", ".join(f"{model} {measured[BASELINE]['milliseconds'] / 1e3:.2f} s" for model, measured in loops.items())
    rounds = " / ".join(str(measured[BASELINE]["rounds"]) for measured in loops.values())
    parts = []
    if loops:
        parts += [
            f"Time of a run / time of the {BASELINE}: median of {rounds} interleaved rounds [quartiles].",
            markdown(["loop", *loops], rows),
            f"1.00 is: {unit}.",
        ]
    if workers:
        speed = [[model, f"{1 / one['two workers']['ratio']:.2f}"] for model, one in workers.items()]
        parts += [
            "Throughput of two workers / one, from the start of the first run to the end of the last:",
            markdown(["task", "speed-up"], speed),
        ]
    return "\n\n".join([*parts, f"{caption(facts)}; {facts['data']}"])


if __name__ == "__main__":
    main()
