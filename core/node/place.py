"""Where processes of one user on one node meet: abstract names of Unix sockets, which leave no file behind.

Anybody may bind or connect to such a name, so each side asks the kernel who the other is (``SO_PEERCRED``), and talks
only to a process of its own user and its own PID namespace: not to another container that shares the network.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import NamedTuple

from streamer.core.node.region import closed_in_children, opening

__all__ = ["NAMES", "Place", "is_of_this_user"]

NAMES = 4  # a name may be taken by a stranger, or by a process that has been stopped
_CREDENTIALS = struct.Struct("=3i")  # struct ucred: pid, uid, gid
_BACKLOG = 128


class Place(NamedTuple):
    """Where to meet.

    Attributes:
        key: Digest of what is loaded, from `streamer.core.node.should_share`.
    """

    key: str

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
            is_own = is_of_this_user(connected)
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


def is_of_this_user(connected: socket.socket) -> bool:
    """Whether the other side is a process of this user, in this PID namespace."""
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    if user != os.geteuid() or process <= 0:  # 0: in no PID namespace that is visible here
        return False
    try:
        return os.stat(f"/proc/{process}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # the process has ended, or is hidden from this user
        return False
