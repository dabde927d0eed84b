"""What two real processes check together; test_distributed.py starts them once and reports each check by its name.

A check is a function of the rank and of a folder that both processes (and afterwards the tests) can read.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import surefoot

WORLD = 2
CHECKS: dict[str, Callable[[int, Path], None]] = {}


def check(function: Callable[[int, Path], None]) -> Callable[[int, Path], None]:
    CHECKS[function.__name__] = function
    return function


# -- a small problem -----------------------------------------------------------------------------------------------


def make_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Sizes that two ranks cannot share evenly: the last layer's bias leaves one of them with nothing."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 1)).to(dtype)


def batch(step: int, rank: int, size: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(size, 4, generator=generator, dtype=torch.float64) * (1 + rank)
    return x.to(dtype), x.sum(1, keepdim=True).sin().to(dtype) + rank


def loss_of(model: nn.Module, step: int, rank: int, size: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    x, y = batch(step, rank, size, dtype)
    return nn.functional.mse_loss(model(x), y)


def numbers(model: nn.Module, optimizer: Any) -> Tensor:
    """All parameters and statistics as one vector, to compare ranks bit by bit."""
    parts = [p.detach().reshape(-1).double() for p in model.parameters()]
    return torch.cat([*parts, *(group["seen"] for group in optimizer.param_groups)])


def of_all_ranks(tensor: Tensor) -> list[Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(WORLD)]
    dist.all_gather(gathered, tensor)
    return gathered


def assert_same_on_all_ranks(tensor: Tensor) -> None:
    first, second = of_all_ranks(tensor)
    assert torch.equal(first, second), (first - second).abs().max()


def assert_differs_between_ranks(tensor: Tensor) -> None:
    first, second = of_all_ranks(tensor)
    assert not torch.equal(first, second)


FAMILY: dict[str, Callable[[Any], Any]] = {
    "AdamUCB": lambda params: surefoot.AdamUCB(params, lr=0.01, eta=0.3),
    "AdamS": lambda params: surefoot.AdamS(params, lr=0.01, eta=0.3, seed=5),
    "MomentumCB": lambda params: surefoot.MomentumCB(params, lr=0.05, eta=0.2),
    "LossWeighted": lambda params: surefoot.LossWeighted(torch.optim.AdamW(params, lr=0.01), "ucb", eta=0.3),
}


# -- DDP -----------------------------------------------------------------------------------------------------------


def train_alone(make: Callable[[Any], Any], steps: int) -> nn.Module:
    """What data parallel training computes, in one process: the mean loss and the mean gradient of both ranks."""
    model = make_model()
    optimizer = make(model.parameters())
    optimizer.process_group = False
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(loss_of(model, step, rank) for rank in range(WORLD)) / WORLD
        loss.backward()
        optimizer.step(loss=loss)
    return model


@check
def ddp_ranks_stay_bit_identical_while_their_losses_differ(rank: int, folder: Path) -> None:
    for name, make in FAMILY.items():
        model = DistributedDataParallel(make_model())
        optimizer = make(model.parameters())
        for step in range(10):
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            assert_differs_between_ranks(loss.detach())
            loss.backward()
            optimizer.step(loss=loss)
            assert_same_on_all_ranks(numbers(model, optimizer))
        alone = train_alone(make, 10)
        for p, q in zip(model.parameters(), alone.parameters()):
            assert torch.allclose(p, q, rtol=1e-4, atol=1e-6), (name, (p - q).abs().max())


@check
def opting_out_lets_ranks_drift(rank: int, folder: Path) -> None:
    """Without the average over ranks the ranks diverge: the check above can fail."""
    model = DistributedDataParallel(make_model())
    optimizer = surefoot.AdamUCB(model.parameters(), lr=0.01, eta=0.3, process_group=False)
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        loss.backward()
        optimizer.step(loss=loss)
    assert_differs_between_ranks(numbers(model, optimizer))


@check
def a_process_group_of_ones_own_is_used(rank: int, folder: Path) -> None:
    groups = [dist.new_group([r]) for r in range(WORLD)]
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.ones(2)
    optimizer = surefoot.AdamUCB([p], process_group=groups[rank])
    optimizer.step(loss=float(rank + 1))
    assert float(optimizer.confidence()[0]["mean"]) == rank + 1
    everybody = surefoot.AdamUCB([p], process_group=dist.group.WORLD)
    everybody.step(loss=float(rank + 1))
    assert float(everybody.confidence()[0]["mean"]) == 1.5


@check
def uneven_micro_batches_count_by_their_samples(rank: int, folder: Path) -> None:
    sizes = ((3, 5), (2, 7))[rank]
    for make in (FAMILY["AdamUCB"], FAMILY["LossWeighted"]):
        model = DistributedDataParallel(make_model())
        optimizer = make(model.parameters())
        for step in range(5):
            optimizer.zero_grad()
            before = float(optimizer.confidence()[0]["mean"])
            weighted_sum = torch.zeros(2, dtype=torch.float64)
            for i, size in enumerate(sizes):
                with model.no_sync() if i == 0 else nullcontext():
                    loss = loss_of(model, 10 * step + i, rank, size)
                    (loss / len(sizes)).backward()
                optimizer.record_loss(loss, weight=size)
                weighted_sum += torch.tensor([loss.item() * size, size], dtype=torch.float64)
            optimizer.step()
            dist.all_reduce(weighted_sum)
            reading = (weighted_sum[0] / weighted_sum[1]).item()
            share = 0.1 / (1 - 0.9 ** (step + 1))
            mean = float(optimizer.confidence()[0]["mean"])
            assert math.isclose(mean, before + share * (reading - before), rel_tol=1e-6)
            assert_same_on_all_ranks(numbers(model, optimizer))


@check
def a_nan_on_one_rank_skips_the_step_on_both(rank: int, folder: Path) -> None:
    for make in FAMILY.values():
        model = DistributedDataParallel(make_model())
        optimizer = make(model.parameters())
        for step in range(6):
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            spoilt = step == 3
            before = numbers(model, optimizer)[: -len(optimizer.param_groups[0]["seen"])].clone()
            (loss * (math.nan if spoilt and rank == 1 else 1)).backward()
            optimizer.step(loss=math.nan if spoilt and rank == 1 else loss)
            after = numbers(model, optimizer)[: -len(optimizer.param_groups[0]["seen"])]
            assert torch.equal(before, after) == spoilt
            assert_same_on_all_ranks(numbers(model, optimizer))
        seen = optimizer.confidence()[0]
        assert seen["skipped"] == 1
        assert seen["mean"].isfinite()


# -- FSDP2 ---------------------------------------------------------------------------------------------------------


def sharded_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    model = make_model(dtype)
    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]


def take_steps(model: nn.Module, optimizer: Any, steps: range, rank: int | None) -> None:
    """Train on one rank's batches, or on everybody's when the rank is None."""
    dtype = next(model.parameters()).dtype
    for step in steps:
        optimizer.zero_grad()
        ranks = range(WORLD) if rank is None else [rank]
        loss = sum(loss_of(model, step, r, dtype=dtype) for r in ranks) / len(ranks)
        loss.backward()
        optimizer.step(loss=loss)


SHARDED: dict[str, Callable[[Any], Any]] = {
    "AdamUCB fused": lambda params: surefoot.AdamUCB(params, lr=0.01, eta=0.3, fused=True),
    "AdamUCB foreach": lambda params: surefoot.AdamUCB(params, lr=0.01, eta=0.3, foreach=True, weight_decay=0.1),
    "AdamUCB loop": lambda params: surefoot.AdamUCB(params, lr=0.01, eta=0.3, foreach=False, amsgrad=True),
    "AdamUCB capturable": lambda params: surefoot.AdamUCB(params, lr=0.01, eta=0.3, capturable=True),
    "AdamS": lambda params: surefoot.AdamS(params, lr=0.01, eta=0.3, weight_decay=0.1, decoupled_weight_decay=True),
    "MomentumCB": lambda params: surefoot.MomentumCB(params, lr=0.05, eta=0.2),
    "NAdamUCB": lambda params: surefoot.NAdamUCB(params, lr=0.01, eta=0.2),
    "LossWeighted AdamW": lambda params: surefoot.LossWeighted(torch.optim.AdamW(params, lr=0.01), "ucb", eta=0.3),
    "LossWeighted SGD": lambda params: surefoot.LossWeighted(
        torch.optim.SGD(params, lr=0.01, momentum=0.9), "s", eta=0.3
    ),
    "LossWeighted capturable": lambda params: surefoot.LossWeighted(
        torch.optim.SGD([{"params": list(params), "capturable": True}], lr=0.01), "ucb", eta=0.3, nonfinite="coast"
    ),
}


@check
def fully_shard_equals_the_single_process(rank: int, folder: Path) -> None:
    for name, make in SHARDED.items():
        model = sharded_model(torch.float64)
        optimizer = make(model.parameters())
        take_steps(model, optimizer, range(8), rank)
        alone = make_model(torch.float64)
        single = make(alone.parameters())
        single.process_group = False
        take_steps(alone, single, range(8), None)
        for p, q in zip(whole(model), alone.parameters()):
            assert torch.allclose(p, q, rtol=1e-8, atol=1e-12), (name, (p - q).abs().max())
        torch.testing.assert_close(optimizer.param_groups[0]["seen"], single.param_groups[0]["seen"])


@check
def a_nan_gradient_in_one_shard_skips_everywhere(rank: int, folder: Path) -> None:
    for capturable in (False, True):
        model = sharded_model()
        optimizer = surefoot.AdamUCB(model.parameters(), lr=0.01, check_gradients=True, capturable=capturable)
        take_steps(model, optimizer, range(2), rank)
        before = whole(model)
        loss = loss_of(model, 2, rank)
        loss.backward()
        if rank == 0:
            next(model.parameters()).grad.to_local().fill_(math.nan)
        optimizer.step(loss=loss)
        assert all(torch.equal(a, b) for a, b in zip(before, whole(model)))
        assert optimizer.confidence()[0]["skipped"] == 1


@check
def an_overflow_on_one_rank_is_skipped_by_grad_scaler_on_both(rank: int, folder: Path) -> None:
    for model in (DistributedDataParallel(make_model()), sharded_model()):
        optimizer = surefoot.AdamUCB(model.parameters(), lr=0.01, eta=0.3)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            scale = math.inf if step == 1 and rank == 1 and isinstance(model, DistributedDataParallel) else 1
            scaler.scale(loss * scale).backward()
            grad = next(model.parameters()).grad
            if step == 1 and rank == 1 and hasattr(grad, "to_local"):
                grad.to_local().fill_(math.inf)
            scaler.step(optimizer, loss=loss)
            scaler.update()
        assert scaler.get_scale() == 32
        assert optimizer.param_groups[0]["seen"][0] == 2
        assert_same_on_all_ranks(optimizer.param_groups[0]["seen"])


@check
def gradients_that_are_still_to_be_summed_arrive_whole(rank: int, folder: Path) -> None:
    """As tensor parallel layers leave them: the parameter is everywhere, each rank has its part of the gradient."""
    mesh = init_device_mesh("cpu", (WORLD,))
    for make in (FAMILY["MomentumCB"], FAMILY["LossWeighted"]):
        p = nn.Parameter(distribute_tensor(torch.ones(3), mesh, [Replicate()]))
        q = nn.Parameter(torch.ones(3))
        sharded, alone = make([p]), make([q])
        for step in range(3):
            p.grad = DTensor.from_local(torch.full((3,), float(rank + step)), mesh, [Partial()])
            q.grad = torch.full((3,), float(2 * step + 1))
            for optimizer in (sharded, alone):
                optimizer.step(loss=step % 2)
        torch.testing.assert_close(p.full_tensor(), q.detach())


# -- averages --------------------------------------------------------------------------------------------------------


def anytime(params: Any) -> Any:
    return surefoot.Anytime(torch.optim.AdamW(params, lr=0.01), every=3)


def root_sharded_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """One group at the root, which stays gathered after a forward pass until a backward pass."""
    return fully_shard(make_model(dtype), mesh=init_device_mesh("cpu", (WORLD,)))


def output(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(batch(99, 0, dtype=torch.float64)[0])


@check
def averages_of_shards_are_those_of_the_single_process(rank: int, folder: Path) -> None:
    """Also what the model computes with them, and with the trained weights after them."""
    makers = (sharded_model, root_sharded_model, lambda dtype: DistributedDataParallel(make_model(dtype)))
    for make in makers:
        model, alone = make(torch.float64), make_model(torch.float64)
        optimizer, single = anytime(model.parameters()), anytime(alone.parameters())
        single.process_group = False
        for start in (0, 5):
            take_steps(model, optimizer, range(start, start + 5), rank)
            take_steps(alone, single, range(start, start + 5), None)
            output(model)  # an evaluation before it, whose gathered weights must not be used again
            with optimizer.averaged(), single.averaged():
                torch.testing.assert_close(output(model), output(alone))
                averaged = output(alone)
            torch.testing.assert_close(output(model), output(alone))
            assert not torch.allclose(averaged, output(alone))
        saved, expected = optimizer.averaged_state_dict(model), single.averaged_state_dict(alone)
        for value, same in zip(saved.values(), expected.values(), strict=True):
            torch.testing.assert_close(value.full_tensor() if hasattr(value, "full_tensor") else value, same)
        assert_same_on_all_ranks(optimizer.state_dict()["param_groups"][0]["average_numbers"])


@check
def a_distributed_checkpoint_has_the_average(rank: int, folder: Path) -> None:
    for layout in LAYOUTS:
        model = sharded_model()
        optimizer = anytime(model.parameters())
        take_steps(model, optimizer, BEFORE, rank)
        path = folder / f"anytime-{layout}"
        dcp.save(checkpoint_of(model, optimizer, layout), checkpoint_id=path)
        take_steps(model, optimizer, AFTER, rank)
        again = sharded_model()
        with torch.no_grad():
            for p in again.parameters():
                p.zero_()
        resumed = anytime(again.parameters())
        load_checkpoint(again, resumed, layout, path)
        take_steps(again, resumed, AFTER, rank)
        first, second = optimizer.averaged_state_dict(model), resumed.averaged_state_dict(again)
        for name in first:
            assert torch.equal(first[name].full_tensor(), second[name].full_tensor()), (layout, name)
        numbers = [x.state_dict()["param_groups"][0]["average_numbers"] for x in (optimizer, resumed)]
        assert torch.equal(*numbers), layout


# -- distributed checkpoints ---------------------------------------------------------------------------------------

LAYOUTS = {"nested": StateDictOptions(), "flat": StateDictOptions(flatten_optimizer_state_dict=True)}
SAVED: dict[str, Callable[[Any], Any]] = {
    "AdamUCB": FAMILY["AdamUCB"],
    "AdamS": FAMILY["AdamS"],
    "MomentumCB": FAMILY["MomentumCB"],
    "capturable": SHARDED["AdamUCB capturable"],
    "LossWeighted": FAMILY["LossWeighted"],
}
BEFORE, AFTER = range(5), range(5, 9)


def checkpoint_of(model: nn.Module, optimizer: Any, layout: str) -> dict[str, Any]:
    state = get_optimizer_state_dict(model, optimizer, options=LAYOUTS[layout])
    return {"model": model.state_dict(), "optimizer": state}


def load_checkpoint(model: nn.Module, optimizer: Any, layout: str, folder: Path) -> None:
    state = checkpoint_of(model, optimizer, layout)
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"], options=LAYOUTS[layout])


@check
def a_distributed_checkpoint_resumes_bit_for_bit(rank: int, folder: Path) -> None:
    """Also leaves the checkpoints, and where training went from there, to be loaded by a single process."""
    for name, make in SAVED.items():
        for layout in LAYOUTS:
            path = folder / f"{name}-{layout}"
            model = sharded_model()
            optimizer = make(model.parameters())
            take_steps(model, optimizer, BEFORE, rank)
            dcp.save(checkpoint_of(model, optimizer, layout), checkpoint_id=path)
            take_steps(model, optimizer, AFTER, rank)
            again = sharded_model()
            with torch.no_grad():
                for p in again.parameters():
                    p.zero_()
            resumed = make(again.parameters())
            load_checkpoint(again, resumed, layout, path)
            take_steps(again, resumed, AFTER, rank)
            for p, q in zip(whole(model), whole(again)):
                assert torch.equal(p, q), (name, layout)
            assert torch.equal(optimizer.param_groups[0]["seen"], resumed.param_groups[0]["seen"]), (name, layout)
            end = {"params": whole(model), "seen": optimizer.param_groups[0]["seen"]}
            if rank == 0:
                torch.save(end, folder / f"{name}-{layout}.pt")


@check
def a_full_state_dict_goes_to_rank_0_and_back(rank: int, folder: Path) -> None:
    gather = StateDictOptions(full_state_dict=True, cpu_offload=True)
    spread = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    for name in ("AdamUCB", "LossWeighted"):
        model = sharded_model()
        optimizer = FAMILY[name](model.parameters())
        take_steps(model, optimizer, BEFORE, rank)
        # On the CPU torch hands out AdamW's own step counter; the copy is what a file would make of it.
        state = deepcopy(get_optimizer_state_dict(model, optimizer, options=gather))
        again = sharded_model()
        again.load_state_dict(model.state_dict())
        resumed = FAMILY[name](again.parameters())
        set_optimizer_state_dict(again, resumed, state if rank == 0 else {}, options=spread)
        take_steps(model, optimizer, AFTER, rank)
        take_steps(again, resumed, AFTER, rank)
        for p, q in zip(whole(model), whole(again)):
            assert torch.equal(p, q), name
        assert torch.equal(optimizer.param_groups[0]["seen"], resumed.param_groups[0]["seen"]), name


# -- weigh(loss) ---------------------------------------------------------------------------------------------------


@check
def weigh_gives_every_rank_the_weight_of_its_own_loss(rank: int, folder: Path) -> None:
    model = DistributedDataParallel(make_model(torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    weigh = surefoot.weigh(optimizer, "ucb", eta=0.3)
    alone = make_model(torch.float64)
    single = torch.optim.SGD(alone.parameters(), lr=0.05)
    together = surefoot.weigh(single, "ucb", eta=0.3, process_group=False)
    for step in range(8):
        optimizer.zero_grad()
        loss = loss_of(model, step, rank, dtype=torch.float64)
        weighed = weigh(loss)
        assert torch.equal(weighed, loss)
        weighed.backward()
        weight = weigh.confidence()[0]["weight"]
        if step > 1:
            assert_differs_between_ranks(weight)
        optimizer.step()
        single.zero_grad()
        for r in range(WORLD):  # the ranks' batches as micro-batches of one process
            (together(loss_of(alone, step, r, dtype=torch.float64)) / WORLD).backward()
        single.step()
        assert_same_on_all_ranks(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        assert_same_on_all_ranks(weigh.seen[:5])  # z, tilt and weight are the rank's own
        torch.testing.assert_close(weigh.seen[:5], together.seen[:5], rtol=1e-10, atol=0)
        for p, q in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


@check
def weigh_leaves_out_a_nan_of_one_rank_and_counts_it_on_both(rank: int, folder: Path) -> None:
    x = torch.ones((), requires_grad=True)
    weigh = surefoot.weigh()
    for losses in ((1.0, 2.0), (3.0, 5.0), (math.nan, 4.0), (math.nan, math.nan)):
        weigh(x * losses[rank])
        weigh.update()
    assert_same_on_all_ranks(weigh.seen[:5])
    count, skipped = weigh.seen[0], weigh.seen[4]
    assert count == 3
    assert skipped == 3


@check
def weights_of_examples_come_from_the_losses_of_all_ranks(rank: int, folder: Path) -> None:
    random = torch.Generator().manual_seed(7)
    for eta in (-3.0, "auto"):
        weigh = surefoot.weigh(None, "tilted", eta)
        together = surefoot.weigh(None, "tilted", eta, process_group=False)
        for step in range(20):
            losses = torch.rand(2 * WORLD, 8, dtype=torch.float64, generator=random) + 20 / (step + 1)
            weigh(losses.unflatten(0, (WORLD, 2))[rank].clone().requires_grad_()).backward()
            weigh.update()
            for part in losses.unflatten(0, (WORLD, 2)):  # the ranks' batches as micro-batches of one process
                together(part.clone().requires_grad_()).backward()
            together.update()
            for name in ("seen", "ramp", *(["groups"] if eta == "auto" else [])):
                state = weigh.state_dict()[name]
                assert_same_on_all_ranks(state[:5])
                torch.testing.assert_close(state, together.state_dict()[name], rtol=1e-9, atol=1e-9)


# -- running them --------------------------------------------------------------------------------------------------


def main(rank: int, folder: Path) -> None:
    """Run every check on this rank; a check that fails on one rank is reported and the next one begins in step."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    outcome: dict[str, str] = {}
    try:
        for name, function in CHECKS.items():
            place = folder / name
            place.mkdir(exist_ok=True)
            try:
                function(rank, place)
                outcome[name] = "passed"
            except Exception:
                outcome[name] = traceback.format_exc()
                break  # the other rank may wait inside a collective: nothing after this can be trusted
    finally:
        (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
    if "passed" in outcome.values() and set(outcome.values()) == {"passed"}:
        dist.barrier()
        dist.destroy_process_group()
    else:
        sys.stdout.flush()
        os._exit(1)  # do not wait for a rank that may be stuck


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
