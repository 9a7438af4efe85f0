"""Which versions of another library are taken: from the first one tried, to the first one that was not."""

from __future__ import annotations

import pytest

from streamer.compat import versions


@pytest.mark.parametrize(
    ("found", "tried", "taken"),
    [
        ("0.5.23", ("0.5.23", "0.5.24"), True),
        ("0.5.23.post1", ("0.5.23", "0.5.24"), True),
        ("0.5.22", ("0.5.23", "0.5.24"), False),
        ("0.5.24", ("0.5.23", "0.5.24"), False),
        ("0.5.24rc1", ("0.5.23", "0.5.24"), False),
        ("0.6.0", ("0.5.23", "0.5.24"), False),
        ("0.33.0+cpu", ("0.33", "0.34"), True),
        ("0.33.7", ("0.33", "0.34"), True),
        ("0.34.0", ("0.33", "0.34"), False),
        ("5.23.0.dev0", ("5.23", "5.24"), True),
    ],
)
def test_a_version_is_taken(monkeypatch, found, tried, taken):
    monkeypatch.setattr(versions, "version", lambda library: found)
    assert versions.may_be_patched("some_library", tried) is taken
