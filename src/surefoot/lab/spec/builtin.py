"""The built-in tasks: the paper's models on its data, small relatives that need no download, and a transformer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.spec import datasets
from surefoot.lab.spec.task import Task, TaskError
from surefoot.lab.spec.text import Transformer, text_task

DROPOUT = 0.5  # the only rate the paper uses


class LogisticRegression(nn.Module):
    """One linear layer from pixels to classes, `outputs = W x + b`.

    Args:
        inputs: number of pixels of an image (images are flattened).
        classes: number of classes.

    >>> LogisticRegression()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, inputs: int = 784, classes: int = 10) -> None:
        super().__init__()
        self.out = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(images.flatten(1))


class MLP(nn.Module):
    """Two hidden layers of ReLU units, with dropout on the activations of the first one when asked.

    Args:
        inputs: number of pixels of an image (images are flattened).
        hidden: units of each hidden layer.
        classes: number of classes.
        dropout: drop half of the first hidden layer's activations while training.

    >>> MLP(dropout=True)(torch.zeros(2, 784)).shape
    torch.Size([2, 10])
    """

    def __init__(self, inputs: int = 784, hidden: int = 1000, classes: int = 10, dropout: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.dropout = nn.Dropout(DROPOUT) if dropout else nn.Identity()
        self.second = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.dropout(self.first(images.flatten(1)).relu())
        return self.out(self.second(hidden).relu())


class CNN(nn.Module):
    """c64-c64-c128-1000: 5x5 convolutions, each with ReLU and 3x3 max pooling (stride 2), one hidden layer.

    The paper does not say how the pooling treats the border. Here it has no padding and drops the incomplete
    last window, so that a side of 32 becomes 15, 7 and 3, and the hidden layer reads 128*3*3 = 1152 numbers.

    Args:
        image: channels and side of the (square) images.
        channels: output channels of each convolution.
        hidden: units of the fully connected layer.
        classes: number of classes.
        dropout: drop half of the inputs of the fully connected layer while training.
        pool_padding: 1 keeps small images alive (8 becomes 4, 2 and 1); 0 is the paper's network.

    >>> CNN()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        image: tuple[int, int] = (3, 32),
        channels: Sequence[int] = (64, 64, 128),
        hidden: int = 1000,
        classes: int = 10,
        dropout: bool = False,
        pool_padding: int = 0,
    ) -> None:
        super().__init__()
        inputs, side = image
        layers: list[nn.Module] = []
        for outputs in channels:
            if side + 2 * pool_padding < 3:
                raise ValueError(
                    f"images of side {image[1]} are too small for {len(channels)} poolings "
                    f"with pool_padding={pool_padding}; use larger images, fewer channels or pool_padding=1"
                )
            layers += [
                nn.Conv2d(inputs, outputs, kernel_size=5, stride=1, padding=2),
                # The paper names ReLU first: the largest of rectified values is the rectified largest, bit for bit
                # and in the gradient too, and this order rectifies a quarter of the numbers.
                nn.MaxPool2d(kernel_size=3, stride=2, padding=pool_padding, ceil_mode=False),
                nn.ReLU(),
            ]
            inputs, side = outputs, (side + 2 * pool_padding - 3) // 2 + 1
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(DROPOUT) if dropout else nn.Identity()
        self.hidden = nn.Linear(inputs * side * side, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        # With the channels innermost a training step takes 0.7 of the time on a CPU (max pooling is then
        # vectorised). Only activations are laid out so: weights stay contiguous, as some optimizers expect.
        images = images.contiguous(memory_format=torch.channels_last)
        features = self.dropout(self.features(images).flatten(1))
        return self.out(self.hidden(features).relu())


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


@dataclass(frozen=True)
class Recipe:
    """How a named task is made: its data, its model, whether that takes dropout, and how images reach it.

    A task whose data are no images has a function that makes it.
    """

    data: str
    model: Callable[..., nn.Module]
    about: str
    dropout: bool = True
    flat: bool = True
    augment: bool = False
    batch_size: int = 128
    make: Callable[[str, int], Task] | None = None


#: The paper's L2 penalty, for these tasks; other tasks use what each optimizer's class says.
PAPER_WEIGHT_DECAY = 1e-4
#: The paper's models on its data, small relatives for the 8x8 digits that need no download, and a transformer.
NAMED: Mapping[str, Recipe] = {
    "digits-lr": Recipe("digits", partial(LogisticRegression, 64), "logistic regression, 8x8 digits", dropout=False),
    "digits-mlp": Recipe("digits", partial(MLP, 64, 128), "MLP 64-128-128-10, 8x8 digits"),
    "digits-cnn": Recipe(
        "digits",
        partial(CNN, (1, 8), (16, 16, 32), 128, pool_padding=1),
        "CNN c16-c16-c32-128, 8x8 digits",
        flat=False,
    ),
    "mnist-lr": Recipe("mnist", LogisticRegression, "logistic regression 784-10, MNIST", dropout=False),
    "mnist-mlp": Recipe("mnist", MLP, "MLP 784-1000-1000-10, MNIST"),
    "fashion-mlp": Recipe("fashion-mnist", MLP, "MLP 784-1000-1000-10, Fashion-MNIST"),
    "cifar10-cnn": Recipe(
        "cifar10",
        CNN,
        "CNN c64-c64-c128-1000, CIFAR-10 with random crops and flips",
        flat=False,
        augment=True,
    ),
    "text-transformer": Recipe(
        "text",
        Transformer,
        "transformer of two layers, the characters of Python's help texts",
        dropout=False,
        batch_size=32,
        make=text_task,
    ),
}


def named_task(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    dropout: bool = False,
    batch_size: int | None = None,
) -> Task:
    """Make one of the named tasks.

    Images are normalised by mean and standard deviation of the training pixels: of all pixels for grey
    images, of each channel for CIFAR-10, and of the whole training set also when only a subset is trained on.
    Without augmentation that is done once, here, so that an epoch only indexes tensors.

    Args:
        name: one of `NAMED`.
        data_dir: see `surefoot.lab.spec.datasets.load`.
        dropout: with the paper's dropout of 0.5 (not for logistic regression and the transformer).
        batch_size: of training; None takes 128, and 32 for the transformer.

    >>> named_task("digits-mlp", dropout=True).settings
    {'dropout': True}
    """
    recipe = NAMED[name]
    if not isinstance(dropout, bool):
        raise TaskError(
            f"{name}: dropout is on (True, the paper's 0.5) or off (False), not {dropout!r}; "
            "for another rate write a task of your own"
        )
    if dropout and not recipe.dropout:
        raise TaskError(f"{name} has no hidden layer with dropout; leave dropout out")
    batch_size = recipe.batch_size if batch_size is None else batch_size
    if recipe.make is not None:
        return recipe.make(name, batch_size)
    loaded = datasets.load(recipe.data, data_dir)
    normalise = Normalise(*mean_and_std(loaded.train_x))
    train_x, valid_x = loaded.train_x, loaded.valid_x
    if not recipe.augment:
        train_x, valid_x = normalise(train_x), normalise(valid_x)
    if recipe.flat:
        train_x, valid_x = train_x.flatten(1), valid_x.flatten(1)
    task = Task(
        name,
        partial(recipe.model, dropout=dropout) if recipe.dropout else recipe.model,
        train=(train_x, loaded.train_y),
        valid=(valid_x, loaded.valid_y),
        batch_size=batch_size,
        prepare=CropAndFlip(normalise) if recipe.augment else None,
        settings={"dropout": dropout} if recipe.dropout else {},
    )
    return task.as_built_in(loaded.digest)
