"""The clock S3 agrees with: how far it is from ours is read from any answer."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from streamer.backends.s3.signing import clock_offset_s

NOW_S = 1_700_000_000.0


@pytest.mark.parametrize("offset_s", [3600, -3600, 61, -61, 30 * 365 * 86400, -50 * 365 * 86400])
def test_a_clock_that_differs_is_told_by_its_date(offset_s: int) -> None:
    assert clock_offset_s(formatdate(NOW_S + offset_s, usegmt=True), NOW_S) == offset_s


@pytest.mark.parametrize("offset_s", [0, 1, -30, 60, -60])
def test_a_difference_that_the_network_may_make_is_none(offset_s: int) -> None:
    assert clock_offset_s(formatdate(NOW_S + offset_s, usegmt=True), NOW_S) == 0


@pytest.mark.parametrize(
    "date",
    [None, "", "yesterday", "Thu, 01 Jan 1970", "Wed, 99 Foo 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:20 -0000"],
)
def test_a_header_that_tells_no_time_changes_nothing(date: str | None) -> None:
    assert clock_offset_s(date, NOW_S) is None
