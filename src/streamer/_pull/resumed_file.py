"""The first bytes of a file that is being pulled, under a temporary name, with a note of their file and version.

Guarantees: a part is continued only if place, name, version and size are the same. After a crash of the machine, only
bytes that were flushed to the disk count. If only this process died, all written bytes count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamer._pull.record import PulledFile
from streamer.core.folders.open_folder import OpenFolder
from streamer.core.store.digests import NoDigest, ObjectDigest
from streamer.core.store.identities import is_sealed, seal_of
from streamer.core.store.sources import ObjectInfo
from streamer.core.verification.file_bytes import FileDigests

SYNC_EVERY_BYTES = 256 << 20  # the most that a crash of the machine may lose, per file
READ_BYTES = 8 << 20
NOTE_SUFFIX = ".json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class PartFile:
    """Holds a file until all files are complete."""

    def __init__(self, folder: OpenFolder, name: str, info: ObjectInfo, place: str) -> None:
        self.name = name_of_part(name)  # the name of the part in the folder of parts
        self._folder, self._note_name = folder, self.name + NOTE_SUFFIX
        self._of, self._info, self._place = name, info, place
        self._file = [name, info.path, info.version, info.size_bytes]
        self._descriptor = -1
        note = self._note()
        self.crc32c: str | None = note.get("crc32c")  # the CRC-32C of the whole file, once it is verified
        self._verified_by: str | None = note.get("verified_by")
        self._synced_bytes = int(note.get("synced_bytes", 0))
        self.offset = self._bytes_here(note)  # number of bytes on the disk

    def is_whole(self, expected: ObjectDigest | NoDigest) -> bool:
        """Whether all bytes are on the disk, and were compared with the storage's digest if there is one."""
        is_compared = isinstance(expected, NoDigest) or self._verified_by is not None
        return self.crc32c is not None and self.offset == self._info.size_bytes and is_compared

    def write(self, data: memoryview, digests: FileDigests) -> None:
        """Write the next bytes; the first call also reads the bytes of an earlier run, for the digests."""
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
        """Close the file and keep it."""
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
        """Return the description of the complete file for the record, with the hash that its storage keeps."""
        status = self._folder.status(self.name)
        assert self.crc32c is not None
        assert status is not None
        return PulledFile(self.offset, self._info.version, self.crc32c, digest, self._verified_by, status.st_mtime_ns)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Add the name of the file to an error: errors of calls on a descriptor lack it."""
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
        """Read the note on the bytes on the disk; return an empty one if their version differs or is unknown."""
        try:
            note = json.loads(self._folder.read(self._note_name))
            is_same = note["file"] == self._file and is_sealed(self._place, str(note["seal"]))
            is_named = self._info.version is not None and self._info.is_settled
            if is_named and is_same and int(note["synced_bytes"]) >= 0:
                return dict(note)
        except (KeyError, OSError, TypeError, ValueError):
            pass
        return {}

    def _write_note(self) -> None:
        note = {
            "file": self._file,
            "seal": seal_of(self._place),
            "boot": _boot(),
            "synced_bytes": self._synced_bytes,
            "crc32c": self.crc32c,
            "verified_by": self._verified_by,
        }
        # The note needs no flush: it never claims more bytes than were flushed. If a crash loses the note, bytes are
        # read again.
        self._folder.write_atomically(self._note_name, json.dumps(note).encode(), is_flushed=False)


def name_of_part(name: str) -> str:
    """Return the name of a file's part, which is valid whatever the name of the file is."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def _boot() -> str | None:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return None
