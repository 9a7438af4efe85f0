"""Sockets whose connections end when they are closed.

A forked child has copies of its parent's sockets, and keeps their connections open as long as it lives; a server that
serves each until it ends would wait for the child.
"""

from __future__ import annotations

import inspect
import os
import socket
from contextlib import suppress
from typing import Any

import aiohttp

__all__ = ["options_of_connector"]


class _EndingSocket(socket.socket):
    """Tells the other side when its owner closes it; where a child closes a copy, its parent's connection goes on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._owner = os.getpid()

    def close(self) -> None:
        if os.getpid() == self._owner:
            with suppress(OSError):  # it was not connected, or is not any more
                self.shutdown(socket.SHUT_RDWR)
        super().close()


def options_of_connector() -> dict[str, Any]:
    """Give what makes a connector of aiohttp use such sockets; nothing before its version 3.12."""
    has_factory = "socket_factory" in inspect.signature(aiohttp.TCPConnector).parameters
    return {"socket_factory": lambda address: _EndingSocket(*address[:3])} if has_factory else {}
