"""The interface of stores to which large objects can be written, part by part, and removed.

It also marks what an upload writes into the metadata of its object, to know it again if the answer to the last request
is lost.

An object shows up under its name only in `Upload.finish`, whole; a storage that cannot do that says so in its
documentation. So whoever writes many objects can send the bytes of all of them, and then show them one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from streamer.core.errors import ChangedError
from streamer.core.store.sources import ObjectInfo

__all__ = ["ResumingStore", "Upload", "UploadMark", "UploadingStore", "changed_meanwhile"]


class Upload(Protocol):
    """One object that is being written. It ends with `finish` or `abort`.

    Attributes:
        parallel_parts: Most calls of `send` at a time; with 1, the parts come in their order.
        needs_equal_parts: Every part but the last has the size that `begin_upload` was told.
    """

    parallel_parts: int
    needs_equal_parts: bool

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part. After a failure that may pass, this is called again with the same part.

        Args:
            offset_bytes: Where the part begins in the object.
            part: Its bytes. The caller neither changes nor frees them until all parts are sent.

        Raises:
            AccessDeniedError: the object may not be written.
            StorageError: the part could not be sent.
        """

    def finish(self) -> None:
        """Let the object show up, whole. Nothing happens if that was done before.

        Raises:
            ChangedError: another program has written, replaced or removed the object meanwhile.
            StorageError: it could not.
        """

    def abort(self) -> None:
        """Remove what was sent. Does nothing to an object that has shown up.

        Raises:
            StorageError: it could not.
        """


@runtime_checkable
class UploadingStore(Protocol):
    """A `Store` to which large objects can be written in parts."""

    def begin_upload(self, path: str, size_bytes: int | None, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin to write one object; nothing shows up yet.

        Args:
            path: Of the object; folders above it are made where the storage has any.
            size_bytes: Of the whole object; with 0, `finish` comes without a part. None if it is not known yet: there
                is one part at least, and `finish` comes after the last one.
            part_bytes: Of each part but the last; the most of any part, if they need not be equal.
            replaced: The object that is there and is to be replaced, if it is still this version when the upload
                ends; None: there must be no object. A storage that has no such condition looks right before.

        Raises:
            UsageError: the storage cannot be written, or only objects whose size is known.
            AccessDeniedError: it may not be written.
            StorageError: it could not, or the bucket does not exist.
        """

    def remove(self, path: str) -> None:
        """Remove one object; nothing happens if there is none.

        Raises:
            AccessDeniedError: it may not be removed.
            StorageError: it could not.
        """


@runtime_checkable
class ResumingStore(Protocol):
    """An `UploadingStore` that keeps the parts of an upload whose program was killed."""

    def resume_upload(self, path: str, size_bytes: int, part_bytes: int, replaced: ObjectInfo | None) -> Upload:
        """Begin to write one object; `Upload.send` sends no part that an earlier upload of this object has sent.

        A part counts as sent if the storage tells its number, its size and a digest of its bytes, and all are equal.
        Arguments and errors are those of `UploadingStore.begin_upload`.
        """


def changed_meanwhile(uri: str, replaced: ObjectInfo | None, *, status: int | None = None) -> ChangedError:
    """Make the error for an object that another program changed while this one uploaded it.

    Args:
        uri: Of the object, without secrets.
        replaced: As for `UploadingStore.begin_upload`.
        status: HTTP status of the refusal.
    """
    what = "written it" if replaced is None else "replaced or removed it"
    hint = "Make sure that one program at a time saves there, and save again"
    return ChangedError(f"another program has {what} meanwhile", uri=uri, hint=hint, status=status)


class UploadMark:
    """The mark of one upload.

    Args:
        name: Under which the storage's metadata holds it.
        replaced: What is to be replaced, or None.
        found: Requests the metadata of the object that is there; none of an absent one.

    Attributes:
        metadata: To write with the object.
    """

    def __init__(self, name: str, replaced: ObjectInfo | None, found: Callable[[], Mapping[str, str]]) -> None:
        self.metadata = {name: os.urandom(16).hex()}
        self._is_new, self._found = replaced is None, found
        self._may_be_there = False

    def note_last_request(self) -> None:
        """Note that the object shows up with the request that is now sent, whatever is heard of it."""
        self._may_be_there = True

    def is_there(self) -> bool:
        """Whether the object that is there is this upload's."""
        found = self._found()
        return all(found.get(name) == value for name, value in self.metadata.items())

    def is_to_be_removed(self) -> bool:
        """Whether a save that failed has left this object: it shows up, and has replaced none."""
        return self._may_be_there and self._is_new and self.is_there()
