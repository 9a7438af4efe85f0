"""Why there is no connection to a host: it does not exist, or refuses; and what to say then.

Asking again for a name that does not exist is of no use. A name server that fails or is silent (``EAI_AGAIN``) is
another matter: the host may exist.
"""

from __future__ import annotations

import socket
from typing import Any

from streamer.core.errors import ConnectError
from streamer.core.outages.transient import UNKNOWN_HOST
from streamer.core.quoting import quoted

__all__ = ["is_unknown_host", "unknown_host", "where"]

# A name without any address of the wanted kind does not exist for us either. Not every system has all three.
_UNKNOWN = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)


def is_unknown_host(error: BaseException | None) -> bool:
    """Say whether an exception of aiohttp, or of the socket itself, means that a host's name stands for no address."""
    cause = getattr(error, "os_error", error)
    return isinstance(cause, socket.gaierror) and cause.errno in _UNKNOWN


def unknown_host(error: BaseException, uri: str | None, hint: str, **facts: Any) -> ConnectError:
    """Make the error for such an exception; `core/outages/transient.py` knows it by its code."""
    host = getattr(error, "host", None)
    what = f"host {quoted(host)}: its name" if isinstance(host, str) else "such host: its name"
    return ConnectError(f"There is no {what} stands for no address", uri=uri, hint=hint, code=UNKNOWN_HOST, **facts)


def where(error: BaseException) -> str:
    """Name the host and port that aiohttp could not connect to, where its exception has them."""
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    if not isinstance(host, str) or not isinstance(port, int):
        return ""
    return f" at {host}:{port}{_refused(error)}"


def _refused(error: BaseException | None) -> str:
    """Say that the host refuses the connection: it runs, or a firewall does, and nothing listens on the port."""
    return ", which refuses it" if isinstance(getattr(error, "os_error", None), ConnectionRefusedError) else ""
