"""Ranks of a node read a mounted file ahead together: each asks the kernel for its own stripes, in plan order.

The page cache belongs to all ranks, so what one of them has asked for is there for the others. Without this, all ranks
wait for the same few reads at the front: each has only its part of the threads, and all of these want the same blocks.
Guarantees: no load waits for an advice, and an advice that fails changes nothing. What is asked for ahead of this
rank's own progress is bounded. Only files whose file system reads through a network are advised.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence

from streamer.core.conditions import Event
from streamer.core.engine.native_session import SourceObject
from streamer.core.engine.plan import ReadPlan
from streamer.core.engine.session import ReadSession
from streamer.core.options.machine import local_rank, local_ranks
from streamer.core.options.settings import Settings
from streamer.core.store.sources import FileSource

LEAST_BYTES = 64 << 20  # of mounted files in a load; less is read before the advice would matter
STRIPE_BYTES = 4 << 20
# The kernel reads no more for one advice than the mount reads ahead, which is 128 KiB unless an administrator set it.
ADVICE_BYTES = 128 << 10
MOST_AHEAD_BYTES = 256 << 20  # of all ranks together: what a thousand requests of that size have in flight
PAUSE_S = 0.005  # between two looks at the progress; 256 MiB take longer at any rate that a network has

Range = tuple[str, int, int]


def stripes_ahead(objects: Sequence[SourceObject], plan: ReadPlan, settings: Settings) -> StripesAhead | None:
    """Return the read-ahead of one rank; None if other ranks do not read the same files through the page cache."""
    rank, ranks = local_rank(), local_ranks()
    if settings.share == "off" or settings.direct_io or rank is None or not rank < ranks:
        return None
    paths = {
        number: each.source.path
        for number, each in enumerate(objects)
        # If `inside` is set, the file must lie in that folder; only the engine checks this, so nothing else opens it.
        if isinstance(each.source, FileSource) and each.source.needs_cache and each.source.inside is None
    }
    ranges = [(paths[number], begin, end) for number, begin, end in plan.span_ranges() if number in paths]
    if sum(end - begin for _, begin, end in ranges) < LEAST_BYTES:
        return None
    most_bytes = min(MOST_AHEAD_BYTES, max(ranks * STRIPE_BYTES, settings.node_limit_bytes // 4))
    return StripesAhead(ranges, rank, ranks, most_bytes)


class StripesAhead:
    """Advises the stripes of one rank, on a thread of its own."""

    def __init__(self, ranges: Sequence[Range], rank: int, ranks: int, most_bytes: int) -> None:
        self._ranges, self._rank, self._ranks, self._most_bytes = ranges, rank, ranks, most_bytes
        self._is_over = Event()

    def begin(self, session: ReadSession) -> None:
        """Follow a session until `close`; without a thread for it, nothing is advised."""
        thread = threading.Thread(target=self._run, args=(weakref.ref(session),), name="streamer-ahead", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.close()

    def close(self) -> None:
        """Advise nothing more. The thread ends after its current advice, which may wait for a server."""
        self._is_over.set()

    def _run(self, session: weakref.ref[ReadSession]) -> None:
        descriptors: dict[str, int] = {}
        try:
            for offset, (path, begin, end) in self._stripes():
                if not self._wait_until_near(offset, session):
                    return
                if path not in descriptors:
                    descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                for at in range(begin, end, ADVICE_BYTES):
                    if self._is_over.is_set():
                        return
                    size_bytes = min(ADVICE_BYTES, end - at)
                    os.posix_fadvise(descriptors[path], at, size_bytes, os.POSIX_FADV_WILLNEED)
        except OSError:
            pass  # the readers say what is wrong with the file
        finally:
            for each in descriptors.values():
                os.close(each)

    def _stripes(self) -> Iterator[tuple[int, Range]]:
        """Yield the ranges of this rank, each with the bytes of the plan before it."""
        before = 0
        for path, begin, end in self._ranges:
            at = begin
            while at < end:
                offset = before + at - begin
                stripe, inside = divmod(offset, STRIPE_BYTES)
                stop = min(end, at + STRIPE_BYTES - inside)
                if stripe % self._ranks == self._rank:
                    yield offset, (path, at, stop)
                at = stop
            before += end - begin

    def _wait_until_near(self, offset: int, session: weakref.ref[ReadSession]) -> bool:
        """Wait until this rank has read almost up to an offset of its plan; False if the session is over."""
        while not self._is_over.is_set():
            followed = session()
            if followed is None:
                return False
            if offset - followed.landed_bytes() < self._most_bytes:
                return True
            del followed  # or garbage collection could not close it
            self._is_over.wait(PAUSE_S)
        return False
