"""A local file whose bytes are exchanged by one long write: a load gives one version of it, or raises."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save

import streamer

TENSORS = {f"t{index}": torch.zeros(10_000_000, dtype=torch.uint8) for index in range(8)}
LOADS = 60


def test_a_load_in_the_middle_of_a_long_write_mixes_no_versions_regression(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    versions = [save({name: tensor + value for name, tensor in TENSORS.items()}) for value in (1, 2)]
    path.write_bytes(versions[0])
    is_over = threading.Event()

    def write() -> None:  # each version with one system call, which holds no lock of Python
        descriptor = os.open(path, os.O_WRONLY)
        number = 0
        while not is_over.wait(0.1):
            number += 1
            assert os.pwrite(descriptor, versions[number % 2], 0) == len(versions[0])
        os.close(descriptor)

    writer = threading.Thread(target=write)
    writer.start()
    found: Counter[frozenset[int]] = Counter()
    try:
        for _ in range(LOADS):
            try:
                loaded = streamer.load(path)
            except streamer.ChangedError:
                continue
            found[frozenset(int(value) for tensor in loaded.values() for value in tensor.aminmax())] += 1
    finally:
        is_over.set()
        writer.join()
    assert set(found) <= {frozenset({1}), frozenset({2})}
    assert found
