"""Files that the engine reads, and the one version of an object that they read.

Every read of a `PinnedObject` returns bytes of one version, or raises. It stays readable in a forked child, and can be
pinned again in another process, which looks the object up again and requires the same version.

A file is a buffer of the standard library over ranges, or over one stream. A read after a jump fetches the requested
bytes, or a little more so that the request is worth its cost. Sequential reads fetch more and more, and then use a
`ByteStream` to the end. Large reads go directly into the caller's memory. Thread-safe, as every `io.BufferedReader`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

from fsspec.spec import AbstractBufferedFile

from streamer.core.engine.byte_reads import ByteStream, read_bytes, read_into
from streamer.core.engine.native_session import SourceObject
from streamer.core.errors import ChangedError
from streamer.core.format.positioned_file import PositionedFile
from streamer.core.options.settings import Settings
from streamer.core.outages.counters import EarlierCounters
from streamer.core.store.sources import HttpSource, ObjectInfo
from streamer.core.store.versions import is_same_version

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from streamer.integrations.fsspec.file_system import StreamerFileSystem


@dataclass(frozen=True)
class Opened:
    """An object as its storage describes it, and how the engine reads it."""

    info: ObjectInfo
    source_object: SourceObject


LookUp = Callable[[str], Opened]  # takes a path


class PinnedObject:
    """Reads one object, of which it knows URI, size and version."""

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


BUFFER_BYTES = 128 << 10  # collects small reads (lines, records) into reads of ranges
DIRECT_BYTES = 32 << 20  # a read of this size is worth its own connections, and saves a copy
STREAM_AFTER_BYTES = 8 << 20  # after this many bytes in order, the caller will probably go on
GROWTH = 4  # the growth of the read-ahead: three reads, with three connections, until a stream starts
SKIPPED_BYTES = 8 << 20  # reading over a jump of this size costs less than new connections


class _RawFile(PositionedFile):
    mode = "rb"

    def __init__(self, pinned: PinnedObject, ahead_bytes: int) -> None:
        super().__init__(pinned.size_bytes)
        self._pinned, self._ahead_bytes = pinned, ahead_bytes
        self._in_order_bytes = 0  # bytes read since the last jump
        self._expected = 0  # the position of the next read if there is no jump
        self._window, self._window_begin = memoryview(b""), 0
        self._stream: ByteStream | None = None
        self._process = 0  # the process that started the stream

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer).cast("B")
        wanted = min(target.nbytes, self._pinned.size_bytes - self._position)
        if wanted <= 0:
            return 0
        if self._position != self._expected:
            self._in_order_bytes = 0
        read = self._read_into(target[:wanted])
        self._position += read
        self._expected = self._position
        self._in_order_bytes += read
        return read

    def readall(self) -> bytes:
        begin, end = self._position, self._pinned.size_bytes
        if begin >= end:
            return b""
        self._end_stream()
        content = self._pinned.read(begin, end)
        self._position = self._expected = end
        return content

    def close(self) -> None:
        if not self.closed:
            self._end_stream()
            self._window = memoryview(b"")
        super().close()

    def _read_into(self, target: memoryview) -> int:
        if self._may_stream():
            return self._streamed(target)
        inside = self._position - self._window_begin
        if 0 <= inside < self._window.nbytes:
            count = min(target.nbytes, self._window.nbytes - inside)
            target[:count] = self._window[inside : inside + count]
            return count
        self._end_stream()
        ahead = max(target.nbytes, self._ahead_bytes, GROWTH * self._in_order_bytes)
        if self._in_order_bytes and target.nbytes < DIRECT_BYTES and ahead >= STREAM_AFTER_BYTES:
            self._window = memoryview(b"")
            self._stream, self._process = self._pinned.stream(self._position), os.getpid()
            return self._streamed(target)
        if target.nbytes >= min(ahead, DIRECT_BYTES):
            self._pinned.read_into(self._position, target)
            return target.nbytes
        end = min(self._position + ahead, self._pinned.size_bytes)
        self._window, self._window_begin = memoryview(self._pinned.read(self._position, end)), self._position
        return self._read_into(target)

    def _may_stream(self) -> bool:
        if self._stream is None or self._process != os.getpid():  # a child cannot use a stream of its parent
            return False
        return 0 <= self._position - self._stream.position <= SKIPPED_BYTES

    def _streamed(self, target: memoryview) -> int:
        assert self._stream is not None
        try:
            self._stream.skip_to(self._position)
            read = self._stream.read_into(target)
        except BaseException:
            self._end_stream()
            raise
        if self._stream.position >= self._pinned.size_bytes:
            self._end_stream()
        return read

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class RemoteFile(io.BufferedReader):
    """An object, open for reading, with the attributes of files of fsspec."""

    def __init__(self, fs: StreamerFileSystem, path: str, pinned: PinnedObject, block_size: int | None) -> None:
        self.fs, self.path = fs, path
        self.blocksize = block_size or pinned.settings.coalesce_gap_bytes
        self._block_size, self._pinned = block_size, pinned
        super().__init__(_RawFile(pinned, self.blocksize), BUFFER_BYTES)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._pinned.size_bytes

    @property
    def full_name(self) -> str:
        """The URL."""
        return str(self.fs.unstrip_protocol(self.path))

    @property
    def details(self) -> Mapping[str, Any]:
        """The description, without a request."""
        return {"name": self.path, "size": self.size, "type": "file", "version": self._pinned.version}

    def info(self) -> Mapping[str, Any]:
        """Return `details`."""
        return self.details

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._pinned.uri}>"

    def __reduce_ex__(self, _protocol: SupportsIndex) -> tuple[Any, ...]:
        # Since Python 3.13, `io.BufferedReader` overrides this method, too, and refuses to be pickled.
        pin = (self._pinned.version, self._pinned.size_bytes)
        return _reopened, (self.fs, self.path, pin, self._block_size, None if self.closed else self.tell())


def _reopened(
    fs: StreamerFileSystem, path: str, pin: tuple[str | None, int], block_size: int | None, position: int | None
) -> RemoteFile:
    file = RemoteFile(fs, path, fs.pinned(path, expected=pin), block_size)
    if position is None:
        file.close()
    else:
        file.seek(position)
    return file


class CachedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """An object behind one of fsspec's own caches; the engine performs each read of the cache."""

    def __init__(self, fs: StreamerFileSystem, path: str, pinned: PinnedObject, **how: Any) -> None:
        self._pinned, self._how = pinned, how
        super().__init__(fs, path, "rb", size=pinned.size_bytes, **how)
        self.details = {"name": path, "size": pinned.size_bytes, "type": "file", "version": pinned.version}

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._pinned.read(start, min(end, self._pinned.size_bytes)) if start < end else b""

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened_with_cache, (self.fs, self.path, (self._pinned.version, self.size), self._how, self.loc)


def _reopened_with_cache(
    fs: StreamerFileSystem, path: str, pin: tuple[str | None, int], how: dict[str, Any], position: int
) -> CachedFile:
    file = CachedFile(fs, path, fs.pinned(path, expected=pin), **how)
    file.seek(position)
    return file
