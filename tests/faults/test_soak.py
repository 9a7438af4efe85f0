"""A short soak (`make soak` is long): loads through drawn faults end right and leave nothing; no server is stormed."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import streamer
from faults.catalogue import FAULTS, Fault
from faults.server import Asked, FaultServer
from faults.soak import OPTIONS, Soak, load_ours, made_bucket, open_descriptors
from streamer import _native

LOADS = int(os.environ.get("SOAK_LOADS", "60"))  # not STREAMER_*: those are the library's own


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_bucket(tmp_path_factory.mktemp("soak"))


# What a proxy of the tests leaves to the garbage collector is not the loads' (seen once; the descriptors are counted).
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_load_ends_equal_or_with_the_right_class_and_leaves_nothing(bucket: Path) -> None:
    load_ours_once(bucket)  # what stays for good (event loops, caches of libraries) is there before counting
    before = (open_descriptors(), _threads(), _native.arena_stats()["held_bytes"])
    tally = Soak(bucket, load_ours).run(LOADS, threads=8, seed=2026)
    gc.collect()
    streamer.release()
    assert (tally.wrong, dict(tally.other_errors)) == (0, {})
    assert tally.equal + tally.expected_errors == LOADS
    assert sum(tally.faults.values()) > 2 * LOADS  # each met several
    assert tally.expected_errors > 0
    assert sum(tally.outages.values()) > LOADS / 10
    descriptors, threads, held_bytes = before
    assert _settles(open_descriptors, descriptors + 8)  # connections the servers' side is still closing
    assert _settles(_threads, threads + 1), threading.enumerate()
    assert _native.arena_stats()["held_bytes"] <= held_bytes  # less where tensors of earlier tests were let go


def test_a_storm_of_503_is_answered_with_patience(bucket: Path) -> None:
    per_s, burst = 40, 20
    tokens, last = float(burst), time.monotonic()

    def limited(asked: Asked) -> Fault | None:
        nonlocal tokens, last
        now = time.monotonic()
        tokens, last = min(burst, tokens + (now - last) * per_s), now
        if tokens < 1:
            return FAULTS["http_503"]
        tokens -= 1
        return None

    with FaultServer(bucket, limited) as server:
        with streamer.stream(
            server.url("model"), storage_options=server.storage_options(), options=OPTIONS, progress=False
        ) as stream:
            assert len(dict(stream)) == len(stream.names)
        needed = server.requests - server.faults["http_503"]
        assert server.faults["http_503"] > 0
        assert server.requests <= 2 * needed


def test_one_refusal_in_twenty_does_not_stop_a_load_regression(tmp_path: Path) -> None:
    """Each was an outage of its own, and a load of many requests took ten times as long."""
    folder = tmp_path / "bucket" / "model"
    folder.mkdir(parents=True)
    save_file({"weights": torch.zeros(24 << 20, dtype=torch.uint8)}, folder / "model.safetensors")
    options = streamer.Options(block_bytes=64 << 10, header_bytes=4096, hedge_percent=0)
    slow_down = FAULTS["http_503"]
    with FaultServer(tmp_path / "bucket", lambda asked: slow_down if asked.number % 20 == 19 else None) as server:
        with streamer.stream(
            server.url("model"), storage_options=server.storage_options(), options=options, progress=False
        ) as stream:
            assert len(dict(stream)) == 1
        refusals = server.faults["http_503"]
    assert refusals >= 19
    assert stream.report.outages <= refusals / 2  # a few meet no other request in flight


def test_one_slow_connection_of_many_is_overtaken(bucket: Path) -> None:
    slow = FAULTS["stall"]
    options = streamer.Options(block_bytes=64 << 10, header_bytes=4096, stall_timeout_s=20, hedge_percent=20)
    with FaultServer(bucket, lambda asked: slow if asked.number == 45 else None) as server:
        with streamer.stream(
            server.url("model"), storage_options=server.storage_options(), options=options, progress=False
        ) as stream:
            assert len(dict(stream)) == len(stream.names)
        assert stream.report.hedges >= 1
        assert server.faults["stall"] == 1


def test_duplicates_can_be_turned_off(bucket: Path) -> None:
    options = streamer.Options(block_bytes=64 << 10, header_bytes=4096, stall_timeout_s=0.5, hedge_percent=0)
    with FaultServer(bucket, lambda asked: FAULTS["stall"] if asked.number == 45 else None) as server:
        with streamer.stream(
            server.url("model"), storage_options=server.storage_options(), options=options, progress=False
        ) as stream:
            assert len(dict(stream)) == len(stream.names)
        assert stream.report.hedges == 0
        assert stream.report.retries >= 1


def test_a_server_that_only_fails_is_left_alone_by_all_loads(bucket: Path) -> None:
    with FaultServer(bucket, lambda asked: FAULTS["http_500"] if asked.number > 40 else None) as server:
        with pytest.raises(streamer.HttpStatusError):
            load_ours(server.url("model"), server.storage_options(), 2.0)
        assert server.faults["http_500"] < 40  # those in flight, and a probe now and then; not eight for every block


def test_a_load_has_a_deadline(bucket: Path) -> None:
    options = streamer.Options(block_bytes=64 << 10, header_bytes=4096, deadline_s=2.0, hedge_percent=0)
    with (
        FaultServer(bucket, lambda asked: FAULTS["silence"] if asked.number > 20 else None) as server,
        pytest.raises(streamer.TransferTimeoutError, match="were not there in time"),
    ):
        streamer.load(server.url("model"), storage_options=server.storage_options(), options=options, progress=False)


def load_ours_once(bucket: Path) -> None:
    with FaultServer(bucket) as server:
        load_ours(server.url("model"), server.storage_options())


def _threads() -> int:
    """Count the threads but those of asyncio's pool, which stay for good: one more whenever all are busy, up to six."""
    return sum(not each.name.startswith("asyncio_") for each in threading.enumerate())


def _settles(count: object, at_most: int) -> bool:
    """Return what is being closed a moment."""
    assert callable(count)
    deadline = time.monotonic() + 10
    while count() > at_most:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
