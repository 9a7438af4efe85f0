"""Recognises that one side speaks TLS and the other does not, and holds the hints for the user. Pure."""

from __future__ import annotations

import ssl

from streamer.core.causes import with_causes

__all__ = ["MAY_BE_PLAIN", "MAY_BE_TLS", "is_plain_server", "is_plain_server_in", "wants_tls"]

MAY_BE_PLAIN = "What listens there does not speak TLS: it may want http://"
MAY_BE_TLS = "It may speak TLS: try https://"

# OpenSSL's names for "the server does not speak TLS"; OpenSSL 3.2 changed them.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})
_WANTS_TLS = (b"HTTP request was sent to HTTPS port", b"HTTP request to an HTTPS server")  # nginx; Go (MinIO)


def wants_tls(body: bytes) -> bool:
    """Say whether the body of an error response says that the request should have come over TLS."""
    return any(text in body for text in _WANTS_TLS)


def is_plain_server(error: BaseException) -> bool:
    """Say whether a TLS handshake failed because the server does not speak TLS."""
    return any(isinstance(each, ssl.SSLError) and _reason(each) in _NO_TLS for each in with_causes(error))


def is_plain_server_in(message: str) -> bool:
    """Say whether a message of libcurl reports this failure; libcurl quotes OpenSSL's message."""
    text = message.upper().replace(" ", "_")
    return any(reason in text for reason in _NO_TLS)


def _reason(error: ssl.SSLError) -> str:
    return str(getattr(error, "reason", ""))  # aiohttp's subclasses of `SSLError` have no reason
