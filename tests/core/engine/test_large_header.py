"""A header of very many tensors costs memory and time in proportion, and neither is much.

`benchmarks/bench_header.py` measures a million; a tenth of that shows the same here, soon enough for every run.
"""

from __future__ import annotations

import time
import tracemalloc
from struct import pack

import pytest

from streamer.core.format.header import parse_header

TENSORS = 100_000
MEMORY_FACTOR = 10  # times the header
CPU_S = 2.0  # for a tenth of a million: ten times the promise, for a machine that does other things too


@pytest.fixture(scope="module")
def header():
    members = ",".join(
        f'"layers.{index // 100}.weight_{index % 100}":'
        f'{{"dtype":"BF16","shape":[2,4],"data_offsets":[{16 * index},{16 * index + 16}]}}'
        for index in range(TENSORS)
    )
    text = f"{{{members}}}".encode()
    return pack("<Q", len(text)) + text


def test_memory_is_in_proportion_to_the_header(header):
    tracemalloc.start()
    try:
        parsed = parse_header(header, len(header) + 16 * TENSORS, uri="x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(parsed.entries) == TENSORS
    assert peak <= MEMORY_FACTOR * len(header)


def test_time_is_in_proportion_to_the_header(header):
    started = time.process_time()
    parse_header(header, len(header) + 16 * TENSORS, uri="x")
    assert time.process_time() - started < CPU_S
