"""Ranks of a node and a file of a mounted network file system.

The page cache reads each byte once for all of them, and each asks for its own stripes ahead.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_load import NodeLoad
from safetensors.numpy import save
from servers.short_fuse import fuse_mount

import streamer
from streamer.core.node import should_share
from streamer.core.node import stripes_ahead as stripes

MIB = 1 << 20
RANKS = 3
STRIPE = stripes.STRIPE_BYTES
SOON_S = 20.0  # a tenth of a second on an idle machine


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {f"t{number}": random.integers(0, 255, (2, 1 << 20), dtype=np.uint8) for number in range(12)}


def test_ranks_of_a_node_read_each_byte_of_a_mounted_file_once(tensors, tmp_path: Path):
    """A FUSE mount stands for NFS: both are read through the page cache, which is what is counted here."""
    data, sent = save(tensors), list[int]()
    environments = [{**os.environ, "LOCAL_WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]
    expected = {name: zlib.crc32(tensor) for name, tensor in tensors.items()}
    with ExitStack() as stack:
        try:
            path = stack.enter_context(fuse_mount(tmp_path, data, on_cache_read=lambda _, size: sent.append(size)))
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        loads = [
            stack.enter_context(NodeLoad(str(path), environment, storage_options={}, share="node", least_bytes=1))
            for environment in environments
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


@contextmanager
def mounted(folder: Path, data: bytes, on_read: Callable[[int, int], object]) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            path = stack.enter_context(fuse_mount(folder, data, on_cache_read=on_read))
        except OSError as error:
            pytest.skip(f"no FUSE here: {error}")
        yield path


class Progress:
    """A session that has read so far."""

    landed = 0

    def landed_bytes(self) -> int:
        return self.landed


def until(found: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SOON_S
    while not found() and time.monotonic() < ends_at:
        time.sleep(0.01)
    assert found()


def test_a_rank_asks_for_its_stripes_ahead_of_its_progress_and_for_no_others(tmp_path: Path):
    read: dict[int, int] = {}
    size = 10 * STRIPE + 1000
    with mounted(tmp_path, bytes(size), read.setdefault) as path:
        # The first range ends within a stripe: stripes are of the plan, not of the file.
        ranges = [(str(path), 0, 3 * STRIPE + 4096), (str(path), 3 * STRIPE + 8192, size)]
        ahead, session = stripes.StripesAhead(ranges, 1, 2, most_bytes=6 * STRIPE), Progress()

        def asked_stripes() -> dict[int, int]:
            """Of each stripe of the plan, the bytes that were asked for."""
            found: dict[int, int] = {}
            for offset, length in list(read.items()):
                stripe = (offset - 4096 * (offset >= 3 * STRIPE + 8192)) // STRIPE
                found[stripe] = found.get(stripe, 0) + length
            return found

        ahead.begin(session)
        until(lambda: sum(read.values()) >= 3 * STRIPE)
        time.sleep(0.1)  # nothing more comes
        assert set(asked_stripes()) == {1, 3, 5}
        session.landed = 4 * STRIPE
        until(lambda: len(asked_stripes()) == 5)
        assert set(asked_stripes()) == {1, 3, 5, 7, 9}
        assert all(length <= 1.02 * STRIPE for length in asked_stripes().values())
        ahead.close()


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(stripes, "LEAST_BYTES", 1)
    monkeypatch.setattr(should_share, "LEAST_BYTES", 1)


def test_a_load_of_a_launched_rank_advises_the_kernel_and_its_end_ends_that(tensors, tmp_path: Path, monkeypatch: Any):
    data, advised, advise = save(tensors), list[int](), os.posix_fadvise

    def note(descriptor: int, offset: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        advised.append(offset)
        advise(descriptor, offset, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", note)
    as_rank(monkeypatch, 1, 2)
    read = list[int]()
    with mounted(tmp_path, data, lambda _, size: read.append(size)) as path:
        loaded = streamer.load(path, framework="np", progress=False)
        assert all(np.array_equal(loaded[name], tensor) for name, tensor in tensors.items())
        data_begin = 8 + int.from_bytes(data[:8], "little")
        assert advised
        assert all((offset - data_begin) // STRIPE % 2 == 1 for offset in advised)
        assert sum(read) <= 1.02 * len(data)
        for thread in [each for each in threading.enumerate() if each.name == "streamer-ahead"]:
            thread.join(SOON_S)  # it was in its last advice when the load ended
        for how in ({"share": "off"}, {"direct_io": True}):
            advised.clear()
            streamer.load(path, framework="np", progress=False, options=streamer.Options(**how))
            assert not advised
    (tmp_path / "local").mkdir()
    (tmp_path / "local/model.safetensors").write_bytes(data)
    streamer.load(tmp_path / "local", framework="np", progress=False)  # a file of a disk
    assert not advised


def test_an_advice_that_fails_changes_nothing(tensors, tmp_path: Path, monkeypatch: Any):
    def fail(*_: int) -> None:
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(os, "posix_fadvise", fail)
    as_rank(monkeypatch, 0, 2)
    with mounted(tmp_path, save(tensors), lambda *_: None) as path:
        loaded = streamer.load(path, framework="np", progress=False)
        assert all(np.array_equal(loaded[name], tensor) for name, tensor in tensors.items())
