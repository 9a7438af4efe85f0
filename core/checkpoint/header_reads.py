"""Reads the headers of all shards, with one ranged read each where the header is small.

They are parsed as they arrive, while a network is waited for: a thousand small ones take 20 ms to parse. Where several
are malformed, the error is that of the first shard among them, whichever was parsed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamer.core.collector import collector_paused
from streamer.core.engine.session import SourceObject
from streamer.core.engine.small_reads import read_ranges
from streamer.core.errors import StreamerError
from streamer.core.format.header import LENGTH_BYTES, Header, header_size_bytes, parse_header
from streamer.core.options.settings import Settings

__all__ = ["HeadersRead", "read_headers"]


HEADER_SHARE = 64  # of a shard; usually the header is less than a thousandth of it
LEAST_FIRST_BYTES = 16 << 10  # the entries of 120 tensors


class HeadersRead(NamedTuple):
    """What `read_headers` has read of each shard.

    Attributes:
        headers: The headers.
        beginnings: The bytes that they were parsed from, from byte 0 on; others may follow them.
        shards: The shards, with the version that was read.
    """

    headers: list[Header]
    beginnings: list[memoryview]
    shards: list[SourceObject]


def read_headers(shards: Sequence[SourceObject], settings: Settings) -> HeadersRead:
    """Read and check the headers of all shards, whose tensors may have the same names.

    Raises:
        HeaderError: a header is malformed.
        TruncatedError: a shard is shorter than its header says.
        TransferTimeoutError: the load's own deadline is over.
    """
    parser = _Parser(shards, settings)
    first = [(i, 0, _first_bytes(each.size_bytes, settings)) for i, each in enumerate(shards)]
    beginnings, pinned = read_ranges(shards, first, settings, what="headers", on_read=parser.parse)
    parser.check()
    longer = parser.unfinished()
    if longer:
        ends = [(n, len(beginnings[i]), parser.sizes[i]) for n, i in enumerate(longer)]
        rest, pinned_again = read_ranges([pinned[i] for i in longer], ends, settings, what="headers")
        for i, tail, again in zip(longer, rest, pinned_again, strict=True):
            beginnings[i] = memoryview(b"".join((beginnings[i], tail)))
            pinned[i] = again
        parser.parse(longer, beginnings)
        parser.check()
    return HeadersRead([parser.headers[i] for i in range(len(shards))], beginnings, pinned)


def _first_bytes(size_bytes: int, settings: Settings) -> int:
    """Return how much of a shard to read first: of a thousand of 1 MB, 256 KiB each would be a quarter of all."""
    most = max(size_bytes // HEADER_SHARE, LEAST_FIRST_BYTES)
    return min(size_bytes, settings.header_bytes, most)


class _Parser:
    """Parses the headers of shards.

    Attributes:
        headers: By shard, those that were parsed.
        sizes: By shard, how many bytes a header ends at.
    """

    def __init__(self, shards: Sequence[SourceObject], settings: Settings) -> None:
        self.headers: dict[int, Header] = {}
        self.sizes: dict[int, int] = {}
        self._errors: dict[int, StreamerError] = {}
        self._shards, self._settings = shards, settings

    def parse(self, indexes: Sequence[int], beginnings: Sequence[memoryview]) -> None:
        """Parse the headers of some shards, of those that are there as a whole.

        Args:
            indexes: Of the shards.
            beginnings: By shard, the bytes from byte 0 on.

        Raises:
            TransferTimeoutError: the deadline is over, at which is looked after each, as the largest takes seconds.
        """
        deadline = self._settings.deadline
        with collector_paused():
            for index in indexes:
                try:
                    self._parse(index, beginnings[index])
                except StreamerError as error:  # that of an earlier shard may follow
                    self._errors[index] = error
                if deadline.is_over:
                    told = f"{len(self.headers)} of {len(self._shards)} headers were read in time"
                    raise deadline.error(told, self._shards[index].uri)

    def check(self) -> None:
        """Raise the error of the first shard that has one.

        Raises:
            HeaderError: its header is malformed.
            TruncatedError: it is shorter than its header says.
        """
        if self._errors:
            raise self._errors[min(self._errors)]

    def unfinished(self) -> list[int]:
        """List the shards whose header is longer than what was read of it, once `check` has found no error."""
        return sorted(self.sizes.keys() - self.headers.keys())

    def _parse(self, index: int, data: memoryview) -> None:
        shard, max_rank = self._shards[index], self._settings.max_rank
        size = self.sizes[index] = header_size_bytes(bytes(data[:LENGTH_BYTES]), shard.size_bytes, uri=shard.uri)
        if size <= len(data):
            self.headers[index] = parse_header(data, shard.size_bytes, uri=shard.uri, max_rank=max_rank)
