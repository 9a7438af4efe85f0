"""One load as a member of meetings: finds the others, reads its part, and says where blocks lie that others have read.

Guarantees: whoever waits for a block gets it, or hears that it is to be read past the meeting: from the leader, or
`MEETING_S` after there is no leader any more, or at once if the system has no thread or descriptor left for a meeting.
A leader that dies or is silent is left, and the members meet again.
When `close` returns, nothing is written to shared memory any more.
"""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections.abc import Callable, Sequence
from select import select
from typing import NamedTuple

from streamer.core.conditions import Condition
from streamer.core.errors import LoadCancelledError, OutOfMemoryError, StreamerError
from streamer.core.node.assignment import Ready
from streamer.core.node.grid import WantedBytes
from streamer.core.node.leader import Leader, Terms
from streamer.core.node.meeting import Fetchers, Meeting, StorageReads, entered
from streamer.core.node.messages import NAMES, Channel, ChannelClosedError, Message, Pulse, Rendezvous
from streamer.core.node.region import closed_in_children, opening

MEETING_S = 3.0  # longest wait for a meeting: finding one takes milliseconds, or a second if a leader is silent
MOST_MEETINGS = 64  # a load that lost so many leaders reads the rest by itself
RETRY_S = 0.01  # between two attempts at a name whose owner comes or goes
_SHORTAGES = frozenset({"EAGAIN", "EMFILE", "ENFILE", "ENOMEM"})
JOIN_S = 5.0  # a session of the engine ends within a second


class RangeSource(NamedTuple):
    """Where the first part of a range can be read."""

    end: int  # end of the part of the range that lies there: the byte after its last
    meeting: Meeting | None = None  # the meeting whose shared memory holds the part; None: read it from the storage
    ready: Ready | None = None  # the slot in that memory


class Member:
    """The member's threads, until `close`."""

    def __init__(
        self, place: Rendezvous, sizes: list[int], wanted: WantedBytes, terms: Terms, reads: Callable[[], StorageReads]
    ) -> None:
        self._place, self._sizes, self._wanted, self._terms, self._reads = place, sizes, wanted, terms, reads
        self._changed = Condition()
        self._meeting: Meeting | None = None
        self._failure: StreamerError | None = None
        self._is_over = self._is_alone = False
        self._first_name, self._pulse = 0, Pulse(time.monotonic())
        self._process = os.getpid()
        with opening:
            self._wake = closed_in_children(io.FileIO(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+"))
        self._thread = threading.Thread(target=self._run, name="streamer-member", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._wake.close()
            raise

    def find(self, source: int, begin: int, end: int) -> RangeSource:
        """Wait for the first block of a range, and return where it can be read."""
        with self._changed:
            met, asks_at = self._meeting, time.monotonic() + self._silence_limit_s
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._is_over:
                    raise LoadCancelledError("the load was closed while its blocks were read")
                meeting = self._meeting
                found = RangeSource(end) if self._is_alone else self._found(meeting, source, begin, end)
                if found is not None:
                    return found
                now = time.monotonic()
                if meeting is not met:
                    met, asks_at = meeting, now + self._silence_limit_s
                if now < asks_at:
                    self._changed.wait(asks_at - now)
                elif meeting is None:
                    return RangeSource(end)
                else:
                    self._post(meeting, ["need", meeting.grid.block(source, begin)])
                    asks_at = now + self._silence_limit_s

    def be_alone(self) -> None:
        """Leave the meeting for good: its threads and descriptors are needed to read past it."""
        with self._changed:
            self._is_alone = True
            self._changed.notify_all()
            self._nudge()

    def have(self, source: int, begin: int, end: int) -> None:
        """Note that the load has received a range of bytes."""
        with self._changed:
            self._wanted.have(source, begin, end)
            meeting = self._meeting
            if meeting is None:
                return
            taken = []
            for block, piece in meeting.grid.pieces([(source, begin, end)]):
                if block in meeting.left:
                    meeting.left[block] -= self._wanted.bytes_in(*piece)
                    if meeting.left[block] <= 0:
                        meeting.forget(block)
                        taken.append(block)
            if taken:
                self._post(meeting, ["take", taken])

    def lost(self, meeting: Meeting, block: int) -> None:
        """Note that a block was replaced before it could be copied; the load then reads it from the storage."""
        with self._changed:
            meeting.forget(block)
            if meeting is self._meeting:
                self._post(meeting, ["take", [block]])

    def close(self) -> None:
        """Leave the meeting. This may be called any number of times, from any thread."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            self._nudge()
        self._thread.join(JOIN_S)

    def awaited_process(self) -> int:
        """Return the number of the other process that reads a block for which this one waits; 0 if there is none."""
        with self._changed:
            readers = self._meeting.readers.values() if self._meeting else ()
            return next((each for each in readers if each not in (0, self._process)), 0)

    @property
    def _silence_limit_s(self) -> float:
        return self._pulse.silence_limit_s if self._meeting else MEETING_S

    # --- for those who wait ---------------------------------------------------------------------------------------

    def _found(self, meeting: Meeting | None, source: int, begin: int, end: int) -> RangeSource | None:
        if meeting is None:
            return None
        block = meeting.grid.block(source, begin)
        stop = min(end, meeting.grid.place(block)[2])
        if block not in meeting.left:
            while stop < end and block + 1 not in meeting.left:  # all that is to be read past the meeting, at once
                block += 1
                stop = min(end, meeting.grid.place(block)[2])
            return RangeSource(stop)
        ready = meeting.ready.get(block)
        if ready is None:
            return None
        _, _, first, last, _ = ready
        return RangeSource(stop, meeting, ready) if first <= begin and stop <= last else RangeSource(stop)

    def _post(self, meeting: Meeting, message: Message) -> None:
        meeting.post(message)
        self._nudge()

    def _nudge(self) -> None:
        if not self._wake.closed:
            os.eventfd_write(self._wake.fileno(), 1)

    def _send(self, meeting: Meeting, message: Message) -> None:
        with self._changed:
            self._post(meeting, message)

    def _fail(self, meeting: Meeting, error: BaseException) -> None:
        if is_shortage(error):
            self.be_alone()
            return
        with self._changed:
            if meeting is self._meeting and not self._is_over:
                self._failure = self._failure or _as_streamer_error(error)
                self._changed.notify_all()

    # --- the member's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for _ in range(MOST_MEETINGS):
                meeting = self._meet()
                if meeting is None or not self._attend(meeting):
                    break
        finally:  # a bug here must not make a load hang
            with self._changed:
                self._is_alone = True
                self._changed.notify_all()
                self._wake.close()

    def _meet(self) -> Meeting | None:
        """Join the meeting of the others, or lead a new one; None if neither is possible."""
        for number in range(self._first_name, NAMES):
            self._first_name = number
            until = time.monotonic() + self._pulse.silence_s
            while time.monotonic() < until and not self._is_over:
                try:
                    meeting = self._enter(number, until)
                except PermissionError:  # a process of another user or container has the name
                    break
                except (OSError, RuntimeError):  # the system gives no such socket, memory or thread
                    return None
                if meeting is not None:
                    return meeting
                time.sleep(RETRY_S)
        return None

    def _enter(self, number: int, until: float) -> Meeting | None:
        listener = self._place.listen(number)
        if listener is not None:
            Leader(listener, self._sizes, self._terms)
        connected = self._place.connect(number)
        return entered(connected, self._sizes, until) if connected else None

    def _attend(self, meeting: Meeting) -> bool:
        """Take part until the meeting or the load is over; return whether this load may meet again."""
        with self._changed:
            self._meeting = meeting
            meeting.join(self._wanted.missing(), self._wanted)
            self._changed.notify_all()
        fetchers = Fetchers(meeting, self._reads(), self._send, self._fail)
        try:
            if fetchers.are_running and not self._is_over:
                self._talk(meeting)
        except (ChannelClosedError, OSError, ValueError, TypeError, LookupError):
            pass  # the leader is gone, or sent an invalid message: the members meet again
        finally:
            with self._changed:
                self._meeting = None
            fetchers.close()
            meeting.channel.close()  # only after the reads ended, because the leader then lends the slots to others
            meeting.region.close()
        return fetchers.are_running and not self._is_alone and not self._is_over

    def _talk(self, meeting: Meeting) -> None:
        """Exchange messages until the load is over, or the leader is silent."""
        heard = time.monotonic()
        channel, pulse = meeting.channel, self._pulse
        while True:
            now = time.monotonic()
            if pulse.is_due(now):
                channel.send(["alive"])
            ends: list[Channel | io.FileIO] = [channel, self._wake]
            writing: list[Channel | io.FileIO] = [channel] if channel.has_unsent else []
            readable, _, _ = select(ends, writing, [], pulse.wait_s(now))
            if self._wake in readable:
                os.eventfd_read(self._wake.fileno())
            with self._changed:
                if self._is_over or self._is_alone:
                    return
                messages = meeting.unsent()
            for message in messages:
                channel.send(message)
            channel.flush()
            if channel in readable:
                heard = time.monotonic()
                self._note(meeting, channel.receive())
            elif time.monotonic() - heard > pulse.silence_s:
                self._first_name += 1  # the leader may be stopped; it keeps its name as long as it lives
                return

    def _note(self, meeting: Meeting, messages: Sequence[Message]) -> None:
        with self._changed:
            for message in messages:
                meeting.note(message)
            self._changed.notify_all()


def is_shortage(error: BaseException) -> bool:
    """Say whether the system has no thread, descriptor or memory left, so that leaving the meeting may help."""
    code = getattr(error, "code", None) or errno.errorcode.get(getattr(error, "errno", None) or 0)
    has_no_thread = isinstance(error, RuntimeError) and "thread" in str(error)
    return isinstance(error, (OutOfMemoryError, MemoryError)) or has_no_thread or code in _SHORTAGES


def _as_streamer_error(error: BaseException) -> StreamerError:
    if isinstance(error, StreamerError):
        return error
    failure = StreamerError(f"the blocks for this node could not be read: {type(error).__name__}")
    failure.__cause__ = error
    return failure
