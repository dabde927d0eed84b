"""Watch what AdamS makes of the loss in TensorBoard, from a loop of your own.

Then run `tensorboard --logdir runs` and look at surefoot/mean, std, z, tilt, weight and skipped beside the loss.
"""

import argparse

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import surefoot
from surefoot.integrations.tracking import TensorBoard


def spirals(points, seed=1):
    """Two noisy spirals, one per class."""
    generator = torch.Generator().manual_seed(seed)
    angle = 3 * torch.pi * torch.rand(points, generator=generator).sqrt()
    label = torch.arange(points) % 2
    rotated = angle + torch.pi * label
    inputs = torch.stack([angle * rotated.cos(), angle * rotated.sin()], dim=1) / (3 * torch.pi)
    return inputs + 0.02 * torch.randn(inputs.shape, generator=generator), label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--logdir", default="runs")
    options = parser.parse_args()
    torch.manual_seed(0)
    inputs, labels = spirals(2000)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = surefoot.AdamS(model.parameters(), lr=3e-3, eta=0.1)
    with SummaryWriter(options.logdir) as writer:
        sink = TensorBoard(writer)  # a folder instead of a writer works too
        for step in range(1, options.steps + 1):
            chosen = torch.randint(len(inputs), (64,))
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(loss=loss)
            writer.add_scalar("loss", loss.item(), step)
            sink.log(optimizer, step)  # the one line that writes all of them
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    print(f"training accuracy {accuracy:.3f}; now run: tensorboard --logdir {options.logdir}")


if __name__ == "__main__":
    main()
