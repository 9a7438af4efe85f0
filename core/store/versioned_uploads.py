"""Uploads to storages without marks: the object is recognised by its size and its version.

Guarantees: right after the last request, the object is looked at as by `streamer.core.store.own_objects`. If another
program replaces it before this look by an object of the same size, that one is taken for ours.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from streamer import _native
from streamer.core.secrets.redact import redact
from streamer.core.store.own_objects import FoundObject, OwningUpload, ProvenUpload
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.store.uploads import CommittingStore, SharedUpload, Upload, UploadingStore
from streamer.core.store.versions import is_same_version


@runtime_checkable
class ReadableUpload(Upload, Protocol):
    """An `Upload` that can read its object back, for storages whose versions may not tell two objects apart."""

    def holds(self, crc32c: int) -> bool:
        """Say whether the object has this CRC-32C."""


def write_whole(store: Store, path: str, data: bytes, replaced: ObjectInfo | None) -> None:
    """Write one small object, if the one that is there is still `replaced` or none, and look at it."""
    if isinstance(store, CommittingStore):
        store.prepare()
    if isinstance(store, UploadingStore):
        begun: Upload = store.begin_upload(path, len(data), max(len(data), 1), replaced)
    else:
        begun = _OneWrite(store, path)
    upload = owning(begun, store, path, replaced)
    try:
        if data:
            upload.send(0, memoryview(data))
        upload.finish()
        if isinstance(store, CommittingStore):
            store.commit()
        upload.confirm()
    except BaseException:
        upload.abort()
        raise


class _OneWrite:
    """An `Upload` to a store that only writes whole files, and cannot remove one."""

    parallel_parts, needs_equal_parts = 1, False

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path, self._data = store, path, b""

    def send(self, offset_bytes: int, part: memoryview) -> None:
        del offset_bytes  # there is one part
        self._data = bytes(part)

    def finish(self) -> None:
        self._store.write(self._path, self._data)  # type: ignore[attr-defined]  # it is a `WritableStore`

    def abort(self) -> None:
        """Do nothing: nothing is sent before `finish`."""


def owning(upload: Upload, store: Store, path: str, replaced: ObjectInfo | None) -> OwningUpload:
    """Return an upload that recognises its object: the upload itself if it can, otherwise by the object's version."""
    return upload if isinstance(upload, OwningUpload) else _VersionedUpload(upload, store, path, replaced)


class _VersionedUpload(ProvenUpload):
    """An upload that recognises its object by its version: the one that the upload knows, or else that of a first look.

    If another program replaces the object before the first look, its object is taken for this one.
    """

    has_mark = False

    def __init__(self, upload: Upload, store: Store, path: str, replaced: ObjectInfo | None) -> None:
        super().__init__(getattr(upload, "uri", None) or redact(path), replaced)
        self._upload, self._store, self._path = upload, store, path
        self.parallel_parts, self.needs_equal_parts = upload.parallel_parts, upload.needs_equal_parts
        self._crc32c = 0  # of the bytes that were sent, if the parts come in their order

    def send(self, offset_bytes: int, part: memoryview) -> None:
        self._upload.send(offset_bytes, part)
        if offset_bytes == self.sent_bytes:
            self._crc32c = _native.crc("crc32c", part, self._crc32c)
        self.note_sent(offset_bytes, part)

    def share(self) -> Any:
        return self._upload.share() if isinstance(self._upload, SharedUpload) else None

    def sent(self) -> Any:
        assert isinstance(self._upload, SharedUpload)
        return self.sent_bytes, self._upload.sent()

    def add(self, sent: Any) -> None:
        assert isinstance(self._upload, SharedUpload)
        self.sent_bytes = max(self.sent_bytes, sent[0])
        self._upload.add(sent[1])

    def finish(self) -> None:
        super().finish()
        self.confirm()  # at once, because later the object may be another program's

    def _check_parts(self) -> None:
        """Do nothing: the upload looks at what it has sent, if it can."""

    def _commit(self) -> str | None:
        self._upload.finish()
        version: str | None = getattr(self._upload, "version", None)
        return version

    def _look(self) -> FoundObject | None:
        found = info_if_present(self._store, self._path)
        return None if found is None else FoundObject(found.size_bytes, found.version)

    def _is_own(self, found: FoundObject) -> bool:
        if self.version is None and not self._is_seen:
            return self._is_finished and not self._is_from_before(found)
        return is_same_version(found.version, self.version) and found.size_bytes in (None, self.sent_bytes)

    def _is_from_before(self, found: FoundObject | None) -> bool:
        if found is None or self._replaced is None:
            return found is None
        if not is_same_version(found.version, self._replaced.version):
            return False
        # The version may be a time in seconds and a size, and so that of the new object, too.
        is_whole = found.size_bytes in (None, self.sent_bytes)
        return not (is_whole and (not isinstance(self._upload, ReadableUpload) or self._upload.holds(self._crc32c)))

    def _remove(self, found: FoundObject) -> None:
        del found
        if isinstance(self._store, UploadingStore):
            self._store.remove(self._path)

    def _discard(self) -> None:
        self._upload.abort()

    def abort(self) -> None:
        if not self._is_finished:
            self._discard()
        elif self._replaced is None:
            self.withdraw()
