"""Errors of aiohttp without the request they are about, which holds headers and a proxy's password."""

from __future__ import annotations

from types import SimpleNamespace

import aiohttp

__all__ = ["forget_request"]


def forget_request(error: BaseException) -> None:
    """Take the request, with all of its headers, out of an error of aiohttp: a frame of a traceback would show it."""
    if isinstance(error, aiohttp.ClientResponseError):
        error.request_info = SimpleNamespace(real_url="")  # type: ignore[assignment]
        error.history = error.args = ()
