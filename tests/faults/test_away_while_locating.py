"""A server that is away when a load begins, or while it still looks for the checkpoint, is waited for."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from comparison import assert_same
from servers.background import begun, served
from servers.kept_ports import KeptPorts
from servers.tcp_proxy import TcpProxy

import streamer
from faults.outages import OUTAGES, Scene
from faults.started_storages import SMALL, Storages, load, stream
from faults.storages import Storage

LASTS_S = 2.0
DEMANDED_S = 2.0  # the pauses of `busy_wave` between the three attempts of a lookup, which keeps them
LIMIT_S = 8.0  # a tenth of a second on an idle machine; what is not given up waits for 20 s or more


@contextmanager
def away(outage: str, storage: Storage, lasts_s: float | None) -> Iterator[TcpProxy]:
    """Load once through a proxy, with the storage away: for `lasts_s` seconds, or until the end if that is None."""
    enough = threading.Event()
    began = threading.Event()

    def pause() -> None:
        began.set()
        enough.wait(lasts_s)

    with storage.proxy() as proxy:
        load(storage, proxy.port)
        story = threading.Thread(target=OUTAGES[outage].story, args=(Scene(proxy, storage.server), pause), daemon=True)
        story.start()
        began.wait()
        try:
            yield proxy
        finally:
            enough.set()
            story.join()


@pytest.mark.usefixtures("short_pauses")  # the attempts of a lookup would outlast the outage
@pytest.mark.parametrize(
    ("kind", "outage"),
    [
        ("faults", "throttle_wave"),
        ("faults", "busy_wave"),
        ("http", "gone"),
        ("http", "throttle_wave"),
        ("http", "killed"),
        ("s3", "killed"),
        ("nfs", "gone"),
    ],
)
def test_a_server_that_answered_before_is_waited_for(
    kind: str, outage: str, storages: Storages, expected: dict[str, torch.Tensor]
) -> None:
    with away(outage, storages[kind], LASTS_S + DEMANDED_S * (outage == "busy_wave")) as proxy:
        loaded, report = load(storages[kind], proxy.port)
    assert_same(loaded, expected)
    assert report.outages >= 1
    assert report.waited_s > 0
    assert report.probes >= 1


def test_the_wait_is_reported(storages: Storages, caplog: pytest.LogCaptureFixture) -> None:
    with away("gone", storages["http"], 4.0) as proxy, caplog.at_level(logging.WARNING, "streamer"):
        load(storages["http"], proxy.port)
    waiting, again = (record.getMessage() for record in caplog.records)
    server = f"http://127.0.0.1:{proxy.port}"
    reported = rf"waiting for {server}, away for \d+ s, asked \d+ times: No connection to the server at .*"
    assert re.fullmatch(reported, waiting)
    assert re.fullmatch(rf"{server} answers again, after \d+ s", again)


def test_an_unreachable_server_is_abandoned_after_the_deadline_of_a_block(storages: Storages) -> None:
    options = streamer.Options(**SMALL, block_deadline_s=2.0)
    with away("gone", storages["http"], None) as proxy:
        began = time.monotonic()
        with pytest.raises(streamer.ConnectError) as caught:
            stream(storages["http"], proxy.port, options)
    assert 2.0 <= time.monotonic() - began < 2.0 + 30
    assert re.search(r"has been failing for \d+\.\d s and \d+ requests", str(caught.value))
    assert caught.value.attempts >= 2
    assert caught.value.elapsed_s > 0


def test_a_server_that_never_answered_is_abandoned_at_once(storages: Storages) -> None:
    with KeptPorts(1) as (port,):
        began = time.monotonic()
        with pytest.raises(streamer.ConnectError):
            streamer.load(f"http://127.0.0.1:{port}/model.safetensors")
    assert time.monotonic() - began < 30


def test_many_questions_send_one_probe_at_a_time(storages: Storages, expected: dict[str, torch.Tensor]) -> None:
    storage = storages["http"]
    with away("gone", storage, LASTS_S) as proxy:
        results: list[tuple[dict[str, torch.Tensor], streamer.LoadReport]] = []
        loads = [threading.Thread(target=lambda: results.append(load(storage, proxy.port))) for _ in range(8)]
        for each in loads:
            each.start()
        for each in loads:
            each.join()
    assert len(results) == len(loads)
    for loaded, _ in results:
        assert_same(loaded, expected)
    # Pauses are drawn from 0 to 0.05, 0.1, 0.2, ... s: seven in two seconds on average. Each load by itself would send
    # so many: 56.
    assert sum(report.probes for _, report in results) <= 20


def test_ctrl_c_ends_the_wait(storages: Storages) -> None:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where run in the background
    try:
        with away("gone", storages["http"], None) as proxy:
            began = time.monotonic()
            interrupt = threading.Timer(1.5, os.kill, [os.getpid(), signal.SIGINT])
            with pytest.raises(KeyboardInterrupt), begun(interrupt):
                stream(storages["http"], proxy.port)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert time.monotonic() - began < 1.5 + LIMIT_S


def test_the_deadline_of_the_load_covers_the_wait(storages: Storages) -> None:
    deadline_s = 5  # a busy machine may need seconds to make the attempts that show the outage
    options = streamer.Options(**SMALL, deadline_s=deadline_s)
    with away("gone", storages["http"], None) as proxy:
        began = time.monotonic()
        with pytest.raises(streamer.TransferTimeoutError, match=r"not found in time; http://\S+ has been failing"):
            stream(storages["http"], proxy.port, options)
    assert time.monotonic() - began < deadline_s + LIMIT_S


@pytest.mark.parametrize("count", [1, 3])
def test_the_deadline_covers_a_server_that_says_nothing(count: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = [f"http://127.0.0.1:{silent.getsockname()[1]}/{number}.safetensors" for number in range(count)]
        began = time.monotonic()
        with pytest.raises(streamer.TransferTimeoutError, match="deadline_s"):
            streamer.load(urls, options=streamer.Options(deadline_s=0.5))
        assert time.monotonic() - began < 0.5 + LIMIT_S


def test_an_absent_local_folder_is_no_outage(tmp_path: Path) -> None:
    with pytest.raises(streamer.ObjectNotFoundError):
        streamer.load(tmp_path / "absent")


class Folder(SimpleHTTPRequestHandler):
    """A web server whose index pages always come, and whose files do not while `is_sick`."""

    is_sick = threading.Event()

    def do_GET(self) -> None:
        if self.is_sick.is_set() and not self.path.endswith("/"):
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (the base class's name)
        """Say nothing."""


def test_a_server_that_dies_behind_its_listing_is_waited_for_regression(
    model: Path, expected: dict[str, torch.Tensor]
) -> None:
    """What had no size because its server failed was an error at once, and a wrong one: "does not tell the size"."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Folder, directory=str(model)))
    url = f"http://127.0.0.1:{server.server_port}/"
    with served(server):
        assert_same(streamer.load(url, progress=False), expected)
        Folder.is_sick.set()
        threading.Timer(1.5, Folder.is_sick.clear).start()
        assert_same(streamer.load(url, progress=False), expected)


def test_a_server_that_goes_away_behind_its_first_answer_is_waited_for_regression(
    model: Path, expected: dict[str, torch.Tensor]
) -> None:
    """The listing and the looks at what it names are one question, which had no answer yet."""
    handler = partial(Folder, directory=str(model))

    def answer_once() -> None:
        with ThreadingHTTPServer(address, handler) as first:
            is_up.set()
            first.handle_request()

    def restart() -> None:
        once.join()
        time.sleep(1)
        with served(ThreadingHTTPServer(address, handler)):
            is_loaded.wait(60)

    is_up, is_loaded = threading.Event(), threading.Event()
    once, again = threading.Thread(target=answer_once), threading.Thread(target=restart)
    with KeptPorts(1) as (port,):
        address = ("127.0.0.1", port)
        once.start()
        again.start()
        assert is_up.wait(10)
        try:
            assert_same(streamer.load(f"http://127.0.0.1:{port}/", progress=False), expected)
        finally:
            is_loaded.set()
            again.join()
