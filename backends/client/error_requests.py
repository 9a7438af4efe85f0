"""Removes the request from errors of aiohttp: it holds all headers, and a traceback with local variables shows it."""

from __future__ import annotations

from types import SimpleNamespace

import aiohttp

__all__ = ["remove_request"]


def remove_request(error: BaseException) -> None:
    """Remove the request from an error of aiohttp; any other error is left alone."""
    if isinstance(error, aiohttp.ClientResponseError):
        error.request_info = SimpleNamespace(real_url="")  # type: ignore[assignment]
        error.history = error.args = ()
