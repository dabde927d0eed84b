"""A small transformer on text that comes with Python, so that a language model can be trained without a download."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surefoot.lab.spec.datasets import digest
from surefoot.lab.spec.task import Task

#: Characters of ASCII; any other one is read as "?".
CHARACTERS = 128
#: How many characters are read at once.
WINDOW = 64
#: One window of so many is for validation.
VALID_SHARE = 24


class Transformer(nn.Module):
    """Predicts the next character from those before it: layer norm first, causal attention, GELU.

    Args:
        width: size of the vector of a character.
        layers: how many blocks of attention and of two linear layers.
        heads: of the attention.
        window: the longest text that it reads.

    >>> Transformer(16)(torch.zeros(2, 5, dtype=torch.long)).shape
    torch.Size([2, 5, 128])
    """

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, window: int = WINDOW) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(window, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.positions.weight[: text.shape[1]]
        return self.out(self.norm(self.blocks(x)))


class Block(nn.Module):
    """``x += attention(norm(x))``, then ``x += mlp(norm(x))``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.queries_keys_values(self.before_attention(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


def text_task(name: str, batch_size: int = 32) -> Task:
    """The next character in Python's own help texts.

    They are cut into windows, and one of every two dozen is kept for validation. The text changes a little with the
    version of Python; the digest of the data says so.
    """
    windows = help_text()
    for_validation = torch.arange(len(windows)) % VALID_SHARE == VALID_SHARE - 1
    train, valid = windows[~for_validation], windows[for_validation]
    task = Task(
        name,
        Transformer,
        train=(train[:, :-1], train[:, 1:]),
        valid=(valid[:, :-1], valid[:, 1:]),
        loss=character_loss,
        batch_size=batch_size,
    )
    return task.as_built_in(digest(windows))


def help_text() -> Tensor:
    """The help texts of Python's keywords and types, as windows of `WINDOW` characters and the one that follows."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8).long()
    return codes.unfold(0, WINDOW + 1, WINDOW)


def character_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of all characters of a batch, in nats."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
