"""AnytimeLR: the rate by the span of the average, in loops, checkpoints and wrappers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

import surefoot
from surefoot.averaging.memory import rate_factor


def problem(seed: int = 0, **options: Any) -> tuple[nn.Linear, surefoot.Anytime, surefoot.AnytimeLR]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 1)
    optimizer = surefoot.Anytime(torch.optim.Adam(model.parameters(), lr=0.1))
    return model, optimizer, surefoot.AnytimeLR(optimizer, **options)


def train(model: nn.Linear, optimizer: Any, scheduler: Any, steps: range, level: float = 0.0) -> list[float]:
    """The rate of each step; the loss stays on its plateau, raised by a level."""
    rates = []
    for step in steps:
        x, y = torch.randn(2, 16, 3, generator=torch.Generator().manual_seed(step))
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean() + level
        loss.backward()
        optimizer.step(loss=loss)
        scheduler.step()
    return rates


def test_the_rate_falls_with_the_span_of_twenty_steps_before() -> None:
    model, optimizer, scheduler = problem(span=100)
    spans = []
    for start in range(0, 400, 20):
        train(model, optimizer, scheduler, range(start, start + 20))
        spans.append(optimizer.span)
    assert spans[-1] > 100
    assert scheduler.get_last_lr() == [0.1 * rate_factor(spans[-2], 100)]
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


def test_the_rate_rises_again_when_the_loss_begins_to_fall() -> None:
    model, optimizer, scheduler = problem(span=100)
    train(model, optimizer, scheduler, range(600), level=50.0)
    before = scheduler.get_last_lr()[0]
    assert before < 0.05
    train(model, optimizer, scheduler, range(600, 800))
    assert scheduler.get_last_lr()[0] > 2 * before


def test_warmup() -> None:
    model, optimizer, scheduler = problem(warmup=4)
    assert train(model, optimizer, scheduler, range(6)) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_resuming_is_bit_for_bit() -> None:
    model, optimizer, scheduler = problem(span=30)
    train(model, optimizer, scheduler, range(130))
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()])
    rates = train(model, optimizer, scheduler, range(130, 230))
    model_2, optimizer_2, scheduler_2 = problem(1, span=30)
    for part, state in zip((model_2, optimizer_2, scheduler_2), saved):
        part.load_state_dict(state)
    assert train(model_2, optimizer_2, scheduler_2, range(130, 230)) == rates
    assert torch.equal(model.weight, model_2.weight)


def test_the_state_is_loaded_without_pickle(tmp_path: Any) -> None:
    model, optimizer, scheduler = problem()
    train(model, optimizer, scheduler, range(50))
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")
    again = problem()[2]
    again.load_state_dict(torch.load(tmp_path / "scheduler.pt", weights_only=True))
    assert again.get_last_lr() == scheduler.get_last_lr()


def test_a_span_on_a_device_is_sent_and_read_twenty_steps_later(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, scheduler = problem(span=100)
    host_rates = train(model, optimizer, scheduler, range(200))
    span = surefoot.Anytime.span.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(surefoot.Anytime, "span", property(lambda self: torch.tensor(span(self), dtype=torch.float64)))
    model, optimizer, scheduler = problem(span=100)
    assert train(model, optimizer, scheduler, range(110)) == host_rates[:110]
    assert not any(isinstance(value, Tensor) for value in scheduler.state_dict().values())
    assert train(model, optimizer, scheduler, range(110, 200)) == host_rates[110:]


def test_prepared_by_accelerate() -> None:
    optimizer = problem()[1]
    prepared = Accelerator(cpu=True).prepare(optimizer)
    assert surefoot.AnytimeLR(prepared).get_last_lr() == [0.1]


def test_what_it_follows_must_keep_an_average() -> None:
    with pytest.raises(TypeError, match=r"got Adam; write AnytimeLR\(Anytime\(optimizer\)\)"):
        surefoot.AnytimeLR(torch.optim.Adam([nn.Parameter(torch.ones(1))]))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"span": 0}, "Invalid span value: 0"), ({"span": "long"}, "span"), ({"warmup": -1}, "Invalid warmup value: -1")],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        problem(**options)
