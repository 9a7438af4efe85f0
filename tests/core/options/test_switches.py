"""Variables that switch something on or off."""

from __future__ import annotations

import logging

import pytest

from streamer.core.options.variable_values import is_on


@pytest.mark.parametrize("default", [True, False])
def test_what_is_not_set_or_blank_has_its_default(default: bool) -> None:
    assert is_on("STREAMER_ABSENT", {}, default=default) is default
    assert is_on("STREAMER_ABSENT", {"STREAMER_ABSENT": " "}, default=default) is default


@pytest.mark.parametrize(("text", "expected"), [(" TRUE ", True), ("On", True), ("No", False)])
def test_case_and_blanks_do_not_count(text: str, expected: bool) -> None:
    assert is_on("STREAMER_X", {"STREAMER_X": text}, default=not expected) is expected


def test_another_word_is_on_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="streamer"):
        assert [is_on("STREAMER_Y", {"STREAMER_Y": "ja\n"}) for _ in range(2)] == [True, True]
    (record,) = caplog.records
    assert "STREAMER_Y=ja" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "1, true, yes, on, 0, false, no, off" in record.getMessage()
