"""The command in this process, and a small task in a file."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from surefoot.cli import app

TASK = """
import torch
from torch import nn
from surefoot.lab import Task

x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
y = (x.sum(1) > 0).long()
task = Task("mine", lambda: nn.Linear(4, 2), train=(x, y), valid=(x, y), batch_size=10)
"""


def surefoot(*arguments: object) -> Result:
    """Run the command with these arguments."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
