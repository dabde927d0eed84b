"""Two ways to weight the gradients of an optimizer that does not use the loss.

LossWeighted(optimizer) takes the loss in step(loss=loss); weigh(loss).backward() weights every micro-batch separately.
"""

import argparse

import torch
from torch import nn

import surefoot


def spirals(points, generator):
    """Two noisy spirals, one per class."""
    angle = 3 * torch.pi * torch.rand(points, generator=generator).sqrt()
    label = torch.arange(points) % 2
    rotated = angle + torch.pi * label
    inputs = torch.stack([angle * rotated.cos(), angle * rotated.sin()], dim=1) / (3 * torch.pi)
    return inputs + 0.02 * torch.randn(inputs.shape, generator=generator), label


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def accuracy(model, inputs, labels):
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


def train_plain(model, batches):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()


def train_wrapped(model, batches):
    base = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    optimizer = surefoot.LossWeighted(base, "ucb", eta=0.1)  # wrap it ...
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step(loss=loss)  # ... and pass the loss
    print("last step:", ", ".join(f"{name} {float(value):.3g}" for name, value in optimizer.confidence()[0].items()))


def train_weighed(model, batches, micro_batches=4):
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    weigh = surefoot.weigh(optimizer, "ucb", eta=0.1)
    for inputs, labels in batches:
        optimizer.zero_grad()
        for x, y in zip(inputs.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
            loss = nn.functional.cross_entropy(model(x), y)
            (weigh(loss) / micro_batches).backward()  # each micro-batch gets the weight of its own loss
        optimizer.step()  # and all losses enter the statistics


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    generator = torch.Generator().manual_seed(1)
    inputs, labels = spirals(2000, generator)
    chosen = [torch.randint(len(inputs), (64,), generator=generator) for _ in range(steps)]
    batches = [(inputs[i], labels[i]) for i in chosen]
    for train in (train_plain, train_wrapped, train_weighed):
        model = make_model()
        train(model, batches)
        print(f"{train.__name__}: training accuracy {accuracy(model, inputs, labels):.3f}")


if __name__ == "__main__":
    main()
