"""What automatic options become on machines of different sizes."""

from __future__ import annotations

import pytest
from each_row import each_row

from streamer import OptionError, Options
from streamer.core.engine.tuning import choose_nfs_threads, choose_python_threads
from streamer.core.options import settings
from streamer.core.options.settings import resolve

MIB, GIB = 1 << 20, 1 << 30


@each_row(
    ("processors", "memory", "sharers", "limit"),
    [
        (1, 256 * MIB, 1, 64 * MIB),
        (2, 8 * GIB, 1, GIB),
        (2, 24 * GIB, 1, 2 * GIB),
        (16, 128 * GIB, 1, 2 * GIB),
        (16, 128 * GIB, 8, 256 * MIB),
        (192, 2048 * GIB, 1, 12 * GIB),
        (192, 64 * GIB, 1, 8 * GIB),
    ],
)
def test_what_may_be_held_follows_the_machine(monkeypatch, processors, memory, sharers, limit):
    monkeypatch.setattr(settings, "processors", lambda: processors)
    monkeypatch.setattr(settings, "memory_bytes", lambda: memory)
    monkeypatch.setattr(settings, "free_bytes", lambda: memory - 64 * MIB)
    monkeypatch.setattr(settings, "sharers", lambda: sharers)
    assert resolve(None).memory_limit_bytes == limit


@pytest.mark.parametrize(("free", "limit"), [(3 * GIB, GIB + GIB // 2), (100 * MIB, 64 * MIB)])
def test_half_of_the_free_memory_may_be_held_if_little_is_free(monkeypatch, free, limit):
    monkeypatch.setattr(settings, "memory_bytes", lambda: 32 * GIB)
    monkeypatch.setattr(settings, "free_bytes", lambda: free)
    assert resolve(None).memory_limit_bytes == limit


def test_what_the_user_set_is_taken():
    options = Options(memory_limit_bytes=5, pinned_bytes=MIB, nfs_threads=3, python_threads=5)
    chosen = resolve(options)
    assert (chosen.memory_limit_bytes, chosen.pinned_bytes) == (5, MIB)
    assert (choose_nfs_threads(chosen, 1 << 40), choose_python_threads(chosen, 1 << 40)) == (3, 5)


def test_an_error_in_the_environment_names_the_variable_and_an_empty_one_is_unset(monkeypatch):
    monkeypatch.setenv("STREAMER_MAX_BYTES_PER_SECOND", "")
    assert resolve(None).max_bytes_per_second == 0
    monkeypatch.setenv("STREAMER_MAX_BYTES_PER_SECOND", "0")
    with pytest.raises(OptionError, match=r"^STREAMER_MAX_BYTES_PER_SECOND must be between 65536"):
        resolve(None)


@pytest.mark.parametrize(
    ("wanted_bytes", "nfs", "python"), [(1, 4, 8), (3 * GIB, 6, 8), (6 * GIB, 12, 12), (100 * GIB, 16, 16)]
)
def test_threads_follow_the_load(wanted_bytes, nfs, python):
    chosen = resolve(None)
    assert choose_nfs_threads(chosen, wanted_bytes) == nfs
    assert choose_python_threads(chosen, wanted_bytes) == python
