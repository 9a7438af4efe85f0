"""Which links of an index page are files of its folder."""

from __future__ import annotations

import pytest
from each_row import each_row
from servers.one_file import DATA, one_file

import streamer
from streamer.backends.http.errors import refusal
from streamer.backends.http.index_page import names_in
from streamer.backends.http.probe import expiry_of, version_in
from streamer.core import errors
from streamer.core.options.limits import Limits

URL = "https://host:8443/models/small/"


@each_row(
    ("link", "name"),
    [
        ("a.safetensors", "a.safetensors"),
        ("./a.safetensors", "a.safetensors"),
        ("/models/small/a.safetensors", "a.safetensors"),
        ("https://host:8443/models/small/a.safetensors", "a.safetensors"),
        ("a%20b.bin", "a%20b.bin"),
        ("a b.bin", "a%20b.bin"),
        ("a&amp;b.bin", "a&b.bin"),
        ("a.bin#part", "a.bin"),
    ],
)
def test_a_direct_child_is_found(link, name):
    assert names_in(f'<pre><a href="{link}">x</a>', URL, Limits()) == [name]


@each_row(
    "link",
    [
        "../",
        "..",
        "./",
        "",
        "sub/",
        "sub/a.bin",
        "/a.bin",
        "/models/a.bin",
        "/models/smaller/a.bin",
        "?C=N;O=D",
        "a.bin?C=N",
        "https://host/models/small/a.bin",
        "http://host:8443/models/small/a.bin",
        "https://evil/models/small/a.bin",
        "//evil/models/small/a.bin",
        "https://host:port/models/small/a.bin",
        "mailto:a@host",
        "javascript:void(0)",
    ],
)
def test_a_link_to_another_place_is_no_child(link):
    assert names_in(f'<a href="{link}">x</a>', URL, Limits()) == []


def test_names_are_sorted_and_listed_once():
    page = '<A HREF="b">b</A> <a title="x" href=\'a\'>a</a> <a name="n"></a> <a href=b>b</a> <img src="c">'
    assert names_in(page, URL, Limits()) == ["a", "b"]


def test_a_broken_page_has_no_names():
    assert names_in('<a href="', URL, Limits()) == []


# --- what a status becomes ------------------------------------------------------------------------------------------


@each_row(
    ("status", "body", "expected"),
    [
        (401, b"", errors.CredentialsError),
        (403, b"", errors.AccessDeniedError),
        (
            403,
            b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
            errors.CredentialsError,
        ),
        (404, b"", errors.ObjectNotFoundError),
        (407, b"", errors.CredentialsError),
        (410, b"", errors.ObjectNotFoundError),
        (416, b"", errors.RangeResponseError),
        (429, b"", errors.HttpStatusError),
        (500, b"", errors.HttpStatusError),
        (304, b"", errors.HttpStatusError),
    ],
)
def test_each_status_has_its_class(status, body, expected):
    error = refusal(status, {}, body, "uri")
    assert type(error) is expected
    assert error.status == status


def test_a_refusal_carries_the_storages_code_and_request_id_and_no_other_text():
    body = b"<Error><Code>AccessDenied</Code><Message>canary</Message></Error>"
    error = refusal(403, {"X-Amz-Request-Id": "R1", "X-Other": "canary"}, body, "uri", attempts=2, elapsed_s=1.0)
    assert (error.code, error.request_id, error.attempts) == ("AccessDenied", "R1", 2)
    assert "canary" not in str(error)
    assert refusal(403, {"x-request-id": "two words"}, b"<Code>a b</Code>", "uri").request_id is None


# --- what signed URLs say of their expiry, and headers of a version -------------------------------------------------


@each_row(
    ("query", "expected"),
    [
        ("X-Amz-Date=20300101T000000Z&X-Amz-Expires=3600", 1893459600.0),
        ("x-amz-date=20300101T000000Z&x-amz-expires=0", 1893456000.0),
        ("Expires=1893456000&Signature=x", 1893456000.0),
        ("X-Amz-Expires=3600", None),
        ("X-Amz-Date=yesterday&X-Amz-Expires=3600", None),
        ("Expires=soon", None),
        ("X-Amz-Date=20300101T000000Z&X-Amz-Expires=9999999999999999", None),
        ("", None),
    ],
)
def test_a_signed_url_says_until_when_it_is_good(query, expected):
    assert expiry_of(f"https://host/x?{query}", {}, 1893450000.0) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"etag": '"a"', "last-modified": "then"}, ('"a"', "ETag")),
        ({"etag": 'W/"a"'}, ('W/"a"', "ETag")),
        ({"etag": "", "last-modified": "then"}, ("then", "Last-Modified")),
        ({}, (None, "ETag")),
    ],
)
def test_an_etag_is_a_better_version_than_a_time(headers, expected):
    assert version_in(headers) == expected


# --- A server that ignores a slash at the end of a URL must not send the whole file for a listing -------------------


@pytest.mark.parametrize("path", ["/get?file=a", "/download/1", "/a.bin", "/get.safetensors?file=a"])
def test_a_file_is_not_listed_as_a_folder_regression(path):
    with one_file() as server:
        url = server.url.removesuffix("/object") + path
        assert len(streamer.load(url, framework="np", progress=False)) == 2
        assert all("range" in each.headers for each in server.requests)
        assert sum(each.end - each.begin for each in server.requests) < 1.5 * len(DATA)
