"""The paper's three models, with PyTorch's default initial weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

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
