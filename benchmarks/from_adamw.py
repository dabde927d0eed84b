"""What happens when AdamW is replaced in a language-model loop: decay on matrices, cosine with warm-up, clipping.

A character transformer learns the text that Python ships as ``pydoc_data.topics``, with gradient accumulation and
bfloat16, as larger models are trained. The loop is the same for all; only the optimizer differs.

python benchmarks/from_adamw.py [--quick] [--save]
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from interleave import caption, conditions, markdown, save
from torch import Tensor, nn

import surefoot

CONTEXT, WIDTH, HEADS, LAYERS, BATCH, MICRO_BATCHES = 64, 64, 4, 2, 16, 2
LR, DECAY, BETAS, CLIP, WARM_UP = 3e-3, 0.1, (0.9, 0.95), 1.0, 0.05

Optimizers = dict[str, Callable[[Any], torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "torch.optim.AdamW": lambda groups: torch.optim.AdamW(groups, lr=LR, betas=BETAS),
    "AdamS": lambda groups: surefoot.AdamS(groups, lr=LR, betas=BETAS),
    "AdamWS": lambda groups: surefoot.AdamWS(groups, lr=LR, betas=BETAS),
    'AdamWS, weighting="unit"': lambda groups: surefoot.AdamWS(groups, lr=LR, betas=BETAS, weighting="unit"),
}


class Block(nn.Module):
    """Causal attention and a two-layer network, each behind a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(-2))
        return x + self.network(self.between(x))


class Transformer(nn.Module):
    """The probabilities of the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.character, self.position = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, characters, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.blocks(self.character(text) + self.position.weight[: text.shape[1]]))


def read_text() -> tuple[Tensor, Tensor, int]:
    """The text as numbers, its first nine tenths for training; and how many characters there are."""
    text = "".join(topics[name] for name in sorted(topics))
    alphabet = {character: i for i, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[character] for character in text])
    cut = len(numbers) * 9 // 10
    return numbers[:cut], numbers[cut:], len(alphabet)


def draw(text: Tensor, generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=generator).tolist()
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def decay_matrices_only(model: nn.Module) -> list[dict[str, Any]]:
    params = list(model.parameters())
    return [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]


def rate(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    warm_up = max(1, round(WARM_UP * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def train(make: Callable[[Any], torch.optim.Optimizer], steps: int, seed: int) -> float:
    """The validation loss after training."""
    training, validation, characters = read_text()
    torch.manual_seed(seed)
    batches = torch.Generator().manual_seed(seed)
    model = Transformer(characters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # AdamS says that its decay is L2, which is what is measured
        optimizer = make(decay_matrices_only(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(MICRO_BATCHES):
            loss = loss_of(model, *draw(training, batches, BATCH))
            if isinstance(optimizer, surefoot.LossAware):
                optimizer.record_loss(loss)
            (loss / MICRO_BATCHES).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
    held_out = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return statistics.fmean(loss_of(model, *draw(validation, held_out, 64)).item() for _ in range(20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one seed, 100 steps")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/from_adamw.{json,md}")
    args = parser.parse_args()
    steps, seeds = (100, 1) if args.quick else (args.steps, args.seeds)
    measured: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
    for seed in range(seeds):
        for name, make in OPTIMIZERS.items():
            measured[name].append(train(make, steps, seed))
            print(f"seed {seed}, {name}: {measured[name][-1]:.3f}", flush=True)
    rows = [[name, f"{statistics.fmean(x):.3f}", " ".join(f"{y:.3f}" for y in x)] for name, x in measured.items()]
    facts = {**conditions(), "steps": steps, "lr": LR, "weight_decay": DECAY}
    about = f"Validation loss after {steps} steps, lr {LR}, weight decay {DECAY} on matrices."
    text = "\n\n".join([markdown(["optimizer", "mean", "seeds"], rows), about, caption(facts)])
    print(text)
    if args.save:
        save("from_adamw", facts, measured, text)


if __name__ == "__main__":
    main()
