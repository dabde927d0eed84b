"""Data-parallel training with AdamS, gradient accumulation and resume, on as many processes as you like.

torchrun --standalone --nproc-per-node 2 examples/ddp.py --checkpoint ddp.pt
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import surefoot

MICRO_BATCHES = 2


def batch(step, micro_batch, device):
    """A batch of this rank's own: noisy samples of one function, the same wherever training is resumed."""
    seed = (step * MICRO_BATCHES + micro_batch) * dist.get_world_size() + dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(64, 2, generator=generator) * 4 - 2
    y = (x[:, :1] * x[:, 1:]).sin() + 0.1 * torch.randn(64, 1, generator=generator)
    return x.to(device), y.to(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--checkpoint", type=Path)
    arguments = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)).to(device))
    optimizer = surefoot.AdamS(model.parameters(), lr=3e-3, eta=0.1)
    first = 0
    if arguments.checkpoint and arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # moments, statistics of the loss, and where the noise is
        first = saved["step"]

    for step in range(first, arguments.steps):
        optimizer.zero_grad()
        for i in range(MICRO_BATCHES):
            last = i == MICRO_BATCHES - 1
            with nullcontext() if last else model.no_sync():
                x, y = batch(step, i, device)
                loss = nn.functional.mse_loss(model(x), y)
                (loss / MICRO_BATCHES).backward()
            optimizer.record_loss(loss)  # the line that changes; the mean over micro-batches and ranks is used
        optimizer.step()

    stats = optimizer.confidence()[0]
    if dist.get_rank() == 0:
        print(f"step {max(first, arguments.steps)}: loss {float(stats['mean']):.4f} +- {float(stats['std']):.4f}")
        if arguments.checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": arguments.steps}
            torch.save(state, arguments.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
