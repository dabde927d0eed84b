"""Standard normal noise read off a counter: the same number on every rank, device, framework and resume.

Thirty-two bit integer arithmetic alone, so that Python, PyTorch and JAX (which has no 64-bit integers by
default) compute the same bits. Uniforms keep 24 bits, which float32 holds exactly: single precision then
differs from double by rounding only. No draw is further out than 5.8.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MASK = 0xFFFFFFFF
# Odd multipliers below 2**31, so that the product with a 32-bit word fits in a signed 64-bit integer.
MULTIPLIERS = (0x7FEB352D, 0x31848BAB)
GOLDEN = 0x9E3779B9
#: How many draws are made at a time.
BLOCK = 16
_MIXING = (*MULTIPLIERS, MASK, 15, 16)


def mix(word: Any, *, of: Any = int) -> Any:
    """Scramble one 32-bit word: a bijection in which every input bit moves about half of the output bits.

    ``of`` converts the constants to the word's own type: ``int`` for Python integers and int64 tensors.

    >>> hex(mix(1)), mix(1) == mix(2)
    ('0x2e22f08b', False)
    """
    first, second, mask, less, more = _MIXING if of is int else map(of, _MIXING)
    word = ((word ^ (word >> more)) * first) & mask
    word = ((word ^ (word >> less)) * second) & mask
    return word ^ (word >> more)


@lru_cache(maxsize=1024)
def keys(seed: int, group: int) -> tuple[int, int]:
    """Return the two 32-bit keys of the noise stream that belongs to a seed and a parameter group.

    >>> keys(0, 0) != keys(0, 1) != keys(1, 0)
    True
    """
    seed = operator.index(seed)  # NumPy's integers have no more bits than they need
    return fold((seed & MASK, (seed >> 32) & MASK, group & MASK))


def fold(words: Iterable[Any], *, of: Any = int) -> tuple[Any, Any]:
    """Fold 32-bit words into two keys; ``of`` as in :func:`mix`.

    >>> fold((1, 0, 0)) == keys(1, 0) != fold((0, 0, 1))
    True
    """
    first = second = of(0)
    for word in words:
        first = mix(((first ^ word) + of(GOLDEN)) & of(MASK), of=of)
        second = mix(((second ^ word) + of(2 * GOLDEN & MASK)) & of(MASK), of=of)
    return first, second


def bits(step: Any, stream: tuple[Any, Any], *, of: Any = int) -> tuple[Any, Any]:
    """Return two 24-bit words for one step of a stream: an integer, an int64 tensor or a uint32 array.

    >>> bits(1, keys(0, 0)) == bits(1, keys(0, 0)) != bits(2, keys(0, 0))
    True
    """
    first, second = stream
    radius = mix(((step ^ first) + of(GOLDEN)) & of(MASK), of=of)
    angle = mix((radius + second) & of(MASK), of=of)
    return radius >> of(8), angle >> of(8)


def standard_normal(seed: int, step: int, group: int = 0) -> float:
    """Return the draw from N(0, 1) that belongs to a seed, a step and a parameter group.

    ``sqrt(-2 log u) * cos(2 pi v)``, with u in (0, 1] and v in [0, 1) hashed from the three counters.

    Args:
        seed: any integer; its low 64 bits count.
        step: the step's number, from 0; its low 32 bits count.
        group: index of the parameter group, so that groups get independent noise.

    >>> standard_normal(seed=0, step=1) == standard_normal(seed=0, step=1)
    True
    """
    step = int(step) & MASK
    return _block(seed, group, step // BLOCK)[step % BLOCK]


@lru_cache(maxsize=4096)
def _block(seed: int, group: int, number: int) -> tuple[float, ...]:
    """The draws of neighbouring steps: in training the caches are cold, and a single draw takes nearly as long."""
    stream = keys(seed, group)
    words = (bits(step, stream) for step in range(number * BLOCK, (number + 1) * BLOCK))
    return tuple(
        math.sqrt(-2.0 * math.log((radius + 1) * 2.0**-24)) * math.cos(angle * (2.0**-23 * math.pi))
        for radius, angle in words
    )


def standard_normal_tensor(seed: int, step: Tensor, group: int = 0) -> Tensor:
    """Return :func:`standard_normal` of a step kept on a device, without waiting for the device.

    Float64 where the device has it, float32 on Apple's MPS.

    Args:
        seed: any integer; its low 64 bits count.
        step: integer or floating tensor of whole numbers, of any shape (float32 counts up to 2**24).
        group: index of the parameter group.

    >>> import torch
    >>> float(standard_normal_tensor(0, torch.tensor(7.0))) == standard_normal(0, 7)
    True
    """
    # Without the cache, which compilers warn about: they compute the keys once anyway.
    radius, angle = bits(step.long() & MASK, keys.__wrapped__(seed, group))
    if step.device.type == "mps":
        radius, angle = radius.float(), angle.float()
    else:
        radius, angle = radius.double(), angle.double()
    return ((radius + 1) * 2.0**-24).log().mul(-2.0).sqrt() * (angle * (2.0**-23 * math.pi)).cos()
