"""Rows of the tables that map failures to errors: a class, a message and a hint for each. Imports no storage.

Each backend has its own tables, by exception class, by the storage's error code or by HTTP status. This module also has
the causes that all storages have in common: only one side speaks TLS, the host does not exist, or it refuses. A lookup
of a name that does not exist is not retried. A name server that fails or is silent (``EAI_AGAIN``) is another failure:
the host may exist.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from streamer.core.causes import with_causes
from streamer.core.engine.native_errors import ARCHIVED, HOW_TO_RESTORE, IS_ARCHIVED
from streamer.core.errors import (
    AccessDeniedError,
    ConnectError,
    CredentialsError,
    HttpStatusError,
    StorageError,
    StreamerError,
    TlsError,
)
from streamer.core.outages.transient import UNKNOWN_HOST, asks_for_another_attempt
from streamer.core.quoting import printable, quoted
from streamer.core.store.certificates import demands_certificate, flaw_of
from streamer.core.store.proxies import advice_about, named_by

MAY_BE_PLAIN = "The server at this port does not speak TLS: try http://"
MAY_BE_TLS = "It may speak TLS: try https://"

# OpenSSL's names for "the server does not speak TLS"; OpenSSL 3.2 changed them.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})
_WANTS_TLS = (b"HTTP request was sent to HTTPS port", b"HTTP request to an HTTPS server")  # nginx, Go (MinIO)

E = TypeVar("E", bound=StreamerError)
E_co = TypeVar("E_co", bound=StreamerError, covariant=True)

# A name without any address of the requested family counts as unknown, too. Some systems lack some of these constants.
_UNKNOWN = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY") if hasattr(socket, name)
)


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


@dataclass(frozen=True)
class ErrorRow(Generic[E_co]):
    """One row of a table."""

    cls: type[E_co]  # the error to raise
    message: str  # what happened; `filled` replaces ``{name}`` in it
    hint: str  # what to do about it

    def filled(self, **names: object) -> ErrorRow[E_co]:
        """Return the row with the names in its message replaced."""
        return replace(self, message=self.message.format(**names))

    def after(self, where: str) -> ErrorRow[E_co]:
        """Return the row with a text appended to its message."""
        return replace(self, message=self.message + where)

    def error(self, uri: str | None, **facts: Any) -> E_co:
        """Make the error; facts (status, code, attempts, …) are kept if its class has attributes for them."""
        kept = facts if issubclass(self.cls, StorageError) else {}
        return self.cls(self.message, uri=uri, hint=self.hint, **kept)


TOO_LARGE: Mapping[int, ErrorRow[StorageError]] = {
    413: ErrorRow(
        StorageError,
        "The server, or a proxy before it, takes no request of this size",
        "Raise its limit (nginx: client_max_body_size) to 16 MiB or more, the size of a part of an upload",
    ),
    414: ErrorRow(
        StorageError,
        "The server, or a proxy before it, takes no URL of this length",
        "Raise its limit (nginx: large_client_header_buffers), or shorten the name or the session token",
    ),
    431: ErrorRow(
        StorageError,
        "The server, or a proxy before it, takes no headers of this length",
        "Raise its limit (nginx: large_client_header_buffers), or use a shorter token",
    ),
}


def row_of_status(status: int, message: str, code: str | None = None) -> ErrorRow[StorageError]:
    """Make the row of an HTTP status that is in no table of a storage; `code` is the storage's own of the error."""
    if status in TOO_LARGE:
        return TOO_LARGE[status]
    is_busy = status >= 500 or asks_for_another_attempt(status, code)
    hint = "Try again when the server works, or raise block_deadline_s in Options"
    return ErrorRow(HttpStatusError, message, hint if is_busy else "Check the URL, the endpoint and the options")


# By the storage's error code.
ARCHIVED_ROWS: Mapping[str, ErrorRow[AccessDeniedError]] = dict.fromkeys(
    ARCHIVED, ErrorRow(AccessDeniedError, IS_ARCHIVED, HOW_TO_RESTORE)
)
_DEMANDS_CERTIFICATE: ErrorRow[Any] = ErrorRow(TlsError, "No TLS connection", "")

# The first row that matches is used, so subclasses stand before their bases.
ExceptionTable: TypeAlias = Mapping[tuple[type[BaseException], ...], ErrorRow[E]]


def row_for(error: BaseException | None, table: ExceptionTable[E]) -> ErrorRow[E] | None:
    """Return the first row whose exception classes match.

    The hint of a failed TLS handshake says if the server speaks no TLS. If another CA would not help, the error says
    what is wrong with the certificate.
    """
    row = next((row for classes, row in table.items() if isinstance(error, classes)), None)
    if error is not None and demands_certificate(error):  # under TLS 1.3 the demand comes after the handshake
        row = _DEMANDS_CERTIFICATE
    if row is None or error is None or row.cls is not TlsError:
        return row
    if is_plain_server(error):
        return replace(row, hint=MAY_BE_PLAIN)
    flaw = flaw_of(error)
    return row if flaw is None else replace(row.after(f": {flaw.what}"), hint=flaw.hint)


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
    """Return the host and port that aiohttp could not connect to, if its exception holds them."""
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    if not isinstance(host, str) or not isinstance(port, int):
        return ""
    return f" at {host}:{port}{_refused(error)}"


def _refused(error: BaseException | None) -> str:
    """Say that the connection was refused: the host or a firewall answers, but nothing listens on the port."""
    return ", which refuses it" if isinstance(getattr(error, "os_error", None), ConnectionRefusedError) else ""


@dataclass(frozen=True)
class _RowOfProxy(ErrorRow[StorageError]):
    def error(self, uri: str | None, **facts: Any) -> StorageError:
        """Make the error, marked as a failure of the proxy, which says nothing about the server."""
        error = super().error(uri, **facts)
        error.is_of_proxy = True
        return error


def refusal_of_proxy(status: int, place: str = "") -> ErrorRow[StorageError]:
    """Make the row for an answer of the proxy itself instead of the server; `place` is its host and port, if known."""
    named = f"{named_by(place)} names the proxy {printable(place)}. " if place else ""
    hint = named + advice_about(status)
    if status in (401, 407):
        return _RowOfProxy(CredentialsError, "The proxy wants credentials, or different ones", hint)
    return _RowOfProxy(HttpStatusError, "The proxy could not connect to the server", hint)
