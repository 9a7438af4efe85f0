"""A load outlasts an outage of its server: equal, with few requests, told in its report; or it ends in time."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from comparison import assert_same
from safetensors.torch import load_file
from servers.background import begun
from servers.kept_ports import KeptPorts
from servers.private_names import NameServer, missing_for_private_names, run_with_names

import streamer
from faults.outages import Planned, Scene
from faults.started_storages import SMALL, TOTAL_BYTES, Storages, load, stream
from faults.storages import Storage
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource, NfsSource

AT_BYTES = TOTAL_BYTES * 2 // 5
OPTIONS = streamer.Options(**SMALL)
NOBODY = "nfs://127.0.0.1/export/model?version=4&nfsport={}"
SOON_S = 20.0  # about five on an idle machine
LIMIT_S = 8.0  # a tenth of a second on an idle machine; what is not given up waits for 20 s or more


@contextmanager
def met_by(outage: str, storage: Storage, lasts_s: float | None, at_bytes: int = AT_BYTES) -> Iterator[Planned]:
    """Return an outage of that storage, whose `proxy` is the way to it."""
    with storage.proxy() as proxy, Planned(outage, Scene(proxy, storage.server), at_bytes, lasts_s) as planned:
        yield planned


@pytest.mark.parametrize(
    ("kind", "outage", "lasts_s"),
    [
        ("faults", "gone", 0.5),
        ("faults", "gone", 3),
        ("faults", "reset_wave", 0.5),
        ("faults", "throttle_wave", 0.5),
        ("faults", "busy_wave", 0.5),
        ("http", "gone", 0.5),
        ("http", "killed", 0.5),
        ("http", "reset_wave", 0.5),
        ("http", "throttle_wave", 0.5),
        ("https", "certificate_renewed", 0.5),
        ("s3", "killed", 0.5),
        ("nfs", "gone", 0.5),
        ("nfs", "killed", 3),
        ("nfs", "reset_wave", 0.5),
        ("nfs_with_grace", "killed", 0.1),
    ],
)
def test_a_load_outlasts_an_outage(
    kind: str,
    outage: str,
    lasts_s: float,
    storages: Storages,
    expected: dict[str, torch.Tensor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with met_by(outage, storages[kind], lasts_s) as planned:
        loaded, report = load(storages[kind], planned.proxy.port)
        assert planned.began.is_set()
        assert_same(loaded, expected)
        assert report.outages >= 1
        assert report.waited_s > lasts_s / 2
        assert planned.proxy.requests <= 2 * storages.undisturbed_requests(kind) + report.probes
    if lasts_s > 2:  # the log says it after one second
        assert "waiting for " in caplog.text


def test_credentials_that_expire_in_an_outage_are_renewed(
    storages: Storages, expected: dict[str, torch.Tensor]
) -> None:
    with met_by("expiry_in_outage", storages["faults"], 1.1) as planned:
        loaded, report = load(storages["faults"], planned.proxy.port)
        assert_same(loaded, expected)
        assert report.outages >= 1
        assert report.credential_refreshes >= 1


LOAD = """
import json, sys, zlib
import torch
import streamer

options = streamer.Options(**json.loads(sys.argv[2]))
with streamer.stream(sys.argv[1], options=options, progress=False) as tensors:
    sums = {name: zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy()) for name, tensor in tensors}
print(json.dumps({"sums": sums, "outages": tensors.report.outages}))
"""


@pytest.mark.skipif(missing_for_private_names() is not None, reason=str(missing_for_private_names()))
def test_a_server_that_comes_back_at_another_address_is_found(
    storages: Storages, expected: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    storage, hosts = storages["http"], tmp_path / "hosts"
    with NameServer({}), storage.proxy() as proxy:
        hosts.write_text("127.0.0.1 storage.test\n")
        with Planned("dns_change", Scene(proxy, hosts=hosts), AT_BYTES, 0.5) as outage:
            url = storage.url(proxy.port).replace("127.0.0.1", "storage.test")
            done = run_with_names(tmp_path, LOAD, url, json.dumps(SMALL), hosts=hosts.read_text())
            assert done.returncode == 0, done.stderr
            assert outage.over.is_set()
    reported = json.loads(done.stdout)
    assert reported["sums"] == {
        name: zlib.crc32(each.reshape(-1).view(torch.uint8).numpy()) for name, each in expected.items()
    }
    assert reported["outages"] >= 1


def test_the_other_server_of_a_load_goes_on_meanwhile(
    model: Path, storages: Storages, expected: dict[str, torch.Tensor]
) -> None:
    """The first server comes back only when all of the second one's tensors have arrived."""
    shards = sorted(model.glob("*.safetensors"))
    seconds = set(load_file(shards[1]))
    loaded, meanwhile = {}, 0
    with (
        storages["s3"].proxy(bytes_per_s=6e6) as healthy,
        met_by("gone", storages["faults"], None, at_bytes=1 << 20) as outage,
        streamer.stream(
            [f"s3://bucket/model/{shard.name}" for shard in shards],
            storage_options=[storages["faults"].options(outage.proxy.port), storages["s3"].options(healthy.port)],
            options=OPTIONS,
            progress=False,
        ) as tensors,
    ):
        for name, tensor in tensors:
            loaded[name] = tensor
            meanwhile += outage.began.is_set() and name in seconds
            if seconds <= loaded.keys():
                outage.end()
    assert_same(loaded, expected)
    assert meanwhile > 1
    assert tensors.report.outages == 1


@pytest.mark.parametrize(
    ("kind", "outage"),
    [("http", "gone"), ("http", "reset_wave"), ("faults", "gone"), ("faults", "throttle_wave"), ("nfs", "gone")],
)
def test_an_unreachable_server_ends_the_load_in_time(kind: str, outage: str, storages: Storages) -> None:
    patience = streamer.Options(**SMALL, block_deadline_s=2)
    with met_by(outage, storages[kind], None) as planned:
        with pytest.raises(streamer.StorageError) as caught, stream(storages[kind], planned.proxy.port, patience) as it:
            dict(it)
        assert 1 < time.monotonic() - planned.began_at < 2 + LIMIT_S
    text = str(caught.value)
    assert re.search(r"has been failing for [\d.]+ s and \d+ request", text), text


def test_the_error_has_the_first_failure_and_the_last(storages: Storages) -> None:
    patience = streamer.Options(**SMALL, block_deadline_s=2)
    with (
        met_by("throttle_wave", storages["faults"], None) as planned,
        stream(storages["faults"], planned.proxy.port, patience) as tensors,
    ):
        wait_until_it_waits(tensors)
        planned.proxy.leave()
        with pytest.raises(streamer.StorageError) as caught:
            dict(tensors)
    assert "Please reduce your request rate" in str(caught.value)
    assert "Failed to connect" in str(caught.value)


@pytest.mark.parametrize("outage", ["gone", "reset_wave", "throttle_wave"])
def test_ctrl_c_ends_a_load_that_waits_for_its_server(outage: str, storages: Storages) -> None:
    given_up_at = []

    def give_up(tensors: streamer.Stream) -> None:
        wait_until_it_waits(tensors)
        given_up_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where run in the background
    try:
        with met_by(outage, storages["faults"], None) as planned:
            tensors = stream(storages["faults"], planned.proxy.port)
            giving_up = threading.Thread(target=give_up, args=(tensors,))
            with pytest.raises(KeyboardInterrupt), tensors, begun(giving_up):
                dict(tensors)
            assert time.monotonic() - given_up_at[0] < LIMIT_S
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("outage", ["gone", "reset_wave", "throttle_wave"])
def test_closing_ends_a_load_that_waits_for_its_server(outage: str, storages: Storages) -> None:
    with met_by(outage, storages["faults"], None) as planned:
        tensors, ended = stream(storages["faults"], planned.proxy.port), []

        def consume() -> None:
            try:
                dict(tensors)
            except streamer.LoadCancelledError:
                ended.append(time.monotonic())

        consumer = threading.Thread(target=consume)
        consumer.start()
        wait_until_it_waits(tensors)
        started = time.monotonic()
        tensors.close()
        consumer.join(10)
        assert ended[0] - started < LIMIT_S


def wait_until_it_waits(tensors: streamer.Stream) -> None:
    deadline = time.monotonic() + 20
    while tensors.report.outages == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nobody listens."""
    with KeptPorts(1) as (number,):
        yield number


@pytest.mark.parametrize("scheme", ["http", "nfs"])
def test_a_server_that_never_answered_is_given_up_soon(scheme: str, port: int) -> None:
    source = HttpSource(f"http://127.0.0.1:{port}/x") if scheme == "http" else NfsSource(NOBODY.format(port))
    started = time.monotonic()
    with pytest.raises(streamer.ConnectError) as caught:
        ReadSession(
            [SourceObject("test://x", source, 1000)], plan_reads([Item(0, 0, 1000)], 0), resolve(None)
        ).next_items()
    assert time.monotonic() - started < SOON_S
    assert caught.value.attempts is not None
    assert 1 < caught.value.attempts <= 4


@pytest.mark.parametrize("url", [NOBODY, "http://127.0.0.1:{}/model.safetensors", "s3://bucket/model"])
def test_a_wrong_port_is_given_up_soon(url: str, port: int) -> None:
    keys = {"key": "any", "secret": "any", "endpoint_url": f"http://127.0.0.1:{port}"}
    started = time.monotonic()
    with pytest.raises(streamer.StorageError):
        streamer.load(url.format(port), storage_options=keys if url.startswith("s3") else None, progress=False)
    assert time.monotonic() - started < SOON_S
