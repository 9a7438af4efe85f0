"""One file on its way: its first bytes under a name of its own, with a note of which version of which file they are.

Guarantees: it is continued only where URI, version and size are the same. After a crash of the machine, only bytes
count that were flushed to the disk before; after the death of this process alone, all that were written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamer._pull.digesting import FileDigests
from streamer._pull.record import PulledFile
from streamer.backends.posix.open_folder import OpenFolder
from streamer.core.store.digests import NoDigest, ObjectDigest
from streamer.core.store.sources import ObjectInfo

__all__ = ["Part", "name_of_part"]

SYNC_EVERY_BYTES = 256 << 20  # what a crash of the machine may cost, of each file that is being written
READ_BYTES = 8 << 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Part:
    """Holds a file until it is whole, and then until all others are.

    Args:
        folder: Of all parts, open.
        name: The file's own.
        info: Of the file that is wanted.

    Attributes:
        name: In the folder of all parts.
        offset: Bytes that are here.
        crc32c: Of the whole file, once it is verified.

    Raises:
        OSError: the folder cannot be read.
    """

    def __init__(self, folder: OpenFolder, name: str, info: ObjectInfo) -> None:
        self.name = name_of_part(name)
        self._folder, self._note_name = folder, f"{self.name}.json"
        self._of, self._info = name, info
        self._identity = [name, info.uri, info.version, info.size_bytes]
        self._descriptor = -1
        note = self._note()
        self.crc32c: str | None = note.get("crc32c")
        self._verified_by: str | None = note.get("verified_by")
        self._synced_bytes = int(note.get("synced_bytes", 0))
        self.offset = self._bytes_here(note)

    def is_whole(self, expected: ObjectDigest | NoDigest) -> bool:
        """Whether all bytes are here, and were compared with the digest of their storage where it has one."""
        is_compared = isinstance(expected, NoDigest) or self._verified_by is not None
        return self.crc32c is not None and self.offset == self._info.size_bytes and is_compared

    def write(self, data: memoryview, digests: FileDigests) -> None:
        """Write the next bytes; what was here before is read for the digests.

        Raises:
            ChecksumError: the bytes are not what the storage keeps a digest of; they are removed.
            OSError: the file cannot be written.
        """
        self._open(digests)
        self._added(digests, data)
        with self._naming():
            while data.nbytes:
                written = os.pwrite(self._descriptor, data, self.offset)
                self.offset, data = self.offset + written, data[written:]
            if self.offset - self._synced_bytes >= SYNC_EVERY_BYTES:
                os.fdatasync(self._descriptor)
                self._synced_bytes = self.offset
                self._write_note()

    def finish(self, digests: FileDigests) -> None:
        """Verify the whole file and flush it to the disk; raises as `write`."""
        self._open(digests)
        try:
            digests.finish()
        except BaseException:
            self.discard()
            raise
        with self._naming():
            os.fsync(self._descriptor)
            self.close()
            self._synced_bytes, self.crc32c, self._verified_by = self.offset, digests.crc32c, digests.verified_by
            self._write_note()

    def close(self) -> None:
        """Close the file; it stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def discard(self) -> None:
        """Remove the file."""
        self.close()
        self.offset, self._synced_bytes, self.crc32c, self._verified_by = 0, 0, None, None
        for name in (self._note_name, self.name):
            self._folder.remove(name)

    def pulled(self, digest: str | None) -> PulledFile:
        """Describe the whole file for the record, with the hash that its storage keeps."""
        assert self.crc32c is not None
        return PulledFile(self.offset, self._info.version, self.crc32c, digest, self._verified_by)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Say in an error which file it is of: calls on a descriptor do not."""
        try:
            yield
        except OSError as error:
            if error.filename is None:
                error.filename = f"{os.path.join(self._folder.path, self.name)}, the part of {self._of}"
            raise

    def _open(self, digests: FileDigests) -> None:
        if self._descriptor >= 0:
            return
        with self._naming():
            self._descriptor = self._folder.open(self.name, os.O_RDWR | os.O_CREAT)
            os.ftruncate(self._descriptor, self.offset)
            self._write_note()
        at = 0
        while at < self.offset:
            data = os.pread(self._descriptor, min(READ_BYTES, self.offset - at), at)
            self._added(digests, memoryview(data))
            at += len(data)

    def _added(self, digests: FileDigests, data: memoryview) -> None:
        try:
            digests.update(data)
        except BaseException:
            self.discard()
            raise

    def _bytes_here(self, note: dict[str, Any]) -> int:
        status = self._folder.status(self.name)
        if status is None:
            return 0
        size_bytes = status.st_size
        is_of_this_boot = note.get("boot") == _boot()
        here = size_bytes if is_of_this_boot else min(size_bytes, self._synced_bytes)
        return min(here, self._info.size_bytes or 0) if note else 0

    def _note(self) -> dict[str, Any]:
        """Read what is known of the bytes here; nothing, if they are not of this version or of no known one."""
        try:
            note = json.loads(self._folder.read(self._note_name))
            if self._info.version is not None and note["identity"] == self._identity and int(note["synced_bytes"]) >= 0:
                return dict(note)
        except (KeyError, OSError, TypeError, ValueError):
            pass
        return {}

    def _write_note(self) -> None:
        note = {
            "identity": self._identity,
            "boot": _boot(),
            "synced_bytes": self._synced_bytes,
            "crc32c": self.crc32c,
            "verified_by": self._verified_by,
        }
        # Not flushed: it claims no more of the file than what is, and a crash that loses it costs a read.
        self._folder.write_atomically(self._note_name, json.dumps(note).encode(), is_flushed=False)


def name_of_part(name: str) -> str:
    """Name the part of a file, whatever the file is called."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def _boot() -> str | None:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return None
