"""From the options of fsspec's HTTP file system to what requests carry."""

from __future__ import annotations

import ssl
from base64 import b64encode
from types import SimpleNamespace

import pytest
from each_row import each_row

from streamer.backends.client.proxy import environment_proxy
from streamer.backends.client.redirects import Hop, next_hop, quoted
from streamer.backends.http.client import access_of
from streamer.backends.http.options import fsspec_option, merged_options
from streamer.core.errors import OptionError, RedirectError


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


# --- where a redirect may lead, and what is dropped on the way ------------------------------------------------------

GIVEN = {"authorization": "Bearer canary", "x-custom": "canary"}


def follow(url, location):
    return next_hop(Hop(url, GIVEN), location, "uri")


@each_row(
    ("url", "location", "expected"),
    [
        ("https://a/x", "https://a/y", "https://a/y"),
        ("https://a/x", "https://a:443/y", "https://a:443/y"),
        ("http://A/x", "http://a:80/y", "http://a:80/y"),
        ("https://a/b/x?q=1", "y", "https://a/b/y"),
        ("https://a/b/x", "/y?q=2", "https://a/y?q=2"),
        ("https://a/x", "//a/y", "https://a/y"),
    ],
)
def test_headers_go_along_within_an_origin(url, location, expected):
    hop = follow(url, location)
    assert (hop.url, hop.headers) == (expected, GIVEN)


@each_row(
    ("url", "location"),
    [
        ("https://a/x", "https://b/x"),
        ("https://a/x", "https://a.b/x"),
        ("https://a/x", "https://a:8443/x"),
        ("http://a/x", "https://a/x"),
        ("https://a/x", "//b/x"),
        ("https://a/x", "https://a@b/x"),
        ("https://a/x", "https://user:password@b/x"),
    ],
)
def test_headers_stay_behind_where_the_origin_differs(url, location):
    hop = follow(url, location)
    assert hop.headers == {}
    assert "@" not in hop.url


@each_row(
    ("url", "location"),
    [
        ("https://a/x", "http://a/x"),
        ("https://a/x", "http://b/x"),
        ("https://a/x", "ftp://a/x"),
        ("https://a/x", "file:///etc/passwd"),
        ("https://a/x", "javascript:alert(1)"),
        ("https://a/x", "http:///x"),
        ("https://a/x", "https://a:port/x"),
        ("https://a/x", ""),
        ("https://a/x", None),
    ],
)
def test_what_leads_elsewhere_is_refused(url, location):
    with pytest.raises(RedirectError):
        follow(url, location)


LOCAL = [
    "127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "0.0.0.0", "localhost", "LOCALHOST.", "a.localhost",
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "169.254.169.254", "0xa9fea9fe", "[fe80::1]", "[fe80::1%25eth0]",
    "[::ffff:169.254.169.254]", "[::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "ip6-localhost",
    "[fd00:ec2::254]", "[FD00:EC2:0::23]", "metadata.google.internal", "Metadata.Google.Internal.", "metadata",
    "metadata.goog", "168.63.129.16", "100.100.100.200", "[::ffff:100.100.100.200]", "[64:ff9b::a83f:8110]",
    "192.0.0.192", "[fd00:c1::a9fe:a9fe]", "[fd20:ce::254]", "[fd00:42::42]",
]  # fmt: skip


@each_row("host", LOCAL)
@each_row("before", ["http://a.example/x", "http://10.0.0.1/x", "http://8.8.8.8/x"])
def test_only_this_machine_leads_to_its_own_addresses(before, host):
    with pytest.raises(RedirectError, match=r"(loopback|link-local|metadata server's) address"):
        follow(before, f"http://{host}:8080/x")
    allowed = next_hop(Hop(before, GIVEN), f"http://{host}:8080/x", "uri", may_be_local=True)
    assert allowed.headers == {}


@each_row(
    "host",
    ["%6cocalhost", "127.0.0%2e1", "%31%36%39.254.169.254", "metadata%2egoogle.internal", "\uff4cocalhost", "a%25b"],
)
@each_row("may_be_local", [True, False])
def test_a_host_that_libcurl_would_decode_is_refused_regression(host, may_be_local):
    """It was taken for a name, and libcurl would have asked this machine."""
    with pytest.raises(RedirectError, match="not a URL"):
        next_hop(Hop("http://a/x", GIVEN), f"http://{host}/x", "uri", may_be_local=may_be_local)


def test_the_metadata_server_that_the_environment_names_is_one(monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "metadata.example:8080")
    with pytest.raises(RedirectError, match="metadata"):
        follow("http://a/x", "http://metadata.example/computeMetadata")


def test_a_server_of_this_machine_does_not_lead_to_the_metadata_server():
    with pytest.raises(RedirectError, match="link-local"):
        follow("http://127.0.0.1/x", "http://169.254.169.254/latest/meta-data")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("127.0.0.1", "localhost"),
        ("localhost", "[::1]"),
        ("169.254.1.1", "169.254.1.2"),
        ("a", "10.0.0.1"),
        ("a", "1.2.3.4"),
    ],
)
def test_other_addresses_and_those_beside_the_server_are_followed(before, after):
    assert follow(f"http://{before}/x", f"http://{after}/y").url == f"http://{after}/y"


@each_row(
    ("text", "expected"),
    [
        ("/a b", "/a%20b"),
        ("/a%20b", "/a%20b"),
        ("/a%2Fb?sig=x%2By+z==", "/a%2Fb?sig=x%2By+z=="),
        ("/100%", "/100%25"),
        ("/ü", "/%C3%BC"),
        ("/\udcff", "/%FF"),
    ],
)
def test_only_what_may_not_stand_in_a_url_is_quoted(text, expected):
    assert quoted(text) == expected


def test_a_hop_shows_neither_url_nor_headers():
    assert "canary" not in repr(Hop("https://a/?sig=canary", GIVEN))
