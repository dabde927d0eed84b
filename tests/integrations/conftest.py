"""The real trackers, each opened in a temporary place, written to by a sink and read back with its own reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# None of these packages may call home from a test.
os.environ.update(HF_HUB_OFFLINE="1", WANDB_ERROR_REPORTING="false", MLFLOW_DISABLE_TELEMETRY="true")


class TensorBoardFolder:
    def __init__(self, folder: Path) -> None:
        from surefoot.integrations.tracking import TensorBoard

        self.folder = folder
        self.sink = TensorBoard(folder)

    def read(self, name: str) -> list[tuple[int, float]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.sink.close()
        events = EventAccumulator(str(self.folder))
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars(name)]


class OfflineWandb:
    def __init__(self, folder: Path) -> None:
        import wandb

        from surefoot.integrations.tracking import WandB

        settings = wandb.Settings(silent=True, console="off")
        self.run = wandb.init(project="surefoot", dir=folder, mode="offline", settings=settings)
        self.folder = Path(self.run.settings.sync_file).parent
        self.sink = WandB()

    def read(self, name: str) -> list[tuple[int, float]]:
        import wandb

        self.run.finish()
        wandb.teardown()  # waits until everything is on disk
        assert self.folder.name.startswith("offline-run-")
        rows = []
        for items in histories(next(self.folder.glob("*.wandb")).read_bytes()):
            if name in items:
                rows.append((int(items["_step"]), float(items[name])))
        return rows


def histories(data: bytes) -> list[dict[str, str]]:
    """The history of a W&B transaction log: a short header, then records, each with a checksum, a length and a kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    assert data[:4] == b":W&B"
    assert len(data) < 32768, "records are split at this size, and this reader does not put them together"
    rows, at = [], 7
    while at + 7 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        record = Record.FromString(data[at + 7 : at + 7 + length])
        at += 7 + length
        if record.WhichOneof("record_type") == "history":
            rows.append({"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item})
    return rows


class LocalMLflow:
    def __init__(self, store: str) -> None:
        import mlflow

        from surefoot.integrations.tracking import MLflow

        mlflow.set_tracking_uri(store)
        self.run = mlflow.start_run()
        self.sink = MLflow()

    def read(self, name: str) -> list[tuple[int, float]]:
        import mlflow

        mlflow.end_run()
        history = mlflow.MlflowClient().get_metric_history(self.run.info.run_id, name)
        return [(metric.step, metric.value) for metric in history]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """These models are so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def mlflow_store(tmp_path_factory) -> str:
    """One SQLite file for the session: to create its tables takes longer than all that is done with them."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(params=["tensorboard", "wandb", "mlflow"])
def tracker(request, tmp_path):
    if request.param == "tensorboard":
        return TensorBoardFolder(tmp_path)
    if request.param == "wandb":
        return OfflineWandb(tmp_path)
    return LocalMLflow(request.getfixturevalue("mlflow_store"))
