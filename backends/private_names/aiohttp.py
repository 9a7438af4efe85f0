"""aiohttp: sessions that another library has made, responses that a subclass reads, connectors of the user's.

Tried with aiohttp 3.9.5 to 3.14.5.
"""

from __future__ import annotations

from typing import Any

import aiohttp

__all__ = ["is_read", "set_body", "set_response_class", "verifies_tls"]


def set_response_class(session: aiohttp.ClientSession, cls: type[aiohttp.ClientResponse]) -> None:
    """Have a session answer with `cls`, unless whoever made it chose a class; only its constructor takes one."""
    if session._response_class is aiohttp.ClientResponse:
        session._response_class = cls


def is_read(response: aiohttp.ClientResponse) -> bool:
    """Tell whether a response holds its body."""
    return response._body is not None


def set_body(response: aiohttp.ClientResponse, body: bytes) -> None:
    """Give a response the body that a subclass has read, for ``text()`` and ``json()`` to return."""
    response._body = body


def verifies_tls(connector: Any) -> bool:
    """Tell whether a connector was made without ``ssl=False``."""
    return getattr(connector, "_ssl", True) is not False
