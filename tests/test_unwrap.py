"""The optimizer inside the wrappers of frameworks, however many there are."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch.nn import Parameter

import surefoot
from surefoot.unwrap import loss_aware, unwrapped


def parameter() -> list[Parameter]:
    return [Parameter(torch.ones(2))]


def test_wrappers_are_opened_up_to_the_optimizer_of_torch() -> None:
    adam = torch.optim.Adam(parameter())
    assert unwrapped(SimpleNamespace(optimizer=SimpleNamespace(optimizer=adam))) is adam


def test_an_optimizer_around_another_is_no_wrapper_of_a_framework() -> None:
    weighted = surefoot.LossWeighted(torch.optim.SGD(parameter(), lr=0.1))
    assert unwrapped(SimpleNamespace(optimizer=weighted)) is weighted
    assert loss_aware(SimpleNamespace(optimizer=weighted)) is weighted


def test_the_optimizer_that_takes_losses_is_found_inside() -> None:
    adams = surefoot.AdamS(parameter())
    assert loss_aware(SimpleNamespace(optimizer=SimpleNamespace(optimizer=adams))) is adams
    assert loss_aware(SimpleNamespace(optimizer=torch.optim.Adam(parameter()))) is None
    assert loss_aware(None) is None
