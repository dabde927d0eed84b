"""What `import surefoot` adds to `import torch`, and how long `surefoot --help` takes; each in fresh processes.

python benchmarks/import_time.py [--quick] [--save]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from interleave import caption, conditions, markdown, save

#: What is timed inside a process that has imported torch already.
AFTER_TORCH = {
    "import surefoot": "import surefoot",
    "import surefoot, and surefoot.AdamS": "import surefoot; surefoot.AdamS",
    "import surefoot, and every name in it": "import surefoot; [getattr(surefoot, name) for name in surefoot.__all__]",
}
TIMED = "import torch, time; start = time.perf_counter(); {code}; print(time.perf_counter() - start)"


def inside(code: str) -> float:
    """Seconds that the code takes in a new process, after torch."""
    done = subprocess.run([sys.executable, "-c", TIMED.format(code=code)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def whole(*arguments: str) -> float:
    """Seconds from start to end of a process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 15")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/import_time.{json,md}")
    args = parser.parse_args()
    jobs = {f"{name} (after import torch)": lambda code=code: inside(code) for name, code in AFTER_TORCH.items()}
    jobs |= {
        "python -c 'import torch'": lambda: whole("-c", "import torch"),
        "surefoot --help": lambda: whole("-c", "from surefoot.cli import main; main()", "--help"),
        "python -c pass": lambda: whole("-c", "pass"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()  # files come from the disk once
    for _ in range(5 if args.quick else 15):
        for name, job in jobs.items():
            seconds[name].append(job())
    measured = {
        name: {"median_ms": 1e3 * statistics.median(times), "min_ms": 1e3 * min(times)}
        for name, times in seconds.items()
    }
    rows = [[name, f"{row['median_ms']:.0f} ms", f"{row['min_ms']:.0f} ms"] for name, row in measured.items()]
    facts = conditions()
    text = "\n\n".join([markdown(["what", "median", "fastest"], rows), caption(facts)])
    print(text)
    if args.save:
        save("import_time", facts, measured, text)


if __name__ == "__main__":
    main()
