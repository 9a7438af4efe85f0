"""Reads the headers of all shards, with one ranged read for each small header.

Headers are parsed as they arrive, while others are still being transferred: a thousand small ones take 20 ms to parse.
If several headers are malformed, the error is that of the first such shard, in whatever order they were parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamer.core.collector import collector_paused
from streamer.core.engine.byte_reads import read_ranges
from streamer.core.engine.session import SourceObject
from streamer.core.errors import StreamerError
from streamer.core.format.header import LENGTH_BYTES, Header, header_size_bytes, parse_header
from streamer.core.options.settings import Settings

__all__ = ["HeadersRead", "read_headers"]


HEADER_SHARE = 64  # the first read is at most this fraction of a shard; headers usually take less than a thousandth
LEAST_FIRST_BYTES = 16 << 10  # the entries of 120 tensors


class HeadersRead(NamedTuple):
    """The result of `read_headers`, by shard.

    Attributes:
        headers: The headers.
        beginnings: The bytes that were read, from byte 0 on: the header, and possibly bytes behind it.
        shards: The shards, with the version that was read.
    """

    headers: list[Header]
    beginnings: list[memoryview]
    shards: list[SourceObject]


def read_headers(shards: Sequence[SourceObject], settings: Settings) -> HeadersRead:
    """Read and check the headers of all shards. Duplicate tensor names are not checked here."""
    parser = _Parser(shards, settings)
    first = [(i, 0, _first_bytes(each.size_bytes, settings)) for i, each in enumerate(shards)]
    beginnings, pinned = read_ranges(
        shards, first, settings, what="headers", on_read=parser.parse, needed_bytes=_header_bytes
    )
    parser.check()
    longer = parser.unfinished()
    if longer:
        ends = [(n, len(beginnings[i]), parser.sizes[i]) for n, i in enumerate(longer)]
        rest, pinned_again = read_ranges([pinned[i] for i in longer], ends, settings, what="ends of headers")
        for i, tail, again in zip(longer, rest, pinned_again, strict=True):
            beginnings[i] = memoryview(b"".join((beginnings[i], tail)))
            pinned[i] = again
        parser.parse(longer, beginnings)
        parser.check()
    return HeadersRead([parser.headers[i] for i in range(len(shards))], beginnings, pinned)


def _header_bytes(beginning: memoryview) -> int:
    """Return the size of a header, as its length field says."""
    return LENGTH_BYTES + int.from_bytes(beginning[:LENGTH_BYTES], "little")


def _first_bytes(size_bytes: int, settings: Settings) -> int:
    """Return how many bytes to read first; 256 KiB of each 1 MB shard would read a quarter of the checkpoint."""
    most = max(size_bytes // HEADER_SHARE, LEAST_FIRST_BYTES)
    return min(size_bytes, settings.header_bytes, most)


class _Parser:
    """Parses the headers of shards.

    Attributes:
        headers: Shard number to header, for those that were parsed.
        sizes: Shard number to the size of its header in bytes, length field included.
    """

    def __init__(self, shards: Sequence[SourceObject], settings: Settings) -> None:
        self.headers: dict[int, Header] = {}
        self.sizes: dict[int, int] = {}
        self._errors: dict[int, StreamerError] = {}
        self._shards, self._settings = shards, settings

    def parse(self, indexes: Sequence[int], beginnings: Sequence[memoryview]) -> None:
        """Parse the headers of some shards; those of which only a part was read are left out."""
        deadline = self._settings.deadline
        with collector_paused():
            for index in indexes:
                try:
                    self._parse(index, beginnings[index])
                except StreamerError as error:  # `check` raises it, because an earlier shard may still fail
                    self._errors[index] = error
                if deadline.is_over:
                    progress = f"{len(self.headers)} of {len(self._shards)} headers were read in time"
                    raise deadline.error(progress, self._shards[index].uri)

    def check(self) -> None:
        """Raise the error of the first shard that has one."""
        if self._errors:
            raise self._errors[min(self._errors)]

    def unfinished(self) -> list[int]:
        """Return the shards whose header was read only in part; call `check` first."""
        return sorted(self.sizes.keys() - self.headers.keys())

    def _parse(self, index: int, data: memoryview) -> None:
        shard, max_rank = self._shards[index], self._settings.max_rank
        size = self.sizes[index] = header_size_bytes(bytes(data[:LENGTH_BYTES]), shard.size_bytes, uri=shard.uri)
        if size <= len(data):
            self.headers[index] = parse_header(data, shard.size_bytes, uri=shard.uri, max_rank=max_rank)
