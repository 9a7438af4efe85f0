"""Loads under credentials that rotate leave nothing behind; those under the same share what they made."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs
import torch
from comparison import tensors_of
from faults.rotating_credentials import (
    WARM_UP,
    OptionsOf,
    azure_options,
    cached_by_fsspec,
    chain_options,
    gcs_options,
    rotate,
    s3_options,
)
from faults.soak import open_descriptors
from make_checkpoint import make_checkpoint
from servers.seaweedfs import SeaweedServer

import streamer
from streamer.backends.fsspec.instances import IDLE_KEPT, INSTANCES, close_idle
from streamer.backends.s3.botocore_login import KEPT, BotocoreLogin
from streamer.core.errors import StreamerError
from streamer.core.store.sources import HttpSource
from streamer.plugins import open_store

pytestmark = pytest.mark.server

LOADS = 30
SETTLE_S = 10.0  # a connection is closed in the background, on both sides


@pytest.fixture(autouse=True)
def _nothing_is_idle() -> Iterator[None]:
    close_idle()
    yield
    close_idle()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What ends, ends because nobody holds it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def settles(measure: Callable[[], int], most: int) -> int:
    deadline = time.monotonic() + SETTLE_S
    while (found := measure()) > most and time.monotonic() < deadline:
        time.sleep(0.02)
        gc.collect()
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint: what is kept of a load depends on its options, not on its bytes."""
    folder = tmp_path_factory.mktemp("rotated") / "small"
    make_checkpoint(folder, total_bytes=200_000, shards=2)
    return folder


@pytest.fixture(scope="module")
def s3_small(s3_server: SeaweedServer, small: Path) -> str:
    return s3_server.upload_folder(small, "private", "rotated/small")


@pytest.fixture
def s3(s3_server: SeaweedServer, s3_small: str) -> tuple[str, OptionsOf]:
    return s3_small, s3_options(s3_server)


@pytest.fixture
def gs(gcs_server: Any, small: Path) -> tuple[str, OptionsOf]:
    return gcs_server.upload_folder(small, "private", "rotated/small"), gcs_options(gcs_server)


@pytest.fixture
def az(azure_server: Any, small: Path) -> tuple[str, OptionsOf]:
    return azure_server.upload_folder(small, "private", "rotated/small"), azure_options(azure_server)


@pytest.fixture
def chain(s3_server: SeaweedServer, s3_small: str, tmp_path: Path) -> tuple[str, OptionsOf]:
    return f"simplecache::{s3_small}", chain_options(s3_server, tmp_path)


@pytest.mark.parametrize("kind", ["s3", "gs", "az", "chain"])
def test_loads_with_other_options_each_leave_nothing_regression(kind: str, request: pytest.FixtureRequest) -> None:
    uri, options_of = request.getfixturevalue(kind)
    counted = rotate(uri, options_of, LOADS)
    for _ in range(WARM_UP):
        next(counted)
    gc.collect()
    time.sleep(0.2)
    cached, descriptors = cached_by_fsspec(), open_descriptors()
    assert list(counted)[-1] == LOADS
    assert cached_by_fsspec() == cached
    # A kept file system may hold a connection more than the one before it; what stays of each load would be far more.
    few = descriptors + IDLE_KEPT // 2
    assert settles(open_descriptors, few) <= few < descriptors + LOADS - WARM_UP


def test_no_load_leaves_anything_in_the_cache_of_fsspec_regression(s3: tuple[str, OptionsOf]) -> None:
    uri, options_of = s3
    cached = cached_by_fsspec()
    list(rotate(uri, options_of, 1))
    assert cached_by_fsspec() == cached


def test_loads_with_the_same_options_share_one_login(
    s3: tuple[str, OptionsOf], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    original = BotocoreLogin.__init__

    def counted(self: BotocoreLogin, options: Any) -> None:
        made.append(self)
        original(self, options)

    monkeypatch.setattr(BotocoreLogin, "__init__", counted)
    uri, options_of = s3
    for _ in range(5):
        for number in range(KEPT):  # other numbers than those of other tests, whose logins may be kept
            streamer.load(uri, storage_options=options_of(1000 + number), progress=False)
    assert len(made) == KEPT


@pytest.fixture
def users() -> Callable[[], list[int]]:
    """How many loads need each file system that was made since; others of this process have their own."""
    before = set(INSTANCES._shared)
    return lambda: [made.users for key, made in INSTANCES._shared.items() if key not in before]


@pytest.mark.usefixtures("without_collector")
def test_a_load_lets_go_of_its_file_system_at_once(
    chain: tuple[str, OptionsOf], users: Callable[[], list[int]]
) -> None:
    uri, options_of = chain
    streamer.load(uri, storage_options=options_of(0), progress=False)
    assert users() == [0]
    with streamer.stream(uri, storage_options=options_of(0), progress=False) as tensors:
        next(tensors)
        assert users() == [1]
    del tensors
    assert users() == [0]


def test_a_load_that_failed_lets_go_of_its_file_system_with_its_error(
    chain: tuple[str, OptionsOf], users: Callable[[], list[int]]
) -> None:
    uri, options_of = chain
    with suppress(StreamerError):
        streamer.load(f"{uri}/absent", storage_options=options_of(0), progress=False)
    with suppress(StreamerError):
        streamer.load([f"{uri}/absent", uri], storage_options=options_of(0), progress=False)
    with suppress(StreamerError):
        streamer.load(uri, names="absent", storage_options=options_of(0), progress=False)
    gc.collect()  # an error that passed through `fsspec.asyn.sync` holds itself
    assert {*users()} == {0}


def test_a_source_stays_valid_however_many_loads_come_after_it(
    s3: tuple[str, OptionsOf], s3_server: SeaweedServer
) -> None:
    uri, options_of = s3
    store = open_store(uri, options_of(0))
    source = store.source(store.find(store.root)[-1])
    store.close()
    del store
    list(rotate(uri, options_of, 2 * IDLE_KEPT))
    assert isinstance(source, HttpSource)
    assert source.refresh is not None
    renewed = source.refresh()
    assert renewed.url.startswith(s3_server.endpoint_url)
    assert renewed.version == source.version


def test_an_open_checkpoint_is_read_on_however_many_loads_come_after_it(
    chain: tuple[str, OptionsOf], small: Path
) -> None:
    uri, options_of = chain
    with streamer.open(uri, storage_options=options_of(0)) as checkpoint:
        list(rotate(uri, options_of, 2 * IDLE_KEPT))
        name = checkpoint.keys()[0]
        assert torch.equal(checkpoint.get_tensor(name), tensors_of(small)[name])


def test_what_the_user_made_is_left_alone(s3: tuple[str, OptionsOf], s3_server: SeaweedServer) -> None:
    uri, options_of = s3
    mine = s3fs.S3FileSystem(**s3_server.storage_options())
    given = s3fs.S3FileSystem(**options_of(99), skip_instance_cache=True)
    for fs in (mine, given):
        assert fs.ls("private")
    client, other_client = mine._s3, given._s3
    for _ in range(3):
        streamer.load(uri, fs=mine, progress=False)
        streamer.load(uri, fs=given, progress=False)
        list(rotate(uri, options_of, IDLE_KEPT))
        streamer.load(f"simplecache::{uri}", storage_options={"s3": s3_server.storage_options()}, progress=False)
    close_idle()
    assert fsspec.filesystem("s3", **s3_server.storage_options()) is mine
    for fs, its_client in ((mine, client), (given, other_client)):
        fs.invalidate_cache()
        assert fs.ls("private")
        assert fs._s3 is its_client  # s3fs makes another one where its connections were closed
    s3fs.S3FileSystem.clear_instance_cache()
