"""Wraps a plug-in's upload: exceptions are translated, calls are timed."""

from __future__ import annotations

from typing import Any

from streamer.core.store.uploads import Upload
from streamer.plugins.guard.calls import Calls
from streamer.plugins.guard.plugin import BrokenContractError, kind_of

__all__ = ["GuardedUpload", "upload_in"]

METHODS = ("send", "finish", "abort")


class GuardedUpload:
    """See `streamer.core.store.uploads.Upload`.

    Args:
        upload: The plug-in's upload.
        calls: Calls the methods of the upload.
        uri: URL of the object, without secrets, or None.
    """

    def __init__(self, upload: Upload, calls: Calls, uri: str | None) -> None:
        self._upload, self._calls, self._uri = upload, calls, uri
        self.parallel_parts = upload.parallel_parts
        self.needs_equal_parts = bool(getattr(upload, "needs_equal_parts", True))

    def send(self, offset_bytes: int, part: memoryview) -> None:
        """Send one part; raises as `Upload.send`."""
        self._calls.ask("send", lambda: self._upload.send(offset_bytes, part), self._uri)

    def finish(self) -> None:
        """Make the object visible; raises as `Upload.finish`."""
        self._calls.ask("finish", self._upload.finish, self._uri)

    def abort(self) -> None:
        """Remove the sent parts; raises as `Upload.abort`."""
        self._calls.ask("abort", self._upload.abort, self._uri)


def upload_in(answer: Any) -> Upload:
    """Return an answer if it is an upload.

    Raises:
        BrokenContractError: it is no upload; the message names the missing attributes.
    """
    lacking = [name for name in METHODS if not callable(getattr(answer, name, None))]
    parallel_parts = getattr(answer, "parallel_parts", None)
    if not isinstance(parallel_parts, int) or parallel_parts < 1:
        lacking.append("parallel_parts")
    if lacking:
        raise BrokenContractError(f"returned {kind_of(answer)}, which lacks {', '.join(lacking)}")
    upload: Upload = answer
    return upload
