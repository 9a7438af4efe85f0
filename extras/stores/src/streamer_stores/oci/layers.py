"""The files in tar layers: places in the layer if it is plain, and files on this disk if it is compressed.

Guarantees: of a plain layer, only the headers are read here, by ranges. A compressed layer is read once, in order; its
digest is compared before any of its files is used. Files of an archive are written under numbers, never under names
of the archive. A name that leads out of the artifact is refused, and so is an archive with a damaged header.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zstandard import ZstdDecompressor, ZstdError

from streamer.plugins import (
    ChecksumError,
    HttpSource,
    Limits,
    PythonSource,
    StorageError,
    StreamerError,
    TruncatedError,
    send_request,
)
from streamer_stores.oci.files import File, Folder, HardLink, Link, Member, Removed
from streamer_stores.oci.manifests import Layer, inner_path

if TYPE_CHECKING:
    from typing_extensions import Self

PIECE_BYTES = 8 << 20  # of one request for a compressed layer
HEADERS_BYTES = 64 << 10  # read at once for headers: those of many small files
_OPAQUE, _OF_TOOLS, _REMOVED = ".wh..wh..opq", ".wh..wh.", ".wh."  # marks of image layers


@dataclass(frozen=True)
class Entry:
    """One file of an artifact."""

    layer: Layer
    size_bytes: int
    offset_bytes: int = 0  # in the blob of the layer
    file: str | None = None  # on this disk, if the layer was unpacked
    sha256: str | None = None  # of the file's bytes, if it is known

    @property
    def version(self) -> str:
        """What names its bytes: they are those of a blob, or of a place in it."""
        return f"{self.layer.blob.digest}+{self.offset_bytes}" if self.layer.is_tar else self.layer.blob.digest


class BlobBytes(io.RawIOBase):
    """The bytes of a blob as a file that can be read anywhere, with a request for each read."""

    def __init__(self, source: HttpSource | PythonSource, size_bytes: int, uri: str, limits: Limits) -> None:
        super().__init__()
        self._source, self._size_bytes, self._uri, self._limits = source, size_bytes, uri, limits
        self._place = 0

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def tell(self) -> int:  # noqa: D102
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: D102
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size_bytes}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:  # noqa: D102
        view = memoryview(buffer).cast("B")
        count = min(view.nbytes, max(0, self._size_bytes - self._place), PIECE_BYTES)
        if count:
            self._read(view[:count])
        self._place += count
        return count

    def _read(self, view: memoryview) -> None:
        if isinstance(self._source, PythonSource):
            self._source.read_into(view, self._place)
            return
        for is_last in (False, True):
            headers = {**self._source.headers, "Range": f"bytes={self._place}-{self._place + view.nbytes - 1}"}
            answer = send_request(replace(self._source, headers=headers), self._uri, limits=self._limits)
            if answer.status not in (401, 403) or is_last or self._source.refresh is None:
                break
            self._source = self._source.refresh()
        if answer.status != 206:
            raise answer.error(self._uri)
        if len(answer.body) != view.nbytes:
            what = f"The server sent {len(answer.body)} of {view.nbytes} bytes"
            raise TruncatedError(what, uri=self._uri, byte_range=(self._place, self._place + view.nbytes))
        view[:] = answer.body


def placed_files(layer: Layer, blob: BlobBytes, uri: str) -> list[Member[Entry]]:
    """Return what a plain tar layer holds, whose files stay where they are."""
    found: list[Member[Entry]] = []
    with _reading(uri), _archive(io.BufferedReader(blob, HEADERS_BYTES), "r:") as archive:
        for member in archive:
            path = inner_path(f"{layer.path}/{member.name}", uri)
            if member.issparse():
                what = f"{path} is a sparse file of a tar layer"
                raise StorageError(what, uri=uri, hint="Give storage_options={'unpack': True}, or push it without tar")
            found += _members(member, path, Entry(layer, member.size, member.offset_data))
    return found


def unpacked_files(layer: Layer, blob: BlobBytes, folder: Path, uri: str) -> list[Member[Entry]]:
    """Unpack a layer into an empty folder, and return what it holds; raises if its digest differs."""
    algorithm, _, expected = layer.blob.digest.partition(":")
    hashed = _Hashed(blob, algorithm)
    found: list[Member[Entry]] = []
    with _reading(uri), _archive(_decompressed(hashed, layer.compression), "r|") as archive:
        for member in archive:
            path = inner_path(f"{layer.path}/{member.name}", uri)
            entry = Entry(layer, member.size, member.offset_data)
            if member.isreg():
                entry = _unpacked(entry, archive.extractfile(member), folder / str(len(found)))
            found += _members(member, path, entry)
    while hashed.read(PIECE_BYTES):
        pass
    if hashed.hexdigest() != expected:
        what = f"The layer has another digest than {layer.blob.digest}: {algorithm}:{hashed.hexdigest()}"
        raise ChecksumError(what, uri=uri, hint="Load again; if it stays, push the artifact again")
    return found


def _unpacked(entry: Entry, content: IO[bytes] | None, path: Path) -> Entry:
    assert content is not None  # it is a regular file
    digest = hashlib.sha256()
    with path.open("xb") as file:
        while piece := content.read(PIECE_BYTES):
            digest.update(piece)
            file.write(piece)
    return replace(entry, file=str(path), sha256=digest.hexdigest())


def _members(member: tarfile.TarInfo, path: str, entry: Entry) -> Iterator[Member[Entry]]:
    """Yield what a member of an archive is; nothing for devices and their like, and for marks of other tools."""
    folder, _, name = path.rpartition("/")
    base = entry.layer.path
    if name == _OPAQUE:
        yield Removed(folder)
    elif name.startswith(_REMOVED):
        if not name.startswith(_OF_TOOLS) and name != _REMOVED:
            yield Removed(f"{folder}/{name[len(_REMOVED) :]}".lstrip("/"))
    elif member.isreg():
        yield File(path, entry)
    elif member.isdir():
        yield Folder(path)
    elif member.issym():
        yield Link(path, f"/{base}{member.linkname}" if member.linkname.startswith("/") else member.linkname)
    elif member.islnk():
        yield HardLink(path, f"{base}/{member.linkname}".lstrip("/"))


class _Header(tarfile.TarInfo):
    """A header; a damaged one is an error, where tarfile would take it for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not any(buf):  # nothing, or zeros: the end
                raise
            raise tarfile.ReadError("a header is damaged") from error


def _archive(file: Any, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode=mode, tarinfo=_Header)


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ZstdError) as error:
        if isinstance(error, StreamerError):
            raise
        what = "A layer of the artifact is not the archive that its type names"
        raise StorageError(what, uri=uri, hint="Push the artifact again") from error


class _Hashed(io.RawIOBase):
    """Reads from a file in order, and hashes what was read."""

    def __init__(self, inner: BlobBytes, algorithm: str) -> None:
        super().__init__()
        self._inner, self._digest = inner, hashlib.new(algorithm)
        self.hexdigest: Callable[[], str] = self._digest.hexdigest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = self._inner.readinto(view)
        self._digest.update(view[:count])
        return count


def _decompressed(file: _Hashed, compression: str) -> Any:
    reader = io.BufferedReader(file, PIECE_BYTES)
    if compression == "zstd":
        return ZstdDecompressor().stream_reader(reader, read_across_frames=True, closefd=False)
    return gzip.GzipFile(fileobj=reader) if compression == "gzip" else reader
