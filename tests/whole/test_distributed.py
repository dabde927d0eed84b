"""Two real gloo processes: DDP, FSDP2, distributed checkpoints, weigh(loss); and one process with their files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import distributed_workers as workers
import surefoot

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this build of torch has no gloo"
)

SCRIPT = workers.__file__


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Start both processes once and let them run every check; returns the folder with what they left behind."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # the loopback alone, whatever the host's name resolves to
    logs = [folder / f"rank-{rank}.log" for rank in range(workers.WORLD)]
    ranks = []
    for rank, log in enumerate(logs):
        command = [sys.executable, SCRIPT, str(rank), str(folder)]
        with log.open("w") as out:
            ranks.append(subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT))
    try:
        for process in ranks:
            process.wait(timeout=240)
    finally:
        for process in ranks:
            process.kill()
    return folder


@pytest.mark.parametrize("name", workers.CHECKS)
def test_two_processes(together: Path, name: str) -> None:
    for rank in range(workers.WORLD):
        written = together / f"outcome-{rank}.json"
        log = (together / f"rank-{rank}.log").read_text()
        assert written.exists(), f"rank {rank} ended without a word:\n{log}"
        outcome = json.loads(written.read_text()).get(name, "not reached, because an earlier check failed")
        assert outcome == "passed", f"rank {rank}: {outcome}\n{log}"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("layout", workers.LAYOUTS)
@pytest.mark.parametrize("name", workers.SAVED)
def test_checkpoint_of_two_ranks_goes_on_in_one_process(together: Path, name: str, layout: str) -> None:
    """Resharding 2 -> 1: the statistics come along, and training goes where the two ranks went."""
    folder = together / "a_distributed_checkpoint_resumes_bit_for_bit"
    model = workers.make_model()
    optimizer = workers.SAVED[name](model.parameters())
    workers.load_checkpoint(model, optimizer, layout, folder / f"{name}-{layout}")
    assert optimizer.param_groups[0]["seen"][0] == len(workers.BEFORE)
    workers.take_steps(model, optimizer, workers.AFTER, None)
    end = torch.load(folder / f"{name}-{layout}.pt", weights_only=True)
    for p, q in zip(model.parameters(), end["params"]):
        torch.testing.assert_close(p.detach(), q, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(optimizer.param_groups[0]["seen"], end["seen"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("layout", workers.LAYOUTS)
def test_different_histories_stay_separate_in_a_distributed_checkpoint(tmp_path: Path, layout: str) -> None:
    """Loading is done in place, tensor by tensor: a scalar shared by two parameters would take the last one's value."""

    def train(model: nn.Module, optimizer: surefoot.AdamUCB, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            hidden = model[0](workers.batch(step, 0)[0])
            loss = (hidden if step % 3 == 0 else model[2](hidden)).pow(2).mean()
            loss.backward()
            optimizer.step(loss=loss)

    def fresh() -> tuple[nn.Module, surefoot.AdamUCB]:
        model = workers.make_model()
        return model, surefoot.AdamUCB(model.parameters(), lr=0.01, eta=0.2)

    model, optimizer = fresh()
    train(model, optimizer, range(7))
    again, resumed = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(workers.checkpoint_of(model, optimizer, layout), checkpoint_id=tmp_path)
        workers.load_checkpoint(again, resumed, layout, tmp_path)
    assert [resumed.state[p]["step"].item() for p in again.parameters()] == [7, 7, 4, 4]
    train(model, optimizer, range(7, 12))
    train(again, resumed, range(7, 12))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))


def test_flattened_state_that_lacks_a_scalar_takes_the_default() -> None:
    """A device keeps ordinary moments; flattened, their missing units come back as empty dicts."""
    model = workers.make_model()
    on_device = surefoot.AdamUCB(model.parameters(), lr=0.01, capturable=True)
    workers.take_steps(model, on_device, range(3), 0)
    options = workers.LAYOUTS["flat"]
    state = deepcopy(get_optimizer_state_dict(model, on_device, options=options))  # torch loads without copying
    again = workers.make_model()
    again.load_state_dict(model.state_dict())
    on_host = surefoot.AdamUCB(again.parameters(), lr=0.01)
    set_optimizer_state_dict(again, on_host, state, options=options)
    on_host.param_groups[0]["capturable"] = False
    workers.take_steps(model, on_device, range(3, 6), 0)
    workers.take_steps(again, on_host, range(3, 6), 0)
    for p, q in zip(model.parameters(), again.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_distributed_checkpointing_creates_state_without_a_loss() -> None:
    model = workers.make_model()
    before = [p.detach().clone() for p in model.parameters()]
    for make in workers.FAMILY.values():
        optimizer = make(model.parameters())
        state = get_optimizer_state_dict(model, optimizer)
        assert set(state["state"]) == {name for name, _ in model.named_parameters()}
        assert optimizer.param_groups[0]["seen"][0] == 0
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before))
