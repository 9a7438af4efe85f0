"""What a host library would have torch copy to a fake device, and the plans that were read for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import streamer
from gpu.fake_devices import FakeGpu, FakeTorchCuda
from streamer.integrations import read_ahead

__all__ = ["counted_moves", "noted_streams"]


def counted_moves(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the bytes of each tensor that torch is asked to copy to a device from now on.

    Args:
        fake_gpu: Learns of tensors that are made on a device.
        monkeypatch: Of the test.
    """
    moved_bytes: list[int] = []
    original = torch.Tensor.to

    def to(tensor: torch.Tensor, *arguments: Any, device: Any = None, **named: Any) -> torch.Tensor:
        if arguments and isinstance(arguments[0], (str, torch.device)):
            device, *arguments = arguments  # type: ignore[assignment]
        was_on = FakeTorchCuda.placed.get(tensor.data_ptr())
        if device is not None and torch.device(device).type != "cpu":
            if was_on != torch.device(device).index:
                moved_bytes.append(tensor.nbytes)
            device = None
        result = original(tensor, *arguments, **named, **({} if device is None else {"device": device}))
        if was_on is not None and result.data_ptr() != tensor.data_ptr():  # it was cast where it is
            FakeTorchCuda.place(result, was_on)
        return result

    made = FakeTorchCuda.empty
    monkeypatch.setattr(FakeTorchCuda, "empty", lambda *arguments: fake_gpu.place(made(*arguments), arguments[-1]))
    monkeypatch.setattr(torch.Tensor, "to", to)
    return moved_bytes


def noted_streams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the plans that are read from now on."""
    made: list[Any] = []

    def noted(*arguments: Any, **named: Any) -> Any:
        made.append(streamer.Stream(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(read_ahead, "Stream", noted)
    return made
