"""A storage option of the wrong type is the caller's mistake: named, before anything is asked of a storage."""

from __future__ import annotations

import inspect
from typing import Any

import aiohttp
import pytest
from each_row import each_row
from shown import shown_by

import streamer
from streamer.backends.client.option_checks import ANY_NAME, FLAG, NUMBER, TEXT, check_types, timeout_of
from streamer.backends.client.request_headers import check_headers, fault_of
from streamer.backends.http.options import OF_AIOHTTP
from streamer.core.errors import OptionError

NOBODY = "http://127.0.0.1:9"  # nothing listens on the port of "discard"
SECRET = "C4n4ryS3cr3tXyz"
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "s3": ("s3://bucket/a.safetensors", {"key": "k", "secret": "s", "endpoint_url": NOBODY}),
    "gs": ("gs://bucket/a.safetensors", {"token": "anon", "endpoint_url": NOBODY}),
    "az": ("az://c/a.safetensors", {"account_name": "acct", "account_host": "127.0.0.1:9", "sas_token": "sig=x"}),
    "hf": ("hf://owner/name/a.safetensors", {"endpoint": NOBODY, "token": False}),
    "http": (f"{NOBODY}/a.safetensors", {}),
    "nfs": ("nfs://127.0.0.1:9/export/a.safetensors", {}),
    "file": ("/absent/a.safetensors", {}),
}
WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("s3", {"endpoint_url": each}) for each in (5, [], {}, b"http://host", "http://\ud800")),
    *(("s3", {"client_kwargs": each}) for each in ([], "x", 5, [1])),
    *(("s3", {"config_kwargs": each}) for each in ("x", [], 5)),
    *(("s3", {name: [SECRET]}) for name in ("key", "secret", "token", "username", "password", "profile")),
    *(("s3", {"client_kwargs": {name: 5}}) for name in ("endpoint_url", "region_name", "verify")),
    *(("s3", {"config_kwargs": {name: "x"}}) for name in ("read_timeout", "retries", "proxies", "s3")),
    ("s3", {"s3_additional_kwargs": 5}),
    ("s3", {"config_kwargs": {"signature_version": 5}}),
    *(("gs", {"endpoint_url": each}) for each in (5, [])),
    *(("gs", {"session_kwargs": each}) for each in (5, "x", [], {"proxy": 5})),
    *(("gs", {"requests_timeout": each}) for each in ("x", [])),
    *(("gs", {name: 5}) for name in ("project", "requester_pays", "access")),
    *(("az", {name: 5}) for name in ("account_name", "account_key", "account_host", "connection_string", "sas_token")),
    *(("az", {name: 5}) for name in ("client_id", "client_secret", "tenant_id", "connection_verify", "proxies")),
    *(("az", {name: "x"}) for name in ("retry_total", "read_timeout", "connection_timeout", "proxies")),
    ("az", {"proxies": {"https": 5}}),
    *(("hf", {"endpoint": each}) for each in (5, [], "http://", "http://[::1", "x")),
    *(("hf", {"proxy": each}) for each in (5, [])),
    *(("hf", {"timeout": each}) for each in ("x", [])),
    *(("hf", {"token": each}) for each in (5, b"x", f"hf_{SECRET}\ud800")),
    *(("http", {"client_kwargs": each}) for each in ("x", [], [1], 5, {"trust_env": 5}, {"connector": 5})),
    *(("http", {name: 5}) for name in ("headers", "proxy", "auth", "cookies", "ssl", "get_client", "local_redirects")),
    *(("http", {name: []}) for name in ("proxy", "timeout")),
    ("http", {"headers": {"X-Key": f"{SECRET}\ud800"}}),
    *(("nfs", {name: "x"}) for name in ("version", "uid", "gid", "nfsport")),
    ("file", {"symlinks": 5}),
]


def refused(place: str, options: dict[str, Any]) -> OptionError:
    uri, given = PLACES[place]
    with pytest.raises(OptionError) as caught:
        streamer.load(uri, storage_options={**given, **options}, options=streamer.Options(block_deadline_s=0.5))
    return caught.value


@each_row(("place", "options"), WRONG)
def test_a_value_of_the_wrong_type_is_named_regression(place: str, options: dict[str, Any]) -> None:
    """They were a `PluginError`, a failure of the client or of the network, or nothing at all."""
    error = refused(place, options)
    (name,) = options
    inner = next(iter(options[name])) if isinstance(options[name], dict) and options[name] else name
    assert name in str(error) or inner.lower() in str(error)  # of headers, case means nothing
    assert [text for text in shown_by(error) if SECRET in text] == []


@pytest.mark.parametrize("name", ["no_such", "token", "trust_env"])
def test_an_unknown_option_of_a_web_server_is_the_callers_mistake_regression(name: str) -> None:
    """It was a file that is not there, as fsspec said of what aiohttp refused."""
    error = refused("http", {name: SECRET})
    assert name in str(error)
    assert "client_kwargs, cookies, encoded, get_client, headers" in str(error)
    assert SECRET not in str(error)


def test_an_unknown_option_of_its_session_too_regression() -> None:
    assert "client_kwargs has no 'no_such'" in str(refused("http", {"client_kwargs": {"no_such": 1}}))


def test_every_argument_of_aiohttps_requests_is_known() -> None:
    """A new version of aiohttp may have others."""
    named = set(inspect.signature(aiohttp.ClientSession._request).parameters) - {"self", "method", "str_or_url"}
    of_ours = {"auth", "cookies", "headers", "proxy", "proxy_auth", "ssl", "timeout"}
    assert named - of_ours <= OF_AIOHTTP


def test_none_and_unknown_options_are_not_checked() -> None:
    kinds = {"a": TEXT, "b": {"c": NUMBER}, "d": {ANY_NAME: FLAG}}
    check_types({"a": None, "b": None, "x": object()}, kinds)
    check_types({"a": "x", "b": {"c": 1.5, "x": []}, "d": {"e": True}}, kinds)
    for wrong in ({"a": 1}, {"b": []}, {"b": {"c": "1"}}, {"d": {"e": 1}}, {"a": "\ud800"}):
        with pytest.raises(OptionError):
            check_types(wrong, kinds)


@pytest.mark.parametrize(("given", "total_s"), [(3, 3.0), ("1.5", 1.5), (aiohttp.ClientTimeout(total=7), 7)])
def test_a_timeout_is_seconds_or_what_aiohttp_has(given: Any, total_s: float) -> None:
    found = timeout_of(given, "timeout")
    assert found is not None
    assert found.total == total_s


# --- one bad character in a header is named, and nothing else of the header but its usual name ----------------------


@pytest.mark.parametrize(
    ("name", "value"), [("authorization", "Bearer x"), ("x-a_b.c", ""), ("cookie", "a=b; c=d"), ("x-name", "Zoë")]
)
def test_a_header_that_can_be_sent_has_no_fault(name: str, value: str) -> None:
    assert fault_of(name, value) is None


@each_row(
    ("name", "value", "fault"),
    [
        (
            "authorization",
            "Bearer S3CR3T\n",
            "The value of 'authorization' in headers holds a line feed (\\n) at its end",
        ),
        (
            "authorization",
            "S3CR3T\r\n",
            "The value of 'authorization' in headers holds a carriage return (\\r) at its end",
        ),
        ("x-key", "S3C\0R3T", "The value of 'x-key' in headers holds a NUL as its character 4"),
        ("x-key", "\ud800S3CR3T", "The value of 'x-key' in headers holds U+D800 as its character 1"),
        ("s3cr3t", "a\nb", "The value of an unusual name in headers holds a line feed (\\n) as its character 2"),
        ("Bearer S3CR3T", "", "A name in headers holds a space as its character 7"),
        ("x: S3CR3T", "", "A name in headers holds a colon as its character 2"),
        ("naïve", "", "A name in headers holds U+00EF as its character 3"),
        ("", "S3CR3T", "A name in headers is empty"),
    ],
)
def test_the_character_and_its_place_are_named(name: str, value: str, fault: str) -> None:
    assert fault_of(name, value) == fault
    assert "S3CR3T" not in fault


@pytest.mark.parametrize("where", ["headers", "client_kwargs"])
def test_a_load_with_such_a_header_is_refused_before_any_request(where: str) -> None:
    headers = {"Authorization": "Bearer S3CR3T\n"}
    options = {"headers": headers} if where == "headers" else {"client_kwargs": {"headers": headers}}
    with pytest.raises(streamer.OptionError, match=r"holds a line feed .* at its end\. Headers are plain text"):
        streamer.load("http://127.0.0.1:9/m.safetensors", storage_options=options)


@each_row(
    "name", ["content-encoding", "content-length", "content-range", "trailer", "transfer-encoding", "range", "host"]
)
def test_headers_that_describe_a_body_or_a_range_are_refused_regression(name: str) -> None:
    with pytest.raises(streamer.OptionError, match=f"headers cannot hold '{name}'"):
        check_headers({name: "5"})
    check_headers({"content-type": "application/x-weights", "x-team": "a"})
