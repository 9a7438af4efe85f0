"""What signed URLs say of their expiry, and headers of a version."""

from __future__ import annotations

import pytest
from each_row import each_row

from streamer.backends.http.probe import expiry_of, version_in


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
