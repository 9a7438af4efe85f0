"""Encrypted shards are encrypted on a few threads, in the order of the file, within bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import streamer
from streamer._save import sealed_shards
from streamer._save.saved_tensors import SavedTensors
from streamer._save.sealed_shards import MOST_THREADS, RUN_BYTES, SealedShard
from streamer.core.encryption.keys import KeySource
from streamer.core.encryption.sealed_files import new_parameters
from streamer.core.encryption.secret_keys import SecretKey
from streamer.core.errors import ChangedError
from streamer.core.format.header_writer import TensorLayout

KEY = bytes(range(32))
LARGE = torch.arange(13 << 20, dtype=torch.int32)  # four runs, the last one shorter


class Counting:
    """A cipher that counts the runs that are encrypted, and waits for others in the middle of one."""

    def __init__(self, inner: Any, parties: int = 1) -> None:
        self.inner, self.runs = inner, 0
        self.together = threading.Barrier(parties)

    def encrypt(self, plain: memoryview, position: int, first: int) -> Any:
        if plain.nbytes > 1 << 20:  # the end of a tensor is encrypted by the caller
            self.together.wait(timeout=30)
        self.runs += 1
        return self.inner.encrypt(plain, position, first)

    def pieces_in(self, begin: int, end: int) -> int:
        return int(self.inner.pieces_in(begin, end))


@pytest.fixture(params=[1, 4])
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sealed_shards, "processors", lambda: request.param)
    return int(request.param)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_shards, "processors", lambda: 4)


def shard_of(tensors: dict[str, torch.Tensor], saved: SavedTensors | None = None, **parts: Any) -> SealedShard:
    saved = saved or SavedTensors(tensors)
    parameters = new_parameters(KeySource(KEY).new_key(), 1, hides_names=False)[0]
    parameters = replace(parameters, salt=bytes(32), checkpoint="00" * 16, **parts)
    return SealedShard(parameters, SecretKey(KEY), saved.layouts, saved, {}, has_digests=True)


def sealing() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("streamer-seal")]


@pytest.mark.parametrize("hides_names", [False, True])
def test_the_bytes_are_those_of_one_thread(hides_names: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"small": torch.arange(7), "large": LARGE, "odd": torch.arange(3_000_001, dtype=torch.uint8)}
    files = []
    for count in (1, 4):
        monkeypatch.setattr(sealed_shards, "processors", lambda count=count: count)
        shard = shard_of(tensors, hides_names=hides_names)
        files.append((b"".join(shard.pieces()), shard.digests))
    assert files[0] == files[1]


@pytest.mark.usefixtures("four")
def test_two_runs_are_encrypted_at_the_same_time() -> None:
    shard = shard_of({"w": LARGE[: 2 * RUN_BYTES // 4 - (64 << 10)]})
    shard._cipher = Counting(shard._cipher, parties=2)  # it fails after 30 s unless two come together
    assert sum(each.nbytes for each in shard.pieces()) == shard.size_bytes


def test_no_more_runs_are_ahead_than_memory_is_counted_for(processors: int) -> None:
    shard = shard_of({"w": LARGE, "v": LARGE.clone()})
    counting = shard._cipher = Counting(shard._cipher)
    most = MOST_THREADS if processors > 1 else 0
    for taken, _ in enumerate(shard.pieces()):  # the header is the first
        assert counting.runs - taken <= most
    assert shard.held_bytes == (1 + most) * RUN_BYTES


@pytest.mark.usefixtures("four")
def test_a_piece_of_a_tensor_is_let_go_before_the_next_is_read() -> None:
    class Reading(SavedTensors):
        """Tensors that are read in two pieces; the first must be encrypted before the second is read."""

        def pieces(self, layout: TensorLayout) -> Iterator[memoryview]:
            (whole,) = super().pieces(layout)
            half = 24 << 20
            yield whole[:half]
            assert counting.runs * RUN_BYTES >= half - RUN_BYTES  # all of it, but what is joined with the next
            runs.append(counting.runs)
            yield whole[half:]

    runs: list[int] = []
    saved = Reading({"w": LARGE})
    shard = shard_of({}, saved)
    counting = shard._cipher = Counting(shard._cipher)
    assert sum(each.nbytes for each in shard.pieces()) == shard.size_bytes
    assert runs


@pytest.mark.usefixtures("four")
def test_the_threads_end_with_the_file_and_with_a_failure(tmp_path: Path) -> None:
    streamer.save({"w": LARGE}, tmp_path / "whole", key=KEY)
    assert torch.equal(streamer.load(tmp_path / "whole", key=KEY)["w"], LARGE)
    assert not sealing()

    class Changing(SavedTensors):
        def pieces(self, layout: TensorLayout) -> Iterator[memoryview]:
            yield from super().pieces(layout)
            yield memoryview(b"more")

    shard = shard_of({}, Changing({"w": LARGE}))
    with pytest.raises(ChangedError):
        list(shard.pieces())
    left = shard_of({"w": LARGE}).pieces()
    next(left), next(left)
    assert sealing()
    left.close()
    assert not sealing()


@pytest.mark.usefixtures("four")
def test_a_failure_of_a_thread_reaches_the_save() -> None:
    class Failing(Counting):
        def encrypt(self, plain: memoryview, position: int, first: int) -> Any:
            raise RuntimeError("OpenSSL failed")

    shard = shard_of({"w": LARGE})
    shard._cipher = Failing(shard._cipher)
    with pytest.raises(RuntimeError, match="OpenSSL failed"):
        list(shard.pieces())
    assert not sealing()


@pytest.mark.usefixtures("four")
def test_without_a_thread_the_caller_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    shard = shard_of({"w": LARGE})
    assert sum(each.nbytes for each in shard.pieces()) == shard.size_bytes
