"""Images on their way into a model: normalised, cropped and flipped, or cut to a subset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


def mean_and_std(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (population) standard deviation of the pixels of each channel, in units of pixel values.

    Sums are of integers, hence exact, so that the result does not depend on the number of threads.

    Args:
        images: uint8, N x channels x height x width.

    >>> mean_and_std(torch.tensor([0, 2, 4, 6], dtype=torch.uint8).reshape(2, 1, 1, 2))
    (tensor([3.]), tensor([2.2361]))
    """
    total = torch.zeros(images.shape[1], dtype=torch.int64)
    squares = torch.zeros_like(total)
    for chunk in images.split(2048):
        pixels = chunk.to(torch.int32)
        total += pixels.sum((0, 2, 3))
        squares += pixels.square_().sum((0, 2, 3))
    count = images.numel() // images.shape[1]
    mean = total.double() / count
    std = (squares.double() / count - mean.square()).sqrt()
    return mean.float(), std.float()


@dataclass(frozen=True, eq=False)
class Normalise:
    """Pixels in units of the training set, `(pixel - mean) / std`, as float32.

    Args:
        mean: of the training pixels, one number per channel.
        std: of the training pixels, one number per channel.

    >>> Normalise(torch.tensor([3.0]), torch.tensor([2.0]))(torch.full((1, 1, 1, 2), 5, dtype=torch.uint8))
    tensor([[[[1., 1.]]]])
    """

    mean: Tensor
    std: Tensor

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        mean, std = (part[:, None, None].to(images.device) for part in (self.mean, self.std))
        return images.float().sub_(mean).div_(std)


@dataclass(frozen=True, eq=False)
class CropAndFlip:
    """Random crops of the images in a black frame, half of them mirrored, then normalised.

    Without a generator images are only normalised. The frame is black before normalisation: its pixels are 0,
    which is `-mean/std` in what the model sees.

    Args:
        normalise: what is done to the cropped images.
        padding: width of the frame in pixels.

    >>> augment = CropAndFlip(Normalise(torch.zeros(3), torch.ones(3)))
    >>> augment(torch.ones(2, 3, 32, 32, dtype=torch.uint8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """

    normalise: Normalise
    padding: int = 4

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if generator is not None:
            images = self.crop_and_flip(images, generator)
        # The layout that the convolutions want; converting here is cheaper than inside the first layer.
        return self.normalise(images).contiguous(memory_format=torch.channels_last)

    def crop_and_flip(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Every image at its own offset and orientation, still in uint8: one gather for the whole batch."""
        count, channels, height, width = images.shape
        framed = F.pad(images, (self.padding,) * 4)
        down, right = torch.randint(2 * self.padding + 1, (2, count, 1), generator=generator)
        mirrored = torch.randint(2, (count, 1), generator=generator).bool()
        columns = torch.arange(width)
        columns = torch.where(mirrored, columns.flip(0), columns) + right
        rows = (torch.arange(height) + down) * framed.shape[-1]
        pixels = (rows[:, :, None] + columns[:, None, :]).reshape(count, 1, -1).to(images.device)
        return framed.flatten(2).gather(2, pixels.expand(-1, channels, -1)).reshape(images.shape)


def choose_subset(targets: Tensor, size: int, seed: int | None = None) -> Tensor:
    """Indices (ascending) of a part of the training set in which every class keeps its share.

    Targets that are not class labels have no classes to keep: the first examples are taken then, or any of
    them with a seed.

    Args:
        targets: the labels of the whole set.
        size: how many examples to keep.
        seed: None takes the first ones of each class; a number draws them at random, always the same.

    >>> choose_subset(torch.tensor([0, 0, 0, 0, 1, 1]), 3)
    tensor([0, 1, 4])
    """
    order = torch.arange(len(targets))
    if seed is not None:
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    if targets.dim() != 1 or targets.is_floating_point():
        return order[:size].sort().values
    _, labels, counts = targets[order].unique(return_inverse=True, return_counts=True)
    # Largest remainders: the shares are whole numbers and add up to the size.
    exact = counts.double() * size / len(targets)
    share = exact.floor().long()
    extra = (exact - share).argsort(descending=True, stable=True)[: size - int(share.sum())]
    share[extra] += 1
    chosen = [order[(labels == label).nonzero().squeeze(1)[:take]] for label, take in enumerate(share.tolist())]
    return torch.cat(chosen).sort().values
