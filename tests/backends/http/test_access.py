"""From the options of fsspec's HTTP file system to what requests carry."""

from __future__ import annotations

import ssl
from base64 import b64encode
from types import SimpleNamespace

import pytest
from each_row import each_row

from streamer.backends.client.proxy import environment_proxy
from streamer.backends.http.client import access_of
from streamer.backends.http.options import fsspec_option, merged_options
from streamer.core.errors import OptionError


def basic(text):
    return {"authorization": "Basic " + b64encode(text.encode()).decode()}


@each_row(
    ("url", "options", "expected"),
    [
        ("https://a/", {}, {}),
        ("https://u:p%40@a/", {}, basic("u:p@")),
        ("https://a/", {"auth": ("u", "p")}, basic("u:p")),
        ("https://a/", {"auth": ["u", "p"]}, basic("u:p")),
        ("https://a/", {"auth": SimpleNamespace(login="u", password="p", encoding="latin1")}, basic("u:p")),
        ("https://a/", {"client_kwargs": {"auth": ("u", "p")}}, basic("u:p")),
        ("https://x:y@a/", {"client_kwargs": {"auth": ("c", "c")}, "auth": ("u", "p")}, basic("u:p")),
        ("https://x:y@a/", {"headers": {"Authorization": "Bearer t"}}, {"authorization": "Bearer t"}),
        ("https://a/", {"headers": {"X-A": 1}, "client_kwargs": {"headers": {"x-a": "0"}}}, {"x-a": "1"}),
        ("https://a/", {"cookies": {"a": "b", "c": "d"}}, {"cookie": "a=b; c=d"}),
        ("https://a/", {"headers": {"Accept-Encoding": "gzip"}}, {}),
    ],
)
def test_credentials_become_headers_the_closest_to_the_request_winning(url, options, expected):
    assert dict(access_of(url, options).headers) == expected


@each_row(
    "options",
    [
        {"headers": {"Range": "bytes=0-1"}},
        {"headers": {"if-match": "x"}},
        {"headers": {"X-A": "a\r\nX-B: b"}},
        {"headers": {"X-A\n": "a"}},
        {"headers": "X-A: a"},
        {"auth": "u:p"},
        {"auth": 7},
        {"cookies": "a=b"},
        {"verify": "/no/such/file"},
        {"timeout": "soon"},
    ],
)
def test_a_value_that_cannot_be_used_is_refused(options):
    with pytest.raises(OptionError):
        access_of("https://a/", options)


@pytest.mark.parametrize(
    "options",
    [
        {"verify": False},
        {"ssl": False},
        {"verify_ssl": False},
        {"client_kwargs": {"connector": SimpleNamespace(_ssl=False)}},
        {"asynchronous": True},
    ],
)
def test_unverified_tls_and_foreign_loops_are_refused(options):
    with pytest.raises(OptionError):
        merged_options(options)


@each_row(
    ("options", "expected"),
    [
        ({}, None),
        ({"headers": {}, "auth": ("u", "p"), "timeout": 3, "ssl": True, "verify": True, "encoded": True}, None),
        ({"block_size": 5, "simple_links": False, "skip_instance_cache": True}, None),
        ({"client_kwargs": {"trust_env": True, "headers": {}, "connector": None}}, None),
        ({"get_client": print}, "get_client"),
        ({"ssl": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}, "ssl"),
        ({"client_kwargs": {"connector": object()}}, "client_kwargs['connector']"),
        ({"params": {"a": "b"}}, "params"),
    ],
)
def test_what_the_engine_cannot_honour_is_named(options, expected):
    assert fsspec_option(options) == expected


def test_a_proxy_gets_its_password_and_shows_it_nowhere():
    access = access_of("https://a/", {"proxy": "http://p:3128", "proxy_auth": ("u", "p@ss")})
    assert access.proxy == "http://u:p%40ss@p:3128"
    assert "p%40ss" not in repr(access)


def test_the_environment_names_proxies_and_exceptions(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://p:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert environment_proxy("https://outside.example/x") == "http://p:3128"
    assert environment_proxy("https://inside.example/x") is None


def test_headers_are_not_shown():
    assert "canary" not in repr(access_of("https://u:canary@a/", {"headers": {"X-A": "canary"}}))
