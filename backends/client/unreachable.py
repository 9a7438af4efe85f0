"""Recognises why a connection to a host failed (it does not exist, or refuses), and makes the error.

A lookup of a name that does not exist is not retried. A name server that fails or is silent (``EAI_AGAIN``) is another
failure: the host may exist.
"""

from __future__ import annotations

import socket
from typing import Any

from streamer.core.errors import ConnectError
from streamer.core.outages.transient import UNKNOWN_HOST
from streamer.core.quoting import quoted

__all__ = ["address_in", "is_unknown_host", "unknown_host"]

# A name without any address of the requested family counts as unknown, too. Some systems lack some of these constants.
_UNKNOWN = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)


def is_unknown_host(error: BaseException | None) -> bool:
    """Say whether an exception of aiohttp, or of the socket itself, means that a host's name stands for no address."""
    cause = getattr(error, "os_error", error)
    return isinstance(cause, socket.gaierror) and cause.errno in _UNKNOWN


def unknown_host(error: BaseException, uri: str | None, hint: str, **facts: Any) -> ConnectError:
    """Make the error for an unknown host; `core/outages/transient.py` recognises it by its code."""
    host = getattr(error, "host", None)
    what = f"host {quoted(host)}: its name" if isinstance(host, str) else "such host: its name"
    return ConnectError(f"There is no {what} stands for no address", uri=uri, hint=hint, code=UNKNOWN_HOST, **facts)


def address_in(error: BaseException) -> str:
    """Name the host and port that aiohttp could not connect to, if its exception holds them."""
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    if not isinstance(host, str) or not isinstance(port, int):
        return ""
    return f" at {host}:{port}{_refused(error)}"


def _refused(error: BaseException | None) -> str:
    """Say that the connection was refused: the host or a firewall answers, but nothing listens on the port."""
    return ", which refuses it" if isinstance(getattr(error, "os_error", None), ConnectionRefusedError) else ""
