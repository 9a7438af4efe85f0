"""A variable that nobody reads because of a typo in its name is warned of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamer import Options
from streamer.core.options import environment_names
from streamer.core.options.environment_names import OTHERS, warn_of_typos
from streamer.core.options.settings import resolve

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _nothing_was_said_before() -> None:
    environment_names._warn.cache_clear()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("STREAMER_FILE_THREAD", "STREAMER_FILE_THREADS"),
        ("STREAMER_MAX_ATEMPTS", "STREAMER_MAX_ATTEMPTS"),
        ("STREAMER_DISABLED_PLUGIN", "STREAMER_DISABLED_PLUGINS"),
        ("STREAMER_file_threads", "STREAMER_FILE_THREADS"),
        ("STREAMER_FILE_THREADS", None),
        ("STREAMER_PLUGINS", None),
        ("STREAMER_HOST", None),
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


def test_the_value_of_a_variable_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_typos(["max_attempts"], {"STREAMER_MAX_ATTEMPT": "S3CR3T"})
    assert "STREAMER_MAX_ATTEMPTS" in caplog.text
    assert "S3CR3T" not in caplog.text


def test_every_variable_that_is_read_is_known() -> None:
    code = "".join(
        path.read_text() for room in ("core", "backends", "plugins", "src") for path in (ROOT / room).rglob("*.py")
    )
    named = set(re.findall(r"\bSTREAMER_([A-Z_]*[A-Z])\b", code))
    assert named - {name.upper() for name in Options.__dataclass_fields__} <= {*OTHERS, "FILE_THREAD"}
