"""Switches in environment variables, and the warning of variables that nothing reads."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from each_row import each_row

from streamer import Options
from streamer.core.options import switches_and_sizes
from streamer.core.options.settings import resolve
from streamer.core.options.switches_and_sizes import OTHERS, is_on, warn_of_typos

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("default", [True, False])
def test_what_is_not_set_or_blank_has_its_default(default: bool) -> None:
    assert is_on("STREAMER_ABSENT", {}, default=default) is default
    assert is_on("STREAMER_ABSENT", {"STREAMER_ABSENT": " "}, default=default) is default


@pytest.mark.parametrize(("text", "expected"), [(" TRUE ", True), ("On", True), ("No", False)])
def test_case_and_blanks_do_not_count(text: str, expected: bool) -> None:
    assert is_on("STREAMER_X", {"STREAMER_X": text}, default=not expected) is expected


def test_an_unknown_word_switches_on_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="streamer"):
        assert [is_on("STREAMER_Y", {"STREAMER_Y": "ja\n"}) for _ in range(2)] == [True, True]
    (record,) = caplog.records
    assert "STREAMER_Y=ja" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "1, true, yes, on, 0, false, no, off" in record.getMessage()


@pytest.fixture(autouse=True)
def _nothing_was_said_before() -> None:
    switches_and_sizes._warn.cache_clear()


@each_row(
    ("name", "meant"),
    [
        ("STREAMER_FILE_THREAD", "STREAMER_FILE_THREADS"),
        ("STREAMER_MAX_ATEMPTS", "STREAMER_MAX_ATTEMPTS"),
        ("STREAMER_DISABLED_PLUGIN", "STREAMER_DISABLED_PLUGINS"),
        ("STREAMER_file_threads", "STREAMER_FILE_THREADS"),
        ("STREAMER_FILE_THREADS", None),
        ("STREAMER_PLUGINS", None),
        ("STREAMER_MEMORY_LIMIT", "STREAMER_MEMORY_LIMIT_BYTES"),
        ("STREAMER_SERVICE_HOST", None),
        ("STREAMER_PORT_80_TCP_ADDR", None),
        ("STREAMER_CACHE_SERVICE_PORT_HTTP", None),
        ("FILE_THREAD", None),
    ],
)
def test_a_name_that_is_nearly_one_of_ours_is_warned_of_once(
    name: str, meant: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, "3")
    for _ in range(2):
        resolve(None)
    said = [record.getMessage() for record in caplog.records]
    assert said == ([f"{name} is not read: did you mean {meant}?"] if meant else [])


def test_a_name_that_is_like_none_of_ours_is_warned_of_too_regression(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STREAMER_ELEPHANT", "x")
    resolve(None)
    assert [record.getMessage() for record in caplog.records] == ["STREAMER_ELEPHANT is not read by streamer"]


def test_the_value_of_a_variable_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_typos(["max_attempts"], {"STREAMER_MAX_ATTEMPT": "S3CR3T"})
    assert "STREAMER_MAX_ATTEMPTS" in caplog.text
    assert "S3CR3T" not in caplog.text


def test_every_variable_that_is_read_is_known() -> None:
    code = "".join(
        path.read_text()
        for room in ("core", "backends", "plugins", "compat", "integrations", "src")
        for path in (ROOT / room).rglob("*.py")
    )
    named = set(re.findall(r"\bSTREAMER_([A-Z_]*[A-Z])\b", code))
    assert named - {name.upper() for name in Options.__dataclass_fields__} <= {*OTHERS, "FILE_THREAD"}
