"""Every knob has bounds, and the environment fills what the caller left open."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest
from each_row import each_row

from streamer import OptionError, Options
from streamer.core.options.settings import resolve

CHOICES = {"prefer": ("speed", "egress"), "share": ("node", "off")}
SWITCHES = ["allow_missing_shards", "check_memory", "direct_io", "gpudirect", "io_uring"]
PATHS = ["cache_dir", "trace"]
ADDRESSES = ["peers"]


@each_row(
    "knob", [field.name for field in fields(Options) if field.name not in (*SWITCHES, *PATHS, *CHOICES, *ADDRESSES)]
)
def test_every_knob_states_its_bounds_unit_and_reason_and_refuses_what_is_outside(knob):
    metadata = {field.name: field.metadata for field in fields(Options)}[knob]
    assert metadata["unit"]
    assert metadata["reason"]
    assert knob in (Options.__doc__ or "")
    for wrong in (metadata["low"] - 1, metadata["high"] + 1, "some", True):
        with pytest.raises(OptionError, match=knob):
            Options(**{knob: wrong})
    Options(**{knob: metadata["low"]})
    Options(**{knob: metadata["high"]})


@pytest.mark.parametrize("knob", PATHS)
def test_a_folder_or_file_is_a_path_and_nothing_else(knob, tmp_path, monkeypatch):
    assert knob in (Options.__doc__ or "")
    assert getattr(Options(**{knob: tmp_path}), knob) == str(tmp_path)
    assert getattr(Options(**{knob: ""}), knob) == ""
    for wrong in (1, True, b"/tmp", ["/tmp"], "a\0b", "s3://bucket/folder"):
        with pytest.raises(OptionError, match=knob):
            Options(**{knob: wrong})
    path = str(tmp_path if knob == "cache_dir" else tmp_path / "load.json")
    monkeypatch.setenv(f"STREAMER_{knob.upper()}", path)
    assert getattr(resolve(None), knob) == path
    assert getattr(resolve(Options(**{knob: ""})), knob) == ""
    monkeypatch.setenv(f"STREAMER_{knob.upper()}", "s3://bucket/folder")
    with pytest.raises(OptionError, match=knob.upper()):
        resolve(None)


def test_bytes_may_have_a_unit_in_python_and_in_the_environment_regression(monkeypatch):
    options = Options(
        memory_limit_bytes="1GB", block_bytes="16 MiB", max_bytes_per_second="100MB/s", header_bytes="64Ki"
    )
    assert (options.memory_limit_bytes, options.block_bytes) == (10**9, 16 << 20)
    assert (options.max_bytes_per_second, options.header_bytes) == (10**8, 64 << 10)
    assert replace(options, block_bytes="1048576").block_bytes == 1 << 20
    monkeypatch.setenv("STREAMER_PINNED_BYTES", "512MiB")
    monkeypatch.setenv("STREAMER_STALL_BYTES_PER_S", "1kB/s")
    assert resolve(None).pinned_bytes == 512 << 20
    assert resolve(None).stall_bytes_per_s == 1000


@each_row("text", ["1Gb", "1gb", "0.1B", "a lot", "-1GB", "", "1 GB of memory"])
def test_what_is_no_number_of_bytes_is_refused_with_an_example(text, monkeypatch):
    with pytest.raises(OptionError, match=r"memory_limit_bytes is not a number of bytes: .* 512MiB, 1GB"):
        Options(memory_limit_bytes=text)
    if text:
        monkeypatch.setenv("STREAMER_MEMORY_LIMIT_BYTES", text)
        with pytest.raises(OptionError, match=r"STREAMER_MEMORY_LIMIT_BYTES is not a number of bytes"):
            resolve(None)


def test_an_option_that_counts_no_bytes_takes_no_unit():
    with pytest.raises(OptionError, match="max_attempts must be a whole number of attempts, not '1K'"):
        Options(max_attempts="1K")


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


@pytest.mark.parametrize("knob", CHOICES)
def test_a_choice_states_its_words_and_refuses_others(monkeypatch, knob):
    assert {field.name: field.metadata for field in fields(Options)}[knob]["reason"]
    assert knob in (Options.__doc__ or "")
    for wrong in (True, 0, "yes", ""):
        with pytest.raises(OptionError, match=f'{knob} must be "{CHOICES[knob][0]}" or '):
            Options(**{knob: wrong})
    assert getattr(resolve(None), knob) is None
    first, second = CHOICES[knob]
    for word in (first, second):
        monkeypatch.setenv(f"STREAMER_{knob.upper()}", word)
        assert getattr(resolve(None), knob) == word
    monkeypatch.setenv(f"STREAMER_{knob.upper()}", "1")
    with pytest.raises(OptionError, match=f'STREAMER_{knob.upper()} must be "{first}" or "{second}", not \'1\''):
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
