"""Reads an HTTP object from beginning to end through one GET, if its server answers no requests for ranges.

Guarantees: every byte comes from an answer with the size and version of the probe. A body that stops, or is too slow,
fails after `stall_timeout_s`; bytes that arrived are returned before the error that ended the body is raised. Each wait
is bounded. The connection is closed at the end of the object, if many other objects are read, or if the reader is no
longer used. The engine's threads may request neighbouring blocks in any order: a later block waits for its turn. A
block before the current position restarts the reading at the start of the object.
"""

from __future__ import annotations

import os
import threading
import weakref
from math import inf
from time import monotonic

from streamer.backends.client.answer_values import described, is_plain
from streamer.backends.client.exchange import Response
from streamer.backends.client.redirects import Hop
from streamer.backends.http.client import HttpClient, OpenResponse
from streamer.backends.http.probe import Probe, replaced, whole_version_in
from streamer.core.conditions import Condition
from streamer.core.errors import (
    ConnectError,
    RangeResponseError,
    StorageError,
    StreamerError,
    TransferTimeoutError,
    TruncatedError,
)
from streamer.core.options.limits import Limits
from streamer.core.store.sources import ObjectInfo
from streamer.core.store.versions import is_same_version

# Share of `stall_bytes_per_s`, the minimum pace of a range; lower here, because a retry starts from the object's start.
STALL_SHARE = 1 / 8

ATTEMPTS = 3  # to read one block; each attempt begins at the start of the object
SKIPPED_BYTES = 1 << 20  # most bytes that one read skips
EARLY_WAIT_S = 0.02  # for a thread that is about to request an earlier block; enough for several switches of the GIL
MAX_IDLE = 8  # connections that wait for their next block; servers close them after a minute anyway


def receive(response: Response, buffer: memoryview, uri: str, limits: Limits) -> int:
    """Receive the next bytes of the body. The buffer stays partly empty if the body ends, breaks off or is slow."""
    began = monotonic()
    try:
        count = response.read_into(buffer, limits.stall_timeout_s)
    except StreamerError as error:
        error.uri = uri
        raise
    if count == len(buffer):
        return count
    if count == 0 and response.has_ended:
        raise TruncatedError(
            "The server ends the file before its size",
            uri=uri,
            hint="Load again; if that fails, the file itself is cut short",
        )
    elapsed_s = monotonic() - began
    if elapsed_s >= limits.stall_timeout_s:
        _check_pace(count, elapsed_s, uri, limits)
    return count


def _check_pace(received_bytes: int, elapsed_s: float, uri: str, limits: Limits) -> None:
    if received_bytes < limits.stall_bytes_per_s * STALL_SHARE * elapsed_s:
        raise TransferTimeoutError(
            f"The transfer stalled: {received_bytes} bytes in {elapsed_s:.1f} s",
            uri=uri,
            hint="The server has no ranges, so each attempt starts from the beginning; use a server with ranges",
        )


class OneStream:
    """The reader of one object; any number of threads may call it, and one of them reads at a time."""

    def __init__(self, client: HttpClient, start: Hop, info: ObjectInfo, expected: Probe) -> None:
        self._client, self._start, self._info, self._expected = client, start, info, expected
        self._turn = Condition()
        self._waiting: list[int] = []
        self._is_busy = False
        self._position = 0
        self._body: Response | None = None
        self.last_used_s = 0.0  # when a block was last read, by `time.monotonic`

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill the whole buffer with the object's bytes from an offset."""
        view = buffer.cast("B")
        self._take_turn(offset)
        try:
            self._read(view, offset)
        finally:
            with self._turn:
                self._is_busy = False
                self.last_used_s = monotonic()
                self._turn.notify_all()
        return len(view)

    @property
    def is_open(self) -> bool:
        """Whether this reader holds a connection."""
        return self._body is not None

    def drop_if_idle(self) -> None:
        """Close the connection unless a thread waits for its bytes."""
        with self._turn:
            if not self._is_busy and not self._waiting:
                self._drop()

    def _take_turn(self, offset: int) -> None:
        """Wait until no thread waits with an earlier block; wait a moment longer if this block is not the next."""
        with self._turn:
            self._waiting.append(offset)
            self._turn.notify_all()
            try:
                while True:
                    self._turn.wait_for(lambda: self._is_next(offset))
                    if self._position == offset:
                        break
                    if not self._turn.wait_for(lambda: not self._is_next(offset), EARLY_WAIT_S):
                        break
                self._is_busy = True
            finally:
                self._waiting.remove(offset)

    def _is_next(self, offset: int) -> bool:
        return not self._is_busy and offset == min(self._waiting)

    def _read(self, view: memoryview, offset: int) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            latest = inf  # bytes before the block have no deadline, as long as they arrive
            try:
                self._go_to(offset)
                latest = monotonic() + self._client.limits.block_deadline_s
                self._fill(view, latest)
            except (ConnectError, TransferTimeoutError, TruncatedError) as error:
                self._drop()
                if attempt == ATTEMPTS or monotonic() > latest:
                    error.byte_range, error.object_size = (offset, offset + len(view)), self._info.size_bytes
                    error.attempts = attempt
                    raise
            except BaseException:
                self._drop()
                raise
            else:
                return

    def _go_to(self, offset: int) -> None:
        if self._body is None or offset < self._position:
            self._drop()
            _make_room(self)
            self._body = self._open()
        skipped = memoryview(bytearray(min(SKIPPED_BYTES, offset - self._position)))
        while self._position < offset:
            self._receive(skipped[: offset - self._position])

    def _fill(self, view: memoryview, latest: float) -> None:
        end = 0
        while end < len(view):
            end += self._receive(view[end:])
            if end < len(view) and monotonic() > latest:
                raise TransferTimeoutError(
                    f"The block's time is up (block_deadline_s), with {end} of its {len(view)} bytes read",
                    uri=self._info.uri,
                    hint="Raise block_deadline_s in Options, or lower block_bytes",
                )

    def _receive(self, buffer: memoryview) -> int:
        assert self._body is not None  # it is dropped only at the end of the object
        count = receive(self._body, buffer, self._info.uri, self._client.limits)
        self._position += count
        if self._position == self._expected.size_bytes:
            self._drop()
        return count

    def _open(self) -> Response:
        answer = self._client.open(self._start, self._info.uri, {})
        try:
            self._check(answer)
        except BaseException:
            answer.response.close()
            raise
        return answer.response

    def _check(self, answer: OpenResponse) -> None:
        uri, headers = self._info.uri, answer.headers
        if answer.response.status != 200 or not is_plain(headers):
            raise RangeResponseError(
                "The server does not answer with the file",
                uri=uri,
                status=answer.response.status,
                hint="Load again; a proxy or load balancer may have answered in its place",
            )
        length = headers.get("content-length")
        is_same = is_same_version(whole_version_in(headers), self._expected.whole_version)
        if not is_same or length not in (None, str(self._expected.size_bytes)):
            expected = self._expected
            found = whole_version_in(headers), described(headers)
            what = "The file was replaced while it was read"
            raise replaced(uri, what, (expected.whole_version, expected.answer), found)
        if length is None:
            raise StorageError("The server no longer sends the size of the file", uri=uri, hint="Load again")

    def _drop(self) -> None:
        """Forget the body. Its connection is closed, unless the object has ended: then it is kept for reuse."""
        self._position = 0
        if self._body is not None:
            self._body.close()
            self._body = None


_open: weakref.WeakSet[OneStream] = weakref.WeakSet()
_open_guard = threading.Lock()


def _make_room(stream: OneStream) -> None:
    """Close connections of the least recently used readers, so that at most `MAX_IDLE` wait for their next block."""
    with _open_guard:
        _open.add(stream)
        others = sorted((other for other in _open if other is not stream and other.is_open), key=_last_used_s)
    for other in others[: max(0, len(others) - MAX_IDLE + 1)]:
        other.drop_if_idle()


def _reset_in_child() -> None:
    _open.clear()  # these connections belong to the parent
    _open_guard.release()


# `fork` waits for the guard, so that no child inherits it locked.
os.register_at_fork(before=_open_guard.acquire, after_in_parent=_open_guard.release, after_in_child=_reset_in_child)


def _last_used_s(stream: OneStream) -> float:
    return stream.last_used_s
