"""How fast a load reads: with one connection, with as many as a load takes, and what bounds it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from streamer._doctor.findings import Finding, State
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import Item, plan_reads
from streamer.core.engine.session import ReadSession
from streamer.core.engine.tuning import cached_fractions
from streamer.core.options import machine
from streamer.core.options.options import KIB, MIB, Options
from streamer.core.options.settings import Settings, resolve
from streamer.core.quoting import size_text
from streamer.core.store.sources import FileSource

PIECE_BYTES = 8 * MIB
LEAST_BYTES = 16 * MIB  # less says nothing about a speed, if it is read within a second
LEAST_S = 1.0
LONGEST_S = 10.0  # without a byte
MOST_BYTES = 64 << 30
SLOW_GB_S = 0.1
BUSY = 0.85  # of all processors
ONE = {"http_reactors": 1, "http_in_flight": 1, "file_threads": 1, "nfs_threads": 1, "python_threads": 1}
SMALLER: tuple[dict[str, Any], ...] = ({}, {"block_bytes": 64 * KIB}, {"block_bytes": 64 * KIB, **ONE})


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


class _EnoughError(Exception):
    """The time of a measurement is over."""


def measured(
    objects: Sequence[SourceObject], settings: Settings, seconds: float, longest_s: float = LONGEST_S
) -> Speed:
    """Read objects from their beginnings as a load does, and stop after some seconds, or without a byte, the longest.

    Bytes of pieces that are not complete count, too: of a slow server, none may be.
    """
    items, total = [], 0
    for number, each in enumerate(objects):
        for begin in range(0, min(each.size_bytes, MOST_BYTES - total), PIECE_BYTES):
            items.append(Item(number, begin, min(begin + PIECE_BYTES, each.size_bytes)))
        total += each.size_bytes
    landed = 0

    def look(count: Callable[[], int]) -> None:
        nonlocal landed
        landed = count()
        if time.perf_counter() - began >= (seconds if landed else max(seconds, longest_s)):
            raise _EnoughError

    cpu, began = time.process_time(), time.perf_counter()
    session = ReadSession(objects, plan_reads(items, 0), settings, items="pieces", on_progress=look)
    with closing(session), suppress(_EnoughError):
        while done := session.next_items():
            session.take_all(done)  # and free them
            look(session.landed_bytes)
    return Speed(landed, time.perf_counter() - began, time.process_time() - cpu)


def speed_of_load(
    objects: Sequence[SourceObject], how: dict[str, Any], seconds: float, longest_s: float = LONGEST_S
) -> tuple[Speed, bool]:
    """Measure a load; if no block is complete in time, measure smaller ones, and return True beside."""
    speed = Speed(0, 0.0, 0.0)
    for smaller in SMALLER:
        speed = measured(objects, resolve(Options(cache_dir="", **{**how, **smaller})), seconds, longest_s)
        if speed.bytes or not any(each.size_bytes for each in objects):
            return speed, bool(smaller)
    return speed, True


def memory_speed() -> float:
    """Return the GB/s at which one thread fills fresh memory."""
    source = bytes(64 * MIB)
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        bytearray(source)
        best = max(best, len(source) / (time.perf_counter() - began) / 1e9)
    return best


def speeds(
    objects: Sequence[SourceObject], seconds: float, longest_s: float, *, has_network: bool
) -> tuple[list[Finding], Speed | None]:
    """Measure one connection and many; return the lines, the last of which says what bounds the speed."""
    total, began = sum(each.size_bytes for each in objects), time.perf_counter()
    many, is_stuck = speed_of_load(objects, {}, seconds, longest_s)
    if not many.bytes and total:
        found = f"a load's reads got no byte in {time.perf_counter() - began:.0f} s"
        advice = "Ask who runs the storage: it answers small requests, and does not send files, or limits requests"
        return [Finding("speed", "broken", found, advice=advice)], None
    if total < LEAST_BYTES and time.perf_counter() - began < LEAST_S:
        return [Finding("speed", "unknown", f"{size_text(total)} are too few to measure it")], None
    findings, advice = [], "The disk or what shares it limits it"
    text = f"{many.gb_s:.3g} GB/s, {many.cpu_s_per_gb:.2f} CPU-s/GB"
    state: State = "slow" if many.gb_s < SLOW_GB_S or is_stuck else "ok"
    if is_stuck:
        text, advice = (
            f"no block was complete in time; of smaller ones, {text}",
            "The storage or the line is slow",
        )
    elif has_network:
        one, _ = speed_of_load(objects, ONE, seconds, longest_s)
        findings.append(Finding("one connection", "ok", f"{one.gb_s:.3g} GB/s"))
        advice = "The storage or the line limits it" if many.gb_s < 1.5 * one.gb_s else "Each connection is slow"
    why = f"15 GB take {15 / max(many.gb_s, 1e-9):.0f} s"
    advice = f"{advice}: compare with --bench, and ask who runs it"
    return [*findings, Finding("speed", state, text, why, advice)], many


def bound(speed: Speed, objects: Sequence[SourceObject]) -> dict[str, str | float]:
    """Say what bounds a speed, and what this machine's memory would take."""
    limit = memory_speed() * machine.processors()
    is_busy = speed.cpu_s / max(speed.seconds, 1e-9) > BUSY * machine.processors()
    is_local = all(isinstance(each.source, FileSource) and not each.source.is_remote for each in objects)
    by = ("memory" if is_in_page_cache(objects) else "the disk") if is_local else "the storage or the network to it"
    if by == "memory" and speed.gb_s < limit / 2 and os.getloadavg()[0] > (os.cpu_count() or 1):
        by = "other programs, which keep the processors busy"
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
