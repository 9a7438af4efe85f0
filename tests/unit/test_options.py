"""Every knob has bounds, and the environment fills what the caller left open."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from streamer import OptionError, Options
from streamer.core.options.settings import resolve

SWITCHES = ["allow_missing_shards", "check_memory", "direct_io", "gpudirect", "io_uring"]


@pytest.mark.parametrize("knob", [field.name for field in fields(Options) if field.name not in SWITCHES])
def test_every_knob_states_its_bounds_unit_and_reason_and_refuses_what_is_outside(knob):
    metadata = {field.name: field.metadata for field in fields(Options)}[knob]
    assert metadata["unit"]
    assert metadata["reason"]
    assert knob in (Options.__doc__ or "")
    for wrong in (metadata["low"] - 1, metadata["high"] + 1, "8", True):
        with pytest.raises(OptionError, match=knob):
            Options(**{knob: wrong})
    Options(**{knob: metadata["low"]})
    Options(**{knob: metadata["high"]})


@pytest.mark.parametrize("knob", SWITCHES)
def test_a_switch_states_its_reason_and_is_a_bool_or_automatic(monkeypatch, knob):
    assert {field.name: field.metadata for field in fields(Options)}[knob]["reason"]
    assert knob in (Options.__doc__ or "")
    for wrong in (0, 1, "yes"):
        with pytest.raises(OptionError, match=knob):
            Options(**{knob: wrong})
    assert not getattr(resolve(None), knob)  # None, or decided by no machine: False
    for text, value in {"0": False, "1": True}.items():
        monkeypatch.setenv(f"STREAMER_{knob.upper()}", text)
        assert getattr(resolve(None), knob) is value
        assert getattr(resolve(Options(**{knob: not value})), knob) is not value
    monkeypatch.setenv(f"STREAMER_{knob.upper()}", "true")
    with pytest.raises(OptionError, match=knob.upper()):
        resolve(None)


def test_options_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Options().max_attempts = 3


def test_the_argument_beats_the_environment_and_the_environment_beats_automatic(monkeypatch):
    monkeypatch.setenv("STREAMER_FILE_THREADS", "3")
    monkeypatch.setenv("STREAMER_STALL_TIMEOUT_S", "1.5")
    assert resolve(None).file_threads == 3
    assert resolve(None).stall_timeout_s == 1.5
    assert resolve(Options(file_threads=5)).file_threads == 5


@pytest.mark.parametrize("text", ["three", "0", "-1", "1e3"])
def test_a_bad_variable_is_named(monkeypatch, text):
    monkeypatch.setenv("STREAMER_FILE_THREADS", text)
    with pytest.raises(OptionError, match=r"(?i)file_threads"):
        resolve(None)
