"""Measures the raw limit of a disk or server beside a load's reads, cold and warm, with more and more reads in flight.

Raw reads are plain ``preadv`` calls, or plain requests of Python's HTTP client, on as many threads, into memory that is
used again. A row is called cold only if the page cache held none of the files' pages before it.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count
from typing import NamedTuple
from urllib.parse import urlsplit

from streamer._doctor.speed import LONGEST_S, MOST_BYTES, PIECE_BYTES, Speed, drop_from_page_cache, speed_of_load
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.tuning import cached_fractions
from streamer.core.errors import StorageError
from streamer.core.options import machine
from streamer.core.options.options import KIB
from streamer.core.store.certificates import trust_in
from streamer.core.store.sources import FileSource, HttpSource

IN_FLIGHT = (1, 4, 16, 64)
LOOK_BYTES = 64 * KIB  # between two looks at the time
COLD, WARM = 0.01, 0.99  # the part of the files in the page cache


class Row(NamedTuple):
    """One measurement."""

    reader: str  # ``"raw"`` or ``"load"``
    state: str  # ``"cold"``, ``"warm"``, ``"partly cached"``, or ``"network"``
    in_flight: int
    gb_s: float
    cpu_s_per_gb: float


def bench(objects: Sequence[SourceObject], seconds: float) -> Iterator[Row]:
    """Measure raw reads and loads in turn; each for some seconds."""
    paths = {each.source.path: each.size_bytes for each in objects if isinstance(each.source, FileSource)}
    for wants_cold in (True, False) if paths else (False,):
        for in_flight in IN_FLIGHT:
            for reader in ("raw", "load"):
                state = _state(paths, wants_cold=wants_cold)
                if reader == "raw" and not all(isinstance(each.source, (FileSource, HttpSource)) for each in objects):
                    continue
                speed = raw(objects, in_flight, seconds) if reader == "raw" else _load(objects, in_flight, seconds)
                yield Row(reader, state, in_flight, round(speed.gb_s, 3), round(speed.cpu_s_per_gb, 3))


def _state(paths: dict[str, int], *, wants_cold: bool) -> str:
    """Bring files into the wanted state, and look whether they are in it."""
    if not paths:
        return "network"
    if wants_cold:
        drop_from_page_cache([*paths])
    else:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.read(PIECE_BYTES):
                    pass
    fractions = cached_fractions(paths).values()
    return "cold" if max(fractions) <= COLD else "warm" if min(fractions) >= WARM else "partly cached"


def _load(objects: Sequence[SourceObject], in_flight: int, seconds: float) -> Speed:
    reactors = min(in_flight, machine.processors())
    how = {"http_reactors": reactors, "http_in_flight": max(1, in_flight // reactors)}
    how |= {"file_threads": in_flight, "nfs_threads": in_flight, "python_threads": in_flight}
    return speed_of_load(objects, how, seconds)[0]


def raw(objects: Sequence[SourceObject], threads: int, seconds: float) -> Speed:
    """Read pieces of objects on some threads, with nothing of a load around them."""
    pieces = [
        (each, begin, min(PIECE_BYTES, each.size_bytes - begin))
        for each in objects
        for begin in range(0, min(each.size_bytes, MOST_BYTES), PIECE_BYTES)
    ]
    taken, done, failures = count(), [0] * threads, list[BaseException]()
    ends_at = time.perf_counter() + seconds

    def work(thread: int) -> None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        readers: dict[str, Callable[[int, memoryview], int]] = {}
        try:
            with ExitStack() as opened:
                while (number := next(taken)) < len(pieces):
                    each, begin, size_bytes = pieces[number]
                    read = readers.get(each.uri) or readers.setdefault(each.uri, _reader_of(each, opened, ends_at))
                    done[thread] += read(begin, buffer[:size_bytes])
                    if time.perf_counter() > ends_at:
                        return
        except BaseException as error:
            failures.append(error)

    cpu, began = time.process_time(), time.perf_counter()
    workers = [threading.Thread(target=work, args=(each,), daemon=True) for each in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, ends_at + LONGEST_S - time.perf_counter()))
    if failures:
        raise failures[0]
    return Speed(sum(done), time.perf_counter() - began, time.process_time() - cpu)


def _reader_of(each: SourceObject, opened: ExitStack, ends_at: float) -> Callable[[int, memoryview], int]:
    source = each.source
    if isinstance(source, FileSource):
        file = opened.enter_context(open(source.path, "rb", buffering=0))  # noqa: SIM115 (in the stack)
        return lambda begin, buffer: os.preadv(file.fileno(), [buffer], begin)
    assert isinstance(source, HttpSource)
    place = urlsplit(source.url)
    connection = http.client.HTTPConnection(place.netloc, timeout=LONGEST_S)
    if place.scheme == "https":
        context = trust_in(source.ca_file or "")
        connection = http.client.HTTPSConnection(place.netloc, timeout=LONGEST_S, context=context)
    opened.enter_context(closing(connection))
    path = source.url.partition(place.netloc)[2] or "/"

    def read(begin: int, buffer: memoryview) -> int:
        headers = {**source.headers, "Range": f"bytes={begin}-{begin + len(buffer) - 1}"}
        connection.request("GET", path, headers=headers)
        answer, got = connection.getresponse(), 0
        if answer.status not in (200, 206):  # the bytes of a refusal say nothing about the speed
            hint = "See what doctor says without --bench"
            raise StorageError(f"a raw read is answered with {answer.status}", uri=each.uri, hint=hint)
        while some := answer.readinto(buffer[got : got + LOOK_BYTES]):
            got += some
            if time.perf_counter() > ends_at:
                break
        if got < len(buffer):  # the time is over
            connection.close()
        answer.read()
        return got

    return read
