"""TLS is verified whatever the reason it fails for, and proxies are obeyed for HTTPS too, as the environment says."""

from __future__ import annotations

import contextlib
import datetime
import socket
import threading
import time
import zlib
from dataclasses import replace

import pytest
from servers.background import served
from servers.one_file import FILES, one_file, place_of
from servers.scripted_http import ScriptedServer
from servers.scripted_proxy import refusing_proxy

import streamer
from streamer import Options
from streamer.core import errors
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession, SourceObject
from streamer.core.options.settings import resolve
from streamer.core.store.sources import HttpSource

DATA = bytes(range(256)) * 2000
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)


def read(source, **options):
    plan = plan_reads([Item(0, 0, len(DATA))], 0)
    settings = resolve(Options(**{"max_attempts": 3, **options}))
    session = ReadSession([SourceObject("test://object", source, len(DATA))], plan, settings)
    try:
        assert session.next_items() == [0]
        return zlib.crc32(memoryview(session.take(0)))
    finally:
        session.close()


@pytest.fixture
def secure(tmp_path):
    """Make a server with a certificate of its authority's, which is trusted; give it and the source to read."""
    with contextlib.ExitStack() as stack:

        def serve(certificate=None):
            server = stack.enter_context(ScriptedServer(DATA, with_tls=True, certificate=certificate))
            server.authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
            return server, HttpSource(server.url, ca_file=str(tmp_path / "ca.pem"))

        yield serve


HINTS = {"expired": "renewed", "of another host": "Use a name that the certificate has"}
BAD_CERTIFICATES = {
    "expired": lambda authority: authority.issue_cert(
        "127.0.0.1", not_before=LONG_AGO, not_after=LONG_AGO + datetime.timedelta(days=1)
    ),
    "of another host": lambda authority: authority.issue_cert("storage.test"),
    "of a host below": lambda authority: authority.issue_cert("*.0.0.1.test"),
}


@pytest.mark.parametrize("kind", BAD_CERTIFICATES)
def test_a_certificate_that_is_not_good_is_final_and_nothing_is_sent(secure, kind):
    server, source = secure(BAD_CERTIFICATES[kind])
    with pytest.raises(errors.TlsError) as caught:
        read(source)
    assert caught.value.attempts == 1
    assert HINTS.get(kind, HINTS["of another host"]) in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize("chain", ["", "simplecache::"])
def test_certificates_that_a_variable_names_count_from_the_next_load_on_regression(secure, monkeypatch, chain):
    server, source = secure()
    uri = f"{chain}{server.url}.safetensors"
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(errors.TlsError):
        streamer.load(uri)
    monkeypatch.setenv("SSL_CERT_FILE", source.ca_file)
    with pytest.raises(errors.FormatError):  # what the server sends is no checkpoint
        streamer.load(uri)
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(errors.TlsError):
        streamer.load(uri)


def test_the_same_server_is_read_with_a_good_certificate(secure):
    assert read(secure()[1]) == zlib.crc32(DATA)


def options_of(kind, port, ca_file):
    """Return a URL on a server of that port, and its storage options."""
    endpoint, client = {"endpoint_url": f"https://127.0.0.1:{port}"}, {"client_kwargs": {"verify": ca_file}}
    return {
        "https": (f"https://127.0.0.1:{port}/a.safetensors", {"verify": ca_file}),
        "s3": ("s3://bucket/a.safetensors", {**endpoint, **client, "key": "k", "secret": "s"}),
        "s3, no login": ("s3://bucket/a.safetensors", {**endpoint, **client, "anon": True}),
        "gs": ("gs://bucket/a.safetensors", {**endpoint, "token": "anon"}),
        "az": (
            "az://container/a.safetensors",
            {"account_name": "name", "account_host": f"127.0.0.1:{port}", "anon": True, "connection_verify": ca_file},
        ),
    }[kind]


KINDS = ["https", "s3", "s3, no login", "gs", "az"]
TOLD = {"expired": "its certificate has expired", "of another host": "its certificate is for another host"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flaw", TOLD)
def test_a_wrong_certificate_is_reported_with_its_reason(secure, monkeypatch, kind, flaw):
    server, source = secure(BAD_CERTIFICATES[flaw])
    handshakes = []
    server.before_handshake = lambda: bool(handshakes.append(None))
    monkeypatch.setenv("SSL_CERT_FILE", source.ca_file)
    uri, options = options_of(kind, server.port, source.ca_file)
    with pytest.raises(errors.TlsError, match=TOLD[flaw]) as caught:
        streamer.load(uri, storage_options=options)
    assert HINTS[flaw] in str(caught.value)
    assert "private CA" not in str(caught.value)
    assert server.requests == []
    assert len(handshakes) <= 2, "it would fail again"


OPTION_OF = {
    "https": "verify",
    "s3": "AWS_CA_BUNDLE",
    "s3, no login": "AWS_CA_BUNDLE",
    "gs": "SSL_CERT_FILE",
    "az": "connection_verify",
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_authority_is_an_error_that_names_the_option(secure, monkeypatch, kind):
    server, source = secure()
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    uri, options = options_of(kind, server.port, source.ca_file)
    options = {
        name: value for name, value in options.items() if name not in ("verify", "client_kwargs", "connection_verify")
    }
    with pytest.raises(errors.TlsError, match=OPTION_OF[kind]) as caught:
        streamer.load(uri, storage_options=options)
    assert caught.value.attempts == 1
    assert server.requests == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unusable_ca_file_is_reported_at_once(secure, tmp_path, monkeypatch, kind, content):
    server, _ = secure()
    ca_file = tmp_path / "mistaken.pem"
    if content is not None:
        ca_file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
    uri, options = options_of(kind, server.port, str(ca_file))
    with pytest.raises(errors.OptionError, match="PEM"):
        streamer.load(uri, storage_options=options)
    assert server.requests == []


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_an_unusable_ca_file_of_the_environment_is_reported_at_once(secure, tmp_path, monkeypatch, variable):
    server, _ = secure()
    uri, options = options_of("s3", server.port, None)
    del options["client_kwargs"]
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "missing.pem"))
    with pytest.raises(errors.OptionError, match=r"missing\.pem"):
        streamer.load(uri, storage_options=options)


class ConnectProxy:
    """A context manager: a proxy that makes tunnels (RFC 9110 §9.3.6) to one place, whatever is asked for.

    Attributes:
        heads: What clients sent before the tunnel.
    """

    def __init__(self, port: int, refusal: bytes | None = None) -> None:
        self.heads: list[str] = []
        self._refusal = refusal
        self._to = ("127.0.0.1", port)
        self._clients: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        for client in self._clients:  # which keep their connections for the next load
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._tunnel, args=(client,), daemon=True))
                self._threads[-1].start()

    def _tunnel(self, client):
        with client, socket.create_connection(self._to) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            self.heads.append(head.decode())
            if self._refusal is not None:
                client.sendall(self._refusal)
                return
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            there = threading.Thread(target=_pass_on, args=(client, server), daemon=True)
            there.start()
            _pass_on(server, client)
            there.join(10)


def _pass_on(source, target):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_https_goes_through_a_tunnel_of_the_proxy(secure, monkeypatch, name):
    server, source = secure()
    with ConnectProxy(server.port) as proxy:
        monkeypatch.setenv(name, proxy.url.replace("//", "//user:password@"))
        assert read(source) == zlib.crc32(DATA)
    assert proxy.heads
    assert all(head.startswith(f"CONNECT 127.0.0.1:{server.port} ") for head in proxy.heads)
    assert all("Proxy-Authorization: Basic " in head for head in proxy.heads)
    # What goes to the server goes through the tunnel alone.
    assert not any("proxy-authorization" in request.headers for request in server.requests)


@pytest.mark.parametrize(
    ("status", "attempts"), [("407 Proxy Authentication Required", 1), ("403 Forbidden", 1), ("502 Bad Gateway", 3)]
)
def test_a_refusal_of_the_proxy_is_its_own_and_no_answer_of_the_server_regression(secure, status, attempts):
    """Its status was taken for the server's: a 407 was reported as status 200, with the server's time-outs."""
    server, source = secure()
    refusal = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nETag: another\r\n\r\n".encode()
    with ConnectProxy(server.port, refusal) as proxy, pytest.raises(errors.HttpStatusError, match="proxy") as caught:
        read(replace(source, proxy=proxy.url), block_deadline_s=1)
    assert caught.value.status == int(status[:3])
    assert (len(proxy.heads) == 1) == (attempts == 1)
    assert server.requests == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [401, 403, 407])
def test_a_proxy_that_refuses_the_tunnel_is_named(secure, monkeypatch, kind, status):
    """A proxy's 401 was reported as the server's: a user would have sent it the server's login."""
    server, source = secure()
    monkeypatch.setenv("SSL_CERT_FILE", source.ca_file)
    uri, options = options_of(kind, server.port, source.ca_file)
    with refusing_proxy(status) as proxy, served(proxy):
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:wrong@127.0.0.1:{proxy.server_port}")
        with pytest.raises(errors.StorageError, match=r"The proxy (wants credentials|could not connect)") as caught:
            streamer.load(uri, storage_options=options)
    assert isinstance(caught.value, errors.CredentialsError) == (status != 403)
    assert "wrong" not in str(caught.value)
    assert server.requests == []


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("kind", ["https", "gs", "az"])
def test_a_proxy_that_refuses_is_not_waited_for_as_the_server_that_answered_directly_regression(
    secure, monkeypatch, kind
):
    """The server had answered in this process, without the proxy: a wrong proxy was waited for two minutes."""
    server, source = secure()
    monkeypatch.setenv("SSL_CERT_FILE", source.ca_file)
    server.answers_head = True
    uri, options = options_of(kind, server.port, source.ca_file)
    with pytest.raises(errors.StreamerError):
        streamer.load(uri, storage_options=options)  # it answers, if only with what is no checkpoint
    assert server.requests
    with refusing_proxy(503) as proxy, served(proxy):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        began = time.monotonic()
        with pytest.raises(errors.StorageError, match="proxy"):
            streamer.load(uri, storage_options=options, options=Options(block_deadline_s=60))
    assert time.monotonic() - began < 20


MISTAKEN = {
    "socks5h://127.0.0.1:1080": "SOCKS",
    **dict.fromkeys(("http://", "http://:80", "proxy:port", "ftp://proxy:21"), "no URL"),
    "http://user:p@ss@127.0.0.1:3128": "percent-encoded",
}


@pytest.mark.parametrize("proxy", MISTAKEN)
@pytest.mark.parametrize("kind", ["https", "s3", "gs", "az"])
def test_a_proxy_that_cannot_be_used_is_refused_at_once_regression(secure, monkeypatch, kind, proxy):
    """Lookups passed it by, or took it for another; reads told it as a server that is away."""
    server, source = secure()
    monkeypatch.setenv("SSL_CERT_FILE", source.ca_file)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    uri, options = options_of(kind, server.port, source.ca_file)
    with pytest.raises(errors.OptionError, match=MISTAKEN[proxy]):
        streamer.load(uri, storage_options=options)


@pytest.mark.parametrize("kind", ["https", "s3", "gs"])
def test_a_socks_proxy_is_none_for_a_host_in_no_proxy(secure, monkeypatch, kind):
    server, source = secure()
    monkeypatch.setenv("SSL_CERT_FILE", source.ca_file)
    monkeypatch.setenv("HTTPS_PROXY", "socks5h://127.0.0.1:1080")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    uri, options = options_of(kind, server.port, source.ca_file)
    with pytest.raises(errors.StreamerError) as caught:  # the server has no checkpoint
        streamer.load(uri, storage_options=options)
    assert "SOCKS" not in str(caught.value)
    assert server.requests


def test_a_server_that_resets_handshakes_for_a_while_is_waited_for(secure):
    """A handshake that is cut is a lost connection, once the server's certificate was seen to be good."""
    server, source = secure()
    resets = iter(range(4))

    def cut(request, answer):
        answer.handler.close_connection = True  # so that each request needs a handshake
        answer.sent_bytes = 1000 if request.number == 0 else None

    server.script = cut
    server.before_handshake = lambda: server.requests and next(resets, None) is not None
    assert read(source) == zlib.crc32(DATA)
    assert next(resets, None) is None


@pytest.mark.parametrize("exception", ["127.0.0.1", "*", "storage.test,127.0.0.1"])
def test_a_host_in_no_proxy_is_asked_directly_under_tls_too(secure, monkeypatch, exception):
    server, source = secure()
    with ConnectProxy(server.port) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", exception)
        assert read(source) == zlib.crc32(DATA)
    assert proxy.heads == []


@pytest.mark.parametrize("storage", FILES)
def test_a_refusal_without_a_proxy_names_none(storage):
    with one_file(lambda _, answer: answer.become(403)) as server:
        uri, options = place_of(storage, server)
        with pytest.raises(errors.AccessDeniedError) as caught:
            streamer.load(uri, storage_options=options)
    assert "on the way" not in str(caught.value)
