"""Reads objects of Google Cloud Storage in Python, if the engine cannot use the options of gcsfs's session.

Guarantees: a read fills its whole buffer with the requested range of the listed generation, or raises. Lookups and
these reads use the same session, with its certificates and its proxy, and follow no redirect.
"""

from __future__ import annotations

from asyncio import IncompleteReadError
from collections.abc import Callable, Mapping

from streamer.backends.client.encodings import is_plain
from streamer.backends.gcs.errors import Answer, Caller, raise_storage_error, refusal
from streamer.core.errors import ChangedError, RangeResponseError, StreamerError, TruncatedError
from streamer.core.store.sources import ObjectInfo

__all__ = ["RangeReader", "check_range"]

_LOAD_AGAIN = "Load again; a proxy on the way may have cut the answer"
_HANDLE_RANGES = (
    "A proxy on the way may handle ranges wrongly: name the host in NO_PROXY, or leave out the session's options"
)


class RangeReader:
    """Reads one object; any number of threads at a time.

    Args:
        read: Requests a range of the object: `GcsClient.read` with its URL.
        caller: The sender of the requests, for errors.
        info: The object.
    """

    def __init__(self, read: Callable[[int, int], Answer], caller: Caller, info: ObjectInfo) -> None:
        self._read, self._caller, self._info = read, caller, info

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the buffer from that offset.

        Raises:
            ChangedError: the object was replaced since it was listed.
            StorageError: any other error of Google, the network or TLS.
        """
        view = buffer.cast("B")
        if not len(view):
            return 0
        try:
            answer = self._read(offset, offset + len(view))
        except IncompleteReadError:
            raise TruncatedError("The answer ends too early", uri=self._info.uri, hint=_LOAD_AGAIN) from None
        except StreamerError as error:
            error.uri = error.uri or self._info.uri
            raise
        except Exception as error:
            raise_storage_error(error, self._info.uri)
        is_other = None not in (answer.generation, self._info.version) and answer.generation != self._info.version
        if answer.status == 412 or is_other:
            raise ChangedError("The object was replaced since it was found", uri=self._info.uri, hint="Load again")
        if answer.status == 200:
            what = "The server sends the whole object for a range"
            raise RangeResponseError(what, uri=self._info.uri, hint=_HANDLE_RANGES)
        if answer.status != 206:
            raise refusal(answer, self._caller, self._info.uri)
        view[:] = answer.data
        return len(view)


def check_range(headers: Mapping[str, str], begin: int, end: int) -> None:
    """Compare the headers of a partial answer with the range that was requested.

    Raises:
        RangeResponseError: it is another range, or compressed.
    """
    if not headers.get("Content-Range", "").startswith(f"bytes {begin}-{end - 1}/"):
        raise RangeResponseError("The server sends another range than was asked for", status=206, hint=_HANDLE_RANGES)
    if not is_plain(headers):
        raise RangeResponseError("The server has encoded the range", status=206, hint=_HANDLE_RANGES)
