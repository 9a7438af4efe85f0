"""``save_state`` and ``load_state`` of accelerate, to a real S3: training goes on exactly as from a local folder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from accelerate.utils import ProjectConfiguration
from servers.forwarding import Fault, ForwardingProxy
from servers.seaweedfs import SeaweedServer

import streamer


class Counter:
    """An object that accelerate saves because it was registered."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Training:
    """A model with all that belongs to its state."""

    def __init__(self) -> None:
        self.accelerator = accelerate.Accelerator(cpu=True)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 600), torch.nn.Dropout(), torch.nn.Linear(600, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)

    def step(self) -> float:
        loss = self.model(torch.rand(8, 20)).square().mean() * (1 + random.random() + np.random.random())
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.counter.count += 1
        return float(loss.detach())


@pytest.fixture
def place(s3_server: SeaweedServer, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    return f"s3://private/state-{tmp_path.name}", s3_server.storage_options()


def test_training_goes_on_from_s3_as_if_it_had_not_stopped(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    uri, options = place
    training = Training()
    for _ in range(3):
        training.step()
    report = streamer.accelerate.save_state(training.accelerator, uri, storage_options=options)
    training.accelerator.save_state(tmp_path / "local")
    assert sorted(report.files) == sorted(each.name for each in (tmp_path / "local").iterdir())
    assert report.files[-1] == "model.safetensors"
    expected = [training.step() for _ in range(3)]
    other = Training()
    streamer.accelerate.load_state(other.accelerator, uri, storage_options=options)
    assert other.counter.count == 3
    assert [other.step() for _ in range(3)] == expected
    with pytest.raises(streamer.UsageError, match="not empty"):
        streamer.accelerate.save_state(training.accelerator, uri, storage_options=options)


@pytest.mark.usefixtures("short_pauses")
def test_a_state_that_fails_leaves_nothing(place: tuple[str, dict[str, Any]], s3_server: SeaweedServer) -> None:
    def refusing(method: str, path: str) -> Fault:
        return "refuse" if method in ("PUT", "POST") and "optimizer" in path else None

    with ForwardingProxy(s3_server.port, refusing) as proxy, pytest.raises(streamer.StorageError, match="not saved"):
        streamer.accelerate.save_state(
            Training().accelerator,
            place[0],
            storage_options={**place[1], "endpoint_url": f"http://127.0.0.1:{proxy.port}"},
            options=streamer.Options(block_deadline_s=0.5),
        )
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.accelerate.load_state(Training().accelerator, place[0], storage_options=place[1])


def test_what_accelerate_cannot_do_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    with pytest.raises(streamer.OptionError, match="pickles"):
        streamer.accelerate.save_state(training.accelerator, tmp_path / "a", safe_serialization=False)
    monkeypatch.setattr(type(training.accelerator), "num_processes", 2)
    for call in (streamer.accelerate.save_state, streamer.accelerate.load_state):
        with pytest.raises(streamer.UsageError, match=r"2 processes.*StorageWriter"):
            call(training.accelerator, tmp_path / "a")
    monkeypatch.undo()
    named = accelerate.Accelerator(cpu=True, project_config=ProjectConfiguration(automatic_checkpoint_naming=True))
    with pytest.raises(streamer.OptionError, match="choose the folder"):
        streamer.accelerate.save_state(named, tmp_path / "a")
    assert not (tmp_path / "a").exists()
