"""One version of one object: every read returns bytes of this version, or raises.

The object stays readable in a forked child, and can be pinned again in another process. That process looks the object
up again, and requires the same version.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from streamer.core.engine.byte_reads import ByteStream, read_bytes, read_into
from streamer.core.engine.session import SourceObject
from streamer.core.errors import ChangedError
from streamer.core.options.settings import Settings
from streamer.core.outages.counters import EarlierCounters
from streamer.core.store.sources import HttpSource, ObjectInfo
from streamer.core.store.versions import is_same_version

__all__ = ["LookUp", "Opened", "PinnedObject"]


@dataclass(frozen=True)
class Opened:
    """An object as its storage describes it, and how the engine reads it."""

    info: ObjectInfo
    source_object: SourceObject


LookUp = Callable[[str], Opened]  # takes a path


class PinnedObject:
    """Reads one object.

    Attributes:
        uri: The URI of the object, without secrets.
        settings: How to read.
        size_bytes: Its size.
        version: Its version as the storage reports it, or None.
    """

    def __init__(
        self, look_up: LookUp, path: str, settings: Settings, expected: tuple[str | None, int] | None = None
    ) -> None:
        self._look_up, self._path, self.settings = look_up, path, settings
        opened = look_up(path)
        self.uri, self.version, self.size_bytes = opened.info.uri, opened.info.version, opened.source_object.size_bytes
        if expected is not None and not self._is(*expected):
            raise self._changed(*expected, self.version)
        self._object, self._process = opened.source_object, os.getpid()
        self._is_confirmed = isinstance(opened.source_object.source, HttpSource)

    def read(self, begin: int, end: int) -> bytes:
        """Read a range of the object."""
        (content,), (pinned,) = read_bytes([self.source_object()], [(0, begin, end)], self.fresh_settings())
        self.pin(pinned)
        return content

    def read_into(self, begin: int, buffer: memoryview) -> None:
        """Fill a buffer from an offset; raises as `read`."""
        self.pin(read_into(self.source_object(), begin, buffer, self.fresh_settings()))

    def stream(self, begin: int, *, in_order: bool = True) -> ByteStream:
        """Return a stream from an offset to the end; raises as `read`."""
        return ByteStream(self.source_object(), begin, self.fresh_settings(), in_order=in_order)

    def source_object(self) -> SourceObject:
        """Return the object for a read."""
        if self._process != os.getpid():  # a child cannot use the parent's connections and event loops
            self._object, self._process = self._looked_up_again(), os.getpid()
        return self._object

    def pin(self, pinned: SourceObject) -> None:
        """Keep the version of a read, which later reads must have, too."""
        if not self._is_confirmed:
            # Servers compare the version in each request. Other sources compare versions only from their first read on,
            # so another look-up checks that the first read had the looked-up version.
            self._looked_up_again()
            self._is_confirmed = True
        self._object = pinned

    def fresh_settings(self) -> Settings:
        """Return settings in which a read has the whole deadline."""
        return replace(self.settings, began=None, earlier=EarlierCounters())

    def _looked_up_again(self) -> SourceObject:
        opened = self._look_up(self._path)
        if not self._is(opened.info.version, opened.source_object.size_bytes):
            raise self._changed(self.version, self.size_bytes, opened.info.version)
        return opened.source_object

    def _is(self, version: str | None, size_bytes: int) -> bool:
        return is_same_version(self.version, version) and self.size_bytes == size_bytes

    def _changed(self, was: str | None, size_bytes: int, now: str | None) -> ChangedError:
        return ChangedError(
            f"the object was replaced while it was open: version {was} became {now}",
            uri=self.uri,
            object_size=size_bytes,
            hint="Open it again",
        )
