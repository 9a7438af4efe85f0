"""The servers that tests of outages share, and a small load from each of them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from servers.ganesha import missing_for_ganesha

import streamer
from faults.storages import STORAGES, Storage

TOTAL_BYTES = 6 << 20
SMALL = {"block_bytes": 64 << 10, "header_bytes": 4096, "http_reactors": 1, "coalesce_gap_bytes": 0}


class Storages:
    """Each kind is started when it is first asked for, and loaded once without any outage."""

    def __init__(self, model: Path, stack: ExitStack) -> None:
        self._model, self._stack = model, stack
        self._started: dict[str, Storage] = {}
        self._undisturbed: dict[str, int] = {}

    def __getitem__(self, kind: str) -> Storage:
        if kind not in self._started:
            if kind.startswith("nfs") and (missing := missing_for_ganesha()):
                pytest.skip(missing)
            self._started[kind] = self._stack.enter_context(STORAGES[kind](self._model))
        return self._started[kind]

    def undisturbed_requests(self, kind: str) -> int:
        if kind not in self._undisturbed:
            with self[kind].proxy() as proxy:
                load(self[kind], proxy.port)
                self._undisturbed[kind] = proxy.requests
        return self._undisturbed[kind]


def stream(storage: Storage, port: int, options: streamer.Options | None = None) -> streamer.Stream:
    return streamer.stream(
        storage.url(port),
        storage_options=storage.options(port),
        options=options or streamer.Options(**SMALL),
        progress=False,
    )


def load(storage: Storage, port: int) -> tuple[dict[str, torch.Tensor], streamer.LoadReport]:
    with stream(storage, port) as tensors:
        loaded = dict(tensors)
    return loaded, tensors.report
