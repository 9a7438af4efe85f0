"""Times in S3's answers are parsed as botocore parses them."""

from __future__ import annotations

import pytest
from botocore.utils import parse_timestamp
from each_row import each_row

from streamer.backends.aws_sessions import _time


@each_row(
    "text",
    [
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05.678Z",
        "2026-01-02T03:04:05+01:00",
        "Wed, 12 Oct 2009 17:50:00 GMT",
        1_700_000_000,
        "1700000000",
    ],
)
def test_a_time_is_what_botocore_makes_of_it(text):
    assert _time(text) == parse_timestamp(text)


@pytest.mark.parametrize("text", ["2026-13-02T03:04:05Z", "yesterday", ""])
def test_what_is_no_time_is_an_error_as_before(text):
    with pytest.raises(ValueError, match=r"timestamp|month"):
        _time(text)
