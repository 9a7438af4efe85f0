"""How much pinned memory a load uses for each device."""

from __future__ import annotations

import pytest

from streamer import Options
from streamer.core.engine import tuning
from streamer.core.engine.tuning import choose_pinned_bytes
from streamer.core.options.settings import resolve

MIB, GIB = 1 << 20, 1 << 30


def ring_mib(*, options=None, files=True, threads=12, devices=1, sharers=1):
    chosen = choose_pinned_bytes(
        resolve(options), reads_only_files=files, file_threads=threads, devices=devices, sharers=sharers
    )
    return chosen // MIB


def test_files_need_a_small_ring_whatever_the_memory(monkeypatch):
    monkeypatch.setattr(tuning, "memory_bytes", lambda: 2048 * GIB)
    assert ring_mib() == 256


@pytest.mark.parametrize(
    ("devices", "sharers", "threads", "expected"), [(2, 1, 12, 128), (1, 2, 6, 128), (1, 8, 2, 64)]
)
def test_devices_and_neighbours_share_it(devices, sharers, threads, expected):
    assert ring_mib(devices=devices, sharers=sharers, threads=threads) == expected


def test_a_ring_has_a_slot_for_each_reader_and_some_more():
    assert ring_mib(threads=64) == (64 + 4) * 8


@pytest.mark.parametrize(("memory_gib", "expected"), [(8, 256), (64, 1024), (2048, 2048)])
def test_requests_over_a_network_need_a_large_one(memory_gib, expected, monkeypatch):
    monkeypatch.setattr(tuning, "memory_bytes", lambda: memory_gib * GIB)
    assert ring_mib(files=False) == expected
    assert ring_mib(files=False, sharers=8) == 256


def test_what_the_user_set_counts():
    assert ring_mib(options=Options(pinned_bytes=5 * MIB), sharers=8) == 5
