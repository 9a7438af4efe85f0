"""Rows of the tables that map failures to errors: a class, a message and a hint for each. Pure, imports no storage.

Each backend has its own tables, by exception class, by the storage's error code or by HTTP status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from streamer.backends.client.tls_mismatch import MAY_BE_PLAIN, is_plain_server
from streamer.core.errors import HttpStatusError, StorageError, StreamerError, TlsError
from streamer.core.store.certificates import demands_certificate, flaw_of

__all__ = ["ErrorRow", "ExceptionTable", "row_for", "row_of_status"]

E = TypeVar("E", bound=StreamerError)
E_co = TypeVar("E_co", bound=StreamerError, covariant=True)


@dataclass(frozen=True)
class ErrorRow(Generic[E_co]):
    """One row of a table.

    Attributes:
        cls: The error to raise.
        message: What happened; `filled` replaces ``{name}`` in it.
        hint: What to do about it.
    """

    cls: type[E_co]
    message: str
    hint: str

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


def row_of_status(status: int, message: str) -> ErrorRow[StorageError]:
    """Make the row of an HTTP status that is in no table."""
    is_busy = status >= 500 or status in (408, 429)
    hint = "Try again when the server works, or raise block_deadline_s in Options"
    return ErrorRow(HttpStatusError, message, hint if is_busy else "Check the URL, the endpoint and the options")


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
