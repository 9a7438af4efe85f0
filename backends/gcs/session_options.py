"""The option ``session_kwargs``: arguments of aiohttp's session, of which the engine can take over some.

Guarantees: an argument decides the reads as it decides the lookups, or Python reads with that session. Refuses
arguments that aiohttp does not have, unverified TLS, and headers that would break reading by ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from streamer.backends.client.own_headers import check_headers, own_headers
from streamer.backends.fsspec.options import names_of_arguments
from streamer.backends.option_names import check_option_names
from streamer.backends.private_names.aiohttp import verifies_tls
from streamer.core.errors import OptionError

__all__ = ["check_session", "only_of_aiohttp"]

# Sessions of older versions have no proxy: the engine takes it from here in any case.
_NAMES = names_of_arguments(aiohttp.ClientSession) | {"proxy", "proxy_auth"}
_OF_AIOHTTP = ("auth", "connector", "cookie_jar", "cookies", "middlewares")  # they may log in, or hold a TLS context


def check_session(session: Mapping[str, Any]) -> None:
    """Look at the arguments of a session.

    Raises:
        OptionError: one cannot be used.
    """
    if not verifies_tls(session.get("connector")):
        raise OptionError("A connector with ssl=False is refused: TLS certificates are always verified")
    for name in ("ssl", "ssl_context", "cert"):
        if name in session:
            raise OptionError(
                f"session_kwargs has no {name!r}: a session of aiohttp has its TLS context in its connector",
                hint="Give {'connector': aiohttp.TCPConnector(ssl=context)}, or for a private CA alone SSL_CERT_FILE",
            )
    check_option_names("session_kwargs", session, _NAMES)
    check_headers(own_headers(session))


def only_of_aiohttp(session: Mapping[str, Any]) -> str | None:
    """Return the name of an argument that the engine cannot take over, or None."""
    return next((name for name in _OF_AIOHTTP if session.get(name)), None)
