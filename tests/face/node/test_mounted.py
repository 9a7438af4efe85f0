"""Ranks of a node and a file of a mounted network file system: the page cache reads each byte once for all of them."""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from node_load import NodeLoad
from safetensors.numpy import save
from servers.short_fuse import fuse_mount

MIB = 1 << 20
RANKS = 3


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {f"t{number}": random.integers(0, 255, (2, 1 << 20), dtype=np.uint8) for number in range(12)}


def test_ranks_of_a_node_read_each_byte_of_a_mounted_file_once(tensors, tmp_path: Path):
    """A FUSE mount stands for NFS: both are read through the page cache, which is what is counted here."""
    data, sent = save(tensors), list[int]()
    environment = {**os.environ, "LOCAL_WORLD_SIZE": str(RANKS)}
    expected = {name: zlib.crc32(tensor) for name, tensor in tensors.items()}
    with ExitStack() as stack:
        try:
            mounted = stack.enter_context(fuse_mount(tmp_path, data, on_cache_read=sent.append))
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        loads = [
            stack.enter_context(NodeLoad(str(mounted), environment, storage_options={}, share="node", least_bytes=1))
            for _ in range(RANKS)
        ]
        for load in loads:
            load.expect("ready")
        for load in loads:
            load.go()
        for load in loads:
            got = load.result()
            assert got["error"] is None
            assert got["tensors"] == expected
            assert got["report"]["shared_bytes"] == 0  # no copy through shared memory
    assert sum(sent) <= 1.02 * len(data)
