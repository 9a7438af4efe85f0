"""One bad character in a header is named, and nothing else of the header but its usual name."""

from __future__ import annotations

import pytest
from each_row import each_row

import streamer
from streamer.backends.client.request_headers import check_headers, fault_of


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
