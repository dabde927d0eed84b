"""The two training loops that a lab epoch is compared with: a bare one on tensors in memory, and the usual pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from surefoot.lab import Task


def bare(task: Task, epochs: int) -> float:
    """What a careful person writes: data in memory, fused Adam, one pass over the validation set per epoch."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=True)
    draw = torch.Generator().manual_seed(0)
    (x, y), (valid_x, valid_y) = task.train, task.valid
    if task.prepare is not None:
        valid_x = task.prepare(valid_x, None)
    valid_loss = 0.0
    for _ in range(epochs):
        total = 0.0
        model.train()
        for index in torch.randperm(len(x), generator=draw).split(task.batch_size):
            batch, target = x.index_select(0, index), y.index_select(0, index)
            if task.prepare is not None:
                batch = task.prepare(batch, draw)
            optimizer.zero_grad()
            loss = task.loss(model(batch), target)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
        valid_loss = validated(model, zip(valid_x.split(1024), valid_y.split(1024)))
    return valid_loss


def usual(task: Task, images: tuple[Tensor, Tensor], augment: bool, epochs: int) -> float:
    """What tutorials show: a DataLoader with two workers, transforms image by image, `.item()` at every step."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    mean, std = images[0].float().mean().item() / 255, images[0].float().std().item() / 255
    keep: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    train = DataLoader(ImageByImage(*images, mean, std, augment), batch_size=task.batch_size, shuffle=True, **keep)
    valid = DataLoader(ImageByImage(*_raw(task.valid, images), mean, std), batch_size=1024, **keep)
    valid_loss = 0.0
    for _ in range(epochs):
        model.train()
        running = correct = 0.0
        for batch, target in train:
            optimizer.zero_grad()
            outputs = model(batch)
            loss = task.loss(outputs, target)
            loss.backward()
            optimizer.step()
            running += loss.item() * len(target)
            correct += (outputs.argmax(1) == target).sum().item()
        valid_loss = validated(model, valid)
    return valid_loss


def validated(model: torch.nn.Module, batches: Any) -> float:
    """Mean loss (and accuracy, which is thrown away) over validation batches."""
    model.eval()
    total, correct, count = 0.0, 0, 0
    with torch.inference_mode():
        for batch, target in batches:
            outputs = model(batch)
            total += F.cross_entropy(outputs, target).item() * len(target)
            correct += int((outputs.argmax(1) == target).sum())
            count += len(target)
    return total / count


def _raw(valid: tuple[Tensor, Tensor], images: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """As many raw images as there are prepared ones to validate on; which ones does not matter for time."""
    index = torch.arange(len(valid[0])) % len(images[0])
    return images[0][index], images[1][index]


class ImageByImage(Dataset[tuple[Tensor, int]]):
    """One image at a time, through PIL, as torchvision's data sets and transforms do it.

    A picture is made of the stored bytes, perhaps padded, cropped and flipped, made a float tensor in [0, 1] with the
    channels first, and normalised by tensors of means and stds that are looked at for zeros.
    """

    def __init__(self, images: Tensor, labels: Tensor, mean: float, std: float, augment: bool = False) -> None:
        self.images, self.labels, self.mean, self.std, self.augment = images, labels, mean, std, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        stored = self.images[index].numpy()
        picture = Image.fromarray(stored[0] if len(stored) == 1 else stored.transpose(1, 2, 0))
        if self.augment:
            framed = ImageOps.expand(picture, border=4)
            left, top = torch.randint(9, (2,)).tolist()
            picture = framed.crop((left, top, left + picture.width, top + picture.height))
            if torch.rand(1) < 0.5:
                picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        values = torch.from_numpy(np.array(picture)).view(picture.height, picture.width, -1)
        image = values.permute(2, 0, 1).contiguous().float().div(255)
        mean, std = (torch.as_tensor([x] * len(image)) for x in (self.mean, self.std))
        if (std == 0).any():
            raise ValueError("a std of 0 cannot be divided by")
        return image.clone().sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1)), int(self.labels[index])
