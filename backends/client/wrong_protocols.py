"""What listens at a port and speaks another protocol than was expected there: named by what it said. Pure."""

from __future__ import annotations

import ast
import re
import ssl
from collections.abc import Iterator

import aiohttp

from streamer.backends.client.first_words import first_words
from streamer.core.errors import StorageError

__all__ = ["MAY_BE_PLAIN", "MAY_BE_TLS", "NoHttpError", "is_no_tls", "wants_tls"]

MAY_BE_PLAIN = "What listens there does not speak TLS: it may want http://"
MAY_BE_TLS = "It may speak TLS: try https://"

# By OpenSSL's names, which changed in 3.2.
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # an alert, a handshake
_LINE = re.compile(r"""^\s*(b'.*'|b".*")$""", re.MULTILINE)
_WANTS_TLS = (b"HTTP request was sent to HTTPS port", b"HTTP request to an HTTPS server")  # nginx; Go and so MinIO


class NoHttpError(aiohttp.ClientError):
    """What came in the place of an answer; aiohttp and the clients above it pass it on, as they would not an `OSError`.

    Args:
        error: As aiohttp's parser raises it, with the line that it could not read in its message.
    """

    def __init__(self, error: aiohttp.ClientResponseError) -> None:
        super().__init__()
        found = _LINE.search(error.message)
        try:
            line = ast.literal_eval(found[1]) if found else b""
        except (ValueError, SyntaxError):
            line = b""
        self._is_tls = line.startswith(_TLS_RECORDS)
        self._said = f": {first_words(line)}" if line and not self._is_tls else ""

    def told(self, uri: str | None) -> StorageError:
        """Say so."""
        hint = MAY_BE_TLS if self._is_tls else "Check host and port: another service may listen there"
        return StorageError(f"The server answers with something that is not HTTP{self._said}", uri=uri, hint=hint)


def wants_tls(body: bytes) -> bool:
    """Tell whether an error's text says that the request should have come over TLS."""
    return any(text in body for text in _WANTS_TLS)


def is_no_tls(error: BaseException) -> bool:
    """Tell whether a handshake failed because the other side speaks something else."""
    return any(isinstance(each, ssl.SSLError) and _reason(each) in _NO_TLS for each in _with_causes(error))


def _reason(error: ssl.SSLError) -> str:
    return str(getattr(error, "reason", ""))  # aiohttp derives from it without making one


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inside = getattr(error, "kwargs", {}).get("error")  # of botocore
        inside = inside if isinstance(inside, BaseException) else getattr(error, "os_error", None)
        error = inside or error.__cause__ or error.__context__
