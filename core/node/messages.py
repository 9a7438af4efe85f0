"""Messages between the processes of a meeting: where these meet, and when silence means that one was stopped.

They meet at abstract names of Unix sockets, which leave no file behind. Anybody may bind or connect to such a name, so
each side asks the kernel who the other is (``SO_PEERCRED``), and talks only to a process of its own user and its own
PID namespace: not to another container that shares the network.

Messages are JSON, each preceded by its length. Sending never waits: what the other side does not take yet is kept. A
message that is malformed or too long is a `ValueError`. Descriptors come only with the first message, to a side that
waits for them. A thread that gets no processor in time allows the others more time, too: a busy machine delays them as
well.
"""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from streamer.core.node.region import closed_in_children, opening

Message: TypeAlias = "list[Any]"  # the kind of the message, then its values

_LENGTH = struct.Struct("=I")
MOST_BYTES = 64 << 20  # enough to list what a process wants of a checkpoint of a million parts
_PIECE_BYTES = 256 << 10


class ChannelClosedError(Exception):
    """The other side has closed the channel, or its process has ended."""


class Channel:
    """One side of a connected socket. Not thread-safe."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` is to be called as soon as the socket can be written."""
        return bool(self._unsent)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, now or later. Only the first message may have descriptors."""
        data = json.dumps(message, separators=(",", ":")).encode()
        self._unsent += _LENGTH.pack(len(data)) + data
        if descriptors:
            try:
                sent = socket.send_fds(self._socket, [self._unsent], descriptors)
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            del self._unsent[:sent]
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        while self._unsent:
            try:
                sent = self._socket.send(memoryview(self._unsent)[:_PIECE_BYTES])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            del self._unsent[:sent]

    def receive(self) -> list[Message]:
        """Take the messages that have arrived."""
        with suppress(BlockingIOError, InterruptedError):
            try:
                data = self._socket.recv(_PIECE_BYTES)
            except ConnectionError as error:
                raise ChannelClosedError(str(error)) from None
            if not data:
                raise ChannelClosedError("the other side is gone")
            self._received += data
        return self._messages()

    def receive_memory(self) -> tuple[list[Message], io.FileIO | None]:
        """Take the messages that have arrived, and the file that came with them; forked children close it."""
        with opening:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _PIECE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            files = [closed_in_children(io.FileIO(each, "r+")) for each in descriptors]
        if not data:
            raise ChannelClosedError("the other side is gone")
        self._received += data
        return self._messages(), files[0] if files else None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _messages(self) -> list[Message]:
        messages: list[Message] = []
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > MOST_BYTES:
                raise ValueError("a message is too long")
            end = _LENGTH.size + length
            if len(self._received) < end:
                break
            message = json.loads(self._received[_LENGTH.size : end])
            del self._received[:end]
            if not isinstance(message, list) or not message:
                raise ValueError("a message is malformed")
            messages.append(message)
        return messages


PULSE_S = 0.2  # between two signs of life
SILENCE_S = 1.0  # a process that is silent for longer counts as stopped, unless this process is delayed itself
MOST_DELAY_S = 0.5  # longer delays count as this: a process that was stopped itself must not wait for minutes
DELAYS_ALLOWED = 10.0  # a process allows others, in addition, this many times its own delay
DECAY = 0.9  # factor of the delay, from one sign of life to the next


class Pulse:
    """The signs of life of one thread.

    Example:
        >>> pulse = Pulse(7.0)
        >>> pulse.is_due(7.0), pulse.is_due(7.1), pulse.silence_s
        (True, False, 1.0)
        >>> pulse.is_due(7.4), round(pulse.silence_s, 3)
        (True, 3.0)
    """

    def __init__(self, now: float) -> None:
        self._due, self._delay_s = now, 0.0

    def is_due(self, now: float) -> bool:
        """Whether to give a sign of life now; the next one is due a little later."""
        if now < self._due:
            return False
        self._delay_s = min(MOST_DELAY_S, max(now - self._due, DECAY * self._delay_s))
        self._due = now + PULSE_S
        return True

    def wait_s(self, now: float) -> float:
        """Return the time until the next sign of life."""
        return max(0.0, self._due - now)

    @property
    def silence_limit_s(self) -> float:
        """How long a reader waits for a block before it asks the leader for help."""
        return self.silence_s / 2

    @property
    def silence_s(self) -> float:
        """How long another process may be silent."""
        return SILENCE_S + DELAYS_ALLOWED * self._delay_s


NAMES = 4  # a name may be taken by a stranger, or by a process that has been stopped
_CREDENTIALS = struct.Struct("=3i")  # struct ucred: pid, uid, gid
_BACKLOG = 128


class Rendezvous(NamedTuple):
    """Where to meet."""

    key: str  # digest of what is loaded, from `streamer.core.node.share`

    def listen(self, number: int) -> socket.socket | None:
        """Bind a name, so that others find this process under it; None if another process has the name."""
        listener = _socket()
        try:
            listener.bind(self._address(number))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        return listener

    def connect(self, number: int) -> socket.socket | None:
        """Connect to the process that has a name; None if no process has it."""
        connected = _socket()
        try:
            connected.settimeout(0)
            connected.connect(self._address(number))
            is_own = process_of(connected) is not None
        except OSError:
            connected.close()
            return None
        if not is_own:
            connected.close()
            raise PermissionError("the name of the meeting is taken by another user")
        return connected

    def _address(self, number: int) -> bytes:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        return f"\0streamer-{os.geteuid()}-{namespace}-{self.key}-{number}".encode()


def _socket() -> socket.socket:
    with opening:
        return closed_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))


def process_of(connected: socket.socket) -> int | None:
    """Return the number of the other side's process, if that is of this user and in this PID namespace."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    if user != os.geteuid() or process <= 0:  # 0: in no PID namespace that is visible here
        return None
    try:
        is_visible = os.stat(f"/proc/{process}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # the process has ended, or is hidden from this user
        return None
    return process if is_visible else None
