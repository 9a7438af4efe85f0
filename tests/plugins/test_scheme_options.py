"""Options reach the URLs they are meant for, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from streamer.plugins.scheme_options import options_of

BACKENDS = {
    "s3": "streamer.backends.s3",
    "s3a": "streamer.backends.s3",
    "gs": "streamer.backends.gcs",
    "acme": "acme",
}
BOTH = {"s3": {"key": "a"}, "gs": {"token": "b"}}


@pytest.mark.parametrize(
    ("uri", "given", "chosen"),
    [
        ("s3://b/k", {"key": "a"}, {"key": "a"}),
        ("s3://b/k", {}, {}),
        ("s3://b/k", BOTH, {"key": "a"}),
        ("s3a://b/k", BOTH, {"key": "a"}),
        ("gs://b/k", BOTH, {"token": "b"}),
        ("memory://k", BOTH, {}),
        ("/a/path", BOTH, {}),
        ("acme://k", {"acme": {"x": 1}, "s3": {"key": "a"}}, {"x": 1}),
        ("s3://b/k", {"s3": {"key": "own", "anon": True}, "key": "for all"}, {"key": "for all", "anon": True}),
        ("s3://b/k", {"client_kwargs": {"verify": "/ca"}}, {"client_kwargs": {"verify": "/ca"}}),
        ("s3://b/k", {"client_kwargs": {"verify": "/ca"}, "gs": {}}, {"client_kwargs": {"verify": "/ca"}}),
        ("s3://b/k", {"s3": "not a mapping"}, {"s3": "not a mapping"}),
        ("simplecache::s3://b/k", BOTH, {"s3": {"key": "a"}}),
        ("zip://f::s3://b/k", {**BOTH, "zip": {"mode": "r"}}, {"s3": {"key": "a"}, "zip": {"mode": "r"}}),
    ],
)
def test_a_url_gets_the_options_of_its_scheme(uri: str, given: dict[str, Any], chosen: dict[str, Any]) -> None:
    scheme = uri.partition(":")[0] if ":" in uri else "file"
    assert options_of(uri, scheme, given, BACKENDS) == chosen


def test_the_callers_options_are_copied() -> None:
    given = {"simplecache": {"expiry": 1}}
    options_of("simplecache::s3://b/k", "simplecache", given, BACKENDS)["simplecache"].clear()
    assert given == {"simplecache": {"expiry": 1}}
