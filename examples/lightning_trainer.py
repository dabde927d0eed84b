"""Train with Lightning: AdamS, gradient accumulation, and the optimizer's confidence in the Trainer's own log.

One line changes in the module (the optimizer), and one callback gathers the losses of all micro-batches.
"""

import argparse
import logging
import warnings

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot
from surefoot.integrations.lightning import LogConfidence, LossGathering

warnings.filterwarnings("ignore")  # Lightning's advice on workers and loggers
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def spirals(points, seed=1):
    """Two noisy spirals, one per class."""
    generator = torch.Generator().manual_seed(seed)
    angle = 3 * torch.pi * torch.rand(points, generator=generator).sqrt()
    label = torch.arange(points) % 2
    rotated = angle + torch.pi * label
    inputs = torch.stack([angle * rotated.cos(), angle * rotated.sin()], dim=1) / (3 * torch.pi)
    return inputs + 0.02 * torch.randn(inputs.shape, generator=generator), label


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self):
        return surefoot.AdamS(self.parameters(), lr=3e-3, eta=0.1)  # was: torch.optim.Adam(...)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    inputs, labels = spirals(2000)
    model = Classifier()
    trainer = pl.Trainer(
        max_steps=steps,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[LossGathering(), LogConfidence()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True))
    with torch.no_grad():
        accuracy = (model.net(inputs).argmax(1) == labels).float().mean().item()
    print(f"training accuracy {accuracy:.3f} after {trainer.global_step} steps")
    print("last step:", ", ".join(f"{name} {value:.3g}" for name, value in trainer.callback_metrics.items()))


if __name__ == "__main__":
    main()
