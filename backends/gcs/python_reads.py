"""Reads objects of Google Cloud Storage in Python, if the engine cannot use the options of gcsfs's session.

Guarantees: a read fills its whole buffer with the requested range of the listed generation, or raises.
"""

from __future__ import annotations

from collections.abc import Callable

from streamer.backends.client.exchange import Response
from streamer.backends.gcs.errors import Answer, Caller, raise_storage_error, refusal
from streamer.core.errors import ChangedError, RangeResponseError, StorageError, TruncatedError
from streamer.core.store.sources import ObjectInfo

__all__ = ["RangeReader"]

_HANDLE_RANGES = (
    "A proxy on the way may handle ranges wrongly: name the host in NO_PROXY, or leave out the session's options"
)


class RangeReader:
    """Reads one object, in any number of threads at a time.

    Args:
        read: Requests a range of the object: `GcsClient.read` with the URL of the object.
        caller: The sender of the requests, for errors.
        info: The object.
    """

    def __init__(self, read: Callable[[int, int], Response], caller: Caller, info: ObjectInfo) -> None:
        self._read, self._caller, self._info = read, caller, info

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer with the object's bytes from an offset.

        Raises:
            ChangedError: the object was replaced since it was listed.
            StorageError: any other error of Google, the network or TLS.
        """
        view = buffer.cast("B")
        if not len(view):
            return 0
        try:
            response = self._read(offset, offset + len(view))
        except Exception as error:
            raise_storage_error(error, self._info.uri)
        self._check(response, offset, offset + len(view))
        view[:] = memoryview(response.body)[: len(view)]
        return len(view)

    def _check(self, response: Response, begin: int, end: int) -> None:
        uri, generation = self._info.uri, response.headers.get("x-goog-generation")
        is_other = None not in (generation, self._info.version) and generation != self._info.version
        if response.status == 412 or is_other:
            raise ChangedError("The object was replaced since it was found", uri=uri, hint="Load again")
        if response.status == 200:
            raise _wrong_range("The server sends the whole object for a range", 200, uri)
        if response.status != 206:
            raise refusal(Answer.of(response), self._caller, uri)
        if not response.headers.get("content-range", "").startswith(f"bytes {begin}-{end - 1}/"):
            raise _wrong_range("The server sends another range than was asked for", 206, uri)
        if len(response.body) < end - begin:
            hint = "Load again; a proxy on the way may have cut the answer"
            raise TruncatedError("The answer ends too early", uri=uri, hint=hint)


def _wrong_range(what: str, status: int, uri: str) -> StorageError:
    return RangeResponseError(what, uri=uri, status=status, hint=_HANDLE_RANGES)
