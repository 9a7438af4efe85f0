"""The ways to a server are told apart by their proxies."""

from __future__ import annotations

import os
import secrets

import pytest
from each_row import each_row

from streamer import _native
from streamer.core.errors import AccessDeniedError, HttpStatusError
from streamer.plugins.route import Route

SERVER = "http://server.test"
PROXY = "http://user:CANARY@proxy.test:3128"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def server():
    """Return the URL of a server that no other test uses."""
    return f"http://{secrets.token_hex(8)}.test"


@pytest.mark.parametrize(
    "options",
    [
        {"proxy": PROXY},
        {"proxies": {"http": PROXY}},
        {"session_kwargs": {"proxy": PROXY}},
        {"config_kwargs": {"proxies": {"https": PROXY}}},
        {"s3": {"config_kwargs": {"proxies": {"https": PROXY}}}},
    ],
)
def test_a_proxy_that_options_name_is_a_way_of_its_own_and_its_password_is_not_shown(server, options):
    route = Route(server, options)
    route.lookup().note_answer()
    assert Route(server, {**options, "key": "value"}).lookup().has_server_answered
    assert not Route(server, {"key": "value"}).lookup().has_server_answered
    assert "CANARY" not in f"{route!r} {route.answering_proxy()}"


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_a_variable_changes_the_way(monkeypatch, server, name):
    route = Route(server, None)
    route.lookup().note_answer()
    assert route.lookup().has_server_answered
    monkeypatch.setenv(name, PROXY)
    assert not route.lookup().has_server_answered
    route.lookup().note_answer()
    monkeypatch.setenv("no_proxy", "another.test")
    assert not route.lookup().has_server_answered


def test_a_variable_that_is_of_no_concern_changes_no_way(monkeypatch, server):
    """Such as the proxy of https:// for http://, or one of the environment where the options name another."""
    Route(server, None).lookup().note_answer()
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    assert Route(server, None).lookup().has_server_answered
    Route(server, {"proxy": PROXY}).lookup().note_answer()
    monkeypatch.setenv("http_proxy", PROXY)
    assert Route(server, {"proxy": PROXY}).lookup().has_server_answered


def test_a_way_is_the_one_of_the_reads(server):
    _native.Lookup(f"{server}/a".encode(), PROXY).note_answer()
    assert Route(server, {"proxy": PROXY}).lookup().has_server_answered


@each_row(
    ("error", "expected"),
    [
        (HttpStatusError("busy", status=503), True),
        (HttpStatusError("busy", status=503, code="503"), True),
        (HttpStatusError("busy", status=503, code="SlowDown"), False),
        (HttpStatusError("busy", status=503, request_id="1"), False),
        (HttpStatusError("busy", status=429), False),
        (HttpStatusError("broken", status=500), False),
    ],
)
def test_what_a_proxy_may_have_sent_is_no_sign_of_the_server(monkeypatch, error, expected):
    monkeypatch.setenv("http_proxy", PROXY)
    Route(SERVER, None).note_failure(error)
    assert error.is_of_proxy == expected


@pytest.mark.parametrize(
    ("server", "variable", "value"),
    [
        (SERVER, "https_proxy", PROXY),
        ("https://server.test", "https_proxy", PROXY),  # through a tunnel, all answers are the server's
        (SERVER, "http_proxy", "socks5://proxy.test"),
    ],
)
def test_an_answer_that_no_proxy_forwarded_is_the_servers(monkeypatch, server, variable, value):
    monkeypatch.setenv(variable, value)
    error = HttpStatusError("busy", status=503)
    Route(server, None).note_failure(error)
    assert not error.is_of_proxy


def test_a_host_in_no_proxy_answers_itself(monkeypatch):
    monkeypatch.setenv("http_proxy", PROXY)
    monkeypatch.setenv("no_proxy", "server.test")
    error = HttpStatusError("busy", status=503)
    Route(SERVER, None).note_failure(error)
    assert not error.is_of_proxy


@pytest.mark.parametrize(
    "options",
    [
        {"proxy": PROXY, "proxy_auth": ("user", "CANARY")},
        {
            "proxies": {"http": PROXY, "https": "http://another.test:1"},
            "proxies_config": {"proxy_ca_bundle": "/ca.pem"},
        },
        {"proxies": {"http://server.test": PROXY}},
        {"session_kwargs": {"proxy": PROXY}},
        {},
    ],
)
def test_a_denial_without_a_word_of_the_storage_names_the_proxy(monkeypatch, options):
    if not options:
        monkeypatch.setenv("http_proxy", PROXY)
    route = Route(SERVER, options)
    denied = AccessDeniedError("denied", status=403, hint="Ask for it")
    route.note_failure(denied)
    expected = "Ask for it; or it may be a refusal of the proxy proxy.test:3128 on the way: ask who runs the proxy"
    assert denied.hint == expected
    for own in (AccessDeniedError("denied", status=403, code="AccessDenied"), AccessDeniedError("denied", status=401)):
        route.note_failure(own)
        assert own.hint is None
