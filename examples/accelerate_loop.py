"""Train in your own loop with Accelerate: AdamS, gradient accumulation, and a resumed run.

One line changes in the loop: `backward(accelerator, loss, optimizer)` in place of `accelerator.backward(loss)`.
"""

import argparse
import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot
from surefoot.integrations.accelerate import backward


def spirals(points, seed=1):
    """Two noisy spirals, one per class."""
    generator = torch.Generator().manual_seed(seed)
    angle = 3 * torch.pi * torch.rand(points, generator=generator).sqrt()
    label = torch.arange(points) % 2
    rotated = angle + torch.pi * label
    inputs = torch.stack([angle * rotated.cos(), angle * rotated.sin()], dim=1) / (3 * torch.pi)
    return inputs + 0.02 * torch.randn(inputs.shape, generator=generator), label


def train(accelerator, model, optimizer, loader, steps):
    while steps > 0:
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                backward(accelerator, loss, optimizer)  # was: accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            steps -= accelerator.sync_gradients
            if steps == 0:
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--mixed-precision", choices=["no", "bf16"], default="no")
    options = parser.parse_args()
    steps = options.steps
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=options.mixed_precision)
    torch.manual_seed(0)
    inputs, labels = spirals(2000)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = surefoot.AdamS(model.parameters(), lr=3e-3, eta=0.1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    train(accelerator, model, optimizer, loader, steps // 2)
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)  # the statistics of the loss come back with the optimizer
    train(accelerator, model, optimizer, loader, steps - steps // 2)

    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    print(f"training accuracy {accuracy:.3f}")
    stats = optimizer.optimizer.confidence()[0]
    print("last step:", ", ".join(f"{name} {float(value):.3g}" for name, value in stats.items()))


if __name__ == "__main__":
    main()
