"""The option ``session_kwargs``: arguments of aiohttp's session; the engine can use some of them.

Guarantees: an argument has the same effect on reads and on lookups; if the engine cannot use it, Python does both with
that session. Refuses arguments that aiohttp does not have, unverified TLS, and headers that would break reading by
ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamer.backends.client.proxy import environment_proxy
from streamer.backends.client.request_headers import check_headers, own_headers
from streamer.backends.option_names import check_option_names
from streamer.core.errors import OptionError

__all__ = ["check_session", "only_of_aiohttp"]

_OF_ENGINE = frozenset({"headers", "proxy", "proxy_auth", "trust_env"})
_OF_AIOHTTP = ("auth", "connector", "cookie_jar", "cookies", "middlewares")  # they may log in, or hold a TLS context


def check_session(session: Mapping[str, Any]) -> None:
    """Check the arguments of a session.

    Raises:
        OptionError: an argument cannot be used.
    """
    if session.keys() - _OF_ENGINE:
        _check_names(session)
    check_headers(own_headers(session))


def only_of_aiohttp(session: Mapping[str, Any], url: str) -> str | None:
    """Return the name of an argument that the engine cannot use for a URL, or None."""
    if session.get("trust_env") is False and not session.get("proxy") and environment_proxy(url):
        return "trust_env"
    return next((name for name in _OF_AIOHTTP if session.get(name)), None)


def _check_names(session: Mapping[str, Any]) -> None:
    import aiohttp  # noqa: PLC0415  the import takes 0.2 s

    from streamer.backends.fsspec.options import names_of_arguments  # noqa: PLC0415  imports aiohttp, too
    from streamer.backends.private_names.aiohttp import verifies_tls  # noqa: PLC0415

    if not verifies_tls(session.get("connector")):
        raise OptionError("A connector with ssl=False is refused: TLS certificates are always verified")
    for name in ("ssl", "ssl_context", "cert"):
        if name in session:
            raise OptionError(
                f"session_kwargs has no {name!r}: a session of aiohttp has its TLS context in its connector",
                hint="Give {'connector': aiohttp.TCPConnector(ssl=context)}, or for a private CA alone SSL_CERT_FILE",
            )
    # Sessions of older versions have no argument `proxy`, but the engine reads it from these options.
    check_option_names("session_kwargs", session, names_of_arguments(aiohttp.ClientSession) | _OF_ENGINE)
