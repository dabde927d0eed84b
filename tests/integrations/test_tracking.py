"""What a sink writes is what the optimizer says, read back from the real trackers."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

import surefoot
from surefoot.integrations.tracking import MLflow, TensorBoard, WandB, lazy_metrics, metrics

NAMES = ("mean", "std", "z", "tilt", "weight", "skipped")
LOSSES = [3.0, 1.0, 2.0, float("nan"), 1.5]


def optimizer(groups=1):
    params = [{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(groups)]
    return surefoot.AdamUCB(params, eta=0.5)


def test_a_bare_loop(tracker):
    opt = optimizer()
    statistics = []
    for step, loss in enumerate(LOSSES, start=10):
        opt.step(loss=loss)
        tracker.sink.log(opt, step)
        statistics.append({name: float(value) for name, value in opt.confidence()[0].items()})
    assert statistics[-1]["skipped"] == 1
    for name in ("mean", "skipped"):
        expected = [(step, pytest.approx(values[name], rel=1e-6)) for step, values in enumerate(statistics, start=10)]
        assert tracker.read(f"surefoot/{name}") == expected


def test_names_are_distinct_for_each_group_and_optimizer():
    assert list(metrics(optimizer())) == [f"surefoot/{name}" for name in NAMES]
    assert list(metrics(optimizer(2), "loss")) == [f"loss/group{i}/{name}" for i in (0, 1) for name in NAMES]
    plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    assert list(metrics([plain, optimizer()])) == [f"surefoot/optimizer1/{name}" for name in NAMES]
    assert metrics(plain) == {}


def test_lazy_metrics_are_tensors_that_later_steps_do_not_change():
    opt = optimizer()
    opt.step(loss=3.0)
    early = lazy_metrics(opt)
    opt.step(loss=1.0)
    assert float(early["surefoot/mean"]) == 3.0
    assert metrics(opt)["surefoot/mean"] < 3.0


def test_a_plain_optimizer_writes_nothing(tmp_path):
    class Refuses:
        def add_scalar(self, *_):
            raise AssertionError("nothing was to be written")

        def flush(self):
            pass

    with TensorBoard(Refuses()) as sink:
        sink.log(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), 1)
        with pytest.raises(AssertionError):
            sink.log(optimizer(), 1)


def test_a_writer_of_the_users_stays_open(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    with TensorBoard(writer, prefix="mine") as sink:
        sink.log(optimizer(), 1)
    writer.add_scalar("after", 1.0, 2)
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"mine/mean", "after"} <= set(events.Tags()["scalars"])


def test_wandb_numbers_can_wait_for_the_users_own_log():
    class Run:
        def __init__(self):
            self.calls = []

        def log(self, values, **kwargs):
            self.calls.append((sorted(values), kwargs))

    run = Run()
    WandB(run, with_next=True).log(optimizer(), 7)
    assert run.calls == [(sorted(f"surefoot/{name}" for name in NAMES), {"commit": False})]


def test_a_run_must_be_there(monkeypatch):
    with pytest.raises(RuntimeError, match=r"no Weights & Biases run .* call wandb.init\(\) first, or pass run="):
        WandB()
    with pytest.raises(RuntimeError, match=r"no MLflow run .* call mlflow.start_run\(\) first, or pass run_id="):
        MLflow()


@pytest.mark.parametrize(
    ("missing", "make", "extra"),
    [
        ("tensorboard", lambda: TensorBoard("anywhere"), "tracking"),
        ("wandb", WandB, "tracking"),
        ("mlflow", MLflow, "tracking"),
        ("lightning", lambda: importlib.import_module("surefoot.integrations.lightning"), "lightning"),
        ("transformers", lambda: importlib.import_module("surefoot.integrations.transformers"), "transformers"),
    ],
)
def test_a_missing_package_is_named_with_the_command(monkeypatch, missing, make, extra):
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    for name in ("lightning", "transformers"):
        monkeypatch.delitem(sys.modules, f"surefoot.integrations.{name}", raising=False)
    sentence = rf"{missing}\S* is needed for this and is not installed; .*pip install '\.\[{extra}\]' in a checkout"
    with pytest.raises(ImportError, match=sentence):
        make()


def test_the_statistics_of_weigh_are_logged_too():
    weight = torch.nn.Parameter(torch.ones(1))
    weigh = surefoot.weigh(torch.optim.SGD([weight], lr=0.1), "ucb", eta=0.1)
    weigh(weight.sum() * 4).backward()
    weigh.optimizer.step()
    assert metrics(weigh)["surefoot/mean"] == 4.0
