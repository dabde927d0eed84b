"""What a user's task computes with, as one digest: runs are found by it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from surefoot.lab.run.trainer import pinned_arithmetic
from surefoot.lab.spec.code import described, text_digest
from surefoot.lab.spec.task import Task, is_named
from surefoot.lab.spec.user_code import FAULTS


def task_code(task: Task) -> str:
    """Digest of what a task computes with: its functions, what they bind, and what they give on a few examples.

    Runs are found by it, so a changed model, loss or `prepare` must change it, and another process must not. It is
    '' for a named task, which its name and settings say.
    """
    if is_named(task):
        return ""
    functions = {"model": task.model, "loss": task.loss, "prepare": task.prepare, "metrics": dict(task.metrics)}
    told = described(functions)  # before the probe, which may change what a function keeps
    return text_digest("\n".join([told, *_probe(task)]))


def task_identity(task: Task, code: str) -> str:
    """Digest of all of a task that names its runs; `code` is its `task_code`."""
    return text_digest(described([task.name, task.batch_size, task.digest, dict(task.settings), code]))


def _probe(task: Task) -> list[str]:
    """The initial weights and the loss of four examples: what also tells a changed helper in another module.

    Rounded, so that another processor gives the same; "none" where it fails, since the run will tell the error, and
    where it does not repeat itself, since it tells nothing then.
    """
    first, second = _probe_once(task), _probe_once(task)
    return [one if one == other else "none" for one, other in zip(first, second)]


def _probe_once(task: Task) -> tuple[str, str]:
    weights = loss = "none"
    with _seeded(), torch.no_grad():
        try:
            model = task.fresh_model().cpu().eval()
        except FAULTS:  # the runs tell it
            return weights, loss
        with suppress(*FAULTS):
            weights = described(model, _rounded)
        with suppress(*FAULTS):
            inputs, targets = (part[:4].clone().cpu() for part in task.train)
            if task.prepare is not None:
                inputs = task.prepare(inputs, torch.Generator().manual_seed(0))
            loss = f"{float(task.loss(model(inputs), targets)):.4g}"
    return weights, loss


@contextmanager
def _seeded() -> Iterator[None]:
    """Fixed random numbers of torch, Python and NumPy inside, and those of the caller as they were after it."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), numpy.random.get_state() if numpy else None
    with pinned_arithmetic(1):
        torch.manual_seed(0)
        random.seed(0)
        if numpy:
            numpy.random.seed(0)
        try:
            yield
        finally:
            random.setstate(before[0])
            if numpy:
                numpy.random.set_state(before[1])


def _rounded(tensor: Tensor) -> str:
    """A tensor by sums of positive numbers, which do not cancel and so survive rounding; the ramp sees the order."""
    flat = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.flatten()
    flat = flat[:: 1 + (len(flat) >> 20)].double()  # a million numbers of it tell as much, in less memory
    ramp = torch.linspace(1, 2, len(flat), dtype=torch.float64)
    sums = [flat.abs().sum(), (flat.abs() * ramp).sum(), flat.clamp(min=0).sum()]
    return f"{tensor.dtype}{tuple(tensor.shape)}" + ",".join(f"{float(one):.6g}" for one in sums)
