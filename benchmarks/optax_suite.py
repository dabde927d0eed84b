"""Run Optax's own tests of its optimizers on the aliases of surefoot.optax, with their defaults.

    python benchmarks/optax_suite.py            # needs pytest; a few minutes

The tests are those of the installed Optax (``optax/_src/alias_test.py``). Two things are replaced in a copy that is
thrown away: the table of optimizers under test, and the name of the one that is given the loss. In that table every
optimizer has a learning rate of its own. Ours have that of ``optax.nadam`` and ``optax.adabelief``, 0.01. Momentum has
0.003; that is 0.0003 for Optax's SGD with momentum 0.9, which has 0.001 there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import surefoot.optax as aliases

RATES = {"adam": 0.01, "adamw": 0.01, "momentum": 0.003}


def optimizers_under_test(rate: float | None = None) -> dict[str, float]:
    """The named optimizers (those with a rule) and their learning rates; ``rate`` replaces that of Adam."""
    rates = {**RATES, **({"adam": rate, "adamw": rate} if rate else {})}
    named = [name for name in aliases.__all__ if name.partition("_")[0] in rates and "_" in name]
    return {name: rates[name.partition("_")[0]] for name in named}


def adapted(source: str, rates: dict[str, float]) -> str:
    """Optax's tests with our optimizers in the place of theirs."""
    rows = [f"    dict(opt_name={name!r}, opt_kwargs=dict(learning_rate={rate})),\n" for name, rate in rates.items()]
    ours = (
        f"import surefoot.optax as _ours\nfor _name in {list(rates)}:\n  setattr(alias, _name, getattr(_ours, _name))\n"
    )
    table = f"{ours}_OPTIMIZERS_UNDER_TEST = (\n{''.join(rows)})\n"
    source, tables = re.subn(r"(?ms)^_OPTIMIZERS_UNDER_TEST = \(\n.*?^\)\n", lambda _: table, source)
    asked = re.compile(r"opt_name == 'polyak_sgd'|opt_name in \['polyak_sgd'\]")
    source, places = asked.subn(f"opt_name in {tuple(rates)!r}", source)
    if tables != 1 or not places:
        raise SystemExit(f"Optax's tests look different here: {tables} tables of optimizers, {places} that take a loss")
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, help="Learning rate of Adam and AdamW: 0.1 is that of optax.adam.")
    parser.add_argument("pytest", nargs="*", help="More arguments for pytest, after --.")
    args = parser.parse_args()
    spec = importlib.util.find_spec("optax._src.alias_test")
    if spec is None or spec.origin is None:
        raise SystemExit("this installation of Optax has no tests; install the one in constraints.txt")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test_aliases.py")
        path.write_text(adapted(Path(spec.origin).read_text(), optimizers_under_test(args.rate)))
        options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, *args.pytest]
        raise SystemExit(subprocess.run([sys.executable, "-m", "pytest", str(path), *options], check=False).returncode)


if __name__ == "__main__":
    main()
