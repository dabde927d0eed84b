"""Every file in examples/ runs to its end, in a process of its own and with a short setting where it has one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
#: What C++ says when Python, at its end, stops a thread that asks for the interpreter. A thread of torch's gloo does so
#: when it lets go of the last collective's tensor only then: once in twenty runs, after all of the example's work.
TEARDOWN = "terminate called without an active exception"
SHARDED = Path(__file__).parents[2] / "examples" / "fsdp2.py"


def run(example: Path, folder: Path, *arguments: str) -> str:
    """Run an example as its user would (with torchrun where it says so); returns what it printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    is_distributed = "torchrun" in example.read_text()
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "PYTHONWARNINGS": "ignore"}
    if sys.platform == "linux":
        quiet["GLOO_SOCKET_IFNAME"] = "lo"  # the loopback alone, whatever the host's name resolves to
    command = [sys.executable, *(launcher if is_distributed else []), str(example), *arguments]
    for _ in range(5):
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **quiet},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if TEARDOWN not in done.stderr:
            break
    assert done.returncode == 0, f"{example.name} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_folder_was_found() -> None:
    assert {"ddp.py", "fsdp2.py", "wrap_any_optimizer.py"} <= {example.name for example in EXAMPLES}


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path != SHARDED], ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    short = ("--steps", "12") if '"--steps"' in example.read_text() else ()
    assert run(example, tmp_path, *short).strip(), f"{example.name} printed nothing"


def test_a_sharded_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole = run(SHARDED, tmp_path, "--steps", "12")
    assert whole.startswith("step 12: loss ")
    run(SHARDED, tmp_path, "--steps", "5", "--checkpoint", "state")
    assert run(SHARDED, tmp_path, "--steps", "12", "--checkpoint", "state") == whole
