"""Looks at the object that an upload has written, and says whether it is there, whole, and of this upload.

Guarantees: the answer to the last request of an upload decides nothing alone. `OwningUpload.confirm` returns only if
the storage has an object of the size that was sent, with the mark of this upload, or with the version that the answer
named. Storages that do not let us look are the exception: there the answer must name a version. An error names another
program only if there is an object that this upload cannot have written. No object is removed that another program is
known to have written.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from streamer.core.errors import AccessDeniedError, ChangedError, ChecksumError, CredentialsError, StorageError
from streamer.core.outages.transient import is_transient
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.uploads import Upload, changed_meanwhile

# Some storages show an object some time after it was written. These pauses are between the looks, ten seconds in all.
PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.65)
FEW_LOOKS = 4  # if the answer says that nothing was written

_CHECK = "Save again, and check the storage's disk and the proxies on the way to it"


@runtime_checkable
class OwningUpload(Upload, Protocol):
    """An `Upload` that recognises its object after `finish`."""

    def confirm(self) -> None:
        """Check that the object is there, whole, and of this upload; else raise ChangedError or StorageError."""

    def may_stand(self) -> bool:
        """Say whether the object that is there may be the one of this upload; also True if a look cannot tell."""

    def withdraw(self) -> None:
        """Remove the object if it is still of this upload; raise StorageError if that cannot be done or told."""


@dataclass(frozen=True)
class FoundObject:
    """What a storage says of the object that has the name of an upload."""

    size_bytes: int | None  # its size, or None if the storage does not say
    version: str | None  # its version, as of `ObjectInfo`
    mark: str | None = None  # the mark of the upload that wrote it, or None if it has none
    # Whether the storage's checksum is that of the bytes that were sent; None if there is none to compare.
    is_equal: bool | None = None


class ProvenUpload(ABC):
    """An `OwningUpload`. A subclass sends the requests."""

    has_mark: ClassVar[bool] = True  # whether the object gets the mark as its metadata

    def __init__(self, uri: str, replaced: ObjectInfo | None) -> None:
        self._uri, self._replaced = uri, replaced
        self.mark = os.urandom(16).hex()  # the mark of this upload
        # The version of the object, if the answer to the last request, or a look at the object, named it.
        self.version: str | None = None
        self.sent_bytes = 0  # bytes of the object that were sent, to the end of the last part
        self._attempts = 0  # to send the last request
        self._is_finished = self._is_seen = self._is_refused = False
        self._counting = threading.Lock()

    @abstractmethod
    def _commit(self) -> str | None:
        """Send the last request; return the version of the object, if the answer names one."""

    @abstractmethod
    def _check_parts(self) -> None:
        """Look at the parts before they replace an object, because half an object must not replace a whole one."""

    @abstractmethod
    def _look(self) -> FoundObject | None:
        """Describe the object that is there now; None if there is none."""

    @abstractmethod
    def _remove(self, found: FoundObject) -> None:
        """Remove the object if it is still the one that was found."""

    @abstractmethod
    def _discard(self) -> None:
        """Remove the parts that were sent."""

    def note_sent(self, offset_bytes: int, part: memoryview) -> None:
        """Note that a part was sent."""
        with self._counting:
            self.sent_bytes = max(self.sent_bytes, offset_bytes + part.nbytes)

    def finish(self) -> None:
        """Send the last request, and if it fails, look whether it was successful; raises as `Upload.finish`."""
        if self._is_finished:
            return
        self._attempts += 1
        if self._replaced is not None:
            self._check_parts()
        try:
            self.version = self._commit()
        except StorageError as error:
            self._is_refused = isinstance(error, ChangedError)
            has_answer = error.status is not None or not is_transient(error)
            if not self.has_mark or not has_answer or isinstance(error, CredentialsError):
                raise
            self._check(error)
        self._is_finished = True

    def confirm(self) -> None:
        """Look at the object; raises as `OwningUpload.confirm`."""
        self._check(None)

    def may_stand(self) -> bool:
        """See `OwningUpload.may_stand`."""
        if not self._attempts:
            return False
        try:
            found = self._look()
        except StorageError:
            return True
        if found is None:
            # If nobody refused the write, what was there is gone, too, and so the look may be wrong.
            return self._replaced is not None and not self._is_refused
        if self._is_from_before(found):
            return False
        is_nameless = found.version is None or (self.has_mark and self.version is None)
        is_others = self._is_refused and found.size_bytes not in (None, self.sent_bytes)
        return self._is_own(found) or (is_nameless and found.mark is None and not is_others)

    def withdraw(self) -> None:
        """Remove the object if this upload wrote it; raises as `OwningUpload.withdraw`."""
        found = self._look()
        if found is None:
            return
        if self._is_own(found):
            self._remove(found)
        elif self.has_mark and found.mark is None and self.version is None:
            hint = "Look at the object, and remove it if it is not wanted"
            raise StorageError("the object has no mark, so it may be of this upload", uri=self._uri, hint=hint)

    def abort(self) -> None:
        """Remove the parts, and the object if it was made although `finish` failed; raises as `Upload.abort`."""
        self._discard()
        if self._attempts and self._replaced is None:
            self.withdraw()

    def _is_own(self, found: FoundObject) -> bool:
        """Say whether this upload wrote the object: by its mark, or by its version if the mark was lost on the way."""
        is_of_answer = self.version is not None and found.version == self.version
        return found.mark == self.mark or (found.mark is None and is_of_answer)

    def _is_from_before(self, found: FoundObject | None) -> bool:
        """Say whether a look shows what was there before the last request."""
        if found is None:
            return True
        return not self._is_own(found) and self._replaced is not None and found.version == self._replaced.version

    def _check(self, failure: StorageError | None) -> None:
        """Look at the object, several times if it is not there yet, and raise what is wrong with it."""
        is_of_status = failure is not None and failure.status is not None
        pauses_s = PAUSES_S[:FEW_LOOKS] if is_of_status else PAUSES_S
        try:
            found = self._look_again(pauses_s)
        except StorageError as error:
            if failure is not None:
                raise failure from error
            if not isinstance(error, AccessDeniedError) or isinstance(error, CredentialsError):
                raise
            self._check_unseen(error)
            return
        fault = self._fault(found, failure if isinstance(failure, ChangedError) else None)
        if fault is not None:
            is_own = found is not None and self._is_own(found)
            if failure is not None and is_of_status and not is_own and not isinstance(failure, ChangedError):
                raise failure
            raise fault from failure
        self._is_seen, self.version = True, found.version if found else None

    def _look_again(self, pauses_s: Sequence[float]) -> FoundObject | None:
        """Look at the object until it is there, whole and ours: a proxy may have given the answer to one look."""
        for number, pause_s in enumerate((*pauses_s, 0.0)):
            is_last = number >= min(FEW_LOOKS, len(pauses_s))
            try:
                found = self._look()
            except StorageError as error:
                is_refused = isinstance(error, AccessDeniedError) and (error.status or 0) >= 400
                if is_last or is_refused or is_transient(error):
                    raise
            else:
                is_late = not self._is_seen and self._is_from_before(found)
                is_enough = number == len(pauses_s) or (is_last and not is_late)
                if is_enough or self._fault(found, None) is None:
                    return found
            time.sleep(pause_s)
        raise AssertionError("the last look returns or raises")

    def _check_unseen(self, refused: AccessDeniedError) -> None:
        """Check an upload whose object we may not look at."""
        if self.has_mark and self.version is None:
            what = "the answer to the last request is not the storage's, and the object cannot be looked at"
            raise StorageError(what, uri=self._uri, hint="Grant the right to read, and check the proxies") from refused

    def _fault(self, found: FoundObject | None, refusal: ChangedError | None) -> StorageError | None:
        """Return what is wrong with the object that was found; None if it is that of this upload, and whole."""
        changed = refusal or changed_meanwhile(self._uri, self._replaced)
        if found is None:
            is_removed = self._is_seen or (refusal is not None and self._replaced is not None)
            did = "answered" if refusal is None else "refused"
            return changed if is_removed else self._fault_of(f"the storage {did} the last request, but has no object")
        is_whole, is_own = found.size_bytes in (None, self.sent_bytes), self._is_own(found)
        if self.has_mark and found.version is None and found.mark is None and not found.is_equal:
            return self._fault_of("the answer to the question for the object is not the storage's")
        has_no_trace = self.has_mark and found.mark is None and self.version is None and refusal is None
        if not is_whole and (is_own or (has_no_trace and not self._is_from_before(found))):
            return self._fault_of(f"the storage has {found.size_bytes} of the {self.sent_bytes} bytes that were sent")
        if is_own:
            return None if found.is_equal is not False else self._damage()
        if self._is_from_before(found):
            return self._fault_of("the storage has not replaced the older object, which nobody else has changed")
        if found.mark is not None or not is_whole or not self.has_mark or self._is_seen:
            return changed
        return None if found.is_equal else self._lost_mark()

    def _fault_of(self, what: str) -> StorageError:
        return StorageError(what, uri=self._uri, hint=_CHECK)

    def _damage(self) -> ChecksumError:
        what = "the object that the storage has differs from the bytes that were sent"
        return ChecksumError(what, uri=self._uri, hint="Save again")

    def _lost_mark(self) -> StorageError:
        what = "the object that is there has the size that was sent, but no metadata that marks it as that of this save"
        hint = (
            "Check whether the server or a proxy on the way drops metadata (nginx: underscores_in_headers on); if not, "
            "a program that writes no mark has written an object of the same size"
        )
        return StorageError(what, uri=self._uri, hint=hint)
