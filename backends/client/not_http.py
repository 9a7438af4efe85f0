"""A server that answers with something other than HTTP: the error that quotes how its answer begins."""

from __future__ import annotations

import ast
import re

import aiohttp

from streamer.backends.client.quoted_answers import quoted_start
from streamer.backends.client.tls_mismatch import MAY_BE_TLS
from streamer.core.errors import StorageError

__all__ = ["NotHttpError"]

_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake
_LINE = re.compile(r"""^\s*(b'.*'|b".*")$""", re.MULTILINE)


class NotHttpError(aiohttp.ClientError):
    """The answer is not HTTP; aiohttp and the clients above it let this class pass, as they would not an `OSError`.

    Args:
        error: As aiohttp's parser raises it, with the line that it could not read in its message.
    """

    def __init__(self, error: aiohttp.ClientResponseError) -> None:
        super().__init__()
        quote = _LINE.search(error.message)
        try:
            line = ast.literal_eval(quote[1]) if quote else b""
        except (ValueError, SyntaxError):
            line = b""
        self._has_long_header = "Got more than" in error.message  # aiohttp's LineTooLong
        self._is_tls = line.startswith(_TLS_RECORDS)
        self._quote = f": {quoted_start(line)}" if line and not self._is_tls else ""

    def storage_error(self, uri: str | None) -> StorageError:
        """Return the error for the user."""
        if self._has_long_header:
            hint = "Check the endpoint and the proxy before it: a storage's headers have a few KB"
            return StorageError("The server's answer has a header of more than 8 KB", uri=uri, hint=hint)
        hint = MAY_BE_TLS if self._is_tls else "Check host and port: another service may listen there"
        return StorageError(f"The server answers with something that is not HTTP{self._quote}", uri=uri, hint=hint)
