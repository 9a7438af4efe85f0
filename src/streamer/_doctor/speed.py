"""How fast a load reads: with one connection, with as many as a load takes, and what bounds it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from streamer._doctor.findings import Finding, State
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.engine.tuning import cached_fractions
from streamer.core.options import machine
from streamer.core.options.options import MIB, Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import size_text
from streamer.core.store.sources import FileSource

PIECE_BYTES = 8 * MIB
LEAST_BYTES = 16 * MIB  # less says nothing about a speed
MOST_BYTES = 64 << 30
SLOW_GB_S = 0.1
BUSY = 0.85  # of all processors
ONE = {"http_reactors": 1, "http_in_flight": 1, "file_threads": 1, "nfs_threads": 1, "python_threads": 1}


class Speed(NamedTuple):
    """One measurement."""

    bytes: int
    seconds: float
    cpu_s: float  # processor time of this process, all threads

    @property
    def gb_s(self) -> float:
        """Gigabytes in a second."""
        return self.bytes / max(self.seconds, 1e-9) / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """Seconds of a processor for a gigabyte."""
        return self.cpu_s / max(self.bytes / 1e9, 1e-9)


def measured(objects: Sequence[SourceObject], settings: Settings, seconds: float) -> Speed:
    """Read objects from their beginnings as a load does, and stop after some seconds."""
    items, total = [], 0
    for number, each in enumerate(objects):
        for begin in range(0, min(each.size_bytes, MOST_BYTES - total), PIECE_BYTES):
            items.append(Item(number, begin, min(begin + PIECE_BYTES, each.size_bytes)))
        total += each.size_bytes
    cpu, began = time.process_time(), time.perf_counter()
    with closing(ReadSession(objects, plan_reads(items, 0), settings, items="pieces")) as session:
        while (done := session.next_items()) and time.perf_counter() - began < seconds:
            session.take_all(done)  # and free them
        landed, took = session.landed_bytes(), time.perf_counter() - began
        return Speed(landed, took, time.process_time() - cpu)


def memory_speed() -> float:
    """Return the GB/s at which one thread fills fresh memory."""
    source = bytes(64 * MIB)
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        bytearray(source)
        best = max(best, len(source) / (time.perf_counter() - began) / 1e9)
    return best


def speeds(objects: Sequence[SourceObject], seconds: float, *, has_network: bool) -> tuple[list[Finding], Speed | None]:
    """Measure one connection and many; return the lines, the last of which says what bounds the speed."""
    total = sum(each.size_bytes for each in objects)
    if total < LEAST_BYTES:
        return [Finding("speed", "unknown", f"{size_text(total)} are too few to measure it")], None
    many = measured(objects, resolve(Options(cache_dir="")), seconds)
    findings, advice = [], "The disk or what shares it limits it"
    if has_network:
        one = measured(objects, resolve(Options(cache_dir="", **ONE)), seconds)  # type: ignore[arg-type]  # whole numbers
        findings.append(Finding("one connection", "ok", f"{one.gb_s:.3g} GB/s"))
        advice = "The storage or the line limits it" if many.gb_s < 1.5 * one.gb_s else "Each connection is slow"
    why = f"15 GB take {15 / max(many.gb_s, 1e-9):.0f} s"
    state: State = "ok" if many.gb_s >= SLOW_GB_S else "slow"
    text = f"{many.gb_s:.3g} GB/s, {many.cpu_s_per_gb:.2f} CPU-s/GB"
    advice = f"{advice}: compare with --bench, and ask who runs it"
    return [*findings, Finding("speed", state, text, why, advice)], many


def bound(speed: Speed, objects: Sequence[SourceObject]) -> dict[str, str | float]:
    """Say what bounds a speed, and what this machine's memory would take."""
    limit = memory_speed() * machine.processors()
    is_busy = speed.cpu_s / max(speed.seconds, 1e-9) > BUSY * machine.processors()
    is_local = all(isinstance(each.source, FileSource) and not each.source.is_remote for each in objects)
    by = ("memory" if is_in_page_cache(objects) else "the disk") if is_local else "the storage or the network to it"
    by = "this machine's processors" if is_busy else by
    return {"by": by, "achieved_gb_s": round(speed.gb_s, 3), "limit_gb_s": round(max(limit, speed.gb_s), 3)}


def is_in_page_cache(objects: Sequence[SourceObject]) -> bool:
    """Say whether files are in memory already, for the most part."""
    files = {each.source.path: each.size_bytes for each in objects if isinstance(each.source, FileSource)}
    return bool(files) and min(cached_fractions(files).values()) > BUSY


def drop_from_page_cache(paths: Sequence[str]) -> None:
    """Ask the kernel to forget files; it keeps what others have mapped."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
