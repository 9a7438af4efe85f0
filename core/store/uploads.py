"""The interface of stores to which large objects can be written, part by part, and removed.

An upload also writes a mark into the metadata of its object, if the storage keeps metadata. Whatever the answer to the
last request says, the mark shows whether the upload wrote the object (`streamer.core.store.own_objects`).

Readers see an object only after `Upload.finish`, and then the whole object; the documentation names storages that
cannot guarantee this. So a caller can send the bytes of many objects first, and then finish one object after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, runtime_checkable

from streamer.core.errors import ChangedError
from streamer.core.store.sources import ObjectInfo

MOST_PARALLEL_PARTS = 8  # of one upload, and of all files of a save together


class Upload(Protocol):
    """One object that is being written. It ends with `finish` or `abort`.

    Attributes:
        parallel_parts: Maximum number of calls of `send` at a time; with 1, the parts come in their order.
        needs_equal_parts: Every part except the last must have the `part_bytes` of `begin_upload`.
    """

    parallel_parts: int
    needs_equal_parts: bool

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part. After a transient failure, this is called again with the same part.

        Args:
            offset_bytes: Offset of the part in the object.
            part: The bytes of the part. The caller does not change or free them until all parts are sent.

        Raises:
            AccessDeniedError: the object may not be written.
            StorageError: the part could not be sent.
        """

    def finish(self) -> None:
        """Make the whole object visible to readers; do nothing if this was done before.

        Raises:
            ChangedError: another program has written, replaced or removed the object meanwhile.
            StorageError: the object could not be written.
        """

    def abort(self) -> None:
        """Remove the parts that were sent. An object that is already visible is not changed.

        Raises:
            StorageError: the parts could not be removed.
        """


@runtime_checkable
class UploadingStore(Protocol):
    """A `Store` to which large objects can be written in parts."""

    def begin_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin to write one object, which readers do not see yet.

        Args:
            path: Path of the object; missing folders above it are made if the storage has folders.
            size_bytes: Size of the whole object. With 0, `finish` is called without a part.
            part_bytes: Size of each part except the last; if parts need not be equal, the size of the largest part.
            replaced: The existing object to replace, if it still has this version when the upload ends. None: there
                must be no object. A storage without such conditions is checked right before the last request.

        Raises:
            UsageError: the storage cannot be written.
            AccessDeniedError: the object may not be written.
            StorageError: the upload could not begin, or the bucket does not exist.
        """

    def remove(self, path: str) -> None:
        """Remove one object; do nothing if it does not exist.

        Raises:
            AccessDeniedError: the object may not be removed.
            StorageError: the object could not be removed.
        """


@runtime_checkable
class CommittingStore(UploadingStore, Protocol):
    """An `UploadingStore` whose finished uploads and removals show up together, with `commit`, or not at all."""

    def prepare(self) -> None:
        """Check that there may be a commit, before the store is looked at for it.

        Raises:
            UsageError: the URL, or an option, is not one for writing.
            StorageError: the place of the commit is not there, or may not be written.
        """

    def commit(self) -> None:
        """Show all; do nothing without changes.

        Raises:
            ChangedError: another program has committed since the store was looked at.
            StorageError: nothing is committed, or it is not known; `OwningUpload.may_stand` says which.
        """


@runtime_checkable
class RereadingUpload(Upload, Protocol):
    """An `Upload` that reads the bytes twice, and needs no copy of them. Bytes that come once can be sent, too."""

    def read(self, pieces: Iterable[memoryview], on_sent: Callable[[int], None]) -> None:
        """Send all bytes, in place of `send`; each iteration yields them anew. `on_sent` takes numbers of bytes."""


@runtime_checkable
class SharedUpload(Upload, Protocol):
    """An `Upload` to which several processes send parts; the process that began it finishes it. All values are JSON."""

    def share(self) -> Any:
        """Return what the store's `join_upload` takes in another process; None if only this one can send parts."""

    def sent(self) -> Any:
        """Return what this process has sent, for `add`; if the storage keeps it in a cache, it is flushed before."""

    def add(self, sent: Any) -> None:
        """Add what another process has sent."""


@runtime_checkable
class SharingStore(UploadingStore, Protocol):
    """An `UploadingStore` whose uploads other processes may join."""

    def join_upload(self, path: str, part_bytes: int, shared: Any) -> SharedUpload:
        """Send parts of an object that another process has begun, which `SharedUpload.share` describes.

        `Upload.abort` removes the parts of all processes.
        """


@runtime_checkable
class ResumingStore(Protocol):
    """An `UploadingStore` that keeps the parts of an upload whose program was killed."""

    def resume_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin to write one object; `Upload.send` sends no part that an earlier upload of this object has sent.

        A part counts as sent if the storage reports its number, its size and a digest of its bytes, and all are equal.
        Arguments and errors are those of `UploadingStore.begin_upload`.
        """


def changed_meanwhile(uri: str, replaced: ObjectInfo | None, *, status: int | None = None) -> ChangedError:
    """Make the error for an object that another program changed while this one uploaded it."""
    what = "written it" if replaced is None else "replaced or removed it"
    hint = "Wait until the other program ends; then use what it saved, or save again with overwrite=True, or elsewhere"
    return ChangedError(f"another program has {what} meanwhile", uri=uri, hint=hint, status=status)
