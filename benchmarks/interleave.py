"""Time several ways of doing the same work side by side, and say what each takes in units of the first.

Every round runs all contenders once, in a new random order, and the baseline before and after each of them: two ratios,
one to each of these neighbours, so that whatever else the machine is doing hits both sides. The table shows the median
of all ratios (a twin of the baseline is as often above 1 as below, however the noise is shaped), the quartiles, and an
interval of the median by a bootstrap of rounds. A second copy of the baseline runs along:
how far it is from 1.00 is what the benchmark itself gets wrong. Where memory happens to lie makes one contender faster
than its twin, so a benchmark of memory sits down several times and builds its contenders anew.
"""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from surefoot.lab.spec.config import Provenance

RESULTS = Path(__file__).parent / "results"


Contenders = Mapping[str, Callable[[], float]]
#: A contender's seconds in units of the baseline's just before and just after.
Pair = tuple[float, float]


def interleave(
    contenders: Contenders | Callable[[], Contenders],
    rounds: int,
    *,
    repeats: int = 1,
    seed: int = 0,
    warm_up: bool = True,
) -> dict[str, dict[str, float]]:
    """Run every contender once a round and compare it with the first one.

    Args:
        contenders: functions that do the work once and return the seconds it took; the first is the baseline. With
            several repeats, a function that makes them.
        rounds: how many times, in each repeat.
        repeats: how many times contenders are made anew.
        seed: of the order within rounds and of the bootstrap.
        warm_up: run each once untimed first; needless where every run starts processes of its own.
    """
    shuffler = random.Random(seed)
    ratios: dict[str, list[Pair]] = {}
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        _sit(contenders() if callable(contenders) else contenders, rounds, shuffler, warm_up, ratios, seconds)
    return {name: _summary(ratios[name], seconds[name], shuffler) for name in ratios}


def _sit(
    contenders: Contenders,
    rounds: int,
    shuffler: random.Random,
    warm_up: bool,
    ratios: dict[str, list[Pair]],
    seconds: dict[str, list[float]],
) -> None:
    """Run all rounds of one repeat, and add what they took."""
    baseline, *names = contenders
    measure = contenders[baseline]
    for name in contenders:
        ratios.setdefault(name, [])
        seconds.setdefault(name, [])
    base = seconds[baseline]
    for run in contenders.values() if warm_up else ():
        run()  # state is created and pages are touched
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            base.append(measure())
            ratios[baseline].append((1.0, 1.0))
            for name in shuffler.sample(names, len(names)):
                seconds[name].append(taken := contenders[name]())
                base.append(measure())
                ratios[name].append((taken / base[-2], taken / base[-1]))
            gc.collect()
    finally:
        if collecting:
            gc.enable()


def _summary(rounds: list[Pair], seconds: list[float], shuffler: random.Random) -> dict[str, float]:
    def median(pairs: list[Pair]) -> float:
        return statistics.median(chain.from_iterable(pairs))

    medians = sorted(median(shuffler.choices(rounds, k=len(rounds))) for _ in range(1000))
    quartiles = statistics.quantiles(chain.from_iterable(rounds), n=4, method="inclusive")
    return {
        "ratio": median(rounds),
        "quartile_1": quartiles[0],
        "quartile_3": quartiles[2],
        "low": medians[24],
        "high": medians[974],
        "milliseconds": 1e3 * statistics.median(seconds),
        "rounds": len(rounds),
    }


def conditions() -> dict[str, Any]:
    """What the numbers depend on."""
    here = Provenance.here()
    kept = {"torch": here.torch, "python": here.python, "cpu": here.cpu, "commit": here.commit}
    return {**kept, "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def caption(facts: Mapping[str, Any]) -> str:
    """One line about the conditions."""
    return (
        f"{facts['threads']} thread(s), {facts['cores']} core(s), {facts['cpu']}, "
        f"torch {facts['torch']}, Python {facts['python']}"
    )


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose columns line up in a terminal too."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"

    return "\n".join([line(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)])


def saved(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier run kept under the same conditions: a long benchmark may be measured part by part."""
    path = RESULTS / f"{name}.json"
    saved = json.loads(path.read_text()) if path.exists() else {}
    return saved["measured"] if saved.get("conditions") == dict(facts) else {}


def save(name: str, facts: Mapping[str, Any], measured: Any, text: str) -> None:
    """Keep a run: numbers as JSON, the table as Markdown."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"conditions": facts, "measured": measured}, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(text + "\n")
    print(f"\nsaved: {RESULTS.name}/{name}.json and {RESULTS.name}/{name}.md")
