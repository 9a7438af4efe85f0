"""Recognises the object that an upload has written, after other programs could have written to the same name.

Guarantees: no object is removed that another program is known to have written. Some storages honour no condition, or
not at the same time for two writers, so an upload that was accepted may have been overwritten a moment later.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from streamer.core.errors import AccessDeniedError, CredentialsError, ObjectNotFoundError
from streamer.core.store.presence import info_if_present
from streamer.core.store.sources import ObjectInfo, Store
from streamer.core.store.uploads import Upload, changed_meanwhile

__all__ = ["OwningUpload", "owning"]


@runtime_checkable
class OwningUpload(Upload, Protocol):
    """An `Upload` that recognises its object after `finish`."""

    def confirm(self) -> None:
        """Check that the object is still the one that this upload wrote.

        Raises:
            ChangedError: another program has written or removed the object.
            StorageError: the storage does not answer.
        """

    def withdraw(self) -> None:
        """Remove the object, if it is still the one that this upload wrote.

        Raises:
            StorageError: the object could not be removed.
        """


def owning(upload: Upload, store: Store, path: str) -> OwningUpload:
    """Return an upload that recognises its object: the upload itself if it can, otherwise by the object's version.

    Args:
        upload: The upload, not finished yet.
        store: The `UploadingStore` that began the upload.
        path: The store's own path of the object.
    """
    return upload if isinstance(upload, OwningUpload) else _VersionedUpload(upload, store, path)


class _VersionedUpload:
    """An upload that looks up the version of its object right after `finish`.

    If another program replaces the object before the lookup, its object is taken for this one.
    """

    def __init__(self, upload: Upload, store: Store, path: str) -> None:
        self._upload, self._store, self._path = upload, store, path
        self.parallel_parts, self.needs_equal_parts = upload.parallel_parts, upload.needs_equal_parts
        self._written: ObjectInfo | None = None  # None also if the storage did not let us look

    def send(self, offset_bytes: int, part: memoryview) -> None:
        self._upload.send(offset_bytes, part)

    def finish(self) -> None:
        self._upload.finish()
        if self._written is None:
            try:
                self._written = self._store.info(self._path)
            except ObjectNotFoundError:  # some storages show an object some time after it was written
                pass
            except AccessDeniedError as error:
                if isinstance(error, CredentialsError):
                    raise

    def abort(self) -> None:
        self._upload.abort()

    def confirm(self) -> None:
        if not self._is_unchanged():
            assert self._written is not None
            raise changed_meanwhile(self._written.uri, None)

    def withdraw(self) -> None:
        if self._is_unchanged():
            self._store.remove(self._path)  # type: ignore[attr-defined]  # it is an `UploadingStore`, too

    def _is_unchanged(self) -> bool:
        written = self._written
        if written is None:
            return True
        found = info_if_present(self._store, self._path)
        return found is not None and (found.version, found.size_bytes) == (written.version, written.size_bytes)
