"""Requests in gcsfs's own session, which only Python can send: the same answers and errors as from the engine."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from aiohttp import web
from servers.gcs_emulator import GcsServer
from servers.raw_tcp import repeating, speaking

from streamer.backends.gcs.store import GcsStore
from streamer.core.errors import (
    ChangedError,
    ConnectError,
    HttpStatusError,
    RangeResponseError,
    RedirectError,
    StorageError,
    TransferTimeoutError,
    TruncatedError,
)
from streamer.core.options.limits import Limits
from streamer.core.store.sources import ObjectInfo, PythonSource

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("short_pauses")]

DATA = bytes(range(256)) * 16
SESSION = {"session_kwargs": {"cookies": {"flavour": "oat"}}}
URI, PATH = "gs://public/session.bin", "public/session.bin"


@pytest.fixture
def store(gcs_server: GcsServer) -> GcsStore:
    gcs_server.put("public", "session.bin", DATA)
    return GcsStore(URI, {**gcs_server.anonymous_options(), **SESSION})


def read(store: GcsStore, info: ObjectInfo, begin: int = 100, end: int = 300) -> bytes:
    source = store.source(info)
    assert isinstance(source, PythonSource)
    buffer = bytearray(end - begin)
    assert source.read_into(memoryview(buffer), begin) == len(buffer)
    return bytes(buffer)


def test_lookups_and_reads_carry_what_the_session_has(gcs_server: GcsServer, store: GcsStore) -> None:
    with gcs_server.interfering(lambda seen: None) as requests:
        assert read(store, store.info(PATH)) == DATA[100:300]
        assert PATH in [info.path for info in store.find("public")]
    assert len(requests) >= 3
    assert all("flavour=oat" in seen.headers["Cookie"] for seen in requests)


def test_a_server_that_recovers_is_asked_again(gcs_server: GcsServer, store: GcsStore) -> None:
    left = iter(range(2))
    with gcs_server.interfering(lambda seen: web.Response(status=503) if next(left, None) is not None else None):
        assert store.info(PATH).size_bytes == len(DATA)
    with gcs_server.interfering(lambda seen: web.Response(status=503)), pytest.raises(HttpStatusError) as caught:
        store.info(PATH)
    assert (caught.value.status, caught.value.attempts) == (503, 3)


def test_a_redirect_is_not_followed(gcs_server: GcsServer, store: GcsStore) -> None:
    elsewhere = {"Location": gcs_server.emulator_url}
    with gcs_server.interfering(lambda seen: web.Response(status=302, headers=elsewhere)), pytest.raises(RedirectError):
        store.info(PATH)


def test_a_replaced_object_is_noticed(gcs_server: GcsServer, store: GcsStore) -> None:
    info = store.info(PATH)
    gcs_server.put("public", "session.bin", DATA[::-1])
    with pytest.raises(ChangedError):
        read(store, info)


OF_RANGE = {"Content-Range": f"bytes 100-299/{len(DATA)}"}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: web.Response(status=200, body=DATA), RangeResponseError),
        (lambda: web.Response(status=206, body=DATA, headers={"Content-Range": "bytes 0-1/2"}), RangeResponseError),
        (lambda: web.Response(status=206, body=b"x" * 9, headers=OF_RANGE), TruncatedError),
        (lambda: web.Response(status=206, headers={**OF_RANGE, "Content-Encoding": "gzip"}), StorageError),
        (lambda: web.Response(status=404), StorageError),
    ],
    ids=["the whole", "another range", "cut", "encoded", "absent"],
)
def test_an_answer_that_is_not_the_range_is_an_error(
    gcs_server: GcsServer, store: GcsStore, answer: Any, error: type[StorageError]
) -> None:
    info = store.info(PATH)
    with gcs_server.interfering(lambda seen: answer()), pytest.raises(error) as caught:
        read(store, info)
    assert URI in str(caught.value)


def test_a_refused_connection_is_reported_with_host_and_port() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        store = GcsStore(URI, {"token": "anon", "endpoint_url": f"http://{place}", **SESSION})
        with pytest.raises(ConnectError, match=f"at {place}, which refuses it") as caught:
            store.info(PATH)
    assert caught.value.attempts == 3


def test_a_silent_server_is_given_up() -> None:
    with speaking(repeating(b"", b"")) as url:
        store = GcsStore(
            URI,
            {"token": "anon", "endpoint_url": url, **SESSION},
            Limits(connect_timeout_s=0.6, first_byte_timeout_s=0.4),
        )
        with pytest.raises(TransferTimeoutError, match="did not answer in time"):
            store.info(PATH)


def test_an_answer_without_end_is_cut(gcs_server: GcsServer) -> None:
    gcs_server.put("public", "session.bin", DATA)
    store = GcsStore(URI, {**gcs_server.anonymous_options(), **SESSION}, Limits(answer_bytes=1000))
    with (
        gcs_server.interfering(lambda seen: web.Response(body=b"x" * 5000)),
        pytest.raises(StorageError, match="more than 1000 bytes"),
    ):
        store.info(PATH)


def test_a_session_that_does_without_the_environment_takes_no_proxy_from_it(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs_server.put("public", "session.bin", DATA)
    for name in [name for name in os.environ if name.lower() in ("http_proxy", "no_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    options = gcs_server.anonymous_options()
    with pytest.raises(ConnectError, match="proxy"):
        GcsStore(URI, options).info(PATH)
    store = GcsStore(URI, {**options, "session_kwargs": {"trust_env": False}})
    assert read(store, store.info(PATH)) == DATA[100:300]
