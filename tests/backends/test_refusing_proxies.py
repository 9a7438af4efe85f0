"""A proxy that refuses is not waited for as the server, which had answered on another way."""

from __future__ import annotations

import socket
import time

import numpy as np
import pytest
from each_row import each_row
from servers.background import served
from servers.one_file import FILES, TENSORS, one_file, place_of
from servers.scripted_proxy import refusing_proxy

import streamer
from streamer import Options
from streamer.core import errors

PATIENCE_S = 60
SOON_S = 20  # the libraries of storages ask several times by themselves
NAMED = {
    "s3": lambda proxy: {"config_kwargs": {"proxies": {"http": proxy}}},
    "gs": lambda proxy: {"session_kwargs": {"proxy": proxy}},
    "az": lambda proxy: {"proxies": {"http": proxy}},
    "http": lambda proxy: {"proxy": proxy},
    "hf": lambda proxy: {"proxy": proxy},
}

pytestmark = pytest.mark.usefixtures("short_pauses")


def through(storage, options, by, proxy, monkeypatch):
    """Return options by which, or by the environment, lookups take a proxy of plain HTTP."""
    url = f"http://user:CANARY@127.0.0.1:{proxy.server_port}"
    if by == "options":
        return options | NAMED[storage](url)
    monkeypatch.setenv("http_proxy", url)
    return options


@each_row("by", ["the environment", "options"])
@each_row("storage", FILES)
def test_a_proxy_of_plain_http_that_refuses_is_not_waited_for_regression(storage, by, monkeypatch):
    """Its 503 was taken for an answer of the server, and waited for two minutes."""
    with one_file() as server, refusing_proxy(503) as proxy, served(proxy):
        uri, options = place_of(storage, server)
        assert np.array_equal(streamer.load(uri, storage_options=options)["bias"].numpy(), TENSORS["bias"])
        asked = len(server.requests)
        options = through(storage, options, by, proxy, monkeypatch)
        began = time.monotonic()
        with pytest.raises(errors.HttpStatusError, match="proxy") as caught:
            streamer.load(uri, storage_options=options, options=Options(block_deadline_s=PATIENCE_S))
        assert time.monotonic() - began < SOON_S
        assert caught.value.status == 503
        assert "CANARY" not in str(caught.value)
        assert len(server.requests) == asked


@each_row("by", ["the environment", "options"])
@each_row("storage", FILES)
def test_a_denial_that_may_be_the_proxys_names_it_regression(storage, by, monkeypatch):
    """It was reported as the server's, which had never been asked."""
    with refusing_proxy(403) as proxy, served(proxy):
        uri, options = FILES[storage]("http://storage.test")
        options = through(storage, options, by, proxy, monkeypatch)
        place = f"the proxy 127.0.0.1:{proxy.server_port} on the way"
        with pytest.raises(errors.AccessDeniedError, match=place) as caught:
            streamer.load(uri, storage_options=options)
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("storage", "header"),
    [
        ("s3", "x_amz_request_id"),
        ("gs", "X_GUploader_UploadID"),
        ("az", "x_ms_request_id"),
        ("http", "X_Request_ID"),
        ("hf", "X_Request_ID"),
    ],
)
def test_a_storage_that_throttles_behind_a_proxy_is_waited_for(storage, header, monkeypatch):
    """Its answer has a request id, which no proxy gives."""

    def throttle(request, answer):
        if request.number < 8:  # more often than the libraries ask
            answer.become(503, **{header: "id"})

    with one_file(throttle) as server:
        monkeypatch.setenv("http_proxy", server.url.removesuffix("/object"))
        uri, options = FILES[storage]("http://behind.test")
        streamer.load(uri, storage_options=options, options=Options(block_deadline_s=PATIENCE_S))
        assert len(server.requests) > 8


@pytest.fixture(params=["plain HTTP", "TLS"])
def scheme(request, tmp_path, monkeypatch):
    """Make the server of a file, which is trusted if it has a certificate; name the variable of its proxy."""
    with_tls = request.param == "TLS"
    with one_file(with_tls=with_tls) as server:
        if with_tls:
            server.authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        yield server, "https_proxy" if with_tls else "http_proxy"


@pytest.mark.parametrize("storage", FILES)
def test_a_read_does_not_wait_for_a_proxy_that_refuses_regression(storage, scheme, monkeypatch):
    """The engine took its 503 for an answer of the server, which had answered directly, and waited for two minutes."""
    server, variable = scheme
    uri, options = place_of(storage, server)
    with (
        refusing_proxy(503) as proxy,
        served(proxy),
        streamer.open(uri, storage_options=options, options=Options(block_deadline_s=PATIENCE_S)) as checkpoint,
    ):
        assert np.array_equal(checkpoint.get_tensor("bias").numpy(), TENSORS["bias"])
        asked = len(server.requests)
        monkeypatch.setenv(variable, f"http://user:CANARY@127.0.0.1:{proxy.server_port}")
        began = time.monotonic()
        with pytest.raises(errors.HttpStatusError, match=f"the proxy 127.0.0.1:{proxy.server_port}") as caught:
            checkpoint.get_tensor("weight")
        assert time.monotonic() - began < SOON_S
        assert (caught.value.status, caught.value.attempts, caught.value.is_of_proxy) == (503, 3, True)
        assert "NO_PROXY" in caught.value.hint
        assert "CANARY" not in str(caught.value)
        assert len(server.requests) == asked


@pytest.mark.parametrize("storage", FILES)
def test_a_read_does_not_wait_for_an_unreachable_proxy_regression(storage, scheme, monkeypatch):
    server, variable = scheme
    uri, options = place_of(storage, server)
    gone = refusing_proxy(503)
    gone.server_close()
    with streamer.open(uri, storage_options=options, options=Options(block_deadline_s=PATIENCE_S)) as checkpoint:
        checkpoint.get_tensor("bias")
        monkeypatch.setenv(variable, f"http://127.0.0.1:{gone.server_port}")
        began = time.monotonic()
        with pytest.raises(errors.ConnectError, match="no connection to the proxy 127") as caught:
            checkpoint.get_tensor("weight")
        assert time.monotonic() - began < SOON_S
        assert caught.value.attempts == 3


def test_a_read_that_is_denied_over_plain_http_names_the_proxy_regression(monkeypatch):
    with one_file() as server, refusing_proxy(403) as proxy, served(proxy):
        uri, options = place_of("s3", server)
        with streamer.open(uri, storage_options=options) as checkpoint:
            monkeypatch.setenv("http_proxy", f"http://user:CANARY@127.0.0.1:{proxy.server_port}")
            with pytest.raises(errors.AccessDeniedError, match=f"the proxy 127.0.0.1:{proxy.server_port} on") as caught:
                checkpoint.get_tensor("weight")
    assert "CANARY" not in str(caught.value)


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        yield taken.getsockname()[1]


@pytest.mark.parametrize("without", ["", "localhost,.internal"])
@pytest.mark.parametrize("by", ["http_proxy", "ALL_PROXY", "an option"])
@pytest.mark.parametrize("storage", FILES)
def test_a_proxy_that_cannot_be_reached_is_named_and_what_names_it_regression(
    storage, by, without, closed_port, monkeypatch
):
    """With NO_PROXY, it was reported as the server, "which refuses it"."""
    monkeypatch.setenv("NO_PROXY", without)
    uri, options = FILES[storage]("http://storage.invalid:9000")
    for place in (f"127.0.0.1:{closed_port}", "proxy.invalid:3128"):
        proxy = f"http://user:CANARY@{place}"
        if by == "an option":
            options |= NAMED[storage](proxy)
        else:
            monkeypatch.setenv(by, proxy)
        with pytest.raises(errors.ConnectError) as caught:
            streamer.load(uri, storage_options=options)
        assert f"No connection to the proxy at {place}" in str(caught.value)
        assert f"{by.capitalize() if by == 'an option' else by} names it" in str(caught.value).replace(
            " of the storage", ""
        )
        assert "CANARY" not in str(caught.value)


@each_row("scheme", ["http", "https"])
@each_row("storage", FILES)
def test_a_proxy_that_breaks_off_is_named_regression(storage, scheme, monkeypatch):
    """The server was named alone, which had never been asked."""
    with refusing_proxy(0) as proxy, served(proxy):
        proxy.RequestHandlerClass = lambda connection, *_: connection.close()
        monkeypatch.setenv(f"{scheme.upper()}_PROXY", f"http://user:CANARY@127.0.0.1:{proxy.server_port}")
        uri, options = FILES[storage](f"{scheme}://storage.invalid")
        with pytest.raises(errors.ConnectError) as caught:
            streamer.load(uri, storage_options=options)
    assert f"{scheme.upper()}_PROXY names 127.0.0.1:{proxy.server_port}" in str(caught.value)
    assert "CANARY" not in str(caught.value)
