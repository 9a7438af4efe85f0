"""Chooses how many requests a server gets at the same time: the event loops, and the requests in flight in each loop.

A load over a network is limited by the network, by the speed of one connection, or by the speed at which one processor
decrypts and copies. If the network is the limit, a few requests are enough. The engine's loops detect the first two
limits while they read (decision 0004); this module sets the upper limits of the loops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamer.core.options.machine import processors
from streamer.core.options.settings import Settings

__all__ = ["HttpReading", "choose_http_reading"]

FEW_REACTORS = 4  # each loop opens its own connections: a small load ends before more loops pay off
# One loop decrypts about 1.2 GB/s of TLS, or receives 2-4 GB/s without TLS. So 64 loops are more than 400 Gbit/s need.
MOST_REACTORS = 64
BYTES_PER_REACTOR = 512 << 20  # about half a second of work for one loop
# At S3's 90 MB/s per connection, 64 requests bring twice as much as a thread can receive; at 20 MB/s, from another
# continent, half as much. A loop reaches this limit only while it waits, and only if more requests bring more bytes.
MOST_IN_FLIGHT = 64
# For all loops of all loads of a machine: at 50 MB/s each, they bring 50 GB/s (400 Gbit/s).
MOST_REQUESTS = 1024


@dataclass(frozen=True)
class HttpReading:
    """The result of `choose_http_reading`.

    Attributes:
        reactors: Number of event loops, each with its own thread.
        in_flight: Maximum number of ranged GETs in flight in each event loop.
    """

    reactors: int
    in_flight: int


def choose_http_reading(settings: Settings, wanted_bytes: int, blocks: int, *, sharers: int = 1) -> HttpReading:
    """Choose for a load of `wanted_bytes` in about `blocks` blocks.

    Options of the user win, but there are never more reactors than blocks. Each of the `sharers` loads on this machine
    gets an equal part of the processors and of the requests.

    Example:
        >>> from streamer.core.options.options import Options
        >>> from streamer.core.options.settings import resolve
        >>> choose_http_reading(resolve(Options(http_reactors=16)), 10**12, 10**6)
        HttpReading(reactors=16, in_flight=64)
    """
    worthwhile = max(FEW_REACTORS, wanted_bytes // BYTES_PER_REACTOR)
    own_processors = math.ceil(processors() / sharers)
    reactors = min(blocks, settings.http_reactors or min(MOST_REACTORS, own_processors, worthwhile))
    most = max(1, min(MOST_IN_FLIGHT, MOST_REQUESTS // sharers // reactors))
    return HttpReading(reactors, min(blocks, settings.http_in_flight or most))
