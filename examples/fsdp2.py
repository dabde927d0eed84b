"""Fully sharded training (FSDP2) with AdamUCB and a distributed checkpoint that any number of processes can load.

torchrun --standalone --nproc-per-node 2 examples/fsdp2.py --checkpoint fsdp2-checkpoint
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import surefoot


def batch(step, device):
    """A batch of this rank's own: noisy samples of one function, the same wherever training is resumed."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    x = torch.rand(64, 2, generator=generator) * 4 - 2
    y = (x[:, :1] * x[:, 1:]).sin() + 0.1 * torch.randn(64, 1, generator=generator)
    return x.to(device), y.to(device)


class Training:
    """Model, optimizer and step count, as distributed checkpoints want them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]


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
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = surefoot.AdamUCB(model.parameters(), lr=3e-3, eta=0.01)  # after sharding, as any optimizer
    training = Training(model, optimizer)
    if arguments.checkpoint and arguments.checkpoint.exists():
        dcp.load({"training": training}, checkpoint_id=arguments.checkpoint)

    while training.step < arguments.steps:
        optimizer.zero_grad()
        x, y = batch(training.step, device)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step(loss=loss)  # the line that changes; the mean over ranks is used
        training.step += 1

    stats = optimizer.confidence()[0]
    if dist.get_rank() == 0:
        print(f"step {training.step}: loss {float(stats['mean']):.4f} +- {float(stats['std']):.4f}")
    if arguments.checkpoint:
        dcp.save({"training": training}, checkpoint_id=arguments.checkpoint)
    if not on_gpu:
        time.sleep(0.2)  # a thread of gloo releases the last tensors; if Python ends before that, the process aborts
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
