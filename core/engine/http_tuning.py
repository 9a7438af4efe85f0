"""How many requests a server gets at a time: event loops, and requests in flight in each.

A load over a network is limited by the network, and then few are enough, by the speed of one connection, or by what one
processor decrypts and copies. The engine's loops detect the first two while they read (decision 0004); these are their
upper limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamer.core.options.machine import processors
from streamer.core.options.settings import Settings

__all__ = ["HttpReading", "choose_http_reading"]

FEW_REACTORS = 4  # each opens its own connections at once: a small load is over before more of them pay
# One decrypts some 1.2 GB/s of TLS and empties 2-4 GB/s without: these fill 400 Gbit/s with a rest.
MOST_REACTORS = 64
BYTES_PER_REACTOR = 512 << 20  # about half a second of its work
# At S3's 90 MB/s a connection, twice what a thread can receive; at 20 MB/s, from another continent, half. Reached only
# while it waits, and its requests bring more.
MOST_IN_FLIGHT = 64
# Of all loops of all loads of a machine: 50 GB/s, 400 Gbit/s, at 50 MB/s each.
MOST_REQUESTS = 1024


@dataclass(frozen=True)
class HttpReading:
    """What `choose_http_reading` chose.

    Attributes:
        reactors: Event loops, a thread each.
        in_flight: Most ranged GETs in flight in each.
    """

    reactors: int
    in_flight: int


def choose_http_reading(settings: Settings, wanted_bytes: int, blocks: int, *, sharers: int = 1) -> HttpReading:
    """Choose for a load of so many bytes in about so many blocks; options that the user set count, up to one per block.

    Each of `sharers` loads on this machine takes its part of the processors and of the requests.

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
